"""Spark's plans in the JVM, and what makes new nodes, expressions and leaves of Catalyst's classes, by their names."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark.spark.engine.jvm import context, frame_of, logical_rdd, looked_up, scala_seq, session

__all__ = [
    "Catalyst",
    "Node",
    "Path",
    "analysed",
    "at",
    "children",
    "function_id",
    "is_distinct",
    "items",
    "kind",
    "optimised",
    "placed",
    "replaced",
]

Node: TypeAlias = Any
"""A plan of Catalyst's, an expression or an attribute."""
Path: TypeAlias = tuple[int, ...]
"""Where a node stands: which child to go to, from the top on."""

_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSIONS = f"{_CATALYST}.expressions"
_TYPES = "org.apache.spark.sql.types"
_MURMUR3, _SEED = "org.apache.datasketches.hash.MurmurHash3", 9001
"""The hash of Apache DataSketches, and from where it begins in each sketch."""
_NONE, _MODULE = "scala.None$", "MODULE$"
_COLLATION = re.compile(r"(`(?:[^`]|``)*`)| COLLATE \w+")
"""A collation in Spark's SQL for a type, or a quoted name, whose text is not a collation."""
_NARROWED = re.compile(r"interval|collate")
"""Types that come back from Python workers without their units or their collation."""


def items(sequence: Node) -> list[Node]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def kind(node: Node) -> str:
    """Return the name of a node's class."""
    return str(node.getClass().getSimpleName())


def children(node: Node) -> list[Node]:
    """Return what is right below a plan or an expression."""
    return items(node.children())


def placed(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield a node and all below it with their places, what is above first."""
    yield path, node
    for index, child in enumerate(children(node)):
        yield from placed(child, (*path, index))


def at(node: Node, path: Path) -> Node:
    """Return the node that stands somewhere below a node."""
    for index in path:
        node = node.children().apply(index)
    return node


def analysed(frame: DataFrame) -> Node:
    """Return a frame's plan, in which Spark has found every name and type."""
    return frame._jdf.queryExecution().analyzed()


def optimised(frame: DataFrame) -> Node:
    """Return what Spark's optimiser makes of a frame's plan."""
    return frame._jdf.queryExecution().optimizedPlan()


def function_id(node: Node) -> int | None:
    """Return the id of the Python function that a node of a plan calls for each group; ``None``: it calls none."""
    if kind(node) == "UpdateEventTimeWatermarkColumn":  # it says what the function's event time is
        node = node.child()
    return int(node.functionExpr().resultId().id()) if "InP" in kind(node) else None


def replaced(catalyst: "Catalyst", node: Node, others: Mapping[Path, Node]) -> Node:
    """Return a node with others in the places of some that are below it; what is beside their ways stays as it is."""
    if () in others:
        return others[()]
    below = {path[0] for path in others}
    if not below:
        return node
    changed = [
        replaced(catalyst, child, {path[1:]: new for path, new in others.items() if path[0] == index})
        if index in below
        else child
        for index, child in enumerate(children(node))
    ]
    return node.withNewChildren(catalyst.seq(changed))


@dataclass(frozen=True, slots=True)
class Catalyst:
    """Makes nodes in the JVM of a session."""

    spark: SparkSession
    _kept: dict[str, Node] = field(default_factory=dict, compare=False, repr=False)
    """Objects of the JVM that every plan may share."""

    def named(self, name: str) -> Node:
        """Return a class by its name below Catalyst's package."""
        return looked_up(context(self.spark)._jvm, f"{_CATALYST}.{name}")

    def module(self, name: str) -> Node:
        """Return a Scala object by its name below Catalyst's package."""
        return looked_up(context(self.spark)._jvm, f"{_CATALYST}.{name}$", _MODULE)

    def filled(self, name: str, *first: object) -> Node:
        """Return an instance of a class with these arguments first and ``False`` for others, which versions add."""
        made = looked_up(context(self.spark)._jvm, "java.lang.Class", "forName")(f"{_CATALYST}.{name}")
        count = made.getConstructors()[0].getParameterCount()
        return self.named(name)(*[*first, *[False] * count][:count])

    def output_mode(self, name: str) -> Node:
        """Return an output mode of Spark's: ``Append``, ``Update`` or ``Complete``."""
        return looked_up(context(self.spark)._jvm, "org.apache.spark.sql.streaming.OutputMode", name)()

    def seq(self, nodes: Sequence[Node]) -> Node:
        """Return nodes as a Scala sequence."""
        return scala_seq(context(self.spark)._jvm, list(nodes))

    def frame(self, plan: Node) -> DataFrame:
        """Return a plan as a frame."""
        return frame_of(self.spark, plan)

    def optimised(self, plan: Node) -> Node:
        """Return what Spark's optimiser makes of a plan."""
        return optimised(self.frame(plan))

    def project(self, columns: Sequence[Node], below: Node) -> Node:
        """Return a plan of these columns of the one below."""
        return self.named("plans.logical.Project")(self.seq(columns), below)

    def project_to(self, output: Node, below: Node) -> Node:
        """Return a plan of these columns, a sequence of the JVM, of the one below."""
        return self.named("plans.logical.Project")(output, below)

    def alias(self, expression: Node, name: str, expression_id: Node = None) -> Node:
        """Return an expression as a column of this name, under an id that others know or one of its own."""
        told = expression_id or self.module("expressions.NamedExpression").newExprId()
        return self.named("expressions.Alias")(expression, name, told, self.seq([]), self.none(), self.seq([]))

    def literal(self, value: object) -> Node:
        """Return a value of Python's as an expression."""
        return self.module("expressions.Literal").apply(value)

    def null(self, like: Node) -> Node:
        """Return a null of the type that another expression has."""
        return self.module("expressions.Literal").create(None, like.dataType())

    def plain(self, expression: Node) -> Node:
        """Cast an expression to its type without collations, which strings in Python workers do not have."""
        if " collate " not in str(expression.dataType().catalogString()):
            return expression
        ddl = looked_up(context(self.spark)._jvm, f"{_TYPES}.DataType", "fromDDL")
        plain = _COLLATION.sub(lambda found: found[1] or "", str(expression.dataType().sql()))
        return self.named("expressions.Cast")(expression, ddl(plain), self.none())

    def typed(self, expression: Node, data_type: Node) -> Node:
        """Return what came back from Python workers in the type that it had before: with its collation, or the units
        of its interval.
        """
        wanted = str(data_type.catalogString())
        if not _NARROWED.search(wanted) or str(expression.dataType().catalogString()) == wanted:
            return expression
        return self.named("expressions.Cast")(expression, data_type.asNullable(), self.none())

    def json_field(self, expression: Node, name: str) -> Mapping[str, object]:
        """Return the JSON of a field of this name that has the type of an expression."""
        struct = looked_up(context(self.spark)._jvm, f"{_TYPES}.StructType")()
        found: Mapping[str, object] = json.loads(struct.add(name, expression.dataType()).json())["fields"][0]
        return found

    def null_where(self, condition: Node, otherwise: Node) -> Node:
        """Return an expression that is null where a condition holds, and another where not."""
        return self.where(condition, self.null(otherwise), otherwise)

    def where(self, condition: Node, one: Node, otherwise: Node) -> Node:
        """Return one expression where a condition holds, and another where not."""
        return self.named("expressions.If")(condition, one, otherwise)

    def for_each(self, rows: Sequence[Sequence[Node]], names: Sequence[str], below: Node) -> Node:
        """Return a plan that makes several rows of each: of the columns of each of these; and of those rows the ones in
        which the last column holds, without it.
        """
        output = [self.alias(self.null(one), name).toAttribute() for one, name in zip(rows[0], names, strict=True)]
        expand = self.named("plans.logical.Expand")(self.seq([self.seq(row) for row in rows]), self.seq(output), below)
        return self.project(output[:-1], self.named("plans.logical.Filter")(output[-1], expand))

    def is_null(self, expression: Node) -> Node:
        """Return whether an expression is null."""
        return self.named("expressions.IsNull")(expression)

    def field(self, struct: Node, index: int) -> Node:
        """Return a field of a struct."""
        return self.named("expressions.GetStructField")(struct, index, self.none())

    def struct(self, fields: Sequence[tuple[str, Node]]) -> Node:
        """Return a struct of these fields."""
        told = [one for name, field in fields for one in (self.literal(name), field)]
        return self.named("expressions.CreateNamedStruct")(self.seq(told))

    def normalised(self, expression: Node) -> Node:
        """Return an expression whose floating numbers can be told apart by their bits, as Spark has it of keys."""
        return self.module("optimizer.NormalizeFloatingNumbers").normalize(expression)

    def hashed(self, expression: Node) -> Node:
        """Return the hash by which Spark tells values apart that it only counts; null where there is none."""
        is_collated = " collate " in str(expression.dataType().catalogString())
        hashed = self.named("expressions.CollationAwareXxHash64" if is_collated else "expressions.XxHash64")
        return self.null_where(self.is_null(expression), hashed(self.seq([expression])))

    def hashed_for_sketches(self, expression: Node) -> Node:
        """Return the two words by which sketches of Apache DataSketches tell values apart, by its own code; null for
        what they leave out: nulls, and what has no bytes.
        """
        jvm, none = context(self.spark)._jvm, self.none()
        class_of, ddl = looked_up(jvm, "java.lang.Class", "forName"), looked_up(jvm, f"{_TYPES}.DataType", "fromDDL")
        static, cast = self.named("expressions.objects.StaticInvoke"), self.named("expressions.Cast")

        def called(name: str, method: str, result: Node, *given: Node) -> Node:
            return static(class_of(name), result, method, self.seq(given), self.seq([]), True, True, True, none)

        name = str(expression.dataType().catalogString())
        if " collate " in name:
            expression = self.named("expressions.CollationKey")(expression)
        told = cast(expression, ddl("bigint" if name in ("int", "bigint") else "binary"), none)
        seed, longs = cast(self.literal(_SEED), ddl("bigint"), none), looked_up(jvm, f"{_TYPES}.ObjectType")
        words = called(_MURMUR3, "hash", longs(class_of("[J")), told, seed)
        found = called(f"{_EXPRESSIONS}.UnsafeArrayData", "fromPrimitiveArray", ddl("array<bigint>"), words)
        nothing = self.named("expressions.EqualTo")(told, cast(self.literal(""), told.dataType(), none))
        return found if name in ("int", "bigint") else self.null_where(nothing, found)

    def estimated(self, function: Node, words: Node) -> Node:
        """Return what ``approx_count_distinct`` makes of its buffer, whose words are a struct: by Spark's own code."""
        literal = self.module("expressions.Literal")
        counted = literal.fromObject(self.named("util.HyperLogLogPlusPlusHelper")(function.relativeSD()))
        told = self.seq([words, self.literal(0)])
        invoke = self.named("expressions.objects.Invoke")
        return invoke(counted, "query", function.dataType(), told, self.seq([]), False, False, True)

    def rows(self, output: Node, rdd: Node) -> Node:
        """Return a plan of an RDD of the JVM's rows, with these attributes."""
        if "anywhere" not in self._kept:
            self._kept["anywhere"] = self.named("plans.physical.UnknownPartitioning")(0)
        return logical_rdd(context(self.spark)._jvm, output, rdd, self._kept["anywhere"], session(self.spark))

    def attributes(self, schema: StructType) -> Node:
        """Return the columns of a schema as new attributes."""
        made = looked_up(context(self.spark)._jvm, f"{_TYPES}.DataType", "fromJson")(schema.json())
        return self.module("types.DataTypeUtils").toAttributes(made)

    def computed(self, plan: Node) -> DataFrame:
        """Return a frame that is nothing but the rows of a plan, which is planned now and computed by who reads them:
        what takes plans of such frames alone takes this, too.
        """
        return self.frame(self.rows(plan.output(), self.frame(plan)._jdf.queryExecution().toRdd()))

    def no_rows(self, output: Node) -> Node:
        """Return a leaf without rows, which no optimiser takes for empty."""
        if "nothing" not in self._kept:
            self._kept["nothing"] = self.spark.range(0)._jdf.queryExecution().toRdd()
        return self.rows(output, self._kept["nothing"])

    def copied(self, node: Node, parts: Sequence[object]) -> Node:
        """Return a copy of a node that is made of other parts."""
        array = context(self.spark)._gateway.new_array(
            looked_up(context(self.spark)._jvm, "java.lang.Object"), len(parts)
        )
        for index, one in enumerate(parts):
            array[index] = one
        return node.makeCopy(array)

    def is_a(self, part: object, name: str) -> bool:
        """Tell whether something is an object of the JVM and of a class."""
        if name not in self._kept:
            self._kept[name] = looked_up(context(self.spark)._jvm, "java.lang.Class", "forName")(name)
        return hasattr(part, "getClass") and bool(self._kept[name].isInstance(part))

    def some(self, value: object) -> Node:
        """Return a value as a Scala option that has it."""
        return looked_up(context(self.spark)._jvm, "scala.Some")(value)

    def none(self) -> Node:
        """Return Scala's option without a value."""
        return looked_up(context(self.spark)._jvm, _NONE, _MODULE)


def is_distinct(expression: Node) -> bool:
    """Tell whether an expression is an aggregate function of which the plan says that each value counts once."""
    return kind(expression) == "AggregateExpression" and bool(expression.isDistinct())
