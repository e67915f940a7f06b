"""A snapshot has exactly the rows of its copy, whatever the state of that copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.messages.upkeep_orders import SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.worker.slot_member import Member, kept_last, rows_of


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """Return a member whose store has counted three keys in three batches."""
    member = Member(tmp_path, aggregate(n=count()))
    for _ in range(3):
        member.feed(rows_of(("a", 1, 0), ("b", 1, 0), ("c", 1, 0)))
    return member


def orders(member: Member) -> list[SnapshotOrder]:
    """Return an order for every key-group."""
    return [SnapshotOrder("totals", kg, entry) for kg, entry in sorted(member.entries.items())]


def taken(member: Member, due: Sequence[SnapshotOrder], executor: str = "1") -> UpkeepReceipt:
    """Return the receipt of upkeep that takes snapshots."""
    schemas = {"totals": member.operator.schema.to_text()}
    return run_upkeep(UpkeepOrder(member.home, "", 1, 0, schemas, snapshots=tuple(due), seconds=1000.0), executor)


def rows(member: Member, receipt: UpkeepReceipt) -> dict[str, int]:
    """Check the snapshots of a receipt and return their rows."""
    snapshot_rows: dict[str, int] = {}
    for store, key_group, snapshot in receipt.snapshots:
        name = paths.snapshot_name(store, key_group, snapshot.id)
        data = member.store.inner.get(name)
        assert data is not None
        assert len(data) == snapshot.length
        table = part_codec.decode(data, snapshot.checksum, name)
        assert table.num_rows == snapshot.rows
        assert snapshot.head in [link.head for link in member.entries[key_group].chain]
        snapshot_rows |= dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
    return snapshot_rows


def test_a_snapshot_has_the_state_at_its_head(member: Member) -> None:
    """Each snapshot takes one put, has a unique id and holds the state at its head."""
    receipt = taken(member, orders(member))
    assert receipt.errors == ()
    assert rows(member, receipt) == {"a": 3, "b": 3, "c": 3}
    assert receipt.requests["put"] == len(receipt.snapshots) == len({s.id for _, _, s in receipt.snapshots})
    assert {snapshot.head.version for _, _, snapshot in receipt.snapshots} == {2}


def test_a_member_without_a_copy_restores_it_before_a_snapshot(member: Member) -> None:
    """A member without a copy restores it and takes the snapshot."""
    assert rows(member, taken(member, orders(member), "another")) == {"a": 3, "b": 3, "c": 3}


def test_a_late_order_takes_a_snapshot_of_the_newer_state(member: Member) -> None:
    """A late order takes a snapshot of the newer committed state, with the head of that state."""
    late = orders(member)
    member.feed(rows_of(("a", 1, 0), ("b", 1, 0), ("c", 1, 0)))
    member.feed(rows_of(("a", 1, 0), ("b", 1, 0), ("c", 1, 0)))
    receipt = taken(member, late)
    assert rows(member, receipt) == {"a": 4, "b": 4, "c": 4}
    assert {snapshot.head.version for _, _, snapshot in receipt.snapshots} == {3}


def test_a_snapshot_of_a_single_delta_holds_no_deleted_rows(tmp_path: Path) -> None:
    """A snapshot of a single delta has no deleted rows."""
    member = Member(tmp_path, kept_last())
    member.feed(rows_of(("a", 1, 0), ("b", None, 0)))
    receipt = taken(member, orders(member))
    tables = []
    for store, key_group, snapshot in receipt.snapshots:
        data = member.store.inner.get(paths.snapshot_name(store, key_group, snapshot.id))
        tables.append(part_codec.decode(data or b"", snapshot.checksum, snapshot.id))
    assert [table.column_names for table in tables] == [["k", "last"]] * len(receipt.snapshots)
    assert [row for table in tables for row in table.to_pylist()] == [{"k": "a", "last": 1}]
    assert sum(snapshot.rows for _, _, snapshot in receipt.snapshots) == 1


@pytest.mark.parametrize("how", ["emptied", "flipped byte"])
def test_a_damaged_copy_is_restored_before_its_snapshot(member: Member, how: str) -> None:
    """A damaged copy is restored before its snapshot is taken."""
    for file in Path(member.home.local_dir or "").glob("*/*/sealed/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(b"" if how == "emptied" else data)
    receipt = taken(member, orders(member))
    assert receipt.errors == ()
    assert rows(member, receipt) == {"a": 3, "b": 3, "c": 3}


def test_an_unexpected_error_of_one_snapshot_is_in_the_receipt(member: Member) -> None:
    """If the snapshot of one key-group raises any error, the receipt has it, and the other snapshots are taken."""
    first, *others = orders(member)
    receipt = taken(member, [replace(first, entry=None), *others])  # type: ignore[arg-type]
    assert [key_group for _, key_group, _ in receipt.snapshots] == [order.key_group for order in others]
    assert f"key-group {first.key_group}: " in receipt.errors[0]
