"""One slot of one batch: input rows, state, sealed parts and output."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.merging.aggregates import aggregate, count, last, sum_
from riffle_spark.protocol.operator import operator_of
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.worker.member_folders import folder_of
from tests.kit.worker.slot_member import OUTPUT, ROWS, STATE, TOTAL, Member, kept_last, rows_of


def test_each_batch_starts_from_the_committed_state(member: Member) -> None:
    """Each batch starts from the state that the previous batch committed."""
    member.feed(rows_of(("a", 1, 0), ("b", 2, 0), ("a", 3, 0)))
    out = member.feed(rows_of(("b", 5, 0), ("c", 1, 0)))
    assert sorted(out, key=lambda row: str(row["k"])) == [
        {"k": "b", "count": 2, "total": 7},
        {"k": "c", "count": 1, "total": 1},
    ]


def test_an_uncommitted_attempt_does_not_change_the_state(member: Member) -> None:
    """Repeated attempts start from the same state, until one of them is committed (I2)."""
    member.feed(rows_of(("a", 1, 0)))
    outputs = [member.answer(rows_of(("a", 10, 0))) for _ in range(3)]
    assert [output.to_pylist()[0]["total"] for output, _ in outputs] == [11, 11, 11]
    assert len({receipt.attempt for _, receipt in outputs}) == 3
    member.commit(outputs[1][1])
    assert member.feed(rows_of(("a", 100, 0)))[0]["total"] == 111


def test_open_parts_have_null_in_an_added_column(tmp_path: Path) -> None:
    """After a restart with an additional state column, rows of open parts have null in it."""
    member, seen = Member(tmp_path, kept_last()), list[dict[str, object]]()

    def look(_rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        seen.extend(state.to_pylist())
        return OUTPUT.empty_table(), state.slice(0, 0)

    member.feed(rows_of(("a", 1, 0)))
    for state in (STATE, pa.schema([*STATE, ("more", pa.string())])):
        member.operator = operator_of("totals", ("k",), arrow_function(look, state=state, output=OUTPUT), (), ROWS)
        member.feed(rows_of(("a", 0, 0)))
    assert seen == [{"k": "a", "last": 1}, {"k": "a", "last": 1, "more": None}]


def test_a_slot_without_rows_only_returns_a_receipt(member: Member) -> None:
    """A slot without rows puts nothing, and still returns a receipt."""
    for compute in (member, Member(Path(member.home.local_dir or "") / "f", kept_last())):
        output, receipt = compute.answer(rows_of())
        assert output.num_rows == 0
        assert (receipt.rows, receipt.keys, receipt.parts, receipt.sealed_bytes) == (0, 0, (), 0)
        assert compute.store.inner.requests["put"] == 0


def test_a_slot_that_changes_nothing_puts_nothing(tmp_path: Path) -> None:
    """A slot with output but without changes of state puts nothing."""
    only_output = arrow_function(
        lambda rows, _: (rows.select(["k", "v"]).rename_columns(["k", "last"]), _nothing()), state=STATE, output=OUTPUT
    )
    member = Member(tmp_path, only_output)
    output, receipt = member.answer(rows_of(("a", 1, 0)))
    assert output.num_rows == 1
    assert receipt.parts == ()
    assert member.store.inner.list("") == []


def _nothing() -> pa.Table:
    return OUTPUT.empty_table()


def test_a_small_delta_is_sealed_as_one_block(member: Member) -> None:
    """A small delta is sealed as one block, which the member also keeps. Every part of the receipt refers to it."""
    member.feed(rows_of(*((f"k{n}", n, 0) for n in range(50))))
    _, receipt = member.answer(rows_of(*((f"k{n}", 1, 0) for n in range(0, 50, 5))))
    assert receipt.block is not None
    assert (receipt.block.rows, receipt.block.size) == (10, receipt.sealed_bytes)
    assert [part.start for part in receipt.parts] == [part.key_group for part in receipt.parts]
    assert len({part.checksum for part in receipt.parts}) == 1
    assert sum(part.length for part in receipt.parts) <= receipt.sealed_bytes
    data = member.store.inner.get(paths.delta_name(receipt.version, receipt.attempt))
    local = next(Path(member.home.local_dir or "").rglob(paths.sealed_block_name(receipt.version, receipt.attempt)))
    assert local.read_bytes() == data
    assert sorted(str(row["k"]) for row in member.changes_sealed(receipt)) == sorted(f"k{n}" for n in range(0, 50, 5))


def test_a_delta_has_one_part_per_key_group(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta has one part per key-group, in ascending order, with the new state of changed keys only."""
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", math.inf)  # private: makes parts of few rows
    member.feed(rows_of(*((f"k{n}", n, 0) for n in range(50))))
    _, receipt = member.answer(rows_of(*((f"k{n}", 1, 0) for n in range(0, 50, 5))))
    assert [part.key_group for part in receipt.parts] == sorted({part.key_group for part in receipt.parts})
    assert receipt.parts[0].start == 0
    for left, right in zip(receipt.parts, receipt.parts[1:], strict=False):
        assert right.start == left.start + left.length
    assert sorted(str(row["k"]) for row in member.changes_sealed(receipt)) == sorted(f"k{n}" for n in range(0, 50, 5))
    assert sum(part.rows for part in receipt.parts) == 10
    assert receipt.keys == 10


@pytest.mark.parametrize("nullable", [True, False])
def test_deleted_keys_are_sealed_as_deleted(tmp_path: Path, nullable: bool) -> None:
    """A deleted key is absent in the next batch and after a restore, also if state columns are not null."""
    member = Member(tmp_path, kept_last(pa.schema([pa.field("last", pa.int64(), nullable=nullable)])))
    member.feed(rows_of(("a", 1, 0), ("b", 2, 0)))
    _, receipt = member.answer(rows_of(("a", None, 0), ("b", 3, 0), ("never", None, 0)))
    marks = {row["k"]: row["__deleted"] for row in member.changes_sealed(receipt)}
    assert marks == {"a": True, "b": False}
    member.commit(receipt)
    member.feed(rows_of(("a", None, 0), ("c", 1, 0)), executor="another")
    assert member.feed(rows_of(("b", 9, 0)), executor="third") == [{"k": "b", "last": 9}]


def test_rows_of_a_key_are_sorted_by_the_order_columns(tmp_path: Path) -> None:
    """The rows of a key are sorted by the order columns. Ties and rows without order columns keep their order of
    arrival.
    """
    shuffled = rows_of(("a", 1, 30), ("a", 2, 10), ("a", 3, 30), ("a", 4, 20))
    assert Member(tmp_path / "by", kept_last(), order_by=("at",)).feed(shuffled) == [{"k": "a", "last": 3}]
    assert Member(tmp_path / "as", kept_last()).feed(shuffled) == [{"k": "a", "last": 4}]
    second_rows = rows_of(("a", 1, 30), ("a", 3, 30), ("a", 2, 30))
    assert Member(tmp_path / "both", kept_last(), order_by=("at", "v")).feed(second_rows) == [{"k": "a", "last": 3}]


def test_a_null_in_an_order_column_sorts_last(tmp_path: Path) -> None:
    """A null in an order column sorts last, also in a field of a struct."""
    rows = rows_of(("a", 1, None), ("a", 2, 10), ("b", 3, 20), ("b", 4, 10))
    in_struct = rows.set_column(2, "at", pa.StructArray.from_arrays([rows["at"].combine_chunks()], names=["field"]))
    for folder, batch in (("plain", rows), ("struct", in_struct)):
        member = Member(tmp_path / folder, aggregate(last=last("v")), batch.schema, order_by=("at",))
        answers = sorted(member.feed(batch), key=lambda row: str(row["k"]))
        assert answers == [{"k": "a", "last": 1}, {"k": "b", "last": 3}]


def test_only_the_needed_columns_reach_a_slot(tmp_path: Path) -> None:
    """A slot gets only the key, declared and order columns."""
    assert Member(tmp_path, aggregate(n=count())).operator.rows.names == ["k"]
    assert Member(tmp_path, aggregate(n=sum_("v")), order_by=("at",)).operator.rows.names == ["k", "v", "at"]
    assert Member(tmp_path, kept_last()).operator.rows.names == ["k", "v", "at"]


def test_nulls_in_key_columns_are_distinct(tmp_path: Path) -> None:
    """Nulls in key columns are distinct from empty values, and from nulls of other columns."""
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int64())])
    member = Member(tmp_path, aggregate(n=count()), schema, key=("a", "b"))
    batch = rows_of((None, 1, 0), ("", 1, 0), ("", None, 0), (None, None, 0), (None, 1, 0), schema=schema)
    member.feed(batch)
    out = member.feed(batch)
    assert {(row["a"], row["b"]): row["n"] for row in out} == {
        (None, 1): 4, ("", 1): 2, ("", None): 2, (None, None): 2,
    }  # fmt: skip


def test_long_keys_and_a_value_of_10_mb_are_read_back(tmp_path: Path) -> None:
    """Very long keys and a value of 10 MB are read back, from the local copy and after a restore."""
    state = pa.schema([("last", pa.large_binary())])
    output = pa.schema([("k", pa.string()), ("size", pa.int64())])
    value = os.urandom(10 << 20)

    def grow(rows: pa.Table, old: pa.Table) -> tuple[pa.Table, pa.Table]:
        held = dict(zip(old["k"].to_pylist(), old["last"].to_pylist(), strict=True))
        keys = sorted(set(rows["k"].to_pylist()))
        assert all(held.get(key, value) == value for key in held)
        sizes = [len(held.get(key, b"")) for key in keys]
        stored = pa.table([keys, [value] * len(keys)], schema=pa.schema([("k", pa.string()), *state]))
        return pa.table([keys, sizes], schema=output), stored

    member = Member(tmp_path, arrow_function(grow, state=state, output=output))
    long = ["x" * 600 + "1", "x" * 600 + "2", "short"]
    batch = rows_of(*((key, 1, 0) for key in long))
    assert [row["size"] for row in member.feed(batch)] == [0, 0, 0]
    assert {row["size"] for row in member.feed(batch)} == {10 << 20}
    assert {row["size"] for row in member.feed(batch, executor="another")} == {10 << 20}


class RecordingComputation:
    """A computation that records its batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - the seam's arguments
        """Declare a state of one column and one call for all key-groups."""
        return Declared(STATE, OUTPUT, columns=None, per_key_group=False)

    def __call__(self, batch: Batch) -> Update:
        """Change every key."""
        self.batches.append(batch)
        everything = np.arange(batch.keys.num_rows)
        state = pa.table([[batch.version] * batch.keys.num_rows], schema=STATE)
        return Update(OUTPUT.empty_table(), everything, state, everything[:0])


def test_a_function_gets_keys_state_and_the_time_of_the_batch(tmp_path: Path) -> None:
    """Each code refers to the key of its row, state is aligned with the keys, and times are those of the batch."""
    compute = RecordingComputation()
    member = Member(tmp_path, compute)
    member.feed(rows_of(*((f"k{n % 7}", n, 0) for n in range(30))))
    member.feed(rows_of(*((f"k{n % 9}", n, 0) for n in range(30))))
    last = compute.batches[-1]
    keys = last.keys["k"].to_pylist()
    assert [keys[code] for code in last.codes] == last.rows["k"].to_pylist()
    assert sorted(keys) == sorted(f"k{n}" for n in range(9))
    for key, found, value in zip(keys, last.has_state, last.state["last"].to_pylist(), strict=True):
        assert (bool(found), value) == ((True, 0) if key not in ("k7", "k8") else (False, None))
    assert (last.version, last.time_ms, last.watermark_ms, last.key_group) == (1, 1001, None, None)
    assert last.rows.column_names == ROWS.names


def test_the_parts_that_a_standby_follows_are_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that a standby follows are one range of the object. The other parts precede them in ascending order."""
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", math.inf)  # private: makes parts of few rows
    kept = dict.fromkeys(range(0, TOTAL, 3), ("standby",))
    member = Member(tmp_path, kept_last(), followed_by=kept)
    _, receipt = member.answer(rows_of(*((f"k{n}", n, 0) for n in range(200))))
    key_groups = [part.key_group for part in receipt.parts]
    assert sorted(key_groups) == list(range(TOTAL))
    assert key_groups == [kg for kg in range(TOTAL) if kg not in kept] + sorted(kept)
    assert len(member.changes_sealed(receipt)) == 200


def test_a_slot_without_its_copies_is_misplaced_if_a_standby_has_them(tmp_path: Path) -> None:
    """A slot without its copies fails as misplaced if a standby has them. It lists the key-groups, and neither seals
    nor fetches. Without a standby it fetches the copies.
    """
    member = Member(tmp_path, kept_last())
    member.feed(rows_of(*((f"k{n}", n, 0) for n in range(50))))
    member.feed(rows_of(("k1", 1, 0)))
    member.home = replace(member.home, live=frozenset({"app/1", "app/another"}))
    member.changes = {"standbys": dict.fromkeys(range(TOTAL), ("elsewhere",))}
    _, here = member.answer(rows_of(("k1", 2, 0)))
    assert here.error is None
    before = len(member.store.inner.list(""))
    _, receipt = member.answer(rows_of(("k1", 2, 0)), executor="another")
    assert receipt.error is not None
    assert receipt.error[0] == "Misplaced"
    assert (len(receipt.missing), receipt.fetched_bytes, receipt.parts) == (1, 0, ())
    assert len(member.store.inner.list("")) == before
    member.changes = {}
    output, receipt = member.answer(rows_of(("k1", 2, 0)), executor="another")
    assert (receipt.error, receipt.restores, output.num_rows) == (None, 1, 1)


def test_a_slot_on_the_standby_itself_fetches_missing_copies(tmp_path: Path) -> None:
    """A slot on the standby itself fetches the missing copies."""
    member = Member(tmp_path, kept_last())
    member.feed(rows_of(("k1", 1, 0)))
    member.feed(rows_of(("k1", 2, 0)))
    member.home = replace(member.home, live=frozenset({"app/1", "app/another"}))
    itself = folder_of(member.home, "another").member
    member.changes = {"standbys": dict.fromkeys(range(TOTAL), (itself,))}
    _, receipt = member.answer(rows_of(("k1", 3, 0)), executor="another")
    assert (receipt.error, receipt.member, receipt.restores) == (None, itself, 1)


def test_rows_are_counted_by_key_group_and_input_partition(tmp_path: Path) -> None:
    """A receipt counts rows per key-group and input partition. Without the partition column it counts none."""
    member = Member(tmp_path, kept_last(), read_by="at")
    rows = rows_of(*((f"k{n}", n, n % 3) for n in range(90)))
    _, receipt = member.answer(rows)
    assert sum(count for _, _, count in receipt.partition_rows) == 90
    assert {partition: sum(c for _, p, c in receipt.partition_rows if p == partition) for partition in range(3)} == {
        0: 30,
        1: 30,
        2: 30,
    }
    assert Member(tmp_path / "other", kept_last()).answer(rows)[1].partition_rows == ()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("is_function", [False, True])
def test_negative_zero_becomes_zero_in_output_and_state(tmp_path: Path, kind: pa.DataType, is_function: bool) -> None:
    """-0.0 becomes 0.0 in output and state, as in Spark. So a sink sees one key, not two."""
    rows, state = pa.schema([("k", kind), ("v", pa.int64())]), pa.schema([("n", pa.int64())])

    def last(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
        table = rows.select(["k"]).append_column("n", pa.repeat(1, rows.num_rows))
        return table, table

    usual, own = aggregate(n=count()), arrow_function(last, state=state, output=pa.schema([("k", kind), *state]))
    member = Member(tmp_path, own if is_function else usual, rows)
    for key in (-0.0, 0.0, None):
        output, receipt = member.answer(rows_of((key, 1), schema=rows))
        assert str([row["k"] for row in output.to_pylist()]) == ("[None]" if key is None else "[0.0]")
        assert str({row["k"] for row in member.changes_sealed(receipt)}) == ("{None}" if key is None else "{0.0}")
        member.commit(receipt)
    odd = pa.array([float("nan"), -float("nan")], kind)
    assert odd.buffers()[1].to_pybytes() != pa.array([float("nan")] * 2, kind).buffers()[1].to_pybytes()
    nans = pa.Table.from_arrays([odd, pa.array([1, 1])], schema=rows)
    (row,) = member.feed(nans.slice(1))
    assert math.copysign(1, row["k"]) == 1  # type: ignore[arg-type]
