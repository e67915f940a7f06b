"""Plans and expressions with others in the place of some: of a batch's time, of what is distinct, of columns. Knows
Catalyst's classes by their names. Does not know what a node means to a query of ours.
"""

from collections.abc import Callable
from typing import Final

from riffle_spark.spark.plans import plan_nodes
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, children, kind

__all__ = ["of_all_values", "timed"]

_ZONED: Final = ("CurrentDate", "CurrentTime", "LocalTimestamp")
_NOW: Final = ("CurrentTimestamp", "Now", *_ZONED)
"""Expressions that say what time it is; some by the zone that the session had when they were written."""
_NO_ZONE: Final = "UTC"
"""What stands for the zone of an instant, which has none."""
_EXPRESSION: Final = "org.apache.spark.sql.catalyst.expressions.Expression"


def timed(catalyst: Catalyst, plan: Node, time_ms: int) -> Node:
    """Return one node of a plan in whose expressions it is the time of a batch; what is below it stays."""

    def at_time(expression: Node) -> Node | None:
        if kind(expression) not in _NOW:
            return None
        zone = expression.timeZoneId() if kind(expression) in _ZONED else catalyst.some(_NO_ZONE)
        told = catalyst.named("expressions.CurrentBatchTimestamp")
        return told(time_ms, expression.dataType(), zone).toLiteral()

    return _changed(catalyst, plan, at_time)


def of_all_values(catalyst: Catalyst, node: Node) -> Node:
    """Return a node of a plan whose aggregate functions count every value; what is below it stays."""

    def of_all(expression: Node) -> Node | None:
        if not plan_nodes.is_distinct(expression):
            return None
        parts = (expression.aggregateFunction(), expression.mode(), False, expression.filter())
        return catalyst.named("expressions.aggregate.AggregateExpression")(*parts, expression.resultId())

    return _changed(catalyst, node, of_all)


def _changed(catalyst: Catalyst, plan: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return one node of a plan with other expressions; what is below it stays."""
    parts = [plan.productElement(index) for index in range(plan.productArity())]
    return catalyst.copied(plan, [_changed_part(catalyst, part, change) for part in parts])


def _changed_part(catalyst: Catalyst, part: Node, change: Callable[[Node], Node | None]) -> Node:
    """Return a part of a node: an expression, several, perhaps one, or whatever is none."""
    if catalyst.is_a(part, _EXPRESSION):
        return _changed_expression(catalyst, part, change)
    if catalyst.is_a(part, "scala.collection.Seq"):
        return catalyst.seq([_changed_part(catalyst, one, change) for one in plan_nodes.items(part)])
    if catalyst.is_a(part, "scala.Some"):
        return catalyst.some(_changed_part(catalyst, part.get(), change))
    return part


def _changed_expression(catalyst: Catalyst, expression: Node, change: Callable[[Node], Node | None]) -> Node:
    found = change(expression)
    if found is not None:
        return found
    below = children(expression)
    changed = [_changed_expression(catalyst, one, change) for one in below]
    return expression.withNewChildren(catalyst.seq(changed)) if _differ(below, changed) else expression


def _differ(some: list[Node], others: list[Node]) -> bool:
    return any(one is not other for one, other in zip(some, others, strict=True))
