"""Expiry in column stores: a due key is output once and deleted, wherever its rows are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riffle_spark.batch_times import TimeMode
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import key_groups
from riffle_spark.messages.slot_orders import Part, Receipt
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import Batch, Declared, PlainExpiry, Update
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.run import Run, RunsOfKeyGroup, find_due_rows, find_first_due_ms, find_newest_by_group
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.due_times import DUE_COLUMN, DUE_ORDER, DUE_SPAN, compute_due_times, in_milliseconds
from riffle_spark.state.log import paths
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.worker import whole_groups
from tests.kit.worker.slot_member import ROWS, TOTAL, Member, rows_of

OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64()), ("late", pa.bool_())])
KEY = pa.schema([("k", pa.string())])
Row: TypeAlias = tuple[str, int | None, int | None]
_KEPT = 7


@dataclass(frozen=True)
class Sessions:
    """Sums values until a time that rows move, and outputs each sum at that time. A null value deletes the key.

    A key whose sum is a multiple of seven stays for `longer_ms` more.
    """

    kind: pa.DataType = pa.int64()  # noqa: RUF009 - types do not change
    time_mode: TimeMode = "EventTime"
    per_key_group: bool = False
    longer_ms: int = 5

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare a sum and a time."""
        state = pa.schema([("total", pa.int64()), ("until", self.kind)])
        return Declared(state, OUTPUT, ("v", "at"), self.per_key_group, time_mode=self.time_mode, due="until")

    def __call__(self, batch: Batch) -> Update:
        """Add values and move times."""
        keys = batch.keys.num_rows
        values = pc.fill_null(batch.rows["v"], 0).to_numpy()
        total = np.zeros(keys, np.int64)
        np.add.at(total, batch.codes, values)
        total += pc.fill_null(batch.state["total"], 0).to_numpy()
        until = np.full(keys, np.iinfo(np.int64).min)
        np.maximum.at(until, batch.codes, pc.fill_null(batch.rows["at"], np.iinfo(np.int64).min).to_numpy())
        forgotten = np.unique(batch.codes[batch.rows["v"].is_null().to_numpy()])
        kept = np.setdiff1d(np.arange(keys), forgotten)
        never = until[kept] == np.iinfo(np.int64).min
        state = pa.table(
            [pa.array(total[kept]), _times(np.where(never, 0, until[kept]), never, self.kind)], ["total", "until"]
        )
        return Update(OUTPUT.empty_table(), kept, state, forgotten[batch.has_state[forgotten]])

    def expire_keys(self, batch: Batch) -> Update:
        """Output sums and keep those that are a multiple of seven."""
        assert batch.rows.num_rows == len(batch.codes) == 0
        assert batch.has_state.all()
        total = batch.state["total"].to_numpy()
        late = pa.repeat(batch.watermark_ms != batch.time_ms, len(total))
        kept = np.flatnonzero(total % _KEPT == 0)
        until = pc.add(batch.state["until"].cast(pa.int64()), self.longer_ms * _per_ms(self.kind)).take(kept)
        state = pa.table([pa.array(total[kept]), until.cast(self.kind)], ["total", "until"])
        return Update(pa.table([batch.keys["k"], pa.array(total), late], schema=OUTPUT), kept, state, kept[:0])


def _per_ms(kind: pa.DataType) -> int:
    return {"us": 1000}.get(getattr(kind, "unit", ""), 1)


def _times(until: np.ndarray, never: np.ndarray, kind: pa.DataType) -> pa.Array:
    return pa.array(until * _per_ms(kind), pa.int64(), mask=never).cast(kind)


class Model:
    """A dictionary with the expected state of a store."""

    def __init__(self, longer_ms: int = 5) -> None:
        self.state: dict[str, tuple[int, int | None]] = {}
        self._longer_ms = longer_ms

    def batch(self, rows: Sequence[Row]) -> None:
        """Apply the rows of a batch."""
        totals: dict[str, int] = {}
        untils: dict[str, list[int]] = {}
        forgotten = {k for k, v, _ in rows if v is None}
        for k, v, at in rows:
            totals[k] = totals.get(k, 0) + (v or 0)
            untils.setdefault(k, []).extend([] if at is None else [at])
        for k, total in totals.items():
            if k in forgotten:
                self.state.pop(k, None)
            else:
                self.state[k] = (self.state.get(k, (0, None))[0] + total, max(untils[k], default=None))

    def expire(self, until_ms: int) -> list[tuple[str, int]]:
        """Remove due keys and return them with their sums."""
        due = [(k, total, at) for k, (total, at) in self.state.items() if at is not None and at <= until_ms]
        for k, total, at in due:
            if total % _KEPT == 0:
                self.state[k] = (total, at + self._longer_ms)
            else:
                del self.state[k]
        return sorted((k, total) for k, total, _ in due)

    def timers(self) -> dict[int, int]:
        """Return the earliest time of each key-group that has a time."""
        return first_by_group({k: at for k, (_, at) in self.state.items()})


def timers_of(member: Member) -> dict[int, int]:
    """Return the earliest timer of each key-group in the log."""
    return {kg: entry.timer_ms for kg, entry in member.entries.items() if entry.timer_ms is not None}


_KEYS = st.sampled_from([f"k{number}" for number in range(12)])
_ROW = st.tuples(_KEYS, st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.integers(0, 40)))
_BATCH = st.tuples(st.lists(_ROW, max_size=8), st.integers(-9, 8), st.sampled_from([0, 0, 3]), st.sampled_from("112"))


@pytest.mark.parametrize(
    "compute", [Sessions(), Sessions(pa.timestamp("us"), per_key_group=True), Sessions(longer_ms=0)]
)
@pytest.mark.parametrize("whole_from_rows", [1, 1000])
@given(st.lists(_BATCH, max_size=16))
@example([([("k0", 0, 1), ("k6", 1, 2)], 0, 0, "1"), ([], 5, 0, "1"), ([], 1, 0, "1")])
@example(
    [
        ([("k0", 1, 40), ("k6", 1, 8)], 0, 0, "1"),
        ([("k0", 1, 40)], 9, 0, "1"),
        ([("k0", 1, 3)], -9, 0, "1"),
        ([], 9, 0, "1"),
    ]
)
@pytest.mark.sample(step=2)
def test_expired_output_and_timers_equal_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, compute: Sessions, whole_from_rows: int,
    batches: list[tuple[list[Row], int, int, str]],
) -> None:  # fmt: skip
    """Output and timers equal those of a dictionary. Rows move times, delete keys and add them again. Watermarks rise
    or fall, owners change, and deltas are whole or not.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_groups, "_ROWS_MIN", whole_from_rows)  # few rows are sealed whole, or not
        _check_against_model(Member(tmp_path_factory.mktemp("m"), compute), Model(compute.longer_ms), batches)


def _check_against_model(member: Member, model: Model, batches: list[tuple[list[Row], int, int, str]]) -> None:
    """Run batches, and compare output and timers with those of the model."""
    watermark = 0
    for rows, rise, last, executor in batches:
        watermark = max(0, watermark + rise)
        times = {"time_mode": "EventTime", "watermark_ms": watermark, "time_ms": watermark}
        member.changes = {**times, **({"last_pass_ms": watermark + last} if last else {})}
        output = member.feed(rows_of(*rows), executor)
        model.batch(rows)
        expired_rows = [
            sorted((row["k"], row["total"]) for row in output if row["late"] is late) for late in (False, True)
        ]
        assert expired_rows == [model.expire(watermark), model.expire(watermark + last) if last else []]
        assert timers_of(member) == model.timers()


def test_a_slot_with_rows_also_expires_keys_of_other_key_groups(tmp_path: Path) -> None:
    """A slot that gets rows also expires keys in its other key-groups."""
    member = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=0)
    member.feed(rows_of(*((f"k{n}", 1, 5) for n in range(6))))
    member.changes = {**member.changes, "watermark_ms": 9}
    late = member.feed(rows_of(("k0", 1, 50)))
    assert sorted(str(row["k"]) for row in late) == [f"k{n}" for n in range(1, 6)]


@dataclass(frozen=True)
class FirstRows:
    """Outputs the first row of a key until its time is over, and nothing at that time."""

    ignores_expiry: bool = True

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare a time column."""
        state = pa.schema([("until", pa.int64())])
        return Declared(state, key, ("at",), per_key_group=False, time_mode="EventTime", due="until")

    def __call__(self, batch: Batch) -> Update:
        """Keep the times of new keys."""
        first = np.unique(batch.codes, return_index=True)[1]
        new = np.flatnonzero(~batch.has_state)
        until = batch.rows["at"].take(pa.array(first[new]))
        passed = batch.keys.take(pa.array(new))
        return Update(passed, new, pa.table([until], ["until"]), deleted=new[:0])


_SEEN = st.tuples(_KEYS, st.just(1), st.one_of(st.none(), st.integers(0, 12)))


@pytest.mark.parametrize("ignores_expiry", [True, False])
@given(st.lists(st.tuples(st.lists(_SEEN, max_size=8), st.integers(0, 6), st.sampled_from("112")), max_size=20))
@pytest.mark.sample(step=2)
def test_expired_keys_count_once_and_can_be_added_again(
    tmp_path_factory: pytest.TempPathFactory, ignores_expiry: bool, batches: list[tuple[list[Row], int, str]],
) -> None:  # fmt: skip
    """Expired keys count once and can be added again, and the log has the next timer. Each expired key is a row of the
    delta, except for a write-once key whose key-group has another row in it.
    """
    assert isinstance(FirstRows(), PlainExpiry)
    member, known, watermark = (
        Member(tmp_path_factory.mktemp("m"), FirstRows(ignores_expiry)),
        dict[str, int | None](),
        0,
    )
    for drawn, rise, executor in batches:
        rows = [(k, v, None if at is None else watermark + at) for k, v, at in drawn]
        new = {k: at for k, _, at in reversed(rows) if k not in known}
        watermark += rise
        member.changes = {"time_mode": "EventTime", "watermark_ms": watermark, "time_ms": watermark}
        output, receipt = member.answer(rows_of(*rows), executor)
        known |= new
        due = {k for k, at in known.items() if at is not None and at <= watermark}
        assert sorted(output["k"].to_pylist()) == sorted(new)
        assert receipt.expired == len(due)
        sealed = {str(row["k"]) for row in member.changes_sealed(receipt)}
        touched = {group_of(k) for k in new} if ignores_expiry else set[int]()
        assert sealed == new.keys() | {k for k in due if group_of(k) not in touched}
        known = {k: at for k, at in known.items() if k not in due}
        member.commit(receipt)
        assert timers_of(member) == first_by_group(known)


def group_of(key: str) -> int:
    """Return the key-group of a key."""
    return int(key_groups([pa.array([key])], TOTAL)[0])


def first_by_group(times: Mapping[str, int | None]) -> dict[int, int]:
    """Return the earliest time of each key-group that has a time."""
    first: dict[int, int] = {}
    for k, at in times.items():
        if at is not None:
            first[group_of(k)] = min(first.get(group_of(k), at), at)
    return first


def test_an_expired_key_is_deleted_output_once_and_counted(tmp_path: Path) -> None:
    """An expired key is a deleted row of the delta and is output once. The receipt counts it."""
    member = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=9)
    member.feed(rows_of(("a", 1, 10), ("b", 2, 11), ("c", 3, None)))
    member.changes["watermark_ms"] = 10
    output, receipt = member.answer(rows_of())
    assert [(row["k"], row["total"]) for row in output.to_pylist()] == [("a", 1)]
    assert (receipt.expired, [(row["k"], row["__deleted"]) for row in member.changes_sealed(receipt)]) == (
        1,
        [("a", True)],
    )
    member.commit(receipt)
    assert member.feed(rows_of()) == []


def test_the_next_timer_is_found_behind_rows_with_moved_times(tmp_path: Path) -> None:
    """The next timer is found behind any number of rows whose time was moved."""
    member, model = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=1), Model()
    for keys, later in ((300, 10), (250, 1000), (290, 2000)):
        rows = [(f"k{number}", 1, later + number) for number in range(keys)]
        member.feed(rows_of(*rows))
        model.batch(rows)
        assert timers_of(member) == model.timers()


@pytest.mark.parametrize("turned", [False, True])
def test_the_next_timer_is_the_earliest_moved_time(tmp_path: Path, turned: bool) -> None:
    """If two batches move the times of two keys that were due together, the next timer is the earliest moved time."""
    keys = [f"k{number}" for number in range(100)]
    groups = key_groups([pa.array(keys)], TOTAL).tolist()
    same = [key for key, group in zip(keys, groups, strict=True) if group == groups[0]]
    one, other = same[1::-1] if turned else same[:2]
    member = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=1)
    for rows in ([(one, 1, 10), (other, 1, 10)], [(one, 1, 50)], [(other, 1, 60)]):
        member.feed(rows_of(*rows))
    assert timers_of(member) == {groups[0]: 50}


def test_rows_are_grouped_by_whole_hash() -> None:
    """Rows are grouped by whole hash, also if the high bits are equal. The first row of each key stays."""
    hashes, of_row = np.array([3, 1, 3, 2, 1], np.uint64), np.array([7, 7, 7, 2, 2], np.int32)
    keys = pa.table({"k": ["c", "a", "c", "b", "a"]})
    assert find_newest_by_group(hashes, keys, of_row).tolist() == [4, 3, 1, 0]
    alike = np.zeros(5, np.uint64)
    assert find_newest_by_group(alike, keys, of_row).tolist() == [4, 3, 1, 0]


def test_a_batch_without_rows_and_due_keys_reads_nothing(tmp_path: Path) -> None:
    """A batch without rows and due keys reads and seals nothing."""
    member = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=1)
    member.feed(rows_of(("a", 1, 10)))
    _, receipt = member.answer(rows_of())
    assert (receipt.parts, receipt.expired, receipt.local_parts) == ((), 0, 0)


def test_the_metadata_of_a_part_has_its_due_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of a part has the earliest and latest due time and the due column. Its rows are ordered by due time,
    nulls last.
    """
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", math.inf)  # private: makes parts of few rows
    member = Member(tmp_path, Sessions(), time_mode="EventTime", watermark_ms=1)
    _, receipt = member.answer(
        rows_of(*((f"k{number}", 1, number % 5 + 2 or None) for number in range(200)), ("n", 1, None))
    )
    for part, data in parts_of(member, receipt):
        table = pa.ipc.open_stream(data).read_all()
        dues = table["until"].to_pylist()
        of_rows = [dues[row] for row in table[DUE_ORDER].to_pylist()]
        sorted_dues = sorted(due for due in dues if due is not None)
        assert of_rows == sorted_dues + [None] * (len(dues) - len(sorted_dues))
        assert table.schema.metadata[DUE_SPAN].decode() == f"{sorted_dues[0]},{sorted_dues[-1]}"
        assert (table.schema.metadata[DUE_COLUMN], part.timer_ms) == (b"until", sorted_dues[0])


def parts_of(member: Member, receipt: Receipt) -> list[tuple[Part, bytes]]:
    """Return the parts of a receipt with their bytes."""
    data = member.store.inner.get(paths.delta_name(receipt.version, receipt.attempt)) or b""
    return [(part, data[part.start : part.start + part.length]) for part in receipt.parts]


@dataclass(frozen=True)
class Windows:
    """Counts rows by key and window end, which is a key column, and outputs each count when its window ends."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - columns are fixed
        """Declare a count per window."""
        state = pa.schema([("n", pa.int64())])
        return Declared(state, pa.schema([*key, *state]), (), per_key_group=False, time_mode="EventTime", due="at")

    def __call__(self, batch: Batch) -> Update:
        """Count the rows of each key."""
        n = np.bincount(batch.codes, minlength=batch.keys.num_rows) + pc.fill_null(batch.state["n"], 0).to_numpy()
        state, output = pa.table([pa.array(n)], ["n"]), pa.schema([*batch.keys.schema, ("n", pa.int64())])
        return Update(output.empty_table(), np.arange(len(n)), state, np.empty(0, np.int64))

    def expire_keys(self, batch: Batch) -> Update:
        """Output the counts."""
        output = batch.keys.append_column("n", batch.state["n"])
        return Update(output, np.empty(0, np.int64), batch.state.schema.empty_table(), np.empty(0, np.int64))


def test_windows_from_merged_and_restored_stacks_end_once(tmp_path: Path) -> None:
    """Thousands of windows end once each, from merged and restored stacks. Deleted rows in their parts are not output
    again.
    """
    member = Member(tmp_path, Windows(), key=("k", "at"), time_mode="EventTime")
    random, model = np.random.default_rng(1), dict[tuple[str, int], int]()
    for batch in range(30):
        member.changes["watermark_ms"] = 20 * batch
        ends = (20 * batch + random.integers(1, 100, 1500)).tolist()
        keys = [f"k{number}" for number in random.integers(0, 40, 1500)]
        output = member.feed(rows_of(*zip(keys, [1] * 1500, ends, strict=True)), "1" if batch % 10 else "2")
        for window in zip(keys, ends, strict=True):
            model[window] = model.get(window, 0) + 1
        due = {window: model.pop(window) for window in list(model) if window[1] <= 20 * batch}
        assert {(row["k"], row["at"]): row["n"] for row in output} == due
        assert len(output) == len(due)
    assert min(timers_of(member).values()) == min(at for _, at in model)


@pytest.mark.parametrize("declared", [{"due": "gone"}, {"due": "k"}, {"due": "v", "time_mode": "None"}])
def test_an_invalid_due_column_is_refused(tmp_path: Path, declared: dict[str, str]) -> None:
    """The due column must exist and be a time, and the time mode must not be `None`."""

    class ChangedSessions(Sessions):
        def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
            usual = super().declare(key, rows)
            return replace(usual, state=pa.schema([("v", pa.int64())]), **declared)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"RIFFLE-019[56]"):
        Member(tmp_path, ChangedSessions())


@pytest.mark.parametrize("name", ["__hash", "__deleted", "__due_order"])
@pytest.mark.parametrize("of_key", [False, True])
def test_state_columns_with_internal_names_are_refused(tmp_path: Path, name: str, of_key: bool) -> None:
    """State and key columns with names of internal columns are refused, because their deltas could not be read."""
    state = pa.schema([("total", pa.int64()), ("until", pa.int64()), *([] if of_key else [(name, pa.int64())])])

    def compute(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        return rows, state

    function = arrow_function(compute, state=state, output=OUTPUT, due="until", time_mode="EventTime")
    rows, key = pa.schema([(name, pa.string()), *ROWS]), (name if of_key else "k",)
    with pytest.raises(ConfigError, match="RIFFLE-0194"):
        Member(tmp_path, function, rows, key)


class NotNullWindows(Windows):
    """The same windows with output columns that are declared not null."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare a count that is not null."""
        usual = super().declare(key, rows)
        return replace(usual, output=pa.schema([field.with_nullable(False) for field in usual.output]))


def test_output_rows_have_the_declared_nullability(tmp_path: Path) -> None:
    """Rows of a batch and of expired keys have the declared schema, whatever their tables declare as nullable."""
    member = Member(tmp_path, NotNullWindows(), key=("k", "at"), time_mode="EventTime", watermark_ms=5)
    assert member.feed(rows_of(("a", 1, 5), ("b", 1, 6))) == [{"k": "a", "at": 5, "n": 1}]
    member.changes["watermark_ms"] = 6
    assert member.feed(rows_of()) == [{"k": "b", "at": 6, "n": 1}]


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 1, 999, 1000, 1001, 2**63 - 1])
def test_due_times_are_rounded_up_to_milliseconds(value: int) -> None:
    """A due time with microseconds is rounded up to the next millisecond, also before 1970."""
    column = pa.array([value], pa.int64()).cast(pa.timestamp("us"))
    assert in_milliseconds(column).tolist() == [-(-value // 1000)]
    times = compute_due_times(column, None)
    assert times.ms_at(0) == -(-value // 1000)
    assert times.find_due_between(-(2**63), times.ms_at(0)).tolist() == [0]
    assert times.find_due_between(-(2**63), times.ms_at(0) - 1).tolist() == []


def test_due_keys_are_found_in_parts_without_an_order(tmp_path: Path) -> None:
    """Due keys are found in parts that were sealed without an order of due times."""
    schema = Member(tmp_path, Sessions()).operator.schema
    assert isinstance(schema, PlainColumns)
    rows = pa.table([["a", "b", "c"], [1, 2, 3], [9, None, 4]], schema=schema.part_schema())
    data = part_codec.encode(schema.sealed(rows))
    (tmp_path / "file").write_bytes(data)
    part = StackedPart("file", 0, len(data), part_codec.checksum(data), 3, 1)
    runs = PartFiles(tmp_path).read_runs(part, schema, 0)
    assert find_due_rows(schema, [RunsOfKeyGroup(0, runs, 0)], 4).rows.column("k").to_pylist() == ["c"]
    assert find_first_due_ms(schema, [RunsOfKeyGroup(0, runs, 5)]) == {0: 9}


def test_a_store_cannot_change_its_due_column(tmp_path: Path) -> None:
    """A store cannot read state that was written with another due column or time mode, because the parts have no order
    of due times.
    """
    due, none = (
        Member(tmp_path, Sessions()).operator.schema,
        PlainColumns("totals", KEY, Sessions().declare(KEY, KEY).state),
    )
    assert due.can_read(due.to_text())
    assert not due.can_read(none.to_text())
    assert not none.can_read(due.to_text())
    by_clock = Member(tmp_path, Sessions(time_mode="ProcessingTime")).operator.schema
    assert not by_clock.can_read(due.to_text())
    assert "due: until by EventTime" in due.to_text()["text"]
    assert schema_of_text("totals", due.to_text()) == due


def test_a_key_stored_as_negative_zero_expires_as_zero() -> None:
    """A key that an older part stores as -0.0 expires as 0.0."""
    schema = PlainColumns("s", pa.schema([("k", pa.float64())]), pa.schema([("until", pa.int64())]), "until")
    rows = pa.table([[-0.0], [3]], schema=schema.row_schema)
    run = Run(schema.hashes(rows), rows.to_batches()[0], None, compute_due_times(rows["until"].chunk(0), None))
    assert str(find_due_rows(schema, [RunsOfKeyGroup(0, (run,), 0)], 4).rows["k"].to_pylist()) == "[0.0]"
