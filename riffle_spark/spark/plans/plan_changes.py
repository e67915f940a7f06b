"""Change the expressions of a plan node: the current time, and aggregate functions with DISTINCT."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from riffle_spark.process.plans.cut import CLOCKS
from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, children, kind

_ZONED: Final = ("CurrentDate", "CurrentTime", "LocalTimestamp", "LocalTimestampNanos")
"""Clocks that keep the session's time zone."""
_CAST_FROM: Final = {
    "LocalTimestampNanos": "timestamp_ntz",
    "CurrentTimestampNanos": "timestamp",
}
"""The type of the batch time that is cast to the type of a clock, if Spark has no such literal of a batch time."""
_NO_ZONE: Final = "UTC"
"""The zone of an instant, which Spark ignores."""
_EXPRESSION: Final = "org.apache.spark.sql.catalyst.expressions.Expression"


def set_current_time(catalyst: Catalyst, plan: Node, time_ms: int) -> Node:
    """Return a plan node with ``time_ms`` as the current time in its expressions. Its children stay the same."""

    def time_literal(expression: Node) -> Node | None:
        if kind(expression) not in CLOCKS:
            return None
        zone = expression.timeZoneId() if kind(expression) in _ZONED else catalyst.some(_NO_ZONE)
        timestamp = catalyst.class_named("expressions.CurrentBatchTimestamp")
        if kind(expression) == "CurrentTime":  # a string, since Spark before 4.3 casts no timestamp to a time
            local = timestamp(time_ms, catalyst.type_named("timestamp_ntz"), zone).toLiteral()
            text = _time_of_day(int(local.value()), int(expression.dataType().precision()))
            return catalyst.cast(catalyst.literal(text), expression.dataType())
        if kind(expression) not in _CAST_FROM:
            return timestamp(time_ms, expression.dataType(), zone).toLiteral()
        time_type = catalyst.type_named(_CAST_FROM[kind(expression)])
        return catalyst.cast(timestamp(time_ms, time_type, zone).toLiteral(), expression.dataType())

    return _change_node(catalyst, plan, time_literal)


def _time_of_day(microseconds: int, digits: int) -> str:
    """Return the time of day of a local timestamp, such as ``03:43:20.123000``, cut to this many digits of a second."""
    cut = microseconds - microseconds % 10 ** max(0, 6 - digits)
    return (datetime(1970, 1, 1) + timedelta(microseconds=cut)).time().isoformat("microseconds")


def count_all_values(catalyst: Catalyst, plan: Node) -> Node:
    """Return a plan node without DISTINCT in its aggregate functions. Its children stay the same."""

    def without_distinct(expression: Node) -> Node | None:
        if not plan_nodes.is_distinct(expression):
            return None
        parts = (expression.aggregateFunction(), expression.mode(), False, expression.filter(), expression.resultId())
        return catalyst.class_named("expressions.aggregate.AggregateExpression")(*parts)

    return _change_node(catalyst, plan, without_distinct)


def _change_node(catalyst: Catalyst, plan: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a plan node with ``change`` applied to its expressions. Its children stay the same."""
    arguments = [plan.productElement(index) for index in range(plan.productArity())]
    return catalyst.copy_node(plan, [_change_argument(catalyst, argument, change) for argument in arguments])


def _change_argument(catalyst: Catalyst, argument: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a constructor argument of a node with its expressions changed.

    It is an expression, a sequence or an option. Others are returned unchanged.
    """
    if catalyst.is_instance(argument, _EXPRESSION):
        return _change_expression(catalyst, argument, change)
    if catalyst.is_instance(argument, "scala.collection.Seq"):
        return catalyst.seq([_change_argument(catalyst, item, change) for item in plan_nodes.items(argument)])
    if catalyst.is_instance(argument, "scala.Some"):
        return catalyst.some(_change_argument(catalyst, argument.get(), change))
    return argument


def _change_expression(catalyst: Catalyst, expression: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return an expression with ``change`` applied from the top.

    ``change`` returns the replacement of an expression, or ``None`` to continue with its children.
    """
    changed = change(expression)
    if changed is not None:
        return changed
    old_children = children(expression)
    new_children = [_change_expression(catalyst, child, change) for child in old_children]
    if all(new is old for new, old in zip(new_children, old_children, strict=True)):
        return expression
    return expression.withNewChildren(catalyst.seq(new_children))
