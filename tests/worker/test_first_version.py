"""The first version of a store is written as snapshots, from rows that are sorted by key-group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark import keygroups
from riffle_spark.errors import ConfigError, ConflictError, CorruptStateError
from riffle_spark.messages.first_version_orders import FirstVersionOrder
from riffle_spark.messages.slot_orders import Home
from riffle_spark.process.stages.rows_to_state import state_of_rows
from riffle_spark.settings import Settings
from riffle_spark.state.log.manifest import Entry, Head, Snapshot
from riffle_spark.state.objects.encryption import parse_keys
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variable_kinds import INDEX, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.worker.first_version import write_key_groups
from riffle_spark.worker.member_folders import home_with_keys

TOTAL = 4
SCHEMA = PlainColumns(
    "counts",
    pa.schema([("k", pa.string())]),
    pa.schema([("n", pa.int64()), ("due", pa.timestamp("us", "UTC"))]),
    "due",
    "EventTime",
)
ROWS = pa.table(
    [pa.array([f"k{n}" for n in range(40)]), pa.array(range(40), pa.int64()), pa.array([1000 * n for n in range(40)])],
    names=["k", "n", "due"],
).cast(SCHEMA.part_schema())


def order_of(folder: Path, keys: str = "") -> FirstVersionOrder:
    """Return an order for version 7 below a folder."""
    key = "a" if keys else ""
    home = Home(f"file://{folder}/root", StoreOptions(), None, "application", frozenset(), "", keys, key)
    order = FirstVersionOrder(home, SCHEMA.store, SCHEMA.to_text(), TOTAL, 7, 1)
    assert FirstVersionOrder.from_json(order.to_json()) == order
    return order


def in_order(rows: pa.Table, size: int = 3) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each key-group in small tables."""
    numbers = keygroups.key_groups([rows.column("k")], TOTAL)
    for key_group in range(TOTAL):
        rows_of_group = rows.filter(pa.array(numbers == key_group))
        yield from ((key_group, rows_of_group.slice(start, size)) for start in range(0, rows_of_group.num_rows, size))


def as_state(schema: StoreSchema, rows: pa.Table) -> tuple[pa.Table, int]:
    """Return rows that already are state."""
    return state_of_rows(schema, None, rows)


def read_back(order: FirstVersionOrder, folder: Path, keys: str = "") -> pa.Table:
    """Write the rows, list the snapshots in entries, and read them back."""
    entries = dict[int, Entry]()
    for written in write_key_groups(order, as_state, in_order(ROWS)):
        head = Head(7, written.snapshot_id.partition("-")[2])
        snapshot = Snapshot(written.snapshot_id, head, written.length, written.checksum, written.rows)
        entries[written.key_group] = Entry(snapshot, timer_ms=written.timer_ms)
        assert written.state_rows == written.rows
    parsed = parse_keys(Path(keys.removeprefix("file:")).read_text(), keys, lambda wrapped: wrapped) if keys else None
    reader = Reader(open_store(order.home.root, order.home.options), parsed)
    tables = restore_tables(SCHEMA, entries, reader, folder / "copies")
    assert set(entries) == set(range(TOTAL))
    for key_group, table in tables.items():
        assert entries[key_group].timer_ms == min(table.column("n").to_pylist())
    return pa.concat_tables(table.select(ROWS.column_names) for table in tables.values()).sort_by("n")


def test_all_written_rows_are_read_back_from_their_key_groups(tmp_path: Path) -> None:
    """All rows are read back from the key-groups of their keys, with the earliest due time of each key-group."""
    assert read_back(order_of(tmp_path), tmp_path).equals(ROWS)


def test_the_first_version_of_an_encrypted_store_is_encrypted(tmp_path: Path) -> None:
    """With encryption keys the snapshots are encrypted, and read back with the keys."""
    file = tmp_path / "keys"
    file.write_text(f"a = {'A' * 43}=\n")
    file.chmod(0o600)
    order = order_of(tmp_path)
    order = replace(order, home=home_with_keys(order.home, Settings(encryption_keys=f"file:{file}")))
    assert read_back(order, tmp_path, f"file:{file}").equals(ROWS)
    objects = open_store(order.home.root)
    data = [objects.get(name) or b"" for name in objects.list("")]
    assert len(data) == TOTAL
    assert not any(b"ARROW" in part for part in data)


def test_rows_of_variables_may_have_one_key(tmp_path: Path) -> None:
    """A store with variables has several rows per key, so equal keys are not refused."""
    key, value = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())])
    schema = VariableColumns("lists", key, (Variable("seen", "list", value),))
    order = replace(order_of(tmp_path), store="lists", schema=schema.to_text())
    rows = pa.table(
        {"k": ["a"] * 3, VARIABLE: ["seen"] * 3, INDEX: [0, 1, 2], "__state_seen": [{"n": n} for n in range(3)]}
    )
    key_group = int(keygroups.key_groups([pa.array(["a"])], TOTAL)[0])

    def to_state(stored: StoreSchema, given: pa.Table) -> tuple[pa.Table, int]:
        columns = [
            given.column(f.name) if f.name in given.column_names else pa.nulls(3, f.type) for f in stored.part_schema()
        ]
        return pa.table(columns, schema=stored.part_schema()), 3

    (written,) = write_key_groups(order, to_state, iter([(key_group, rows)]))
    assert (written.key_group, written.rows) == (key_group, 3)


def test_two_rows_of_one_key_are_refused(tmp_path: Path) -> None:
    """Two rows with the same key are refused."""
    rows = pa.concat_tables([ROWS, ROWS.slice(3, 1)])
    with pytest.raises(ConfigError) as caught:
        list(write_key_groups(order_of(tmp_path), as_state, in_order(rows, 100)))
    assert caught.value.id == "RIFFLE-1611"


def test_rows_of_another_key_group_are_refused(tmp_path: Path) -> None:
    """Rows in another key-group than that of their key are refused."""
    wrong = ((key_group ^ 1, rows) for key_group, rows in in_order(ROWS))
    with pytest.raises(CorruptStateError) as caught:
        list(write_key_groups(order_of(tmp_path), as_state, wrong))
    assert caught.value.id == "RIFFLE-1610"


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    """A task without rows writes nothing."""
    assert list(write_key_groups(order_of(tmp_path), as_state, iter(()))) == []
    assert not (tmp_path / "root").exists()


def test_an_order_of_another_version_is_refused() -> None:
    """An order that another product version encoded is refused."""
    with pytest.raises(ConflictError):
        FirstVersionOrder.from_json("[1, 2]")
