"""An analysed plan of Spark as frozen values, read from the JSON that Spark's ``TreeNode.toJSON`` returns.

Every value has a number, its *handle*, by which the module that knows the JVM finds the object that it was read from.
Numbers are given in the order of reading, so that the same JSON always gives the same values. A plan that is changed
here keeps the handles of its nodes; ``is_original`` tells whether a node still has the children that Spark gave it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, TypeVar

__all__ = [
    "Access",
    "Edit",
    "Expression",
    "Path",
    "PlanNode",
    "attribute_ids",
    "conjuncts",
    "find_node",
    "nodes_with_paths",
    "parse_plan",
    "replace_nodes",
    "same_expression",
    "walk",
    "walk_expression",
]

Path: TypeAlias = tuple[int, ...]
"""A position in a plan: the index of the child to take, from the top on."""
Access: TypeAlias = tuple[int, str, int | None]
"""How to get an object of the JVM: the handle of its parent, the methods to call from there, with dots between, and an
index into what they return; without an index it is what they return.
"""
Edit: TypeAlias = Literal["", "project", "no_rows", "count_all"]
"""What became of a node since it was read: nothing; a projection to its output; a leaf without rows that has its
output; or its distinct aggregate functions count every value.
"""

_T = TypeVar("_T")

_PLAN_PACKAGES: Final = (".plans.", ".execution.", ".streaming.", ".datasources.")
_ATTRIBUTE: Final = "AttributeReference"
_CHILDREN: Final = ("child", "left", "right", "aggregateFunction")
"""Names under which Spark's nodes have their children."""
_OPTIONAL: Final = {("Join", "condition")}
"""Fields whose value is an option of Scala."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a plan: the name of its class, and what its JSON says beside its children."""

    kind: str
    children: tuple["Expression", ...]
    fields: Mapping[str, object]
    handle: int

    @property
    def name(self) -> str:
        """The name of an attribute or an alias."""
        return str(self.fields["name"])

    @property
    def id(self) -> int:
        """The number by which Spark tells an attribute from all others; it is also that of an alias."""
        return _id_in(self.fields["exprId"])


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a plan. ``expressions`` maps the names of its fields to the expressions that they hold."""

    kind: str
    children: tuple["PlanNode", ...]
    expressions: Mapping[str, tuple[Expression, ...]]
    fields: Mapping[str, object]
    is_streaming: bool
    handle: int
    is_original: bool = True
    edit: Edit = ""

    @property
    def all_expressions(self) -> Iterator[Expression]:
        """The expressions of this node, without those below them."""
        for held in self.expressions.values():
            yield from held

    @property
    def is_unary(self) -> bool:
        """Whether the node has one child, whatever that is."""
        return len(self.children) == 1 and self.fields.get("child") == 0

    @property
    def join_type(self) -> str:
        """The type of a join, as Spark prints it; ``""`` for other nodes."""
        stated = self.fields.get("joinType")
        name = stated.get("object", stated.get("product-class")) if isinstance(stated, Mapping) else ""
        return str(name).rpartition(".")[2].removesuffix("$")


@dataclass(slots=True)
class _Reader:
    """Reads the JSON of one plan, and notes how each object is reached in the JVM.

    Nothing here recurses: the depth of a plan or an expression is limited by Spark alone. ``leaves`` is the number of
    leaves of the plan that are not read yet; the last one is read first.
    """

    is_stream: Callable[[int], bool]
    accesses: dict[int, Access] = field(default_factory=dict)
    next_handle: int = 0
    leaves: int = 0

    def plan(self, tree: Sequence[Mapping[str, object]]) -> PlanNode:
        """Read a plan."""
        self.leaves = sum(not _count(told) for told in tree)
        return self._read(tree, None, self._node)

    def expression(self, tree: Sequence[Mapping[str, object]], access: Access) -> Expression:
        """Read an expression."""
        return self._read(tree, access, _expression)

    def _read(
        self,
        tree: Sequence[Mapping[str, object]],
        access: Access | None,
        make: Callable[[Mapping[str, object], tuple[_T, ...], int], _T],
    ) -> _T:
        """Make the values of a tree, children before their parents, and return that of its root."""
        parents = _parents(tree)
        handles = list[int]()
        for parent, index in parents:
            handles.append(
                self._take_handle(_access_of_child(tree[parent], handles[parent], index) if handles else access)
            )
        children: list[list[_T]] = [[] for _ in tree]
        for position in reversed(range(1, len(tree))):
            made = make(tree[position], tuple(reversed(children[position])), handles[position])
            children[parents[position][0]].append(made)
        return make(tree[0], tuple(reversed(children[0])), handles[0])

    def _take_handle(self, access: Access | None) -> int:
        handle = self.next_handle
        self.next_handle += 1
        if access is not None:
            self.accesses[handle] = access
        return handle

    def _node(self, told: Mapping[str, object], children: tuple[PlanNode, ...], handle: int) -> PlanNode:
        kind = _short_name(told)
        fields, expressions = dict[str, object](), dict[str, tuple[Expression, ...]]()
        for name, value in told.items():
            held = self._held(value, handle, name, kind)
            if held is not None:
                expressions[name] = held
            elif name not in ("class", "num-children"):
                fields[name] = value
        is_streaming = any(child.is_streaming for child in children) if children else self._is_stream(kind, fields)
        return PlanNode(kind, children, expressions, fields, is_streaming, handle)

    def _is_stream(self, kind: str, fields: Mapping[str, object]) -> bool:
        """Tell whether a leaf is a stream. The JVM is asked only if the leaf's JSON does not tell."""
        self.leaves -= 1
        stated = fields.get("isStreaming")
        if isinstance(stated, bool):
            return stated
        return kind.startswith("Streaming") or self.is_stream(self.leaves)

    def _held(self, value: object, parent: int, name: str, kind: str) -> tuple[Expression, ...] | None:
        """Return the expressions that a field holds: one, perhaps one, several, or several times several."""
        if not isinstance(value, list) or not value:
            return None
        if _is_tree(value):
            access = (parent, f"{name}.get" if (kind, name) in _OPTIONAL else name, None)
            return None if _is_plan(value) else (self.expression(value, access),)
        trees = [one for one in value if isinstance(one, list) and _is_tree(one) and not _is_plan(one)]
        if trees and len(trees) == len(value):
            return tuple(self.expression(one, (parent, name, index)) for index, one in enumerate(trees))
        nested = [tree for one in value if isinstance(one, list) for tree in one if isinstance(tree, list)]
        nested = [tree for tree in nested if _is_tree(tree) and not _is_plan(tree)]
        return tuple(self.expression(tree, (parent, name, None)) for tree in nested) if nested else None


def _expression(told: Mapping[str, object], children: tuple[Expression, ...], handle: int) -> Expression:
    fields = {name: value for name, value in told.items() if name not in ("class", "num-children")}
    return Expression(_short_name(told), children, fields, handle)


def _parents(tree: Sequence[Mapping[str, object]]) -> list[tuple[int, int]]:
    """Return for each node of a tree the position of its parent, and its index among that one's children."""
    parents, places = list[tuple[int, int]](), [(-1, 0)]
    for position, told in enumerate(tree):
        parents.append(places.pop())
        places += [(position, index) for index in reversed(range(_count(told)))]
    return parents


def _count(told: Mapping[str, object]) -> int:
    return int(str(told["num-children"]))


def parse_plan(
    text: str, is_stream: Callable[[int], bool], first_handle: int = 0
) -> tuple[PlanNode, Mapping[int, Access]]:
    """Return the plan of the JSON that Spark gives of it, and how its objects are reached from the first one.

    ``is_stream`` returns whether a leaf is a stream. Leaves are numbered in the order of the JSON.
    """
    reader = _Reader(is_stream, next_handle=first_handle)
    plan = reader.plan(json.loads(text))
    return plan, reader.accesses


def _access_of_child(told: Mapping[str, object], handle: int, index: int) -> Access:
    """Return how a child is reached: by its own name in one call if it has one, else as one of several."""
    own = (name for name in _CHILDREN if told.get(name) == index and not isinstance(told[name], bool))
    name = next(own, None)
    return (handle, "children", index) if name is None else (handle, name, None)


def _is_tree(value: Sequence[object]) -> bool:
    return isinstance(value[0], dict) and "num-children" in value[0] if value else False


def _is_plan(tree: Sequence[Mapping[str, object]]) -> bool:
    name = str(tree[0]["class"])
    return any(package in name for package in _PLAN_PACKAGES)


def _short_name(told: Mapping[str, object]) -> str:
    return str(told["class"]).rpartition(".")[2].rstrip("$").rpartition("$")[2]


def _id_in(told: object) -> int:
    assert isinstance(told, Mapping), "an expression's id is an object of its own"
    return int(told["id"])


def walk(plan: PlanNode) -> Iterator[PlanNode]:
    """Yield a node and all below it, parents before their children."""
    return (node for _, node in nodes_with_paths(plan))


def nodes_with_paths(plan: PlanNode, path: Path = ()) -> Iterator[tuple[Path, PlanNode]]:
    """Yield a node and all below it with their positions, parents before their children."""
    waiting = [(path, plan)]
    while waiting:
        path, plan = waiting.pop()
        yield path, plan
        waiting += [((*path, index), child) for index, child in reversed(list(enumerate(plan.children)))]


def walk_expression(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all below it."""
    waiting = [expression]
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting += reversed(expression.children)


def attribute_ids(expression: Expression) -> set[int]:
    """Return the ids of the attributes in an expression."""
    return {each.id for each in walk_expression(expression) if each.kind == _ATTRIBUTE}


def same_expression(some: Expression, other: Expression) -> bool:
    """Tell whether two expressions are the same, wherever they stand."""
    if some.kind == _ATTRIBUTE or some.kind != other.kind:
        return some.kind == other.kind and some.id == other.id
    return (
        some.fields == other.fields
        and len(some.children) == len(other.children)
        and all(map(same_expression, some.children, other.children))
    )


def conjuncts(condition: Expression) -> Iterator[Expression]:
    """Yield the parts of a condition that all have to hold."""
    waiting = [condition]
    while waiting:
        condition = waiting.pop()
        if condition.kind == "And":
            waiting += reversed(condition.children)
        else:
            yield condition


def find_node(plan: PlanNode, path: Path) -> PlanNode:
    """Return the node at a position."""
    for index in path:
        plan = plan.children[index]
    return plan


def replace_nodes(plan: PlanNode, others: Mapping[Path, PlanNode]) -> PlanNode:
    """Return a plan with other nodes at some positions. No position may be below another one."""
    if () in others:
        return others[()]
    if not others:
        return plan
    children = tuple(
        replace_nodes(child, {path[1:]: other for path, other in others.items() if path[0] == index})
        for index, child in enumerate(plan.children)
    )
    is_streaming = any(child.is_streaming for child in children)
    return replace(plan, children=children, is_original=False, is_streaming=is_streaming)
