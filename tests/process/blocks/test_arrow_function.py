"""`arrow_function` calls users' functions with Arrow tables and refuses results that do not fit the declaration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.blocks.arrow_function import Context, arrow_function
from riffle_spark.process.blocks.block import Batch
from tests.kit.process.process_calls import WHERE, KeyedComputation

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
STATE = pa.schema([("total", pa.int64())])
OUTPUT = pa.schema([("k", pa.string()), ("total", pa.int64())])
NO_OUTPUT = OUTPUT.empty_table()


def running_total(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Add the rows of each key to its total."""
    parts = pa.concat_tables([state, rows.rename_columns(["k", "total"])])
    totals = parts.group_by("k", use_threads=False).aggregate([("total", "sum")]).rename_columns(["k", "total"])
    return totals, totals


def batch(**values: int) -> pa.Table:
    """Return input rows with these keys and values."""
    return pa.table({"k": list(values), "v": list(values.values())}, schema=ROWS)


def stored(**totals: int) -> pa.Table:
    """Return state rows with these keys and totals."""
    return pa.table({"k": list(totals), "total": list(totals.values())}, schema=OUTPUT)


def keyed_by(function: Callable[..., Any]) -> KeyedComputation:
    """Return a keyed computation that runs a function and stores its state."""
    return KeyedComputation(arrow_function(function, state=STATE, output=OUTPUT), ROWS)


def returning(returned: object) -> KeyedComputation:
    """Return a keyed computation whose function always returns this object."""
    return keyed_by(lambda _rows, _state: returned)


def _totals(keyed: KeyedComputation) -> list[Any]:
    return [row["total"] for row in keyed.state.values()]


def test_a_call_gets_the_rows_and_the_state_of_their_keys() -> None:
    """The function gets the rows and the stored state of their keys. Its output rows are emitted."""
    calls = []

    def watch(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        calls.append((rows, state))
        return running_total(rows, state)

    keyed = keyed_by(watch)
    assert keyed.feed(batch(a=1, b=2)) == [{"k": "a", "total": 1}, {"k": "b", "total": 2}]
    assert keyed.feed(batch(b=5, c=1)) == [{"k": "b", "total": 7}, {"k": "c", "total": 1}]
    assert _totals(keyed) == [1, 7, 1]
    assert calls == [(batch(a=1, b=2), stored()), (batch(b=5, c=1), stored(b=2))]


def test_a_third_parameter_gets_the_context() -> None:
    """A third parameter without a default gets the context: key-group, version and times."""
    contexts = []

    def watch(_rows: pa.Table, _state: pa.Table, context: Context) -> tuple[pa.Table, pa.Table]:
        contexts.append(context)
        return NO_OUTPUT, stored()

    keyed_by(watch).feed(batch(a=1))
    assert contexts == [Context(**WHERE)]


def test_only_returned_keys_change() -> None:
    """Keys that the function does not return keep their state, and deleted keys lose it."""
    keyed = keyed_by(running_total)
    keyed.feed(batch(a=1, b=2))
    keyed.compute = arrow_function(lambda _rows, _state: (NO_OUTPUT, stored(b=9)), state=STATE, output=OUTPUT)
    assert keyed.feed(batch(a=1, b=1)) == []
    assert _totals(keyed) == [1, 9]
    deleted = pa.table({"k": ["a", "z"]})
    keyed.compute = arrow_function(lambda _rows, _state: (NO_OUTPUT, stored(), deleted), state=STATE, output=OUTPUT)
    keyed.feed(batch(a=1, b=1, z=1))
    assert _totals(keyed) == [9]


def test_returned_tables_are_fitted_to_the_declaration() -> None:
    """Returned columns are reordered and cast to the declared schema, keys included."""
    narrow = pa.table({"total": pa.array([3], pa.int8()), "k": pa.array(["a"], pa.large_string())})
    keyed = returning((narrow, narrow))
    assert keyed.feed(batch(a=1)) == [{"k": "a", "total": 3}]
    assert _totals(keyed) == [3]


def test_null_and_composite_keys_are_distinct() -> None:
    """Null keys, and keys that are partly null, are distinct from other keys."""
    rows = pa.table({"a": ["x", "x", None], "b": pa.array([1, None, None], pa.int64())})
    totals = rows.append_column("total", pa.array([10, 20, 30])).take([2, 0, 1])
    compute = arrow_function(lambda _rows, _state: (NO_OUTPUT, totals), state=STATE, output=OUTPUT)
    keyed = KeyedComputation(compute, rows.schema, key=["a", "b"])
    keyed.feed(rows)
    assert sorted(_totals(keyed)) == [10, 20, 30]
    keyed.compute = arrow_function(
        lambda _rows, state: (NO_OUTPUT, state.slice(0, 0), rows.take([1])), state=STATE, output=OUTPUT
    )
    keyed.feed(rows)
    assert sorted(_totals(keyed)) == [10, 30]


def test_functions_with_defaults_partials_and_closures_work() -> None:
    """Functions with defaults, partials and closures work, also after pickling. Defaults do not get the context."""

    def scaled(rows: pa.Table, state: pa.Table, factor: int = 2) -> tuple[pa.Table, pa.Table]:
        assert factor in (2, 3)
        return running_total(rows, state)

    assert keyed_by(scaled).feed(batch(a=1))
    assert keyed_by(functools.partial(scaled, factor=3)).feed(batch(a=1))
    factor = 3
    compute = arrow_function(lambda _rows, _state: (stored(a=factor), stored()), state=STATE, output=OUTPUT)
    assert KeyedComputation(cloudpickle.loads(cloudpickle.dumps(compute)), ROWS).feed(batch(a=1)) == [
        {"k": "a", "total": 3}
    ]


def test_an_exception_has_the_users_traceback_only() -> None:
    """The error shows the user's traceback without the product's frames. The state is unchanged."""

    def explode(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        if pc.min(rows["v"]).as_py() < 0:
            raise ValueError("negative amount")
        return running_total(rows, state)

    keyed = keyed_by(explode)
    keyed.feed(batch(a=1))
    with pytest.raises(UserFunctionError, match="RIFFLE-0198") as error:
        keyed.feed(batch(a=-1))
    assert 'raise ValueError("negative amount")' in error.value.problem
    assert "/blocks/arrow_function.py" not in error.value.problem
    assert error.value.where == "store 'totals', key-group 3"
    assert isinstance(error.value.__cause__, ValueError)
    assert _totals(keyed) == [1]


WRONG = pa.table({"k": ["a"], "total": ["1"]})
REFUSED: dict[str, tuple[object, str]] = {
    "one table": (NO_OUTPUT, "RIFFLE-0169"),
    "one in a tuple": ((NO_OUTPUT,), "RIFFLE-0169"),
    "output of another type": ((WRONG, stored()), "RIFFLE-0200"),
    "state of another type": ((NO_OUTPUT, WRONG), "RIFFLE-0200"),
    "deleted with state": ((NO_OUTPUT, stored(), stored()), "RIFFLE-0200"),
    "no table": ((NO_OUTPUT, {"a": 1}), "RIFFLE-0199"),
    "an unknown key": ((NO_OUTPUT, stored(a=1, x=2)), r"RIFFLE-0170.*\{'k': 'x'\}"),
    "an unknown deleted key": ((NO_OUTPUT, stored(), pa.table({"k": ["x"]})), "RIFFLE-0170"),
    "a null key": ((NO_OUTPUT, pa.table({"k": [None], "total": [1]}, schema=OUTPUT)), "RIFFLE-0170"),
    "a key twice": ((NO_OUTPUT, pa.concat_tables([stored(a=1, b=1), stored(b=2)])), r"RIFFLE-0171.*\{'k': 'b'\}"),
    "changed and deleted": ((NO_OUTPUT, stored(b=1), pa.table({"k": ["a", "b"]})), r"RIFFLE-0172.*\{'k': 'b'\}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_result_that_does_not_match_its_declaration_is_refused(case: str) -> None:
    """A result that is not as declared fails the batch, and the error names the key-group."""
    returned, id = REFUSED[case]
    with pytest.raises(UserFunctionError, match=id) as error:
        returning(returned).feed(batch(a=1, b=2))
    assert error.value.where == "store 'totals', key-group 3"
    assert error.value.remedy


@pytest.mark.parametrize(
    ("state", "output", "id"),
    [
        (OUTPUT, OUTPUT, "RIFFLE-0167"),
        (pa.schema([]), OUTPUT, "RIFFLE-0168"),
        (STATE, pa.schema([("a", pa.int8()), ("a", pa.int8())]), "RIFFLE-0167"),
    ],
)
def test_schemas_that_cannot_be_stored_are_refused(state: pa.Schema, output: pa.Schema, id: str) -> None:
    """A state with the key's columns or with no columns is refused, and so are repeated output columns."""
    with pytest.raises(ConfigError, match=id):
        KeyedComputation(arrow_function(running_total, state=state, output=output), ROWS)


EXPIRING = {"state": STATE, "output": OUTPUT, "due": "until", "time_mode": "EventTime"}


@pytest.mark.parametrize(
    ("function", "changes", "id"),
    [
        (lambda rows: rows, {}, "RIFFLE-0166"),
        ("running_total", {}, "RIFFLE-0165"),
        (running_total, {"state": "total long"}, "RIFFLE-0163"),
        (running_total, {"due": None}, "RIFFLE-0164"),
        (running_total, {"due": None, "time_mode": "None", "expired": running_total}, "RIFFLE-0164"),
        (running_total, {"time_mode": "Sometimes"}, "time_mode"),
        (running_total, {"expired": lambda _a, _b, _c: None}, "RIFFLE-0166"),
    ],
)
def test_invalid_arguments_are_refused_at_construction(function: Any, changes: dict[str, Any], id: str) -> None:
    """Functions with other parameters, schemas of another type, and a time mode without a due column are refused."""
    with pytest.raises(ConfigError, match=id):
        arrow_function(function, **{**EXPIRING, **changes})


@pytest.mark.parametrize(
    ("expired", "id"),
    [
        (lambda _: 1 / 0, "RIFFLE-0198"),
        (lambda _: None, "RIFFLE-0199"),
        (lambda state: (state, state, state), "RIFFLE-0169"),
        (lambda _: (NO_OUTPUT, stored(z=1)), "RIFFLE-0170"),
    ],
)
def test_errors_of_the_expired_function_are_reported(expired: Any, id: str) -> None:
    """Errors of the `expired` function are reported like those of the function of rows."""
    compute = arrow_function(running_total, expired=expired, **EXPIRING)
    state = stored(a=1)
    no_codes = np.empty(0, np.int64)
    columns = (ROWS.empty_table(), no_codes, state.select(["k"]), state.select(["total"]), np.ones(1, np.bool_))
    with pytest.raises(UserFunctionError, match=id):
        compute.expire_keys(Batch(*columns, version=0, time_ms=0, watermark_ms=None, key_group=3))


def test_expired_keys_without_a_function_are_deleted_without_output() -> None:
    """Without a function for expired keys, they have no output and no new state."""
    keys = pa.table({"k": ["a", "b"]})
    none = np.empty(0, np.int64)
    state = pa.table({"total": [1, 2]}, schema=STATE)
    expired = Batch(batch(), none, keys, state, np.array([True, True]), **WHERE)
    update = arrow_function(running_total, state=STATE, output=OUTPUT).expire_keys(expired)
    assert (update.output.num_rows, len(update.changed), update.state.num_rows) == (0, 0, 0)
