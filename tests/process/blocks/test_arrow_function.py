"""A user's function on Arrow: what it is given and what comes of what it returns."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from riffle_spark.process.blocks.arrow_function import Context, arrow_function
from tests.kit.process.arrow_totals import (
    NOTHING,
    OUTPUT,
    ROWS,
    STATE,
    batch,
    keyed_by,
    returning,
    running_total,
    stored,
)
from tests.kit.process.process_calls import WHERE, Keyed


def _totals(keyed: Keyed) -> list[Any]:
    return [row["total"] for row in keyed.state.values()]


def test_state_is_carried_from_batch_to_batch() -> None:
    """The function gets back what it returned for the keys it touches, and emits its rows."""
    keyed = keyed_by(running_total)
    assert keyed.feed(batch(a=1, b=2)) == [{"k": "a", "total": 1}, {"k": "b", "total": 2}]
    assert keyed.feed(batch(b=5, c=1)) == [{"k": "b", "total": 7}, {"k": "c", "total": 1}]
    assert _totals(keyed) == [1, 7, 1]


def test_a_call_gets_whole_rows_and_only_the_touched_state_there_is() -> None:
    """Rows come as they are, with their key columns; state holds the touched keys that have some."""
    calls = []

    def watch(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        calls.append((rows, state))
        return running_total(rows, state)

    keyed = keyed_by(watch)
    keyed.feed(batch(a=1, b=2))
    keyed.feed(batch(b=5, c=1))
    assert calls == [(batch(a=1, b=2), stored()), (batch(b=5, c=1), stored(b=2))]


def test_the_context_tells_place_and_time() -> None:
    """A third parameter gets the key-group, the store, and the batch's own version and times."""
    seen = []

    def watch(_rows: pa.Table, _state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table]:
        seen.append(context)
        return NOTHING, stored()

    keyed_by(watch).feed(batch(a=1))
    assert seen == [Context(**WHERE)]


def test_keys_that_are_not_returned_keep_their_state() -> None:
    """New state is written for the returned keys alone."""
    keyed = keyed_by(running_total)
    keyed.feed(batch(a=1, b=2))
    keyed.compute = arrow_function(lambda _rows, _state: (NOTHING, stored(b=9)), state=STATE, output=OUTPUT)
    assert keyed.feed(batch(a=1, b=1)) == []
    assert _totals(keyed) == [1, 9]


def test_deleted_keys_lose_their_state() -> None:
    """A third table names keys to forget; to forget a key that has no state does nothing."""
    keyed = keyed_by(running_total)
    keyed.feed(batch(a=1, b=2))
    gone = pa.table({"k": ["a", "z"]})
    keyed.compute = arrow_function(lambda _rows, _state: (NOTHING, stored(), gone), state=STATE, output=OUTPUT)
    keyed.feed(batch(a=1, b=1, z=1))
    assert _totals(keyed) == [2]


def test_returned_tables_are_fitted_to_the_declaration() -> None:
    """Columns in another order and narrower types are taken, keys included."""
    narrow = pa.table({"total": pa.array([3], pa.int8()), "k": pa.array(["a"], pa.large_string())})
    keyed = returning((narrow, narrow))
    assert keyed.feed(batch(a=1)) == [{"k": "a", "total": 3}]
    assert _totals(keyed) == [3]


def test_null_and_composite_keys_are_told_apart() -> None:
    """A null in a key matches itself and nothing else."""
    rows = pa.table({"a": ["x", "x", None], "b": pa.array([1, None, None], pa.int64())})
    stored = rows.append_column("total", pa.array([10, 20, 30])).take([2, 0, 1])
    compute = arrow_function(lambda _rows, _state: (NOTHING, stored), state=STATE, output=OUTPUT)
    keyed = Keyed(compute, rows.schema, key=["a", "b"])
    keyed.feed(rows)
    assert sorted(_totals(keyed)) == [10, 20, 30]
    keyed.compute = arrow_function(
        lambda _rows, state: (NOTHING, state.slice(0, 0), rows.take([1])), state=STATE, output=OUTPUT
    )
    keyed.feed(rows)
    assert sorted(_totals(keyed)) == [10, 30]


def test_the_declaration_is_what_was_given() -> None:
    """One call a key-group, all columns, the schemas as they are."""
    declared = keyed_by(running_total).declared
    assert (declared.state, declared.output) == (STATE, OUTPUT)
    assert declared.per_key_group
    assert declared.columns is None


def test_no_time_may_be_written_in_any_letters() -> None:
    """A function without time says so, or says nothing."""
    assert arrow_function(running_total, state=STATE, output=OUTPUT, time_mode="none").time_mode == "None"


def test_parameters_with_defaults_are_the_functions_own() -> None:
    """Only a third parameter without a default gets the context; partial functions are called as what they are."""

    def scaled(rows: pa.Table, state: pa.Table, factor: int = 2) -> tuple[pa.Table, pa.Table]:
        assert factor in (2, 3)
        return running_total(rows, state)

    assert keyed_by(scaled).feed(batch(a=1))
    assert keyed_by(functools.partial(scaled, factor=3)).feed(batch(a=1))


def test_a_closure_travels_to_executors() -> None:
    """A function made on the spot works after Spark's own pickling."""
    factor = 3
    compute = arrow_function(lambda _rows, _state: (stored(a=factor), stored()), state=STATE, output=OUTPUT)
    copied = cloudpickle.loads(cloudpickle.dumps(compute))
    assert Keyed(copied, ROWS).feed(batch(a=1)) == [{"k": "a", "total": 3}]
