"""Build expressions and projections in the JVM from values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import StructType

from riffle_spark.process.plans.new_expressions import NewExpression, Value
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, items
from riffle_spark.spark.plans.plan_reader import PlanReader


def new_leaf(catalyst: Catalyst, schema: StructType) -> tuple[Node, Mapping[str, Node]]:
    """Return a leaf without rows with the columns of a schema, and these columns by name.

    Spark's optimiser does not remove the leaf.
    """
    output = catalyst.attributes(schema)
    return catalyst.no_rows(output), dict(zip(schema.names, items(output), strict=True))


@dataclass(slots=True)
class TreeBuilder:
    """Builds JVM expressions from values, over a plan that was read or over a leaf with ``columns``.

    Equal parts are built once.
    """

    reader: PlanReader
    columns: Mapping[str, Node] = field(default_factory=dict)
    _built: dict[object, Node] = field(default_factory=dict)

    def expression(self, value: Value) -> Node:
        """Return a value as an expression in the JVM."""
        if isinstance(value, Expression):
            return self.reader.fetch(value.handle)
        key = _cache_key(value)
        if key not in self._built:
            self._built[key] = self._build(value)
        return self._built[key]

    def _build(self, value: NewExpression) -> Node:
        """Return a new expression in the JVM, from its parts."""
        if value.kind == "column":
            return self.columns[str(value.value)]
        catalyst = self.reader.catalyst
        parts = [self.expression(part) for part in value.parts]
        builders: dict[str, Callable[[], Node]] = {
            "and": lambda: catalyst.class_named("expressions.And")(*parts),
            "cast": lambda: catalyst.restore_type(parts[0], parts[1].dataType()),
            "changed": lambda: parts[0].withNewChildren(catalyst.seq(parts[1:])),
            "field": lambda: catalyst.field(parts[0], int(str(value.value))),
            "if": lambda: catalyst.if_else(*parts),
            "is_null": lambda: catalyst.is_null(parts[0]),
            "literal": lambda: catalyst.literal(value.value),
            "normalised": lambda: catalyst.normalised(parts[0]),
            "null": lambda: catalyst.null(parts[0]),
            "plain": lambda: catalyst.without_collation(parts[0]),
            "struct": lambda: catalyst.struct(_struct_fields(value, parts)),
        }
        return builders[value.kind]()

    def project(self, columns: Iterable[tuple[str, Value]], child: Node) -> Node:
        """Return a projection of ``child`` to these named values."""
        return self.reader.catalyst.project([self.alias(name, value) for name, value in columns], child)

    def alias(self, name: str, value: Value, column: Expression | None = None) -> Node:
        """Return a value as a named column, with the id and the metadata of ``column`` if that is set."""
        catalyst = self.reader.catalyst
        if column is None:
            return catalyst.alias(self.expression(value), name)
        named = self.reader.fetch(column.handle)
        return catalyst.alias(self.expression(value), name, named.exprId(), named.metadata())


def _cache_key(value: Value) -> object:
    """Return a key that is equal for equal values."""
    if isinstance(value, Expression):
        return value.handle
    return (value.kind, tuple(map(_cache_key, value.parts)), type(value.value), value.value)


def _struct_fields(value: NewExpression, parts: Sequence[Node]) -> Sequence[tuple[str, Node]]:
    assert isinstance(value.value, tuple), "a struct has the names of its fields"
    return list(zip(map(str, value.value), parts, strict=True))
