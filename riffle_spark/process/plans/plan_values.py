"""An analysed plan of Spark as frozen values, read from the JSON of Spark's ``TreeNode.toJSON``.

1. Each value has a number, its *handle*. ``PlanReader`` finds the JVM object behind a value by its handle.
2. Handles are given in reading order, so equal JSON gives equal values.
3. A changed plan keeps the handles of its nodes. ``is_original`` is true while a node has the children that Spark gave
   it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, TypeVar

Path: TypeAlias = tuple[int, ...]
"""A position in a plan: the index of the child to take at each level."""
Access: TypeAlias = tuple[int, str, int | None]
"""How to reach a JVM object: the handle of its parent, the methods to call there with dots between them, and an index
into the result, or ``None`` for the result itself.
"""
Edit: TypeAlias = Literal["", "project", "no_rows", "count_all"]
"""How a node was changed since it was read: not at all, to a projection to its output, to a leaf without rows that has
its output, or to aggregate functions without DISTINCT.
"""

_T = TypeVar("_T")

_PLAN_PACKAGES: Final = (".plans.", ".execution.", ".streaming.", ".datasources.")
_ATTRIBUTE: Final = "AttributeReference"
_CHILD_METHODS: Final = ("child", "left", "right", "aggregateFunction")
"""Methods of Spark's nodes that return one child."""
_OPTIONAL: Final = {("Join", "condition")}
"""Fields whose value is a Scala option."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of a plan: the name of its class, its children, and its other JSON fields."""

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
        """Spark's id of an attribute or an alias."""
        expression_id = self.fields["exprId"]
        assert isinstance(expression_id, Mapping), "an expression's id is an object"
        return int(expression_id["id"])


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
        """The expressions of this node, without their own child expressions."""
        for expressions in self.expressions.values():
            yield from expressions

    @property
    def is_unary(self) -> bool:
        """Whether the class of the node always has a single child."""
        return len(self.children) == 1 and self.fields.get("child") == 0

    @property
    def join_type(self) -> str:
        """The type of a join, as Spark prints it, or ``""`` for other nodes."""
        join_type = self.fields.get("joinType")
        name = join_type.get("object", join_type.get("product-class")) if isinstance(join_type, Mapping) else ""
        return str(name).rpartition(".")[2].removesuffix("$")

    def with_children(self, children: Sequence["PlanNode"]) -> "PlanNode":
        """Return the node with other children."""
        is_streaming = any(child.is_streaming for child in children)
        return replace(self, children=tuple(children), is_original=False, is_streaming=is_streaming)


@dataclass(slots=True)
class _JsonReader:
    """Reads the JSON of a plan, and notes how each object is reached in the JVM.

    It never recurses, so only Spark limits the depth of a plan. ``leaves`` counts the plan's unread leaves. The last
    leaf is read first.
    """

    is_stream: Callable[[int], bool]
    accesses: dict[int, Access] = field(default_factory=dict)
    next_handle: int = 0
    leaves: int = 0

    def read_plan(self, tree: Sequence[Mapping[str, object]]) -> PlanNode:
        """Return the plan of a JSON tree."""
        self.leaves = sum(not _child_count(body) for body in tree)
        return self._read_tree(tree, None, self._make_node)

    def read_expression(self, tree: Sequence[Mapping[str, object]], access: Access) -> Expression:
        """Return the expression of a JSON tree. ``access`` is how its root is reached in the JVM."""
        return self._read_tree(tree, access, _make_expression)

    def _read_tree(
        self,
        tree: Sequence[Mapping[str, object]],
        access: Access | None,
        make: Callable[[Mapping[str, object], tuple[_T, ...], int], _T],
    ) -> _T:
        """Convert the objects of a JSON tree by ``make``, children before their parents, and return the root's
        value.
        """
        parents = _find_parents(tree)
        handles = list[int]()
        for parent, index in parents:
            child_access = _child_access(tree[parent], handles[parent], index) if handles else access
            handles.append(self._take_handle(child_access))
        children: list[list[_T]] = [[] for _ in tree]
        for position in reversed(range(1, len(tree))):
            value = make(tree[position], tuple(reversed(children[position])), handles[position])
            children[parents[position][0]].append(value)
        return make(tree[0], tuple(reversed(children[0])), handles[0])

    def _take_handle(self, access: Access | None) -> int:
        """Return a new handle. ``access`` is how its object is reached in the JVM; ``None`` for the root."""
        handle = self.next_handle
        self.next_handle += 1
        if access is not None:
            self.accesses[handle] = access
        return handle

    def _make_node(self, body: Mapping[str, object], children: tuple[PlanNode, ...], handle: int) -> PlanNode:
        kind = _short_name(body)
        fields = dict[str, object]()
        expressions = dict[str, tuple[Expression, ...]]()
        for name, value in body.items():
            field_expressions = self._field_expressions(value, handle, name, kind)
            if field_expressions is not None:
                expressions[name] = field_expressions
            elif name not in ("class", "num-children"):
                fields[name] = value
        is_streaming = any(child.is_streaming for child in children) if children else self._is_stream(kind, fields)
        return PlanNode(kind, children, expressions, fields, is_streaming, handle)

    def _is_stream(self, kind: str, fields: Mapping[str, object]) -> bool:
        """Return whether a leaf is a stream. Calls the JVM only if the leaf's JSON does not state it."""
        self.leaves -= 1
        is_streaming = fields.get("isStreaming")
        if isinstance(is_streaming, bool):
            return is_streaming
        return kind.startswith("Streaming") or self.is_stream(self.leaves)

    def _field_expressions(self, value: object, parent: int, name: str, kind: str) -> tuple[Expression, ...] | None:
        """Return the expressions in a JSON field of an object: a single expression, an option, a list, or a list of
        lists. ``None`` if the field holds something else.
        """
        if not isinstance(value, list) or not value:
            return None
        if _is_expression_tree(value):
            access = (parent, f"{name}.get" if (kind, name) in _OPTIONAL else name, None)
            return None if _is_plan(value) else (self.read_expression(value, access),)
        trees = [item for item in value if isinstance(item, list) and _is_expression_tree(item) and not _is_plan(item)]
        if trees and len(trees) == len(value):
            return tuple(self.read_expression(tree, (parent, name, index)) for index, tree in enumerate(trees))
        nested = [tree for item in value if isinstance(item, list) for tree in item if isinstance(tree, list)]
        nested = [tree for tree in nested if _is_expression_tree(tree) and not _is_plan(tree)]
        return tuple(self.read_expression(tree, (parent, name, None)) for tree in nested) if nested else None


def _make_expression(body: Mapping[str, object], children: tuple[Expression, ...], handle: int) -> Expression:
    """Return the expression that a JSON object describes, with these children."""
    fields = {name: value for name, value in body.items() if name not in ("class", "num-children")}
    return Expression(_short_name(body), children, fields, handle)


def _find_parents(tree: Sequence[Mapping[str, object]]) -> list[tuple[int, int]]:
    """Return for each object of a JSON tree the position of its parent, and its index among that parent's children."""
    parents = list[tuple[int, int]]()
    open_places = [(-1, 0)]
    for position, body in enumerate(tree):
        parents.append(open_places.pop())
        open_places += [(position, index) for index in reversed(range(_child_count(body)))]
    return parents


def _child_count(body: Mapping[str, object]) -> int:
    """Return the number of children of a JSON object."""
    return int(str(body["num-children"]))


def parse_plan(
    text: str, is_stream: Callable[[int], bool], first_handle: int = 0
) -> tuple[PlanNode, Mapping[int, Access]]:
    """Return the plan in the text of Spark's ``toJSON``, and how each object is reached from the root, by handle.

    ``is_stream`` returns whether the leaf with a number is a stream. Leaves are numbered in the order of the JSON, and
    handles from ``first_handle`` on.
    """
    reader = _JsonReader(is_stream, next_handle=first_handle)
    plan = reader.read_plan(json.loads(text))
    return plan, reader.accesses


def _child_access(body: Mapping[str, object], handle: int, index: int) -> Access:
    """Return how to reach the child with this index in the JVM: (handle, method, index).

    Some children have a method, such as ``left``, and the index is ``None``. The method of all others is ``children``.
    """
    methods = (name for name in _CHILD_METHODS if body.get(name) == index and not isinstance(body[name], bool))
    method = next(methods, None)
    return (handle, "children", index) if method is None else (handle, method, None)


def _is_expression_tree(value: Sequence[object]) -> bool:
    """Return whether a JSON list is a tree of expressions or plans."""
    return isinstance(value[0], dict) and "num-children" in value[0] if value else False


def _is_plan(tree: Sequence[Mapping[str, object]]) -> bool:
    """Return whether the root of a JSON tree is a plan, not an expression."""
    name = str(tree[0]["class"])
    return any(package in name for package in _PLAN_PACKAGES)


def _short_name(body: Mapping[str, object]) -> str:
    """Return the class name of a JSON object without its package and outer classes."""
    return str(body["class"]).rpartition(".")[2].rstrip("$").rpartition("$")[2]


def walk(plan: PlanNode) -> Iterator[PlanNode]:
    """Yield a node and all below it, parents before their children."""
    return (node for _, node in nodes_with_paths(plan))


def nodes_with_paths(plan: PlanNode) -> Iterator[tuple[Path, PlanNode]]:
    """Yield the position and the node, of a plan and all nodes below it, parents before their children."""
    waiting: list[tuple[Path, PlanNode]] = [((), plan)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += [((*path, index), child) for index, child in reversed(list(enumerate(node.children)))]


def walk_expression(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all below it."""
    waiting = [expression]
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting += reversed(expression.children)


def attribute_ids(expression: Expression) -> set[int]:
    """Return the ids of the attributes in an expression."""
    return {part.id for part in walk_expression(expression) if part.kind == _ATTRIBUTE}


def same_expression(left: Expression, right: Expression) -> bool:
    """Return whether two expressions are equal. Handles and qualifiers of attributes are ignored."""
    if left.kind == _ATTRIBUTE or left.kind != right.kind:
        return left.kind == right.kind and left.id == right.id
    return (
        left.fields == right.fields
        and len(left.children) == len(right.children)
        and all(map(same_expression, left.children, right.children))
    )


def split_conjuncts(condition: Expression) -> Iterator[Expression]:
    """Yield the conditions that AND joins in a condition."""
    waiting = [condition]
    while waiting:
        condition = waiting.pop()
        if condition.kind == "And":
            waiting += reversed(condition.children)
        else:
            yield condition


def find_node(plan: PlanNode, path: Path) -> PlanNode:
    """Return the node at a position below ``plan``."""
    for index in path:
        plan = plan.children[index]
    return plan


def paths_above(paths: Iterable[Path]) -> list[Path]:
    """Return all positions above these positions, the deepest first."""
    return sorted({path[:depth] for path in paths for depth in range(len(path))}, key=len, reverse=True)


def transform_up(plan: PlanNode, change: Callable[[PlanNode], PlanNode]) -> PlanNode:
    """Return a plan with every node replaced by ``change(node)``, children before their parents."""
    results = list[PlanNode]()
    for node in reversed(list(walk(plan))):
        children = tuple(results.pop() for _ in node.children)
        is_same = all(new is old for new, old in zip(children, node.children, strict=True))
        results.append(change(node if is_same else node.with_children(children)))
    return results.pop()
