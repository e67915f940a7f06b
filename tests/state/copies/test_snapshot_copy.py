"""A copy that was begun from a snapshot's file answers as one that was filled, whenever it is settled."""

from __future__ import annotations

import multiprocessing
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies import snapshot_copy as based_copy
from riffle_spark.state.copies import snapshot_file
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.copies.snapshot_copy import BasedCopy, begun, open_copy
from riffle_spark.state.copies.snapshot_file import FILE, Base
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log.manifest import Head
from riffle_spark.state.restore import bring
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.kit.state.drawn_records import attempt
from tests.kit.state.members import SCHEMA as TOTALS
from tests.kit.state.members import Place, delta_table

SPAWN = multiprocessing.get_context("spawn")
SCHEMA = PlainColumns("s", pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64()), ("t", pa.string())]))
LONG = "x" * 600
"""A key too long for the file: whole keys are kept beside cut ones."""


def at(version: int) -> Head:
    """Return the head of a version."""
    return Head(version, attempt(version))


def table(pairs: dict[str, int | None], *, delta: bool = False) -> pa.Table:
    """Return a snapshot's rows, sorted by key, or a delta's, where ``None`` deletes."""
    keys, values = sorted(pairs), [pairs[key] for key in sorted(pairs)]
    texts = [None if value is None else f"t{value}" for value in values]
    marks = [[value is None for value in values]] if delta else []
    return pa.table([keys, values, texts, *marks], schema=SCHEMA.part_schema(delta=delta))


def based(folder: Path, pairs: dict[str, int]) -> Copy:
    """Return a copy at version 1 that was begun from a snapshot of these pairs."""
    fresh = Copy(folder, new=True, layout=SCHEMA.copy_layout)
    data = part_codec.encode(table(dict(pairs)))
    with snapshot_file.written_at(folder / FILE, 0) as write:
        write(data)
    snapshot_file.make_readable(folder / FILE, part_codec.checksum(data), "snapshot")
    return begun(fresh, at(1), SCHEMA)


def looked_up(copy: Copy, keys: list[str], head: Head) -> dict[str, int]:
    """Return what a copy says of keys, asked for in one call."""
    local = SCHEMA.encode(table(dict.fromkeys(keys, 0))).keys
    named = dict(zip(local, sorted(keys), strict=True))
    found = copy.get(local, head)
    assert [key for key, _ in found] == [key for key in local if key in dict(found)], "in the order asked for"
    values = SCHEMA.codec.decode([value for _, value in found]).to_pylist()
    assert all(row["t"] == f"t{row['v']}" for row in values)
    return {named[key]: row["v"] for (key, _), row in zip(found, values, strict=True)}


def scanned(copy: Copy) -> dict[str, int]:
    """Return all that a copy holds."""
    _, pairs, longs = copy.scan()
    rows = SCHEMA.table(pairs, longs).to_pylist()
    whole = [row["k"] for row in rows if not row["k"].startswith(LONG)]
    assert whole == sorted(whole), "cut keys are in the order of their digests"
    return {row["k"]: row["v"] for row in rows}


KEYS = [f"k{number}" for number in range(40)] + [LONG + str(number) for number in range(3)]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 99)), max_size=12)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), st.integers(0, 99), min_size=1), st.lists(CHANGES, max_size=6),
       st.integers(0, 2**32))  # fmt: skip
def test_changes_and_settling_in_any_order_add_up(
    start: dict[str, int], deltas: list[dict[str, int | None]], seed: int
) -> None:
    """Whatever was changed, moved or reopened in between: each key has its last value, and the file goes in the end."""
    chance, model = random.Random(seed), dict(start)
    with tempfile.TemporaryDirectory() as folder:
        copy = based(Path(folder) / "c", start)
        for version, changes in enumerate(deltas, start=2):
            copy.fold(at(version - 1), at(version), SCHEMA.encode(table(changes, delta=True)))
            model = {key: value for key, value in {**model, **changes}.items() if value is not None}
            assert looked_up(copy, KEYS, at(version)) == model
            if chance.random() < 0.5 and isinstance(copy, BasedCopy):
                copy.settle(chance.randint(1, 30))
            if chance.random() < 0.5:
                copy.close()
                copy = open_copy(Path(folder) / "c", SCHEMA)
        assert looked_up(copy, KEYS, at(len(deltas) + 1)) == model
        assert scanned(copy) == model
        assert not (Path(folder) / "c" / FILE).exists()
        copy.close()
        with open_copy(Path(folder) / "c", SCHEMA) as plain:
            assert type(plain) is Copy
            assert scanned(plain) == looked_up(plain, KEYS, at(len(deltas) + 1)) == model
            assert len(plain) == len(model)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-8])])
def test_a_file_that_is_gone_or_cut_makes_the_copy_a_damaged_one(spoil: object, tmp_path: Path) -> None:
    """Nothing is read past its end, and no key is taken for one without state."""
    based(tmp_path / "c", {"a": 1, "b": 2}).close()
    spoil(tmp_path / "c" / FILE)  # type: ignore[operator]
    with pytest.raises(DamagedCopy):
        open_copy(tmp_path / "c", SCHEMA)


def test_a_file_left_behind_by_a_settled_copy_goes(tmp_path: Path) -> None:
    """A process died between the last move and the removal: the copy is whole without the file."""
    copy = based(tmp_path / "c", {"a": 1})
    kept = (tmp_path / "c" / FILE).read_bytes()
    assert scanned(copy) == {"a": 1}
    copy.close()
    (tmp_path / "c" / FILE).write_bytes(kept)
    with open_copy(tmp_path / "c", SCHEMA) as again:
        assert looked_up(again, ["a", "b"], at(1)) == {"a": 1}
    assert not (tmp_path / "c" / FILE).exists()


def test_bytes_that_were_altered_are_refused(tmp_path: Path) -> None:
    """The checksum of the whole file is compared before a row is believed; the object is named."""
    data = bytearray(part_codec.encode(table({"a": 1})))
    right = part_codec.checksum(bytes(data))
    data[len(data) // 2] ^= 1
    with snapshot_file.written_at(tmp_path / FILE, 0) as write:
        write(bytes(data))
    with pytest.raises(CorruptStateError, match="checksum"):
        snapshot_file.make_readable(tmp_path / FILE, right, "s/snapshot")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A cold member of three key-groups whose snapshots are large ones, one of them compressed."""
    monkeypatch.setattr(bring, "_BASE_BYTES", 1)  # private: small state
    made = Place(tmp_path / "member")
    spread = {f"{n * n:x}": n * 2_654_435_761 % 2**62 for n in range(3_000)}
    made.seal(0, {1: dict(spread), 2: {"a": 1}, 3: dict.fromkeys((f"{n:06}" for n in range(9_000)), 7)})
    for key_group in (1, 2, 3):
        made.snapshot(key_group)
    made.seal(1, {1: {"0": None, "later": 5}, 3: {"000007": None}})
    yield made
    assert made.strays() == []


def test_a_cold_member_keeps_the_files_and_settles_with_later_batches(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch loads nothing; each later one moves some rows; whatever is left goes with a scan."""
    copies, brought = place.keeper().bring(place.entries)
    assert brought.restores == 3
    files = [copy.folder / FILE for copy in copies.values()]
    assert all(file.exists() for file in files)
    for copy in copies.values():
        copy.close()
    monkeypatch.setattr(bring, "_SETTLED_BYTES", 20_000)  # private: small state
    for _ in range(60):
        for copy in place.keeper().bring(place.entries)[0].values():
            copy.close()
    assert not any(file.exists() for file in files)
    assert place.bring().restores == 0


def test_a_restored_file_holds_what_was_committed(place: Place) -> None:
    """Compared with what was sealed, key by key."""
    assert place.bring().restores == 3
    assert place.bring().restores == 0


def settles_for_others(line: Connection) -> None:
    """Take folders of copies and end their settling, as a snapshot does; a process of its own."""
    while True:
        folder = line.recv()
        if folder is None:
            return
        schema = TOTALS if "member" in folder.parts else SCHEMA
        with open_copy(folder, schema) as copy:
            copy.scan()
        line.send((folder / FILE).exists())


@pytest.fixture(scope="module")
def another_process() -> Iterator[Callable[[Path], None]]:
    """Give what makes another process move the whole file into a copy."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=settles_for_others, args=(theirs,))
    process.start()

    def settle(folder: Path) -> None:
        ours.send(folder)
        assert ours.poll(60), "the other process does not answer"
        assert ours.recv() is False, "the file is gone"

    yield settle
    ours.send(None)
    process.join(60)
    assert process.exitcode == 0


ALL = ["changed", "deleted", LONG + "deleted", "kept", "never"]


@pytest.fixture
def changed(tmp_path: Path) -> Iterator[Copy]:
    """A copy at version 2 whose file has rows that were deleted and changed since."""
    copy = based(tmp_path / "c", {"changed": 1, "deleted": 2, LONG + "deleted": 3, "kept": 4})
    changes: dict[str, int | None] = {"changed": 10, "deleted": None, LONG + "deleted": None, "never": None}
    copy.fold(at(1), at(2), SCHEMA.encode(table(changes, delta=True)))
    with copy:
        yield copy


def test_a_deleted_key_stays_deleted_when_another_process_ends_the_settling(
    changed: Copy, another_process: Callable[[Path], None]
) -> None:
    """The marks of deleted keys are gone by then: the settled copy's rows are all there are, between two reads too."""
    assert looked_up(changed, ALL, at(2)) == {"changed": 10, "kept": 4}
    another_process(changed.folder)
    assert looked_up(changed, ALL, at(2)) == {"changed": 10, "kept": 4}
    assert scanned(changed) == {"changed": 10, "kept": 4}


def test_a_key_that_is_deleted_after_another_process_ended_the_settling_stays_deleted(
    changed: Copy, another_process: Callable[[Path], None]
) -> None:
    """A handle that still maps the file folds on: no mark is needed, and none is left behind."""
    another_process(changed.folder)
    changed.fold(at(2), at(3), SCHEMA.encode(table({"kept": None, "changed": 11}, delta=True)))
    assert looked_up(changed, ALL, at(3)) == {"changed": 11}
    assert changed.settle(100) == 0  # type: ignore[attr-defined]
    assert scanned(changed) == {"changed": 11}
    assert len(changed) == 1


def test_a_settling_that_ends_while_a_read_is_under_way_changes_nothing_in_it(
    changed: Copy, another_process: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process ends it after this one's transaction has begun, before it looks into the file."""
    find = Base.find

    def late(self: Base, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        another_process(changed.folder)
        return find(self, keys)

    monkeypatch.setattr(Base, "find", late)
    assert looked_up(changed, ALL, at(2)) == {"changed": 10, "kept": 4}
    assert looked_up(changed, ALL, at(2)) == {"changed": 10, "kept": 4}


def test_a_settling_that_ends_while_a_copy_is_opened_leaves_a_whole_copy(
    changed: Copy, another_process: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes between the look whether it is needed and its opening: the copy is settled, not damaged."""
    changed.close()

    def late(path: Path, size_bytes: int, schema: PlainColumns) -> Base:
        another_process(path.parent)
        return Base(path, size_bytes, schema)

    monkeypatch.setattr(based_copy, "Base", late)
    with open_copy(changed.folder, SCHEMA) as copy:
        assert looked_up(copy, ALL, at(2)) == {"changed": 10, "kept": 4}


def test_what_must_see_all_rows_moves_the_file_in_first(changed: Copy) -> None:
    """Counting and reading bit by bit answer as of a copy that was filled."""
    with changed.reading(at(2)) as reading:
        keys = [key for key, _ in reading.under(b"")]
    assert len(changed) == len(keys) == 2


def test_a_batch_reads_no_deleted_key_beside_an_upkeep_snapshot(
    place: Place, another_process: Callable[[Path], None]
) -> None:
    """A slot has its copies open when another process takes a snapshot of one of them, and then reads."""
    copies, _ = place.keeper().bring(place.entries)
    key, kept = (TOTALS.encode(delta_table({name: 0})).keys for name in ("0", "later"))
    another_process(copies[1].folder)
    assert copies[1].get(key, place.entries[1].head) == []
    assert len(copies[1].get(kept, place.entries[1].head)) == 1
    for copy in copies.values():
        copy.close()
