"""Joins of two streams in a harness equal a model that pairs rows one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.stages import paired_rows
from riffle_spark.process.stages.paired_rows import PairedRows
from riffle_spark.process.types.stage_specs import Comparison, JoinSide, JoinSpec
from riffle_spark.testing import Harness
from tests.kit.examples import costly

TIME = pa.timestamp("us", "UTC")
BEFORE_MS, AFTER_MS = 2_000, 3_000
"""The bounds of a pair: how long the right row may be before and after the left row."""
_LEFT = [("at", TIME), ("n", pa.int64())]
_RIGHT = [("bt", TIME), ("m", pa.int64())]
ROWS = pa.schema(
    [("is_left", pa.bool_()), ("k", pa.string()), ("event_time", TIME), *_LEFT, ("low", TIME), ("high", TIME), *_RIGHT,
     ("passes", pa.bool_())]
)  # fmt: skip
INNER = JoinSpec(
    "join.k", pa.schema([("k", pa.string())]), "is_left",
    JoinSide(
        pa.schema([("page", pa.string()), *_LEFT]), pa.schema([*_LEFT, ("low", TIME), ("high", TIME)]), "passes",
        "event_time", AFTER_MS, (("page", "k"),),
    ),
    JoinSide(pa.schema(_RIGHT), pa.schema(_RIGHT), "passes", "event_time", BEFORE_MS),
    (Comparison("low", "less_equal", "bt"), Comparison("high", "greater_equal", "bt")), event_time="event_time",
)  # fmt: skip
SPECS = {
    "inner": INNER,
    "left": replace(INNER, outer=("left",)),
    "right": replace(INNER, outer=("right",)),
    "full": replace(INNER, outer=("left", "right")),
    "semi": replace(INNER, semi=True),
}
Answer = tuple[str | int | None, ...]


class Row(NamedTuple):
    """A row of either side: its key, its time (ms since the start), and its number."""

    is_left: bool
    key: str | None
    at: int
    number: int
    passes: bool


@dataclass
class BufferedRow:
    """A buffered row of the model."""

    row: Row
    has_partner: bool = False


@dataclass
class Model:
    """The buffered rows, and Spark's rules of late rows and eviction."""

    kind: str
    kept: list[BufferedRow] = field(default_factory=list)
    late_ms: int = 0

    def batch(self, rows: Sequence[Row], watermark_ms: int) -> list[Answer]:
        """Return the output rows of a batch."""
        answers: list[Answer] = []
        on_time = [row for row in rows if row.at > self.late_ms]
        for row in sorted(on_time, key=lambda joined_row: not joined_row.is_left):
            answers += self._row(row)
        for buffered in [buffered for buffered in self.kept if self._leaves(buffered.row) <= watermark_ms]:
            self.kept.remove(buffered)
            answers += [] if buffered.has_partner else self._alone(buffered.row)
        self.late_ms = watermark_ms
        return sorted(answers, key=repr)

    def _row(self, row: Row) -> list[Answer]:
        if not row.passes:
            return self._alone(row)
        own, answers = BufferedRow(row), list[Answer]()
        for partner in list(self.kept):
            left, right = (own, partner) if row.is_left else (partner, own)
            if partner.row.is_left != row.is_left and self._are_pair(left.row, right.row):
                answers += self._paired(left, right)
        if not (self.kind == "semi" and row.is_left and own.has_partner):
            self.kept.append(own)
        return answers

    def _are_pair(self, left: Row, right: Row) -> bool:
        return left.key == right.key and left.at - BEFORE_MS <= right.at <= left.at + AFTER_MS

    def _paired(self, left: BufferedRow, right: BufferedRow) -> list[Answer]:
        first = not left.has_partner
        left.has_partner = right.has_partner = True
        if self.kind != "semi":
            return [(left.row.key, left.row.at, left.row.number, right.row.at, right.row.number)]
        self.kept = [buffered for buffered in self.kept if buffered is not left]
        return [(left.row.key, left.row.at, left.row.number)] if first else []

    def _alone(self, row: Row) -> list[Answer]:
        if row.is_left and self.kind in {"left", "full"}:
            return [(row.key, row.at, row.number, None, None)]
        return [(None, None, None, row.at, row.number)] if not row.is_left and self.kind in {"right", "full"} else []

    def _leaves(self, row: Row) -> int:
        return row.at + (AFTER_MS if row.is_left else BEFORE_MS)


def sent_row(row: Row) -> dict[str, object]:
    """Return a row as a map side sends it."""
    us = row.at * 1000
    sent = {"is_left": row.is_left, "k": row.key, "event_time": us, "passes": row.passes}
    if row.is_left:
        bounds = {"low": us - BEFORE_MS * 1000, "high": us + AFTER_MS * 1000}
        return {**sent, "at": us, "n": row.number, **bounds}
    return {**sent, "bt": us, "m": row.number}


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return a table with rows of both sides."""
    sent = [sent_row(row) for row in rows]
    return pa.table(
        [pa.array([row.get(name) for row in sent], ROWS.field(name).type) for name in ROWS.names], schema=ROWS
    )


def answers_of(rows: Sequence[dict[str, object]], spec: JoinSpec) -> list[Answer]:
    """Return output rows in the model's form."""
    columns = [
        pc.divide(column.cast(pa.int64()), 1000) if pa.types.is_timestamp(column.type) else column
        for column in pa.Table.from_pylist(list(rows), spec.output).columns
    ]
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True), key=repr)


def harness(spec: JoinSpec) -> Harness:
    """Return a harness of a join that uses Spark's watermark."""
    return Harness(Stateful(spec.store, spec.keys.names, PairedRows(spec)), ROWS, late=LateRule("event_time"))


_ROW = st.builds(
    Row, st.booleans(), st.sampled_from(["a", "a", "b", None]), st.integers(1, 12).map(lambda second: 1000 * second),
    st.integers(0, 2), st.sampled_from([True, True, True, False]),
)  # fmt: skip
_BATCH = st.tuples(st.lists(_ROW, max_size=7), st.integers(0, 5), st.sampled_from(["", "", "", "restart", "crash"]))


@costly(2)
@given(st.sampled_from(list(SPECS)), st.lists(_BATCH, max_size=7))
def test_pairs_equal_those_of_a_model(kind: str, batches: list[tuple[list[Row], int, str]]) -> None:
    """Property: pairs equal the model's, with null keys, late rows, filtered rows, restarts and lost executors."""
    model, spec, watermark_ms = Model(kind), SPECS[kind], 0
    with harness(spec) as query:
        for rows, later, event in batches:
            moved = [row._replace(at=row.at + watermark_ms) for row in rows]
            assert answers_of(query.feed(table_of(moved)), spec) == model.batch(moved, watermark_ms)
            watermark_ms += 1000 * later
            query.advance_watermark(watermark_ms)
            if event:
                query.crash(lose_copies=event == "crash")
        for name, is_left in ((paired_rows.LEFT, True), (paired_rows.RIGHT, False)):
            state = cast("Mapping[tuple[str | None], list[tuple[int, int]]]", query.state(name))
            stored = [(key, row[1]) for (key,), rows in state.items() for row in rows]
            assert sorted(stored, key=repr) == sorted(
                ((buffered.row.key, buffered.row.number) for buffered in model.kept if buffered.row.is_left == is_left),
                key=repr,
            )


def test_all_pairs_of_a_key_are_emitted_from_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of a key are emitted, also if they are compared in several pieces."""
    monkeypatch.setattr(paired_rows, "_PAIRS_AT_ONCE", 7)
    rows = [Row(number % 2 == 0, "a", 1000, number, True) for number in range(30)]
    with harness(INNER) as query:
        assert len(query.feed(table_of(rows))) == 15 * 15
        assert len(query.feed(table_of(rows[:4]))) == 2 * 15 + 2 * 15 + 2 * 2


def test_a_side_with_only_key_columns_is_buffered() -> None:
    """A side with only key columns is buffered too. Without a due time its rows are never evicted."""
    right = replace(
        INNER.right,
        output=pa.schema([("j", pa.string())]),
        buffered=pa.schema([]),
        key_backed=(("j", "k"),),
        filter_column=None,
    )
    with harness(
        replace(INNER, left=replace(INNER.left, due=None), right=replace(right, due=None), comparisons=())
    ) as query:  # its rows have no condition either
        query.feed(table_of([Row(False, "a", 3000, 2, True)]))
        query.advance_watermark(1_000_000)
        query.feed()
        assert [row["j"] for row in query.feed(table_of([Row(True, "a", 2_000_000, 1, True)]))] == ["a"]


def test_rows_without_a_time_match_no_bound_and_are_never_evicted() -> None:
    """Rows without a time match no row with a bound, and are never evicted."""
    timed = table_of([Row(True, "a", 1000, 1, True)])
    columns = [
        pa.nulls(1, field.type) if pa.types.is_timestamp(field.type) else timed.column(field.name) for field in ROWS
    ]
    with harness(SPECS["full"]) as query:
        query.feed(pa.table(columns, schema=ROWS))
        assert query.feed(table_of([Row(False, "a", 1000, 2, True)])) == []
        query.advance_watermark(1_000_000)
        assert [(row["n"], row["m"]) for row in query.feed()] == [(None, 2)]
        assert len(query.state(paired_rows.LEFT)) == 1


def test_due_rows_with_a_not_null_key_are_evicted_and_emitted() -> None:
    """Rows with a key column that is not nullable are evicted and emitted when they are due."""
    rows = ROWS.set(1, ROWS.field("k").with_nullable(False))
    left = SPECS["left"]
    with Harness(Stateful(left.store, left.keys.names, PairedRows(left)), rows, late=LateRule("event_time")) as query:
        query.feed(table_of([Row(True, "a", 1000, 1, True)]).cast(rows))
        query.advance_watermark(60_000)
        assert [row["n"] for row in query.feed(table_of([Row(True, "b", 70_000, 2, True)]).cast(rows))] == [1]


def test_a_later_row_of_a_key_does_not_delay_the_eviction_of_an_earlier_one() -> None:
    """A row is evicted and emitted when it is due, although a newer row of its key is due later."""
    with harness(SPECS["left"]) as query:
        query.feed(table_of([Row(True, "a", 1000, 1, True)]))
        query.feed(table_of([Row(True, "a", 9000, 2, True)]))
        query.advance_watermark(1000 + AFTER_MS)
        assert [row["n"] for row in query.feed()] == [1]
