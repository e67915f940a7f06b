"""A user's function on Arrow: how its faults are refused and told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import Batch
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
from tests.kit.process.process_calls import Keyed


def explode(rows: pa.Table, _state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Fail on negative values."""
    if pc.min(rows["v"]).as_py() < 0:
        raise ValueError("negative amount")
    return running_total(rows, _state)


def test_an_exception_is_shown_with_its_traceback_and_place() -> None:
    """The message holds the user's own frames, the key-group and the store; state stays as it was."""
    keyed = keyed_by(explode)
    keyed.feed(batch(a=1))
    with pytest.raises(UserFunctionError) as error:
        keyed.feed(batch(a=-1))
    told = str(error.value)
    assert told.startswith("explode raised ValueError:\nTraceback (most recent call last):\n")
    assert 'raise ValueError("negative amount")' in told
    assert "store 'totals', key-group 3" in told
    assert "arrow_function.py" not in told.replace("test_arrow_function.py", "")
    assert isinstance(error.value.__cause__, ValueError)
    assert [row["total"] for row in keyed.state.values()] == [1]


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (NOTHING, "a Table"),
        (None, "a NoneType"),
        ((NOTHING,), "a tuple of 1"),
        ((NOTHING, NOTHING, NOTHING, NOTHING), "a tuple of 4"),
        ([NOTHING, NOTHING], "a list"),
    ],
    ids=["table", "none", "one", "four", "list"],
)
def test_other_than_two_or_three_tables_is_refused(returned: object, told: str) -> None:
    """What came is named, and what is wanted."""
    with pytest.raises(UserFunctionError, match="RIFFLE-0169") as error:
        keyed_by(lambda _rows, _state: returned).feed(batch(a=1))
    assert "(output, new_state, deleted)" in error.value.remedy
    assert error.value.where == "store 'totals', key-group 3"


WRONG = pa.table({"k": ["a"], "total": ["1"]})
REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "output of another type": ((WRONG, stored()), "The output has not the declared columns"),
    "state of another type": ((NOTHING, WRONG), "The new state has not the declared columns"),
    "state without its key": ((NOTHING, stored().select(["total"])), r"k +string +- +<- missing"),
    "deleted with state": ((NOTHING, stored(), stored()), "The table of deleted keys has not the declared columns"),
    "no table": ((NOTHING, {"a": 1}), "The new state is a builtins.dict, not a pyarrow.Table"),
    "a foreign key": ((NOTHING, stored(a=1, x=2)), r"The new state holds a key that is not its own: \{'k': 'x'\}"),
    "a foreign deletion": (
        (NOTHING, stored(), pa.table({"k": ["x"]})),
        "deleted keys holds a key that is not its own",
    ),
    "a null key": ((NOTHING, pa.table({"k": [None], "total": [1]}, schema=OUTPUT)), r"not its own: \{'k': None\}"),
    "a key twice": (
        (NOTHING, pa.concat_tables([stored(a=1, b=1), stored(b=2)])),
        r"The new state holds the same key twice: \{'k': 'b'\}",
    ),
    "a deletion twice": ((NOTHING, stored(), pa.table({"k": ["b", "b"]})), "deleted keys holds the same key twice"),
    "kept and deleted": ((NOTHING, stored(b=1), pa.table({"k": ["a", "b"]})), r"and deleted: \{'k': 'b'\}"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_breaks_the_declaration_is_refused(case: str) -> None:
    """Wrong columns, keys of others and repeated keys fail the batch, with the key-group named."""
    returned, told = REFUSED[case]
    with pytest.raises(UserFunctionError, match=told) as error:
        returning(returned).feed(batch(a=1, b=2))
    assert error.value.where == "store 'totals', key-group 3"
    assert error.value.remedy


@pytest.mark.parametrize(
    ("state", "output", "told"),
    [
        (OUTPUT, OUTPUT, "The state has more than one column named k"),
        (pa.schema([]), OUTPUT, "The state has no column"),
        (STATE, pa.schema([("a", pa.int8()), ("a", pa.int8())]), "The output has more than one column named a"),
    ],
    ids=["key in state", "no state", "repeated output"],
)
def test_schemas_that_cannot_be_kept_are_refused(state: pa.Schema, output: pa.Schema, told: str) -> None:
    """A state with the key's columns, without columns, or an ambiguous output fails before anything runs."""
    with pytest.raises(ConfigError, match=told):
        Keyed(arrow_function(running_total, state=state, output=output), ROWS)


@pytest.mark.parametrize(
    "function",
    [lambda rows: rows, lambda rows, _state, _context, _more: rows, "running_total"],
    ids=["one", "four", "text"],
)
def test_a_function_that_cannot_be_called_is_refused_at_once(function: Any) -> None:
    """The number of parameters is checked where the function is declared."""
    with pytest.raises(ConfigError):
        arrow_function(function, state=STATE, output=OUTPUT)


def test_schemas_of_another_kind_are_refused_at_once() -> None:
    """The parameter is named."""
    with pytest.raises(ConfigError, match="RIFFLE-0163"):
        arrow_function(running_total, state="total long", output=OUTPUT)


EXPIRING = {"state": STATE, "output": OUTPUT, "due": "until", "time_mode": "EventTime"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"due": None}, "no column that says when keys are due"),
        ({"due": None, "time_mode": "None", "expired": running_total}, "no column that says when keys are due"),
        ({"time_mode": "Sometimes"}, "Unknown time_mode 'Sometimes'"),
        ({"expired": lambda: None}, "cannot be called with 1 or 2 arguments"),
        ({"expired": lambda _a, _b, _c: None}, "cannot be called with 1 or 2 arguments"),
    ],
)
def test_what_cannot_expire_keys_is_refused(given: dict[str, Any], told: str) -> None:
    """Time without a column, unknown time, and functions that cannot take what they are given."""
    with pytest.raises(ConfigError, match=told):
        arrow_function(running_total, **{**EXPIRING, **given})


@pytest.mark.parametrize(
    ("expired", "told"),
    [
        (lambda _: 1 / 0, "raised ZeroDivisionError"),
        (lambda _: None, "The output is a builtins.NoneType"),
        (lambda state: (state, state, state), "returned a tuple of 3"),
        (lambda state: (state, None), "The new state is a builtins.NoneType"),
        (lambda _: (OUTPUT.empty_table(), stored(z=1)), "a key that is not its own"),
    ],
)
def test_faults_of_the_function_of_expired_keys_are_told(expired: Any, told: str) -> None:
    """As those of the other function, with the place."""
    compute = arrow_function(running_total, expired=expired, **EXPIRING)
    state, nothing = stored(a=1), np.empty(0, np.int64)
    given = (ROWS.empty_table(), nothing, state.select(["k"]), state.select(["total"]), np.ones(1, np.bool_))
    with pytest.raises(UserFunctionError, match=told):
        compute.expired(Batch(*given, version=0, time_ms=0, watermark_ms=None, key_group=3))
