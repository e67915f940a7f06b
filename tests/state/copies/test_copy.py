"""Local copies: committed effects only, one step at a time (I2), in a file that several processes share."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import OutOfDate
from riffle_spark.state.copies import copy as copy_module
from riffle_spark.state.copies.copy import Copy, DamagedCopy
from riffle_spark.state.formats.row_codec import RowCodec
from riffle_spark.state.log.manifest import EMPTY_HEAD, Head
from tests.kit.state.drawn_records import attempt
from tests.kit.state.plain_copies import at, contents, rows

SPAWN = multiprocessing.get_context("spawn")
NUMBERS = RowCodec(pa.schema([("v", pa.int64())]))


def test_a_new_copy_is_empty_and_at_the_empty_head(tmp_path: Path) -> None:
    """Nothing is in it, and it says so."""
    with Copy(tmp_path / "c", new=True) as copy:
        assert copy.head() == EMPTY_HEAD
        assert copy.scan() == (EMPTY_HEAD, [], {})
        assert len(copy) == 0


def test_folding_puts_and_deletes_and_moves_the_head(tmp_path: Path) -> None:
    """A delta's rows and the head arrive together, and are there when the file is opened again."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1", b=b"2"))
        copy.fold(at(1), at(2), rows(a=None, b=b"3", c=b"4", absent=None))
    with Copy(tmp_path / "c") as copy:
        assert copy.head() == at(2)
        assert contents(copy) == {b"b": b"3", b"c": b"4"}
        assert len(copy) == 2
        with copy.reading(at(2)) as reading:
            assert reading.many([b"c", b"a", b"b"]) == [(b"b", b"3"), (b"c", b"4")]


def test_a_fold_from_another_head_changes_nothing_i2(tmp_path: Path) -> None:
    """I2: the head is checked in the transaction that writes; from elsewhere nothing is written."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1"))
        for base in (EMPTY_HEAD, at(2), Head(1, attempt(99))):
            with pytest.raises(OutOfDate):
                copy.fold(base, at(3), rows(a=b"x"))
        assert (copy.head(), contents(copy)) == (at(1), {b"a": b"1"})


def test_a_fold_that_another_process_did_is_skipped(tmp_path: Path) -> None:
    """At the head already, or at a later one on the way: nothing to do, and nothing is done."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1"))
        copy.fold(at(1), at(2), rows(a=b"2"))
        copy.fold(at(1), at(2), rows(a=b"x"))
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"x"), later=[at(2)])
        assert (copy.head(), contents(copy)) == (at(2), {b"a": b"2"})


@pytest.mark.parametrize("begun", [0, 1, 2, 3])
def test_several_deltas_are_one_step(tmp_path: Path, begun: int) -> None:
    """Wherever on the way the copy is, the rest is applied in order; at the end nothing is."""
    way, deltas = [EMPTY_HEAD, at(1), at(2), at(3)], [rows(a=b"1", b=b"1"), rows(a=None, c=b"2"), rows(b=b"3")]
    with Copy(tmp_path / "c", new=True) as copy:
        for number in range(begun):
            copy.fold(way[number], way[number + 1], deltas[number])
        copy.fold_all(way, deltas)
        assert (copy.head(), contents(copy)) == (at(3), {b"b": b"3", b"c": b"2"})


def test_several_deltas_from_another_head_change_nothing(tmp_path: Path) -> None:
    """A copy that is not on the way is left as it is."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1"))
        with pytest.raises(OutOfDate):
            copy.fold_all([at(2), at(3), at(4)], [rows(a=b"x"), rows(a=b"y")])
        assert (copy.head(), contents(copy)) == (at(1), {b"a": b"1"})


def test_reading_at_another_head_is_refused(tmp_path: Path) -> None:
    """Values are read only as of the head that the caller names."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1"))
        with pytest.raises(OutOfDate), copy.reading(at(2)):
            pass


def test_a_snapshot_is_loaded_once_into_an_empty_copy(tmp_path: Path) -> None:
    """Loading sets the head; a second load finds the copy taken."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.load(at(5), rows(a=b"1", b=b"2"))
        assert (copy.head(), contents(copy)) == (at(5), {b"a": b"1", b"b": b"2"})
        with pytest.raises(OutOfDate):
            copy.load(at(6), rows(c=b"1"))


def test_a_snapshot_out_of_order_is_not_loaded(tmp_path: Path) -> None:
    """Rows that are not sorted would get lost one by one; the load fails as a whole instead."""
    with Copy(tmp_path / "c", new=True) as copy:
        with pytest.raises(AssertionError):
            copy.load(at(5), rows(b=b"1", a=b"2"))
        assert copy.head() == EMPTY_HEAD
        assert contents(copy) == {}


def test_the_map_grows_by_itself(tmp_path: Path) -> None:
    """Far more than the first map takes is written in one transaction, and in many."""
    big = {f"{number:06d}": os.urandom(1000) for number in range(5000)}
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(**big))
        for version in range(2, 6):
            copy.fold(at(version - 1), at(version), rows(**{f"{version}-{k}": v for k, v in list(big.items())[:1000]}))
        assert len(copy) == 9000


def test_a_value_of_10_mb_is_kept(tmp_path: Path) -> None:
    """Values have no bound of their own."""
    value = os.urandom(10 << 20)
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=value))
    with Copy(tmp_path / "c") as copy, copy.reading(at(1)) as reading:
        assert reading.one(b"a") == value


def test_a_copy_of_another_boot_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced, so what a machine wrote before it went down may be anything."""
    with Copy(tmp_path / "c", new=True) as copy:
        copy.fold(EMPTY_HEAD, at(1), rows(a=b"1"))
        monkeypatch.setattr(copy_module, "boot_id", lambda: "another")
        assert copy.head() is None


def test_a_copy_that_is_gone_is_damaged_not_made_anew(tmp_path: Path) -> None:
    """Opening what another process removed makes no empty copy in its place."""
    with pytest.raises(DamagedCopy):
        Copy(tmp_path / "c")
    assert not (tmp_path / "c").exists()


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.none() | st.binary(max_size=20)), max_size=12))
@settings(deadline=None, max_examples=25)
def test_any_deltas_add_up_to_what_a_dictionary_holds(deltas: list[dict[str, bytes | None]]) -> None:
    """Puts and deletes in any order and number equal those on a plain dictionary."""
    model: dict[bytes, bytes] = {}
    with tempfile.TemporaryDirectory() as folder, Copy(Path(folder) / "c", new=True) as copy:
        head = EMPTY_HEAD
        for version, delta in enumerate(deltas):
            copy.fold(head, at(version), rows(**delta))
            head = at(version)
            model |= {k.encode(): v for k, v in delta.items() if v is not None}
            model = {k: v for k, v in model.items() if delta.get(k.decode(), v) is not None}
        assert contents(copy) == dict(sorted(model.items()))
        assert copy.head() == head


def fold_many(folder: Path, versions: Sequence[int]) -> None:
    """Fold versions as they come, each from the one before, with later ones known."""
    with Copy(folder) as copy:
        for version in versions:
            way = [at(v) for v in range(version + 1, max(versions) + 1)]
            copy.fold(
                at(version - 1) if version else EMPTY_HEAD,
                at(version),
                rows(**{f"k{version % 50}": os.urandom(2000), "n": NUMBERS.encode(_one(version))[0].as_py()}),
                later=way,
            )


def _one(number: int) -> pa.Table:
    return pa.table({"v": [number]}, schema=NUMBERS.schema)


def test_processes_share_a_copy_while_it_grows(tmp_path: Path) -> None:
    """Two processes fold the same versions into one file beside a reader; the map grows under all of them."""
    Copy(tmp_path / "c", new=True).close()
    processes = [SPAWN.Process(target=fold_many, args=(tmp_path / "c", range(400))) for _ in range(2)]
    for process in processes:
        process.start()
    with Copy(tmp_path / "c") as reader:
        seen = [EMPTY_HEAD]
        while any(process.is_alive() for process in processes):
            head, pairs, _ = reader.scan()
            assert head.version >= seen[-1].version
            assert head == EMPTY_HEAD or NUMBERS.decode([dict(pairs)[b"n"]])["v"][0].as_py() == head.version
            seen.append(head)
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
        assert reader.head() == at(399)
        assert len(reader) == 51
