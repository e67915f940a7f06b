"""A join of a stream with a table in a harness equals a model: a dictionary of the last row per key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful
from riffle_spark.process.stages.table_rows import TableRows
from riffle_spark.process.types.stage_specs import TableSpec
from riffle_spark.testing import Harness
from tests.kit.examples import costly

KEYS = pa.schema([("k", pa.string())])
TOLD = pa.schema([("n", pa.int64())])
KEPT = pa.schema([("name", pa.string()), ("tags", pa.map_(pa.string(), pa.int64())), ("at", pa.int64())])
ROWS = pa.schema([*KEYS, ("is_change", pa.bool_()), *TOLD, *KEPT])
SPEC = TableSpec("table.k", KEYS, "is_change", TOLD, KEPT, ("at",), "found", keeps_unmatched=True)


class Change(NamedTuple):
    """A row of the table: key, order and value."""

    k: str | None
    at: int | None
    name: str | None


class Event(NamedTuple):
    """A row of the stream."""

    k: str | None
    n: int


Row = Change | Event


def in_order(change: Change) -> tuple[bool, int, bool, str]:
    """Return the sort key of changes in one batch. A null is the smallest."""
    return (change.at is not None, change.at or 0, change.name is not None, change.name or "")


def model(table: dict[str | None, Change], batch: Sequence[Row], *, alone: bool) -> list[tuple[object, ...]]:
    """Apply the changes of a batch to the table in order. Then look up its events."""
    for change in sorted((row for row in batch if isinstance(row, Change)), key=in_order):
        current = table.get(change.k)
        if current is None or in_order(change)[:2] >= in_order(current)[:2]:
            table[change.k] = change
    answers = list[tuple[object, ...]]()
    for row in batch:
        match = table.get(row.k)
        if isinstance(row, Event) and (alone or match):
            answers.append((row.k, row.n, match.name if match else None, match.at if match else None, bool(match)))
    return sorted(answers, key=repr)


def row_of(row: Row) -> Mapping[str, object]:
    """Return a row as a slot receives it."""
    is_change = isinstance(row, Change)
    return {**dict.fromkeys(ROWS.names), **row._asdict(), "is_change": is_change}


def answer_of(row: Mapping[str, object]) -> tuple[object, ...]:
    """Return an output row in the model's form."""
    return tuple(row[name] for name in ("k", "n", "name", "at", "found"))


_KEY = st.sampled_from(["a", "b", "c", None])
_CHANGE = st.builds(Change, _KEY, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "x", "y", "z"]))
_BATCH = st.lists(st.one_of(_CHANGE, st.builds(Event, _KEY, st.integers(0, 2))), max_size=7)


@costly(2)
@given(st.booleans(), st.lists(st.tuples(_BATCH, st.sampled_from(["", "", "restart", "crash"])), max_size=5))
def test_an_event_gets_the_last_change_of_its_key(alone: bool, batches: list[tuple[list[Row], str]]) -> None:
    """Property: an event gets the last change of its key, including changes of its own batch, in any order of rows."""
    table, spec = dict[str | None, Change](), replace(SPEC, keeps_unmatched=alone)
    with Harness(Stateful("table.k", "k", TableRows(spec)), ROWS) as query:
        for batch, event in batches:
            output = query.feed([row_of(row) for row in batch])
            assert sorted(map(answer_of, output), key=repr) == model(table, batch, alone=alone)
            if event:
                query.crash(lose_copies=event == "crash")
        assert query.state() == {
            (key,): {"name": change.name, "tags": None, "at": change.at} for key, change in table.items()
        }


def test_a_table_may_have_only_the_column_that_orders_its_changes() -> None:
    """A table whose only column orders its changes keeps the greatest value of each key."""
    spec = replace(SPEC, table_columns=pa.schema([KEPT.field("at")]))
    rows = [row_of(row) for row in (Change("a", 2, None), Change("a", 1, None), Event("a", 7))]
    with Harness(Stateful("table.k", "k", TableRows(spec)), ROWS) as query:
        assert [(row["n"], row["at"]) for row in query.feed(rows)] == [(7, 2)]
        assert query.state() == {("a",): {"at": 2}}
