"""The calls that a processor may make on its handle in each phase, with Spark's errors for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from riffle_spark.batch_times import TimeMode
from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.spark.compat import ListState, MapState, StatefulProcessorHandle, ValueState
from riffle_spark.spark.processors.spark_processor import declare
from riffle_spark.state.schemas.variable_kinds import Variable
from tests.kit.streams.processor_runs import SEEN, Run, ScriptedProcessor, has_seen, see

pytestmark = pytest.mark.newer_spark

LONG = pa.schema([("n", pa.int64())])


def declared(init: Callable[[Any, Any], Any], mode: TimeMode = "ProcessingTime") -> tuple[Variable, ...]:
    """Return the variables that an ``init`` declares."""
    return declare(ScriptedProcessor(init=init), mode).variables


def test_init_declares_variables_by_ddl_and_by_types() -> None:
    """``init`` declares variables by DDL or types, with kind, fields and time to live. A time to live of 0
    means none.
    """
    struct = StructType().add("n", LongType())
    tags = StructType().add("tags", ArrayType(StringType()), nullable=False)

    def init(_: Any, handle: Any) -> None:
        assert isinstance(handle, StatefulProcessorHandle)
        assert isinstance(handle.getValueState("a", "n long"), ValueState)
        assert isinstance(handle.getListState("b", struct, 5), ListState)
        assert isinstance(handle.getMapState("c", "k string", tags, ttlDurationMs=0), MapState)

    of_tags = pa.schema([pa.field("tags", pa.list_(pa.field("element", pa.string())), nullable=False)])
    assert declared(init) == (
        Variable("a", "value", LONG),
        Variable("b", "list", LONG, ttl_ms=5),
        Variable("c", "map", of_tags, pa.schema([("k", pa.string())])),
    )


def test_attributes_of_a_processor_do_not_reach_the_next_batch() -> None:
    """Attributes that a processor sets on itself do not reach the next batch."""

    def rows(one: Any, key: Any, rows: Any, _: Any) -> list[Row]:
        one.calls = getattr(one, "calls", 0) + len(list(rows))
        return [Row(id=key[0], n=one.calls)]

    run = Run(ScriptedProcessor(rows=rows))
    assert run.batch({"a": [1], "b": [2, 3]}) == [{"id": "a", "n": 1}, {"id": "b", "n": 3}]
    assert run.batch({"a": [1]}) == [{"id": "a", "n": 1}]


@pytest.mark.parametrize(
    ("init", "error"),
    [
        (
            lambda _, h: [h.getValueState("a", "n long") for _ in "12"],
            "Error initializing value state: Value state a already exists",
        ),
        (lambda _, h: [h.getMapState("a", "k int", "n long") for _ in "12"], "Map state a already exists"),
        (
            lambda _, h: [h.getValueState("a", "n long"), h.getListState("a", "n long")],
            r"Error initializing list state: \[STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED\]",
        ),
        (lambda _, h: h.getValueState("a", "n lung"), "Error parsing string schema"),
        (lambda _, h: h.getValueState("", "n long"), "COLUMN_FAMILY_WITH_INVALID_NAME"),
        (lambda _, h: h.getListState(" a", "n long"), "invalid name= a"),
        (lambda _, h: h.getMapState("__timer", "k int", "n long"), "invalid name=__timer"),
        (lambda _, h: h.getListState("a", "n long", -1), "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE"),
        (lambda _, h: h.registerTimer(5), r"register_timer with invalid handle state=PRE_INIT"),
        (lambda _, h: h.listTimers(), r"list_timers with invalid handle state=PRE_INIT"),
        (lambda _, h: h.getValueState("a", "n long").get(), r"operation=a.get with invalid handle state=PRE_INIT"),
        (lambda _, h: h.getMapState("a", "k int", "n long").updateValue((1,), (1,)), "invalid handle state=PRE_INIT"),
        (lambda _, h: [h.deleteIfExists("a"), h.getValueState("a", "n long")], "init deletes state a"),
    ],
)  # fmt: skip
def test_a_wrong_init_is_refused_on_the_driver(init: Callable[[Any, Any], Any], error: str) -> None:
    """A wrong ``init`` raises Spark's PySparkRuntimeError on the driver."""
    with pytest.raises(PySparkRuntimeError, match=error):
        declared(init)


@pytest.mark.parametrize("mode", ["None", "EventTime"])
def test_a_time_to_live_needs_processing_time(mode: TimeMode) -> None:
    """A time to live is refused without processing time, as in Spark."""
    with pytest.raises(PySparkRuntimeError, match=f"INCORRECT_TIME_MODE_TO_ASSIGN_TTL.*timeMode={mode}"):
        declared(lambda _, handle: handle.getValueState("a", "n long", 5), mode)


def test_delete_if_exists_deletes_state_and_withdraws_declarations() -> None:
    """``deleteIfExists`` deletes state of earlier runs and withdraws an earlier declaration in the same ``init``."""

    def init(_: Any, handle: Any) -> None:
        handle.getValueState("a", "n long")
        handle.getValueState("b", "n long")
        handle.deleteIfExists("a")
        handle.deleteIfExists("old")

    found = declare(ScriptedProcessor(init=init), "None")
    assert [variable.name for variable in found.variables] == ["b"]
    assert found.deleted == ("a", "old")


def misused(*, mode: TimeMode = "ProcessingTime", **functions: Callable[..., Any]) -> str:
    """Run a batch in which a processor misuses its handle, and return the error's text."""
    run = Run(ScriptedProcessor(**functions), mode=mode)
    with pytest.raises(UserFunctionError, match="RIFFLE-0193") as caught:
        run.batch({"a": [1]})
    return caught.value.problem


@pytest.mark.parametrize(
    "call",
    [lambda h: h.registerTimer(1), lambda h: h.deleteTimer(1), lambda h: h.listTimers()],
    ids=["register", "delete", "list"],
)
def test_timers_need_a_time_mode(call: Callable[[Any], Any]) -> None:
    """Timers without a time mode raise Spark's error."""
    message = misused(mode="None", rows=lambda one, *_: call(one.handle))
    assert "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE" in message


@pytest.mark.parametrize(
    "call",
    [
        lambda h: h.getValueState("b", "n long"),
        lambda h: h.getListState("b", "n long"),
        lambda h: h.getMapState("b", "k int", "n long"),
        lambda h: h.deleteIfExists("b"),
    ],
    ids=["value", "list", "map", "delete"],
)
def test_variables_can_be_declared_only_in_init(call: Callable[[Any], Any]) -> None:
    """Declaring or deleting a variable while rows are handled raises Spark's error with the state of the handle."""
    assert "with invalid handle state=INITIALIZED" in misused(rows=lambda one, *_: call(one.handle))


def test_state_without_a_key_is_refused_in_init_and_close() -> None:
    """State without a key is refused, in ``init`` on an executor and in ``close``."""

    def init(one: Any, handle: Any) -> None:
        one.state = handle.getValueState("v", "n long")
        if handle.phase == "CREATED" and has_seen("look"):
            one.state.get()

    run = Run(ScriptedProcessor(init=init))
    see("look")
    with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
        run.batch({"a": [1]})

    def close(one: Any) -> None:
        if one.handle.phase != "PRE_INIT":
            one.state.get()

    run = Run(ScriptedProcessor(init=init, close=close))
    with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
        run.batch({"a": [1]})


def test_an_init_that_declares_something_else_on_executors_is_refused() -> None:
    """An ``init`` that declares other variables on executors than on the driver is refused."""
    run = Run(ScriptedProcessor(init=lambda _, h: h.getValueState("a" if h.phase == "PRE_INIT" else "b", "n long")))
    with pytest.raises(ConfigError, match="RIFFLE-0321"):
        run.batch({"a": [1]})


@pytest.mark.parametrize(
    ("mode", "times", "expected"),
    [
        ("None", {"now_ms": 7, "watermark_ms": 5}, (-1, -1)),
        ("ProcessingTime", {"now_ms": 7}, (7, 0)),
        ("ProcessingTime", {"now_ms": 7, "watermark_ms": 5}, (7, 5)),
        ("EventTime", {"now_ms": 7, "watermark_ms": 5}, (7, 5)),
    ],
)
def test_timer_values_are_those_of_spark(mode: TimeMode, times: dict[str, int], expected: tuple[int, int]) -> None:
    """Timer values are the batch's time and the watermark: -1 without a time mode, and 0 without a watermark."""

    def rows(_: Any, key: Any, rows: Any, values: Any) -> None:
        see((values.getCurrentProcessingTimeInMs(), values.getCurrentWatermarkInMs()))

    run = Run(ScriptedProcessor(rows=rows), mode=mode)
    run.batch({"a": [1]}, **times)
    assert [expected] == SEEN


@pytest.mark.parametrize("due", [2**63, -(2**63), 1.5, "5", None], ids=str)
def test_the_time_of_a_timer_must_be_a_64_bit_integer(due: Any) -> None:
    """The time of a timer must be a whole number of 64 bits."""
    run = Run(ScriptedProcessor(rows=lambda one, *_: one.handle.registerTimer(due)))
    with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
        run.batch({"a": [1]})
