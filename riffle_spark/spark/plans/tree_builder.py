"""Builds expressions and projections in the JVM of values, over one leaf."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from riffle_spark.process.plans.built import Built, Value
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["LeafColumns", "TreeBuilder", "leaf_of"]


@dataclass(slots=True)
class LeafColumns:
    """The columns of a leaf by their names, each fetched once from the JVM."""

    output: Node
    names: Mapping[str, int]
    _attributes: dict[str, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Node:
        """Return the attribute of a column."""
        if name not in self._attributes:
            self._attributes[name] = self.output.apply(self.names[name])
        return self._attributes[name]


def leaf_of(catalyst: Catalyst, schema: StructType) -> tuple[Node, LeafColumns]:
    """Return a leaf without rows of these columns, which no optimiser takes for empty."""
    output = catalyst.attributes(schema)
    return catalyst.no_rows(output), LeafColumns(output, {name: at for at, name in enumerate(schema.names)})


@dataclass(slots=True)
class TreeBuilder:
    """Builds what is over a plan that was read, or over a leaf with ``columns``. Equal parts are built once."""

    reader: PlanReader
    columns: LeafColumns | None = None
    _built: dict[object, Node] = field(default_factory=dict)

    def value(self, value: Value) -> Node:
        """Return an expression."""
        if isinstance(value, Expression):
            return self.reader.found(value.handle)
        key = _key(value)
        if key not in self._built:
            self._built[key] = self._made(value)
        return self._built[key]

    def _made(self, value: Built) -> Node:
        if value.kind == "column":
            assert self.columns is not None, "only a leaf has columns by name"
            return self.columns[str(value.value)]
        catalyst, parts = self.reader.catalyst, [self.value(part) for part in value.parts]
        made: dict[str, Callable[[], Node]] = {
            "and": lambda: catalyst.named("expressions.And")(*parts),
            "cast": lambda: catalyst.typed(parts[0], parts[1].dataType()),
            "changed": lambda: parts[0].withNewChildren(catalyst.seq(parts[1:])),
            "field": lambda: catalyst.field(parts[0], int(str(value.value))),
            "if": lambda: catalyst.where(*parts),
            "is_null": lambda: catalyst.is_null(parts[0]),
            "literal": lambda: catalyst.literal(value.value),
            "normalised": lambda: catalyst.normalised(parts[0]),
            "null": lambda: catalyst.null(parts[0]),
            "plain": lambda: catalyst.plain(parts[0]),
            "struct": lambda: catalyst.struct(_fields(value, parts)),
        }
        return made[value.kind]()

    def project(self, columns: Iterable[tuple[str, Value]], below: Node) -> Node:
        """Return a projection to named values."""
        return self.reader.catalyst.project([self.named(name, value) for name, value in columns], below)

    def named(self, name: str, value: Value, of: Expression | None = None) -> Node:
        """Return a value as a column of this name, which has the id of another column if one is named."""
        expression_id = None if of is None else self.reader.found(of.handle).exprId()
        return self.reader.catalyst.alias(self.value(value), name, expression_id)


def _key(value: Value) -> object:
    if isinstance(value, Expression):
        return value.handle
    return (value.kind, tuple(map(_key, value.parts)), type(value.value), value.value)


def _fields(value: Built, parts: Sequence[Node]) -> Sequence[tuple[str, Node]]:
    assert isinstance(value.value, tuple), "a struct has the names of its fields"
    return list(zip(map(str, value.value), parts, strict=True))
