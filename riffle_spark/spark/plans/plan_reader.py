"""Spark's plans read into values, and built again from them. Each plan is read in one call of the JVM.

An object of a plan that was read is fetched from the JVM only if something is built with it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from riffle_spark.process.plans.columns import Column, quoted_name
from riffle_spark.process.plans.plan_values import (
    Access,
    Expression,
    Path,
    PlanNode,
    attribute_ids,
    parse_plan,
    walk,
    walk_expression,
)
from riffle_spark.spark.plans.plan_changes import of_all_values
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node

__all__ = ["PlanReader"]

_ATTRIBUTE: Final = "AttributeReference"


@dataclass(slots=True)
class PlanReader:
    """Reads the plans of one query, and finds their objects by handles."""

    catalyst: Catalyst
    _objects: dict[int, Node] = field(default_factory=dict)
    _accesses: dict[int, Access] = field(default_factory=dict)
    _sequences: dict[tuple[int, str], Node] = field(default_factory=dict)
    _built: dict[int, tuple[PlanNode, Node]] = field(default_factory=dict)
    _next_handle: int = 0

    def read(self, plan: Node) -> PlanNode:
        """Return an analysed plan as values."""

        def is_stream(leaf: int) -> bool:
            return bool(plan.collectLeaves().apply(leaf).isStreaming())

        values, accesses = parse_plan(str(plan.toJSON()), is_stream, self._next_handle)
        self._objects[values.handle] = plan
        self._accesses.update(accesses)
        self._next_handle += len(accesses) + 1
        return values

    def found(self, handle: int) -> Node:
        """Return the object that was read under a handle."""
        missing, nearest = list[int](), handle
        while nearest not in self._objects:
            missing.append(nearest)
            nearest, _, _ = self._accesses[nearest]
        for each in reversed(missing):
            parent, method, index = self._accesses[each]
            self._objects[each] = self._called(parent, method) if index is None else self._item(parent, method, index)
        return self._objects[handle]

    def _item(self, parent: int, method: str, index: int) -> Node:
        if (parent, method) not in self._sequences:
            self._sequences[parent, method] = self._called(parent, method)
        return self._sequences[parent, method].apply(index)

    def _called(self, parent: int, methods: str) -> Node:
        made = self.found(parent)
        for method in methods.split("."):
            made = getattr(made, method)()
        return made

    def build(self, node: PlanNode) -> Node:
        """Return a node in the JVM, with all below it."""
        if node.is_original:
            return self.found(node.handle)
        if id(node) not in self._built:
            self._built[id(node)] = node, self.on(node, [self.build(child) for child in node.children])
        return self._built[id(node)][1]

    def on(self, node: PlanNode, below: Sequence[Node]) -> Node:
        """Return a node in the JVM on top of others."""
        original = self.found(node.handle)
        if node.edit == "no_rows":
            return self.catalyst.no_rows(original.output())
        if node.edit == "project":
            return self.catalyst.project_to(original.output(), below[0])
        made = original
        if node.is_unary:
            made = original.withNewChildInternal(below[0])
        elif below:
            made = original.withNewChildren(self.catalyst.seq(below))
        return of_all_values(self.catalyst, made) if node.edit == "count_all" else made

    def output(self, node: Node) -> tuple[Node, tuple[Column, ...]]:
        """Return a leaf without rows that has the output of a node in the JVM, and its columns."""
        leaf = self.catalyst.no_rows(node.output())
        return leaf, self.columns(leaf)

    def columns(self, plan: Node) -> tuple[Column, ...]:
        """Return the columns of a projection or of a leaf in the JVM."""
        values = self.read(plan)
        expressions = values.expressions.get("output") or values.expressions.get("projectList") or ()
        fields = json.loads(plan.schema().json())["fields"]
        return tuple(Column(each, field) for each, field in zip(expressions, fields, strict=True))

    def random_columns(self, plan: Node) -> frozenset[int]:
        """Return the ids of the columns of a plan that differ when a batch runs again.

        A projection below makes such a column of an expression that is not deterministic, or of another such column.
        """
        if plan.deterministic():
            return frozenset()
        random = set[int]()
        for node in reversed([each for each in walk(self.read(plan)) if each.kind == "Project"]):
            for column in node.expressions.get("projectList", ()):
                is_made = column.kind == "Alias" and not attribute_ids(column).isdisjoint(random)
                if is_made or (column.kind == "Alias" and not self.found(column.handle).deterministic()):
                    random.add(column.id)
        return frozenset(random)

    def field(self, expression: Expression, columns: Mapping[int, Column]) -> Mapping[str, object]:
        """Return the JSON of a field that has an expression's type, and its text as the name.

        The JVM is asked only for types that are known neither by ``columns`` nor by the expression itself.
        """
        name = self.sql(expression)
        if expression.kind == _ATTRIBUTE and expression.id in columns:
            return {**columns[expression.id].field, "name": name}
        stated = expression.fields.get("dataType")
        if isinstance(stated, str) and stated != "string":
            return {"name": name, "type": stated, "nullable": True, "metadata": {}}
        return self.catalyst.json_field(self.found(expression.handle), name)

    def sql(self, expression: Expression) -> str:
        """Return an expression in SQL. Its columns have their names alone, without the view or alias they come from.

        State is stored under this text, and continues if a view gets another name.
        """
        if expression.kind == _ATTRIBUTE:
            return quoted_name(expression.name)
        text = str(self.found(expression.handle).sql())
        for each in walk_expression(expression):
            if each.kind == _ATTRIBUTE and each.fields.get("qualifier"):
                text = text.replace(str(self.found(each.handle).sql()), quoted_name(each.name))
        return text

    def with_results(self, node: PlanNode, results: Mapping[Path, Node]) -> Node:
        """Return a node in the JVM that has other nodes of the JVM at some positions below it."""
        if () in results:
            return results[()]
        if not results:
            return self.build(node)
        below = [
            self.with_results(child, {path[1:]: made for path, made in results.items() if path[0] == index})
            for index, child in enumerate(node.children)
        ]
        return self.on(node, below)
