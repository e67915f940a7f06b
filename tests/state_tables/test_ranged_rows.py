"""Rows that are read in ranges equal those of the whole snapshot for all types, and few bytes are fetched."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Head, Snapshot
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.restore.reader import Reader, in_parallel
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state_tables import ranged_rows
from riffle_spark.state_tables.ranged_rows import fetch_rows_of_hashes
from riffle_spark.state_tables.row_differences import mask_differing_rows
from tests.kit.state.drawn_tables import LEAVES, nested

ADDRESS = ("s", 3)
ATTEMPT = "1-" + "ab" * 16


def stored(table: pa.Table, key: str = "k") -> tuple[MemoryStore, Snapshot, pa.Table]:
    """Store a table as a snapshot. Return the store, the snapshot, and the rows in stored order."""
    rest = [field for field in table.schema if field.name != key]
    schema = PlainColumns("s", pa.schema([table.schema.field(key)]), pa.schema(rest))
    sealed = schema.sealed(table)
    data = part_codec.encode(sealed)
    return *put(data, table.num_rows), sealed


def put(data: bytes, rows: int) -> tuple[MemoryStore, Snapshot]:
    """Store the bytes of a snapshot."""
    snapshot = Snapshot(paths.snapshot_id(7, ATTEMPT), Head(7, ATTEMPT), len(data), part_codec.checksum(data), rows)
    store = MemoryStore()
    assert store.put_if_absent(paths.snapshot_name(*ADDRESS, snapshot.id), data)
    return store, snapshot


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw up to 400 rows with few different values and with NULLs."""
    count = draw(st.integers(1, 400))
    chance = random.Random(draw(st.integers(0, 99)))
    columns: dict[str, pa.Array] = {"k": pa.array(range(count), pa.int64())}
    for index, (kind, values) in enumerate(draw(st.lists(nested(LEAVES), min_size=1, max_size=3))):
        pool = [None, *draw(st.lists(values, min_size=1, max_size=4))]
        columns[f"v{index}"] = pa.array([chance.choice(pool) for _ in range(count)], kind)
    return pa.table(columns)


def has_fixed_size(kind: pa.DataType) -> bool:
    """Return whether a type or one of its children has a fixed size, which is not read in ranges."""
    is_fixed = pa.types.is_fixed_size_binary(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_interval(kind)
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    return is_fixed or any(map(has_fixed_size, inner))


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ranges small, so that small tables take many of them."""
    monkeypatch.setattr(ranged_rows, "_JOIN_GAP_BYTES", 0)
    monkeypatch.setattr(ranged_rows, "_WINDOW_ROWS_MIN", 1)


def test_empty_texts_are_read_in_ranges() -> None:
    """Empty texts are read in ranges, although Arrow stores no bytes for them."""
    store, snapshot, sealed = stored(pa.table({"k": [0, 1], "v": ["", ""]}))
    rows = fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, sealed.column("__hash").to_numpy())
    assert rows is not None
    assert rows.column("v").to_pylist() == ["", ""]


def test_truth_values_and_columns_without_a_value_are_read_in_ranges() -> None:
    """Truth values, of which eight share a byte, and columns with only NULLs are read in ranges."""
    count = 100
    table = pa.table(
        {
            "k": range(count),
            "b": [None if n % 7 == 0 else n % 3 == 0 for n in range(count)],
            "t": pa.nulls(count, pa.string()),
            "l": pa.nulls(count, pa.list_(pa.bool_())),
        }
    )
    store, snapshot, sealed = stored(table)
    hashes = sealed.column("__hash").to_numpy()
    for place in (0, 1, 41, count - 1):
        rows = fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, hashes[place : place + 1])
        assert rows is not None
        assert rows.to_pylist() == sealed.slice(place, 1).to_pylist()


@given(tables(), st.data())
def test_rows_read_in_ranges_equal_those_of_the_whole_snapshot(table: pa.Table, data: st.DataObject) -> None:
    """Rows that are read in ranges equal those of the whole snapshot, and absent hashes give no row."""
    store, snapshot, sealed = stored(table)
    hashes = sealed.column("__hash").to_numpy()
    requested = np.array(
        [
            *data.draw(st.lists(st.sampled_from(hashes.tolist()), max_size=3)),
            *data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=2)),
        ],
        np.uint64,
    )
    rows = fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, requested)
    if rows is None:
        assert any(map(has_fixed_size, table.schema.types))
        return
    expected = sealed.filter(pa.array(np.isin(hashes, requested)))
    assert rows.replace_schema_metadata(None).equals(expected.replace_schema_metadata(None))


@given(tables())
def test_rows_differ_exactly_if_their_values_differ(table: pa.Table) -> None:
    """Rows differ exactly if their values do, compared with the same rows and with rows in another order."""
    count = table.num_rows
    assert not mask_differing_rows(
        table.columns, pa.concat_tables([table.slice(0, 1), table.slice(1)]).columns, count
    ).any()
    other = table.take(pa.array(np.roll(np.arange(count), 1)))
    expected = [left != right for left, right in zip(rows_of(table), rows_of(other), strict=True)]
    assert mask_differing_rows(table.columns[1:], other.columns[1:], count).tolist() == expected


def rows_of(table: pa.Table) -> list[Any]:
    """Return the rows without their key as text, which distinguishes -0.0 from 0.0."""
    return [repr([row[name] for name in table.column_names[1:]]) for row in table.to_pylist()]


def test_one_key_of_a_large_snapshot_takes_few_requests_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key of a large snapshot takes at most eight requests: the start, a window of hashes, columns and values."""
    monkeypatch.undo()
    count = 400_000
    text = pa.array(np.char.add("user-", np.arange(count).astype(str)))
    table = pa.table({"k": text, "n": np.arange(count), "f": np.arange(count) * 0.5, "t": text})
    store, snapshot, sealed = stored(table)
    assert snapshot.length > ranged_rows.RANGED_FROM_BYTES
    reader = Reader(store)
    row = sealed.slice(count // 3, 1)
    fetched = fetch_rows_of_hashes(reader, ADDRESS, snapshot, row.column("__hash").to_numpy())
    assert fetched is not None
    assert fetched.column("k").to_pylist() == row.column("k").to_pylist()
    assert store.requests["get"] <= 8
    assert reader.totals.fetched_bytes < 400_000 < snapshot.length / 50


@pytest.mark.parametrize("keys", [1, 8])
def test_keys_of_a_large_snapshot_take_three_rounds_of_requests(monkeypatch: pytest.MonkeyPatch, keys: int) -> None:
    """Keys of a large snapshot take three rounds of parallel requests: the start, windows of columns, and texts."""
    monkeypatch.undo()
    text = pa.array(np.char.add("user-", np.arange(100_000).astype(str)))
    store, snapshot, sealed = stored(pa.table({"k": text, "n": np.arange(100_000), "t": text}))
    rounds: list[int] = []

    def counted(function: Callable[[tuple[int, int]], bytes], spans: list[tuple[int, int]]) -> list[bytes]:
        rounds.append(len(spans))
        return in_parallel(function, spans)

    monkeypatch.setattr(ranged_rows, "in_parallel", counted)
    rows = sealed.take(pa.array(np.arange(1, keys + 1) * 9999))
    fetched = fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, rows.column("__hash").to_numpy())
    assert fetched is not None
    assert fetched.column("k").to_pylist() == rows.column("k").to_pylist()
    assert len([count for count in rounds if count]) == 3


@pytest.mark.parametrize(("first", "last", "place"), [(100, 999, 200), (0, 899, 800), (0, 999, 500)])
def test_a_window_is_widened_until_it_has_all_rows_of_a_hash(first: int, last: int, place: int) -> None:
    """If many rows share a hash, the window is widened until it has all of them and no others."""
    count = 1000
    shared_hash = place * 2**64 // count
    hashes = [0] * first + [shared_hash] * (last + 1 - first) + [2**64 - 1] * (count - 1 - last)
    _, _, sealed = stored(pa.table({"k": range(count), "n": range(count)}))
    field = sealed.schema.field("__hash")
    shared = sealed.set_column(sealed.column_names.index("__hash"), field, pa.array(hashes, pa.uint64()))
    store, snapshot = put(part_codec.encode(shared), count)
    rows = fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, np.array([shared_hash], np.uint64))
    assert rows is not None
    assert rows.num_rows == last + 1 - first


def test_offsets_that_lead_out_of_a_column_are_refused() -> None:
    """Offsets that lead out of a column are refused, because a ranged read cannot verify the object's checksum."""
    table = pa.table({"k": pa.array([7]), "t": pa.array(["abc" * 9])})
    store, snapshot, sealed = stored(table)
    name = paths.snapshot_name(*ADDRESS, snapshot.id)
    data = bytearray(store.get(name) or b"")
    offset = data.index((27).to_bytes(4, "little"), data.index(sealed.column("__hash").to_numpy().tobytes()))
    data[offset : offset + 4] = (2**30).to_bytes(4, "little")
    broken, snapshot = put(bytes(data), 1)
    with pytest.raises(CorruptStateError):
        fetch_rows_of_hashes(Reader(broken), ADDRESS, snapshot, sealed.column("__hash").to_numpy())


def test_snapshots_of_other_formats_are_read_as_a_whole() -> None:
    """Snapshots that are unsorted or have several batches are read as a whole."""
    table = pa.table({"k": pa.array(range(9)), "n": pa.array(range(9))})
    store, snapshot = put(part_codec.encode(table), 9)
    assert fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, np.array([1], np.uint64)) is None
    store, snapshot = put(b"RFE2" + bytes(200), 9)  # encrypted
    assert fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, np.array([1], np.uint64)) is None
    _, _, sealed = stored(table)
    several = pa.concat_tables([sealed.slice(0, 4), sealed.slice(4)])
    store, snapshot = put(part_codec.encode(several), 9)
    assert fetch_rows_of_hashes(Reader(store), ADDRESS, snapshot, np.array([1], np.uint64)) is None
