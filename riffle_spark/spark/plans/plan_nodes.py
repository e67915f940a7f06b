"""Catalyst plans and expressions in Spark's JVM, and a factory for new nodes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from riffle_spark.spark.compat.java import items, kind, parameter_count
from riffle_spark.spark.engine.jvm import context, frame_of, logical_rdd, looked_up, scala_seq, session

__all__ = ["Catalyst", "Node", "analysed", "children", "function_id", "is_distinct", "items", "kind", "optimised"]


class Node(Protocol):
    """An object in Spark's JVM: a logical plan, an expression, an attribute or a Scala collection.

    Py4J looks up its methods by name, so every attribute is a method and every result may be an object of the JVM.
    """

    def __getattr__(self, name: str) -> "Node": ...
    def __call__(self, *arguments: object) -> "Node":
        """Call the method of the JVM object with these arguments."""
        ...

    def __bytes__(self) -> bytes: ...
    def __getitem__(self, index: int) -> "Node": ...
    def __index__(self) -> int: ...
    def __iter__(self) -> Iterator["Node"]: ...


_CATALYST = "org.apache.spark.sql.catalyst"
_EXPRESSIONS = f"{_CATALYST}.expressions"
_TYPES = "org.apache.spark.sql.types"
_MURMUR3 = "org.apache.datasketches.hash.MurmurHash3"
_MURMUR3_SEED = 9001
"""The seed that Apache DataSketches uses in all sketches."""
_MODULE = "MODULE$"
_COLLATION = re.compile(r"(`(?:[^`]|``)*`)| COLLATE \w+")
"""A quoted name, which is kept, or a collation in a type's SQL."""
_NARROWED = re.compile(r"interval|collate|\btime\(")
"""Types that lose their units, their collation or their precision in Python workers."""


def children(node: Node) -> list[Node]:
    """Return the children of a plan or an expression."""
    return items(node.children())


def analysed(frame: DataFrame) -> Node:
    """Return a frame's analysed plan, with resolved names and types."""
    plan: Node = frame._jdf.queryExecution().analyzed()
    return plan


def optimised(frame: DataFrame) -> Node:
    """Return a frame's optimised plan."""
    plan: Node = frame._jdf.queryExecution().optimizedPlan()
    return plan


def function_id(node: Node) -> int | None:
    """Return the id of the Python function that a plan node calls per group, or ``None`` if it calls none."""
    if kind(node) == "UpdateEventTimeWatermarkColumn":  # Spark puts this node above a function with an event time.
        node = node.child()
    return int(node.functionExpr().resultId().id()) if "InP" in kind(node) else None


@dataclass(frozen=True, slots=True)
class Catalyst:
    """Makes plans and expressions in the JVM of a session."""

    spark: SparkSession
    _shared: dict[str, Node] = field(default_factory=dict, compare=False, repr=False)
    """JVM objects that all plans may share."""

    def class_named(self, name: str) -> Node:
        """Return a class of the JVM by its name below Catalyst's package."""
        return self._lookup(f"{_CATALYST}.{name}")

    def object_named(self, name: str) -> Node:
        """Return a Scala object by its name below Catalyst's package."""
        return self._lookup(f"{_CATALYST}.{name}$", _MODULE)

    def construct(self, name: str, *arguments: object) -> Node:
        """Return a new instance of a class, by its name below Catalyst's package.

        Some versions of Spark have further parameters, which get ``False``.
        """
        count = parameter_count(context(self.spark)._jvm, f"{_CATALYST}.{name}")
        return self.class_named(name)(*[*arguments, *[False] * count][:count])

    def output_mode(self, name: str) -> Node:
        """Return an output mode of Spark's: ``Append``, ``Update`` or ``Complete``."""
        return self._lookup("org.apache.spark.sql.streaming.OutputMode", name)()

    def seq(self, nodes: Sequence[Node]) -> Node:
        """Return nodes as a Scala sequence."""
        sequence: Node = scala_seq(context(self.spark)._jvm, list(nodes))
        return sequence

    def concat(self, first: Node, second: Node) -> Node:
        """Return the items of two Scala sequences as one. Lists have the same method in all versions of Scala."""
        sequence: Node = getattr(second.toList(), "$colon$colon$colon")(first.toList())
        return sequence

    def frame(self, plan: Node) -> DataFrame:
        """Return a plan as a DataFrame."""
        return frame_of(self.spark, plan)

    def optimised(self, plan: Node) -> Node:
        """Return the optimised form of a plan."""
        return optimised(self.frame(plan))

    def project(self, columns: Sequence[Node], child: Node) -> Node:
        """Return a projection of a plan to some columns."""
        return self.project_to(self.seq(columns), child)

    def project_to(self, output: Node, child: Node) -> Node:
        """Return a projection of a plan to the columns in a Scala sequence."""
        return self.class_named("plans.logical.Project")(output, child)

    def filter(self, condition: Node, child: Node) -> Node:
        """Return a plan with only the rows that fulfil a condition."""
        return self.class_named("plans.logical.Filter")(condition, child)

    def aggregate(self, keys: Node, results: Node, child: Node) -> Node:
        """Return an aggregate of a plan. ``keys`` and ``results`` are Scala sequences."""
        return self.construct("plans.logical.Aggregate", keys, results, child, self.none())

    def alias(
        self,
        expression: Node,
        name: str | Node,
        expression_id: Node | None = None,
        metadata: Node | None = None,
    ) -> Node:
        """Return an expression as a named column, with the given expression id or a new id.

        ``metadata`` is the column's; by default it is that of the expression.
        """
        column_id = expression_id or self.object_named("expressions.NamedExpression").newExprId()
        explicit = self.none() if metadata is None else self.some(metadata)
        arguments = (expression, name, column_id, self.seq([]), explicit, self.seq([]))
        return self.class_named("expressions.Alias")(*arguments)

    def literal(self, value: object) -> Node:
        """Return a Python value as a literal."""
        return self.object_named("expressions.Literal").apply(value)

    def null(self, like: Node) -> Node:
        """Return a null with the type of another expression."""
        return self.object_named("expressions.Literal").create(None, like.dataType())

    def without_collation(self, expression: Node) -> Node:
        """Cast an expression to its type without collations, because Python workers have none."""
        if " collate " not in str(expression.dataType().catalogString()):
            return expression
        ddl = _COLLATION.sub(lambda match: match[1] or "", str(expression.dataType().sql()))
        return self.cast(expression, self.type_named(ddl))

    def cast(self, expression: Node, data_type: Node) -> Node:
        """Return an expression cast to a type."""
        return self.class_named("expressions.Cast")(expression, data_type, self.none())

    def restore_type(self, expression: Node, data_type: Node) -> Node:
        """Cast a value from Python workers back to its type in Spark, if they lose a part of it."""
        target = str(data_type.catalogString())
        if not _NARROWED.search(target) or str(expression.dataType().catalogString()) == target:
            return expression
        return self.cast(expression, data_type.asNullable())

    def json_field(self, expression: Node, name: str) -> Mapping[str, object]:
        """Return the JSON of a field that has an expression's type."""
        struct = self._lookup(f"{_TYPES}.StructType")()
        fields: list[Mapping[str, object]] = json.loads(str(struct.add(name, expression.dataType()).json()))["fields"]
        return fields[0]

    def null_if(self, condition: Node, otherwise: Node) -> Node:
        """Return an expression that is null if ``condition`` is true, else ``otherwise``."""
        return self.if_else(condition, self.null(otherwise), otherwise)

    def if_else(self, condition: Node, value: Node, otherwise: Node) -> Node:
        """Return an expression that is ``value`` if ``condition`` is true, else ``otherwise``."""
        return self.class_named("expressions.If")(condition, value, otherwise)

    def expand(self, rows: Sequence[Sequence[Node]], names: Sequence[str], child: Node) -> Node:
        """Return a plan that makes several rows of each row of a plan.

        Each item of ``rows`` lists the columns of such a row. The last column is a condition. Rows are dropped unless
        it is true, and the column is always dropped.
        """
        output = [
            self.alias(self.null(column), name).toAttribute() for column, name in zip(rows[0], names, strict=True)
        ]
        projections = self.seq([self.seq(row) for row in rows])
        plan = self.class_named("plans.logical.Expand")(projections, self.seq(output), child)
        return self.project(output[:-1], self.filter(output[-1], plan))

    def is_null(self, expression: Node) -> Node:
        """Return an expression that is true if ``expression`` is null."""
        return self.class_named("expressions.IsNull")(expression)

    def field(self, struct: Node, index: int) -> Node:
        """Return an expression for the field of a struct at ``index``."""
        return self.class_named("expressions.GetStructField")(struct, index, self.none())

    def struct(self, fields: Sequence[tuple[str, Node]]) -> Node:
        """Return an expression for a struct with these (name, value) fields."""
        names_and_values = [node for name, value in fields for node in (self.literal(name), value)]
        return self.class_named("expressions.CreateNamedStruct")(self.seq(names_and_values))

    def normalised(self, expression: Node) -> Node:
        """Return an expression in which equal floating-point numbers have equal bits, as Spark normalises keys."""
        return self.object_named("optimizer.NormalizeFloatingNumbers").normalize(expression)

    def value_hash(self, expression: Node) -> Node:
        """Return the hash that ``approx_count_distinct`` uses for a value, and null for null."""
        is_collated = " collate " in str(expression.dataType().catalogString())
        hash_class = self.class_named("expressions.CollationAwareXxHash64" if is_collated else "expressions.XxHash64")
        return self.null_if(self.is_null(expression), hash_class(self.seq([expression])))

    def sketch_hash(self, expression: Node) -> Node:
        """Return the two 64-bit words that Apache DataSketches hashes a value to, computed by its own code.

        The result is null for values that sketches ignore: nulls, and empty strings and binaries.
        """
        class_for = self._lookup("java.lang.Class", "forName")

        def invoke(class_name: str, method: str, result: Node, *arguments: Node) -> Node:
            call = (class_for(class_name), result, method, self.seq(arguments), self.seq([]), True, True, True)
            return self.construct("expressions.objects.StaticInvoke", *call, self.none())

        type_name = str(expression.dataType().catalogString())
        if " collate " in type_name:
            expression = self.class_named("expressions.CollationKey")(expression)
        is_integer = type_name in ("int", "bigint")
        value = self.cast(expression, self.type_named("bigint" if is_integer else "binary"))
        seed = self.cast(self.literal(_MURMUR3_SEED), self.type_named("bigint"))
        words = invoke(_MURMUR3, "hash", self._lookup(f"{_TYPES}.ObjectType")(class_for("[J")), value, seed)
        array = invoke(f"{_EXPRESSIONS}.UnsafeArrayData", "fromPrimitiveArray", self.type_named("array<bigint>"), words)
        if is_integer:
            return array
        is_empty = self.class_named("expressions.EqualTo")(value, self.cast(self.literal(""), value.dataType()))
        return self.null_if(is_empty, array)

    def estimate_distinct(self, function: Node, words: Node) -> Node:
        """Return the result of ``approx_count_distinct`` from its buffer, a struct of words, with Spark's code."""
        helper = self.class_named("util.HyperLogLogPlusPlusHelper")(function.relativeSD())
        arguments = self.seq([words, self.literal(0)])
        invoke = self.class_named("expressions.objects.Invoke")
        instance = self.object_named("expressions.Literal").fromObject(helper)
        return invoke(instance, "query", function.dataType(), arguments, self.seq([]), False, False, True)

    def rows(self, output: Node, rdd: Node) -> Node:
        """Return a plan that reads an RDD of internal rows. ``output`` holds their attributes."""
        if "partitioning" not in self._shared:
            self._shared["partitioning"] = self.class_named("plans.physical.UnknownPartitioning")(0)
        partitioning = self._shared["partitioning"]
        plan: Node = logical_rdd(context(self.spark)._jvm, output, rdd, partitioning, session(self.spark))
        return plan

    def attributes(self, schema: StructType) -> Node:
        """Return new attributes for the columns of a schema."""
        jvm_schema = self._lookup(f"{_TYPES}.DataType", "fromJson")(schema.json())
        return self.object_named("types.DataTypeUtils").toAttributes(jvm_schema)

    def computed(self, plan: Node) -> DataFrame:
        """Return a frame over the rows of a plan, as an RDD without the plan.

        Spark plans the rows now and computes them when the frame is read.
        """
        return self.frame(self.rows(plan.output(), self.frame(plan)._jdf.queryExecution().toRdd()))

    def no_rows(self, output: Node) -> Node:
        """Return a leaf without rows that Spark's optimiser does not remove as empty."""
        if "no_rows" not in self._shared:
            self._shared["no_rows"] = self.spark.range(0)._jdf.queryExecution().toRdd()
        return self.rows(output, self._shared["no_rows"])

    def copy_node(self, node: Node, arguments: Sequence[object]) -> Node:
        """Return a copy of a node with other constructor arguments."""
        array = context(self.spark)._gateway.new_array(self._lookup("java.lang.Object"), len(arguments))
        for index, argument in enumerate(arguments):
            array[index] = argument
        return node.makeCopy(array)

    def pickled_function(self, call: Node) -> bytes:
        """Return the Python function of a call, as PySpark pickled it."""
        byte = self._lookup("scala.reflect.ClassTag", "Byte")()
        return bytes(call.func().command().toArray(byte))

    def is_instance(self, value: Node, name: str) -> bool:
        """Return whether a value is a JVM object of a class."""
        if name not in self._shared:
            self._shared[name] = self._lookup("java.lang.Class", "forName")(name)
        return hasattr(value, "getClass") and bool(self._shared[name].isInstance(value))

    def some(self, value: object) -> Node:
        """Return a Scala option with a value."""
        return self._lookup("scala.Some")(value)

    def none(self) -> Node:
        """Return the Scala option without a value."""
        return self._lookup("scala.None$", _MODULE)

    def _lookup(self, name: str, member: str = "") -> Node:
        """Return a class of the JVM by its full name, or a ``member`` of it."""
        node: Node = looked_up(context(self.spark)._jvm, name, member)
        return node

    def type_named(self, ddl: str) -> Node:
        """Return a Spark type in the JVM, given as DDL."""
        return self._lookup(f"{_TYPES}.DataType", "fromDDL")(ddl)


def is_distinct(expression: Node) -> bool:
    """Return whether an expression is an aggregate function with DISTINCT."""
    return kind(expression) == "AggregateExpression" and bool(expression.isDistinct())
