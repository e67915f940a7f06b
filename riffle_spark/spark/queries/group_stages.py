"""Users' own functions in a wrapped query: what Python gave to ``applyInPandasWithState`` and ``transformWithState``,
and what the plan says of them, as computations. Knows arguments by PySpark's names. Does not know how a query starts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, GroupedData

from riffle_spark.batch_times import TimeMode, parse_time_mode
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.block import Computation
from riffle_spark.spark.plans import groups_plan, plan_nodes
from riffle_spark.spark.processors.group_state import TIME_OUTS
from riffle_spark.spark.processors.pandas_conf import SETTINGS, pandas_options
from riffle_spark.spark.transform import TransformWithState

__all__ = ["GroupsCall", "GroupsStage", "call_of", "keep_call"]

_ROWS: Final = "transformWithState"
_NO_TIMERS: Final = {"NoTime": "None"}
"""Spark's name in plans of what timers go by, where it is another than users have for it."""


@dataclass(frozen=True, slots=True)
class GroupsCall:
    """What Python gave to a method of groups: the plan has the function in a form of Spark's own."""

    method: str
    positional: tuple[object, ...]
    named: Mapping[str, object]


_calls: dict[int, GroupsCall] = {}
"""By the ids of Python functions in plans."""


def keep_call(function: int, call: GroupsCall) -> None:
    """Remember what Python gave for the function of this id."""
    _calls[function] = call


def call_of(function: int | None) -> GroupsCall | None:
    """Return what Python gave where a plan calls a function of this id; ``None`` if that was not through a wrapper."""
    return None if function is None else _calls.get(function)


@dataclass(frozen=True, slots=True)
class GroupsStage:
    """What was read of the node of a user's function, and what its method was given, by the names of its parameters:
    nothing, where that was not through the wrapper.
    """

    plan: groups_plan.GroupsPlan
    method: str
    given: Mapping[str, Any]

    @staticmethod
    def of(plan: groups_plan.GroupsPlan) -> "GroupsStage":
        """Return it with what Python gave."""
        call = call_of(plan_nodes.function_id(plan.node))
        if call is None:
            return GroupsStage(plan, "", {})
        bound = signature(getattr(GroupedData, call.method)).bind(None, *call.positional, **call.named)
        bound.apply_defaults()
        return GroupsStage(plan, call.method, bound.arguments)

    @property
    def time_mode(self) -> TimeMode:
        """What its time-outs or timers go by."""
        if self.plan.time in TIME_OUTS:
            return TIME_OUTS[self.plan.time]
        return parse_time_mode(_NO_TIMERS.get(self.plan.time, self.plan.time))

    @property
    def late(self) -> LateRule | None:
        """Which rows are too late: as in Spark, none where nothing goes by event time."""
        column = self.plan.spec.event_time
        return None if column is None or self.time_mode != "EventTime" else LateRule(column, "rows")

    @property
    def shown(self) -> Mapping[str, str]:
        """The names under which the function sees columns of its rows."""
        return {column: name for name, column in self.plan.spec.visible_columns}

    @property
    def initial(self) -> DataFrame | None:
        """The frame of a processor's initial state."""
        groups = self.given.get("initialState")
        return None if groups is None else groups._df

    def of_frames(self) -> Computation:
        """Return what ``applyInPandasWithState`` computes."""
        # pandas is for those who use it
        from riffle_spark.spark.processors.grouped_frames import GroupedFrames

        plan = self.plan
        return GroupedFrames(plan.spec, self._function(), plan.state(), plan.time, self._options())

    def of_processor(self) -> Computation:
        """Return what a processor computes. Raises ``ConfigError`` for one that was given past the wrapper."""
        if not self.given:
            raise ConfigError(
                f"the processor of {plan_nodes.kind(self.plan.node)} was given to a frame that was not wrapped yet",
                remedy="wrap the frame by riffle_spark.on before groupBy(...).transformWithState...",
                where=plan_nodes.kind(self.plan.node),
                id="RIFFLE-0322",
            )
        output, named = self.plan.spec.output, str(self.given["eventTimeColumnName"]).lower()
        return TransformWithState(
            self.given["statefulProcessor"], output, self.time_mode,
            None if self.method == _ROWS else self._options(),
            next((name for name in output.names if name.lower() == named), None),
        )  # fmt: skip

    def said(self) -> Iterator[str]:
        """Yield what is told of it to people."""
        output = ", ".join(f"{one.name} {one.type}" for one in self.plan.spec.output)
        yield f"{plan_nodes.kind(self.plan.node)}: {output}"
        if self.time_mode != "None":
            yield f"due by {'event' if self.time_mode == 'EventTime' else 'processing'} time"

    def _options(self) -> dict[str, object]:
        """Return what the session says of conversions to and from pandas."""
        conf = self.plan.catalyst.spark.conf
        said = {setting: conf.get(setting, None) for setting in SETTINGS.values()}
        return pandas_options({setting: str(value) for setting, value in said.items() if value is not None})

    def _function(self) -> Callable[..., object]:
        """Return the function that gets frames; where it was not given through the wrapper, as PySpark pickled it."""
        if self.given:
            func: Callable[..., object] = self.given["func"]
        else:
            func, *_ = CPickleSerializer().loads(self.plan.command())  # type: ignore[no-untyped-call]
        return func
