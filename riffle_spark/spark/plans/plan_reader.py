"""Spark's plans read into values, and built again from them. Each plan is read in one call of the JVM.

An object of a plan that was read is fetched from the JVM only if something is built with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from riffle_spark.process.plans.plan_values import (
    Access,
    Path,
    PlanNode,
    parse_plan,
)
from riffle_spark.spark.plans.plan_changes import of_all_values
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node

__all__ = ["PlanReader"]


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
        if handle not in self._objects:
            parent, method, index = self._accesses[handle]
            self._objects[handle] = self._called(parent, method) if index is None else self._item(parent, method, index)
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
            return self.catalyst.named("plans.logical.Project")(original.output(), below[0])
        made = original
        if node.is_unary:
            made = original.withNewChildInternal(below[0])
        elif below:
            made = original.withNewChildren(self.catalyst.seq(below))
        return of_all_values(self.catalyst, made) if node.edit == "count_all" else made

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
