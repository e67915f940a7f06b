"""A user's function as a stage: ``applyInPandasWithState`` or ``transformWithState``.

A plan holds the function only in a serialised form. The original arguments of the Python call are kept here.
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

_OF_ROWS: Final = "transformWithState"
"""The method whose processor gets rows. Others get pandas frames."""
_NO_TIMERS: Final = {"NoTime": "None"}
"""Spark's names of time modes in plans that differ from the public ones."""


@dataclass(frozen=True, slots=True)
class GroupsCall:
    """A call of a method of grouped data, with the arguments that Python passed."""

    method: str
    positional: tuple[object, ...]
    named: Mapping[str, object]


_calls: dict[int, GroupsCall] = {}
"""Calls by the id of their function in the plan."""


def keep_call(function_id: int, call: GroupsCall) -> None:
    """Remember a Python call by the id of its function in Spark's plan."""
    _calls[function_id] = call


def call_of(function_id: int | None) -> GroupsCall | None:
    """Return the Python call of a function in a plan, or ``None`` if the frame was not wrapped when it was made."""
    return None if function_id is None else _calls.get(function_id)


@dataclass(frozen=True, slots=True)
class GroupsStage:
    """A user's function as read from its node, and the arguments of its call by parameter name.

    ``arguments`` is empty if the frame was not wrapped when the call was made.
    """

    plan: groups_plan.GroupsPlan
    method: str
    arguments: Mapping[str, Any]

    @staticmethod
    def of(plan: groups_plan.GroupsPlan) -> "GroupsStage":
        """Return the stage of a plan, with the arguments of its Python call if that was remembered."""
        call = call_of(plan_nodes.function_id(plan.node))
        if call is None:
            return GroupsStage(plan, "", {})
        bound = signature(getattr(GroupedData, call.method)).bind(None, *call.positional, **call.named)
        bound.apply_defaults()
        return GroupsStage(plan, call.method, bound.arguments)

    @property
    def time_mode(self) -> TimeMode:
        """Return the time mode of its timeouts or timers."""
        if self.plan.time in TIME_OUTS:
            return TIME_OUTS[self.plan.time]
        return parse_time_mode(_NO_TIMERS.get(self.plan.time, self.plan.time))

    @property
    def late(self) -> LateRule | None:
        """Return the rule for late rows. As in Spark, no row is late unless its timers use event time."""
        column = self.plan.spec.event_time
        return None if column is None or self.time_mode != "EventTime" else LateRule(column, "rows")

    @property
    def shown(self) -> Mapping[str, str]:
        """Return the name that the function sees for each column of its rows."""
        return {column: name for name, column in self.plan.spec.visible_columns}

    @property
    def initial(self) -> DataFrame | None:
        """Return the frame of a processor's initial state, or ``None``."""
        groups = self.arguments.get("initialState")
        return None if groups is None else groups._df

    def of_frames(self) -> Computation:
        """Return the computation of ``applyInPandasWithState``."""
        # Imported here because pandas is optional.
        from riffle_spark.spark.processors.grouped_frames import GroupedFrames

        plan = self.plan
        return GroupedFrames(plan.spec, self._function(), plan.state(), plan.time, self._options())

    def of_processor(self) -> Computation:
        """Return the computation of a processor. Raises ``ConfigError`` if the frame was not wrapped at its call."""
        if not self.arguments:
            method = plan_nodes.kind(self.plan.node)
            # Cause: riffle needs the arguments of the call, and Spark's plan holds them only in a serialised form.
            raise ConfigError(
                f"{method} was called on a frame that was not wrapped yet.",
                remedy="Wrap the frame with riffle_spark.on before groupBy(...).transformWithState...",
                where=method,
                id="RIFFLE-0322",
            )
        output = self.plan.spec.output
        event_time = str(self.arguments["eventTimeColumnName"]).lower()
        return TransformWithState(
            self.arguments["statefulProcessor"],
            output,
            self.time_mode,
            None if self.method == _OF_ROWS else self._options(),
            next((name for name in output.names if name.lower() == event_time), None),
        )

    def describe(self) -> Iterator[str]:
        """Yield the lines that ``explain`` prints."""
        output = ", ".join(f"{field.name} {field.type}" for field in self.plan.spec.output)
        yield f"{plan_nodes.kind(self.plan.node)}: {output}"
        if self.time_mode != "None":
            yield f"due by {'event' if self.time_mode == 'EventTime' else 'processing'} time"

    def _options(self) -> dict[str, object]:
        """Return the session's settings for conversions to and from pandas, as fields of ``PandasOptions``."""
        conf = self.plan.catalyst.spark.conf
        values = {setting: conf.get(setting, None) for setting in SETTINGS.values()}
        return pandas_options({setting: str(value) for setting, value in values.items() if value is not None})

    def _function(self) -> Callable[..., object]:
        """Return the user's function that gets frames: the original one, or PySpark's pickled copy."""
        if self.arguments:
            function: Callable[..., object] = self.arguments["func"]
        else:
            function, *_ = CPickleSerializer().loads(self.plan.command())  # type: ignore[no-untyped-call]
        return function
