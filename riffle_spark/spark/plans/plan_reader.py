"""Read Spark's plans into values, and build changed values in the JVM again.

Each plan is read by a single call of the JVM. The object behind a value is fetched from the JVM only if it is used.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from riffle_spark.process.plans.columns import Column, quote_name
from riffle_spark.process.plans.grouping_keys import remove_column_ids
from riffle_spark.process.plans.plan_values import (
    Access,
    Expression,
    Path,
    PlanNode,
    attribute_ids,
    find_node,
    parse_plan,
    paths_above,
    walk,
    walk_expression,
)
from riffle_spark.spark.plans.plan_changes import count_all_values
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node

_ATTRIBUTE: Final = "AttributeReference"
_COMMON: Final = "_common_expr_"
"""How Spark names an expression that it computes once below its uses. A number follows, which differs in each start."""


@dataclass(slots=True)
class PlanReader:
    """Reads the plans of a query, and finds their JVM objects by handle."""

    catalyst: Catalyst
    _objects: dict[int, Node] = field(default_factory=dict)
    _accesses: dict[int, Access] = field(default_factory=dict)
    _sequences: dict[tuple[int, str], Node] = field(default_factory=dict)
    _built: dict[int, tuple[PlanNode, Node]] = field(default_factory=dict)
    """Changed nodes by the ``id`` of their value. The value is kept, so that no other object gets its id."""
    _common: dict[int, Expression] = field(default_factory=dict)
    """The expressions that Spark computes once, by the id of their column."""
    _next_handle: int = 0

    def read(self, plan: Node) -> PlanNode:
        """Return an analysed plan as values."""

        def is_stream(leaf: int) -> bool:
            return bool(plan.collectLeaves().apply(leaf).isStreaming())

        values, accesses = parse_plan(str(plan.toJSON()), is_stream, self._next_handle)
        self._objects[values.handle] = plan
        self._accesses.update(accesses)
        for node in walk(values):
            for column in node.expressions.get("projectList", ()) if node.kind == "Project" else ():
                if column.kind == "Alias" and column.name.startswith(_COMMON):
                    self._common[column.id] = column.children[0]
        self._next_handle += len(accesses) + 1
        return values

    def fetch(self, handle: int) -> Node:
        """Return the JVM object of a value, which was read under this handle."""
        missing = list[int]()
        nearest = handle
        while nearest not in self._objects:
            missing.append(nearest)
            nearest, _, _ = self._accesses[nearest]
        for ancestor in reversed(missing):
            parent, methods, index = self._accesses[ancestor]
            self._objects[ancestor] = (
                self._call(parent, methods) if index is None else self._item(parent, methods, index)
            )
        return self._objects[handle]

    def _item(self, parent: int, methods: str, index: int) -> Node:
        """Return the item ``index`` of the sequence that ``methods`` of a parent return."""
        if (parent, methods) not in self._sequences:
            self._sequences[parent, methods] = self._call(parent, methods)
        return self._sequences[parent, methods].apply(index)

    def _call(self, parent: int, methods: str) -> Node:
        """Return the result of calling ``methods``, separated by dots, on the object of a parent's handle."""
        result = self.fetch(parent)
        for method in methods.split("."):
            result = getattr(result, method)()
        return result

    def build(self, plan: PlanNode) -> Node:
        """Return a plan of values in the JVM. Equal nodes are built once."""
        changed = list[PlanNode]()
        waiting = [plan]
        while waiting:
            node = waiting.pop()
            if not node.is_original and id(node) not in self._built:
                changed.append(node)
                waiting += node.children
        for node in reversed(changed):
            self._built[id(node)] = node, self.build_on(node, [self._node(child) for child in node.children])
        return self._node(plan)

    def _node(self, node: PlanNode) -> Node:
        """Return the JVM object of a node that was read or built."""
        return self.fetch(node.handle) if node.is_original else self._built[id(node)][1]

    def build_on(self, node: PlanNode, children: Sequence[Node]) -> Node:
        """Return a node in the JVM over other children, with the node's edit applied."""
        original = self.fetch(node.handle)
        if node.edit == "no_rows":
            return self.catalyst.no_rows(original.output())
        if node.edit == "project":
            return self.catalyst.project_to(original.output(), children[0])
        plan = original
        if node.is_unary:
            plan = original.withNewChildInternal(children[0])
        elif children:
            plan = original.withNewChildren(self.catalyst.seq(children))
        return count_all_values(self.catalyst, plan) if node.edit == "count_all" else plan

    def build_with(
        self, plan: PlanNode, results: Mapping[Path, Node], changes: Mapping[Path, Callable[[Node], Node]] | None = None
    ) -> Node:
        """Return a plan in the JVM, with the nodes of ``results`` in place of its own at these positions.

        ``changes`` are functions for its own nodes, called with the rebuilt node once its children are final. No
        position of ``results`` or ``changes`` may be at or below a different entry's position in ``results``: that
        result would be lost without an error.
        """
        built = dict(results)
        changes = changes or {}
        for path in paths_above([*results, *((*path, 0) for path in changes)]):
            node = find_node(plan, path)
            paths = [(*path, index) for index in range(len(node.children))]
            children = [
                built[child_path] if child_path in built else self.build(child)
                for child_path, child in zip(paths, node.children, strict=True)
            ]
            changed = self.build_on(node, children)
            built[path] = changes[path](changed) if path in changes else changed
        return built[()] if () in built else self.build(plan)

    def read_output(self, node: Node) -> tuple[Node, tuple[Column, ...]]:
        """Return a leaf without rows that has the output of a JVM node, and its columns as values."""
        leaf = self.catalyst.no_rows(node.output())
        return leaf, self.read_columns(leaf)

    def read_columns(self, plan: Node) -> tuple[Column, ...]:
        """Return the columns of a projection or a leaf in the JVM as values."""
        values = self.read(plan)
        expressions = values.expressions.get("output") or values.expressions.get("projectList") or ()
        fields = json.loads(str(plan.schema().json()))["fields"]
        return tuple(Column(expression, field) for expression, field in zip(expressions, fields, strict=True))

    def random_columns(self, plan: Node) -> frozenset[int]:
        """Return the ids of a plan's columns whose values may differ if a batch runs again.

        Such a column is projected from an expression that is not deterministic, or that reads another such column.
        """
        if plan.deterministic():
            return frozenset()
        random = set[int]()
        for node in reversed([node for node in walk(self.read(plan)) if node.kind == "Project"]):
            for column in node.expressions.get("projectList", ()):
                reads_random = column.kind == "Alias" and not attribute_ids(column).isdisjoint(random)
                if reads_random or (column.kind == "Alias" and not self.fetch(column.handle).deterministic()):
                    random.add(column.id)
        return frozenset(random)

    def field_json(self, expression: Expression, columns: Mapping[int, Column]) -> Mapping[str, object]:
        """Return the JSON of a field that has an expression's type, named by its SQL.

        The JVM is called only for types that neither ``columns`` nor the expression's own JSON state.
        """
        name = self.sql(expression)
        if expression.kind == _ATTRIBUTE and expression.id in columns:
            return {**columns[expression.id].field, "name": name}
        data_type = expression.fields.get("dataType")
        if isinstance(data_type, str) and data_type != "string":
            return {"name": name, "type": data_type, "nullable": True, "metadata": {}}
        return self.catalyst.json_field(self.fetch(expression.handle), name)

    def sql(self, expression: Expression) -> str:
        """Return an expression in SQL, with column names that are not qualified by a view or an alias.

        State is stored under this text, so it must not change if a view gets another name, or with Spark's ids.
        Expressions that Spark computes once below their uses are written out.
        """
        if expression.kind == _ATTRIBUTE:
            common = self._common.get(expression.id)
            return _attribute_sql(expression) if common is None else self.sql(common)
        text = str(self.fetch(expression.handle).sql())
        for part in walk_expression(expression):
            if part.kind == _ATTRIBUTE and part.id in self._common:
                written = self.sql(part).replace("\\", "\\\\")  # without parentheses, as Spark 3.5 prints it
                text = re.sub(rf"\b{part.name}\b", written, text)
            elif part.kind == _ATTRIBUTE and (
                part.fields.get("qualifier") or remove_column_ids(part.name) != part.name
            ):
                text = text.replace(str(self.fetch(part.handle).sql()), _attribute_sql(part))
        return text


def _attribute_sql(attribute: Expression) -> str:
    """Return the name of an attribute as SQL, without the ids that Spark puts into the names of grouping sets."""
    return quote_name(remove_column_ids(attribute.name))
