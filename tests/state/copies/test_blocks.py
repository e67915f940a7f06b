"""A block stores the rows of several key-groups in one file, and reads, searches and merges each like a part."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.columns import positions_of
from riffle_spark.errors import CorruptStateError
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.part_runs import OpenBlock, merge_into_block
from riffle_spark.state.copies.run import RequestedKeys, Run, RunBlock, RunsOfKeyGroup, look_up_keys, merge_runs
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, encode_block_file, read_index
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.state.copies.test_run import PAIRS, TWINS, UNTIL, Key, hashes_of

GROUPS = (3, 7, 8, 100)
Changes = dict[int, dict[Key, "int | None"]]
"""Map each key-group to new values or times per key; ``None`` deletes the key."""


def rows_of(schema: PlainColumns, changes: dict[Key, int | None]) -> pa.Table:
    """Return changes as the rows of a part."""
    values = list(changes.values())
    state: list[object] = list(values) if schema.due else [None if v is None else str(v) for v in values]
    columns = [[a for a, _ in changes], [b for _, b in changes], state, [v is None for v in values]]
    sealed = pa.schema([*schema.part_schema(delta=True)])
    return schema.sealed(pa.table([pa.array(c, f.type) for c, f in zip(columns, sealed, strict=True)], schema=sealed))


def block_of(schema: PlainColumns, changes: Changes) -> OpenBlock:
    """Return changes as a block that was encoded and opened."""
    tables = [rows_of(schema, changes[key_group]) for key_group in sorted(changes)]
    starts = positions_of(np.array([table.num_rows for table in tables]))
    _, block = part_codec.encode_slices(pa.concat_tables(tables).combine_chunks(), starts, schema.due)
    rows, index = read_index(pa.py_buffer(encode_block_file(block, np.array(sorted(changes), np.int32), starts)))
    return OpenBlock(part_codec.open_block(rows, "block"), index, schema, 1)


def part_runs_of(schema: PlainColumns, changes: dict[Key, int | None], first_ms: int) -> tuple[Run, ...]:
    """Return changes as the runs that a block with a single key-group has."""
    return with_first(block_of(schema, {0: changes}).read_runs(0), first_ms, alone=True)


def with_first(runs: tuple[Run, ...], first_ms: int, *, alone: bool = False) -> tuple[Run, ...]:
    """Return the runs with the time before which rows are expired; ``alone`` drops the reference to their block."""
    return tuple(
        Run(
            run.hashes, run.rows, run.deleted, run.due, first_ms=first_ms, block=None if alone else run.block,
            number=0 if alone else run.number,
        )
        for run in runs
    )  # fmt: skip


HISTORIES = st.lists(
    st.dictionaries(
        st.sampled_from(GROUPS), st.dictionaries(st.sampled_from(TWINS), st.none() | st.integers(0, 9)), min_size=1
    ),
    max_size=5,
)


@pytest.mark.parametrize("schema", [PAIRS, UNTIL], ids=["values", "times"])
@given(history=HISTORIES, alone=st.sets(st.integers(0, 4)), first=st.tuples(*[st.integers(0, 9)] * len(GROUPS)))
def test_blocks_and_parts_return_the_same_rows(
    schema: PlainColumns, history: list[Changes], alone: set[int], first: tuple[int, ...]
) -> None:
    """Lookups and merges return the same rows whether changes are stored as blocks or as parts, at any depth of a
    stack.
    """
    first_ms = dict(zip(GROUPS, first, strict=True))
    in_blocks: dict[int, list[Run]] = {key_group: [] for key_group in GROUPS}
    in_parts: dict[int, list[Run]] = {key_group: [] for key_group in GROUPS}
    for number, changes in reversed(list(enumerate(history))):
        block = block_of(schema, changes)
        for key_group, rows in changes.items():
            parts = part_runs_of(schema, rows, first_ms[key_group])
            in_parts[key_group] += parts
            in_blocks[key_group] += (
                parts if number in alone else with_first(block.read_runs(key_group), first_ms[key_group])
            )
    requested = sorted(TWINS, key=lambda key: int(hashes_of([key])[0]))
    keys = pa.table(
        [[a for a, _ in requested * len(GROUPS)], [b for _, b in requested * len(GROUPS)]], schema=schema.key
    )
    hashes = np.tile(hashes_of(requested), len(GROUPS))
    for_all = {
        name: [
            RequestedKeys(len(requested) * place, len(requested) * (place + 1), stacks[key_group])
            for place, key_group in enumerate(GROUPS)
        ]
        for name, stacks in (("blocks", in_blocks), ("parts", in_parts))
    }
    rows, exist = look_up_keys(for_all["blocks"], hashes, keys, schema.row_schema)
    expected = [look_up_keys([group], hashes, keys, schema.row_schema) for group in for_all["parts"]]
    for place, (of_parts, exist_in_parts) in enumerate(expected):
        span = slice(len(requested) * place, len(requested) * (place + 1))
        assert exist[span].tolist() == exist_in_parts[span].tolist()
        existing = np.flatnonzero(exist_in_parts[span]) + span.start
        assert rows.take(pa.array(existing)).to_pylist() == of_parts.take(pa.array(existing)).to_pylist()
    for bottom in (True, False):
        groups = [RunsOfKeyGroup(key_group, in_blocks[key_group]) for key_group in GROUPS]
        data, key_groups, starts = merge_into_block(groups, schema, bottom=bottom)
        _, index = read_index(pa.py_buffer(encode_block_file(data, key_groups, starts)))
        merged = OpenBlock(part_codec.open_block(data, "merged"), index, schema, 1)
        for key_group in GROUPS:
            merged_parts = merge_runs(in_parts[key_group], ["a", "b"], schema.row_schema, bottom=bottom)
            runs = merged.read_runs(key_group)
            assert sum(len(run.hashes) for run in runs) == merged_parts.num_rows
            if runs:
                assert pa.Table.from_batches([runs[0].rows]).equals(merged_parts.select(schema.row_schema.names))
                assert runs[0].hashes.tolist() == merged_parts["__hash"].to_pylist()
                if not bottom:
                    deleted = np.zeros(len(runs[0].hashes), bool) if runs[0].deleted is None else runs[0].deleted
                    assert deleted.tolist() == merged_parts["__deleted"].to_pylist()
                if runs[0].due is not None:
                    times = runs[0].due.values[runs[0].due.order]
                    assert times.tolist() == sorted(times.tolist())


@pytest.mark.parametrize("schema", [PAIRS, UNTIL], ids=["values", "times"])
@given(changes=st.lists(st.dictionaries(st.sampled_from(TWINS), st.none() | st.integers(0, 9)), min_size=1, max_size=5))
def test_parts_encoded_together_equal_parts_encoded_alone(
    schema: PlainColumns, changes: list[dict[Key, int | None]]
) -> None:
    """Parts that are encoded together equal parts encoded alone, also if they are empty or have no due rows."""
    tables = [rows_of(schema, rows) for rows in changes]
    counts = [table.num_rows for table in tables]
    starts = positions_of(np.array(counts))
    whole = pa.concat_tables(tables).combine_chunks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_codec, "_HEADERS_MAX", float("inf"))  # private: stores these small rows as parts
        parts, _ = part_codec.encode_slices(whole, starts, schema.due)
    slices = [whole.slice(start, count) for start, count in zip(starts.tolist(), counts, strict=False)]
    for part, rows in zip(parts, slices, strict=len(whole) > 0):
        table = part_codec.open_part(part, "together")
        alone = part_codec.open_part(part_codec.encode(rows, schema.due, packed=True), "alone")
        assert table.equals(alone, check_metadata=True)


def test_a_large_delta_is_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta above the block size limit is stored as parts, because a reader of one key-group fetches whole blocks."""
    tables = [rows_of(PAIRS, {(number, kg): 5 for number in range(3)}) for kg in range(8)]
    starts = positions_of(np.array([table.num_rows for table in tables]))
    whole = pa.concat_tables(tables).combine_chunks()
    _, block = part_codec.encode_slices(whole, starts)
    for most, is_block in ((len(block), True), (len(block) - 1, False)):
        monkeypatch.setattr(part_codec, "_STORED_BLOCK_BYTES_MAX", most)  # private: a block of 64 MiB would be slow
        assert (not part_codec.encode_slices(whole, starts)[0]) == is_block


@pytest.mark.parametrize(("rows", "is_block"), [(0, True), (3, True), (2000, False)])
def test_small_parts_are_stored_as_a_block(rows: int, *, is_block: bool) -> None:
    """Small parts are stored as a block, because their headers would take more than an eighth of the rows' bytes."""
    tables = [rows_of(PAIRS, {(number, kg): 5 for number in range(rows)}) for kg in range(8)]
    starts = positions_of(np.array([table.num_rows for table in tables]))
    parts, block = part_codec.encode_slices(pa.concat_tables(tables).combine_chunks(), starts)
    assert len(parts) == (0 if is_block else 8)
    assert part_codec.open_block(block, "").num_rows == 8 * rows


def test_a_block_distinguishes_hashes_that_differ_in_the_low_bits() -> None:
    """A block distinguishes hashes that differ only in the low bits, which the search replaces by the key-group's
    number.
    """
    names = ["v"]
    hashes = np.array([8, 9, 11, 8, 10, 9], np.uint64) + np.uint64(1 << 62)
    whole = Run(hashes, pa.RecordBatch.from_arrays([pa.array(range(6))], names=names))
    block = RunBlock(whole, np.array([0, 3, 5, 6]))
    for number, (start, end) in enumerate([(0, 3), (3, 5), (5, 6)]):
        requested = np.arange(6, 14, dtype=np.uint64) + np.uint64(1 << 62)
        rows, exist = block.find_hashes(np.full(len(requested), number), requested)
        present = dict(zip(hashes[start:end].tolist(), range(start, end), strict=True))
        assert [int(row) if ok else None for row, ok in zip(rows, exist, strict=True)] == [
            present.get(int(hash_)) for hash_ in requested
        ]


@pytest.fixture
def written(tmp_path: Path) -> tuple[PartFiles, dict[int, StackedPart], Path]:
    """Return a block file on disk, its parts by key-group, and its path."""
    changes: Changes = {3: {TWINS[0]: 1, TWINS[3]: None}, 7: {}, 8: {TWINS[1]: 5}}
    tables = [rows_of(PAIRS, rows) for rows in changes.values()]
    starts = positions_of(np.array([table.num_rows for table in tables]))
    _, block = part_codec.encode_slices(pa.concat_tables(tables).combine_chunks(), starts)
    data = encode_block_file(block, np.array(sorted(changes), np.int32), starts)
    path = tmp_path / "sealed" / "1-1-aa.block"
    path.parent.mkdir()
    path.write_bytes(data)
    _, index = read_index(pa.py_buffer(data))
    checksum, _ = checksum_of_block(pa.py_buffer(data))
    assert sum(place.length for place in index.ranges.values()) == len(data)
    parts = {
        place.key_group: StackedPart("sealed/1-1-aa.block", 0, place.length, checksum, place.rows, 1)
        for place in index.ranges.values()
    }
    return PartFiles(tmp_path), parts, path


def test_a_block_returns_only_rows_of_the_requested_key_group(
    written: tuple[PartFiles, dict[int, StackedPart], Path],
) -> None:
    """A read of one key-group returns only the rows of that key-group, which may be none."""
    files, parts, _ = written
    values = {kg: [run.rows["v"].to_pylist() for run in files.read_runs(part, PAIRS, kg)] for kg, part in parts.items()}
    assert values in ({3: [[None, "1"]], 7: [], 8: [["5"]]}, {3: [["1", None]], 7: [], 8: [["5"]]})


def test_a_damaged_block_file_raises_damaged_copy(written: tuple[PartFiles, dict[int, StackedPart], Path]) -> None:
    """A changed byte or a truncation anywhere in a block file raises DamagedCopy, and a scrub finds it too."""
    files, parts, path = written
    data = path.read_bytes()
    damages = [bytes([*data[:offset], data[offset] ^ 1, *data[offset + 1 :]]) for offset in range(0, len(data), 7)]
    damages += [data[:length] for length in (0, 5, len(data) - 24, len(data) - 1)] + [data + b"x"]
    for damaged in damages:
        path.write_bytes(damaged)
        anew = PartFiles(path.parent.parent)
        assert not files.verify(parts[3])
        assert anew.read_block_index("sealed/1-1-aa.block") is None
        with pytest.raises(DamagedCopy):
            anew.read_runs(parts[3], PAIRS, 3)
    path.write_bytes(data)
    assert files.verify(parts[3])
    assert PartFiles(path.parent.parent).read_runs(parts[3], PAIRS, 3)


@pytest.mark.parametrize(("key_group", "rows"), [(4, 2), (3, 1)])
def test_a_block_that_lacks_listed_rows_is_damaged(
    written: tuple[PartFiles, dict[int, StackedPart], Path], key_group: int, rows: int
) -> None:
    """A block that lacks the key-group or the row count that a stack lists is damaged, not empty."""
    files, parts, _ = written
    with pytest.raises(DamagedCopy):
        files.read_runs(parts[3]._replace(rows=rows), PAIRS, key_group)


@pytest.mark.parametrize("edit", [(0, 1, 1), (1, 0, 3), (0, 2, 9), (2, 2, 1)])
def test_an_inconsistent_block_index_is_refused(
    written: tuple[PartFiles, dict[int, StackedPart], Path], edit: tuple[int, int, int]
) -> None:
    """An index with overlapping or incomplete ranges, unsorted key-groups or too many rows is refused."""
    _, parts, path = written
    rows, index = read_index(pa.py_buffer(path.read_bytes()))
    table = index.table.copy()
    table[edit[0], edit[1]] = edit[2]
    starts = np.append(table[:, 1], table[-1, 2])
    data = encode_block_file(rows.to_pybytes(), table[:, 0].astype(np.int32), starts)
    body = bytearray(data)
    body[rows.size : rows.size + table.nbytes] = table.tobytes()
    checksum = part_codec.checksum(bytes(body[:-16]))
    body[-16:-8] = checksum.to_bytes(8, "little")
    path.write_bytes(bytes(body))
    with pytest.raises(DamagedCopy):
        PartFiles(path.parent.parent).read_runs(parts[3]._replace(checksum=checksum), PAIRS, 3)


def test_a_block_with_other_rows_than_its_index_is_refused() -> None:
    """A block whose index lists fewer rows than it has is refused, because rows would be missing."""
    tables = [rows_of(PAIRS, {TWINS[n]: n}) for n in range(3)]
    _, block = part_codec.encode_slices(pa.concat_tables(tables).combine_chunks(), np.arange(4), PAIRS.due)
    for starts, fits in (([0, 1, 3], True), ([0, 1, 2], False)):
        data = encode_block_file(block, np.array([3, 7], np.int32), np.array(starts))
        rows, index = read_index(pa.py_buffer(data))
        with nullcontext() if fits else pytest.raises(CorruptStateError, match="RIFFLE-1420"):
            OpenBlock(part_codec.open_block(rows, "block"), index, PAIRS, 1)


@pytest.mark.parametrize("size", [0, 7, 1 << 40])
def test_a_block_file_with_an_impossible_length_of_its_index_is_refused(size: int) -> None:
    """A block file is refused if the length of its index is zero, not a multiple of a row, or more than the file."""
    data = bytearray(encode_block_file(b"rows", np.array([3, 7], np.int32), np.array([0, 2, 5])))
    place = data.index((16).to_bytes(8, "little"))
    data[place : place + 8] = size.to_bytes(8, "little")
    with pytest.raises(ValueError, match=f"an index of {size} bytes"):
        read_index(pa.py_buffer(bytes(data)))


@pytest.mark.parametrize(("key_groups", "starts"), [([7, 3], [0, 2, 5]), ([3, 3], [0, 2, 5]), ([3, 7], [0, 5, 2])])
def test_a_block_file_with_unsorted_key_groups_or_rows_is_refused(key_groups: list[int], starts: list[int]) -> None:
    """A block file is refused if its key-groups are not ascending, or if a key-group ends before it starts."""
    data = encode_block_file(b"rows", np.array(key_groups, np.int32), np.array(starts))
    with pytest.raises(ValueError, match="invalid index"):
        read_index(pa.py_buffer(data))
