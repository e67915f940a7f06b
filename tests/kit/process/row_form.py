"""Takes one of Spark's batch aggregates apart: rows as one-row buffers, and what Spark's own expressions make of
buffers that were merged elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.process.merging.merge_registry import COLLECTED, HASHED
from riffle_spark.spark.compat import REPLACING_RULES, to_arrow
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.plans.plan_nodes import Catalyst
from tests.kit.arrow_frames import frame_of_table

__all__ = ["PlanFunction", "RowForm"]


@dataclass(frozen=True)
class PlanFunction:
    """One aggregate function of a plan: its class, and its buffers' columns in ``RowForm.rows``."""

    name: str
    columns: Sequence[str]
    options: Sequence[tuple[str, str]]


class RowForm:
    """``frame.groupBy("k").agg(...)`` as a plan: a leaf of rows, one aggregate, and what is above it."""

    def __init__(self, spark: SparkSession, aggregate: DataFrame) -> None:
        self._spark = spark
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._plan = aggregate._jdf.queryExecution().analyzed()
        self._outer = next(node for node in _nodes(self._plan) if _kind(node) == "Aggregate")
        optimizer = jvm.org.apache.spark.sql.catalyst.optimizer
        rules = (_module(optimizer, name) for name in REPLACING_RULES)
        self._replaced = self._outer
        for rule in rules:
            self._replaced = rule.apply(self._replaced)
        self._inner = next(node for node in _nodes(self._replaced) if _kind(node) == "Aggregate")
        planning = jvm.org.apache.spark.sql.catalyst.planning
        parts = _module(planning, "PhysicalAggregation").unapply(self._inner).get()
        self._grouping, self._found, self._results = parts._1(), _items(parts._2()), parts._3()
        self.functions = list(self._described())

    def _described(self) -> Iterator[PlanFunction]:
        used = 0
        for function in self._found:
            name = _kind(function.aggregateFunction())
            count = 1 if name in COLLECTED | HASHED else function.aggregateFunction().aggBufferAttributes().size()
            yield PlanFunction(name, [f"b{used + i}" for i in range(count)], _options(function.aggregateFunction()))
            used += count

    def rows(self) -> pa.Table:
        """Return the key ``k`` and the one-row buffers of each row, as the map side would send them."""
        child, initial, updates = self._inner.child(), [], []
        for each in self._found:
            function = each.aggregateFunction()
            if _kind(function) in COLLECTED | HASHED:
                value = self._given(function)
                updates.append(self._filtered(each, value, self._null(value.dataType())))
                continue
            parts = (function.aggBufferAttributes(), function.initialValues(), function.updateExpressions())
            for buffer, value, update in zip(*map(_items, parts), strict=True):
                initial.append(self._alias(value, buffer.name(), buffer.exprId()))
                updates.append(self._filtered(each, update, buffer))
        columns = [self._alias(update, f"b{i}", self._new_id()) for i, update in enumerate(updates)]
        initialized = self._project([*_items(child.output()), *initial], child)
        return to_arrow(self._frame(self._project([*_items(self._grouping), *columns], initialized)))

    def evaluated(self, merged: pa.Table) -> pa.Table:
        """Return what the query answers for merged buffers: ``k`` and the columns that ``rows`` has, or results."""
        leaf = frame_of_table(self._spark, merged)._jdf.queryExecution().analyzed()
        columns = {column.name(): column for column in _items(leaf.output())}
        lower = [
            self._alias(columns[key.name()], key.name(), key.toAttribute().exprId()) for key in _items(self._grouping)
        ]
        results = [key.toAttribute() for key in _items(self._grouping)]
        for described, function in zip(self.functions, self._found, strict=True):
            if described.name in COLLECTED:
                result = columns[described.columns[0]]
                lower.append(result)
            else:
                buffers = _items(function.aggregateFunction().aggBufferAttributes())
                for name, buffer in zip(described.columns, buffers, strict=True):
                    lower.append(self._alias(columns[name], buffer.name(), buffer.exprId()))
                result = function.aggregateFunction().evaluateExpression()
            results.append(self._alias(result, "result", function.resultAttribute().exprId()))
        evaluation = self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(
            self._results, self._project(results, self._project(lower, leaf))
        )
        replaced = self._swapped(self._replaced, self._inner, evaluation)
        return to_arrow(self._frame(self._swapped(self._plan, self._outer, replaced)))

    def estimated(self, merged: pa.Table) -> pa.Table:
        """Return the same by Spark's final node, for imperative functions; the columns are the key and all words."""
        execution = self._jvm.org.apache.spark.sql.execution
        child = self._frame(self._inner.child())._jdf.queryExecution().sparkPlan()
        functions = self._sequence(self._found)
        plans = _module(execution.aggregate, "AggUtils")
        final = _items(plans.planAggregateWithoutDistinct(self._grouping, functions, self._results, child))[0]
        rows = frame_of_table(self._spark, merged).localCheckpoint()._jdf.queryExecution().sparkPlan()
        arguments = [rows.productElement(i) for i in range(1, rows.productArity())]
        node = final.withNewChildren(self._sequence([execution.RDDScanExec(final.child().output(), *arguments)]))
        ready = _module(execution, "QueryExecution").prepareExecutedPlan(self._spark._jsparkSession, node)
        partitioning = self._jvm.org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning(0)
        session = handles.session(self._spark)
        leaf = handles.logical_rdd(self._jvm, ready.output(), ready.execute(), partitioning, session)
        return to_arrow(self._frame(leaf))

    def _given(self, function: Any) -> Any:
        """Return what is sent of a row to a function that Spark keeps a buffer of its own of."""
        (value, *_) = _items(function.children())
        if _kind(function) == "HllSketchAgg":
            return Catalyst(self._spark).sketch_hash(value)
        return value if _kind(function) in COLLECTED else self._hash(value)

    def _hash(self, value: Any) -> Any:
        """Return Spark's hash of a value, null where the value is."""
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        hashed = expressions.XxHash64(self._sequence([value]))
        return expressions.If(expressions.IsNull(value), self._null(hashed.dataType()), hashed)

    def _filtered(self, function: Any, update: Any, otherwise: Any) -> Any:
        if function.filter().isEmpty():
            return update
        return self._jvm.org.apache.spark.sql.catalyst.expressions.If(function.filter().get(), update, otherwise)

    def _null(self, type: Any) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Literal(None, type)

    def _alias(self, expression: Any, name: str, id: Any) -> Any:
        none, nothing = _module(self._jvm.scala, "None"), self._sequence([])
        return self._jvm.org.apache.spark.sql.catalyst.expressions.Alias(expression, name, id, nothing, none, nothing)

    def _new_id(self) -> Any:
        return _module(self._jvm.org.apache.spark.sql.catalyst.expressions, "NamedExpression").newExprId()

    def _project(self, columns: list[Any], child: Any) -> Any:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project(self._sequence(columns), child)

    def _swapped(self, node: Any, old: Any, new: Any) -> Any:
        if node.equals(old):
            return new
        children = [self._swapped(child, old, new) for child in _items(node.children())]
        return node.withNewChildren(self._sequence(children)) if children else node

    def _sequence(self, things: list[Any]) -> Any:
        return handles.scala_seq(self._jvm, things)

    def _frame(self, plan: Any) -> DataFrame:
        return handles.frame_of(self._spark, plan)


def _module(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _kind(thing: Any) -> str:
    return str(thing.getClass().getSimpleName())


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _nodes(child)


def _options(function: Any) -> list[tuple[str, str]]:
    """Return the options of a function, as in a ``FunctionSpec``."""
    kind = _kind(function)
    if kind in ("Sum", "Average"):
        context = function.evalContext() if "evalContext" in dir(function) else function
        return [("evalMode", context.evalMode().toString())]
    if kind == "ListAgg":
        return [("delimiter", str(function.delimiter().eval(None) or ""))]
    if kind == "ApproximatePercentile":
        value = function.percentageExpression().eval(None)
        percentages = value if isinstance(value, float) else list(value.toDoubleArray())
        return [("accuracy", str(function.accuracyExpression().eval(None))), ("percentages", str(percentages))]
    if kind == "HllSketchAgg":
        return [("lgConfigK", str(function.lgConfigK()))]
    if kind == "HllUnionAgg":
        return [("allowDifferentLgConfigK", str(function.allowDifferentLgConfigK()))]
    return [("relativeSD", str(function.relativeSD()))] if kind in HASHED else []
