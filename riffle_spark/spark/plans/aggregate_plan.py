"""An aggregate of Spark's plan as a stage: what its rows bring, what its state keeps, and how its results come of that.

Spark's own expressions do both ends. On the map side each row is projected to its key and *one-row buffers*: what each
function's update makes of its initial values, which Spark folds to as good as nothing (``count(*)`` is the literal 1).
Slots merge buffers. Results are what the function's evaluation makes of merged ones. Knows both projections. Does not
know one function from another, nor how buffers merge.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.process.types.stage_specs import AggregateSpec, FunctionSpec, Literal
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.grouping_keys import Elements, GroupingKey, read_elements, read_keys, stored_as, time_of
from riffle_spark.spark.plans.plan_changes import asks_time
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, analysed, items, kind, placed, replaced, told_in_sql
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.planned_function import PlannedFunction, check_function, named_functions

__all__ = ["AggregatePlan", "read_aggregate"]


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """A stage that is an aggregate: its specification, and its two ends as pieces on the rows of each batch:
    ``map_side`` makes ``spec.rows`` of what is below it, ``evaluation`` its result of ``spec.answer``. ``keys`` maps
    each key column to the SQL of its expression.
    """

    spec: AggregateSpec
    keys: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


def read_aggregate(reader: PlanReader, stage: PlanNode, taken: tuple[str, ...] = ()) -> AggregatePlan:
    """Read an aggregate of an analysed plan. ``taken`` are names of stores that the query has already.

    Raises ``ConfigError`` for keys and functions that cannot be had, and for a store's name that cannot be one.
    """
    catalyst, node = reader.catalyst, reader.found(stage.handle)
    around = _prepared(catalyst, node)
    path, inner = next((path, one) for path, one in placed(around) if kind(one) == "Aggregate")
    parts = catalyst.module("planning.PhysicalAggregation").unapply(inner).get()
    keys = read_keys(catalyst, items(parts._1()), items(parts._3()), node.child())
    names = [column for key in keys for column in key.columns]
    elements = read_elements(catalyst, items(parts._2()), node.child(), names)
    functions = named_functions(items(parts._2()), items(parts._3()), [*names, *elements.names])
    for function in functions:
        check_function(function, has_sessions=any(key.window == "session" for key in keys))
        function.check_types(catalyst)
    every = _Rows(catalyst, keys, functions, inner.child(), elements)
    specs, key_schema = every.specs()
    map_side = every.map_side(specs)
    store = stored_as("exact" if elements.names else "aggregate", [*keys, *elements.keys], taken)
    is_keyless = all(key.attribute is None for key in keys)
    beside = every.beside(map_side)
    spec = AggregateSpec(store, key_schema, specs, time_of(keys), keyless=is_keyless, elements=beside)
    if not len(spec.routed):
        raise ConfigError(
            "a session window alone is no key: as in Spark, sessions are those of another key",
            remedy="group by another column, too; by lit(0) for sessions of all rows",
            where=store,
        )
    results = catalyst.project(items(parts._3()), _results(catalyst, spec, keys, functions))
    evaluation = analysed(catalyst.frame(replaced(catalyst, around, {path: results})))
    grouped_by = {column: f"key {told_in_sql(key.expression)}" for key in keys for column in key.columns}
    return AggregatePlan(spec, grouped_by, read_piece(reader, map_side), read_piece(reader, evaluation))


def _results(
    catalyst: Catalyst, spec: AggregateSpec, keys: list[GroupingKey], functions: list[PlannedFunction]
) -> Node:
    """Return the keys and the functions' results over a leaf of ``spec.answer``: Spark's expressions on its buffers."""
    leaf, columns = catalyst.leaf(spark_schema(spec.answer))
    lower, upper, make = list[Node](), list[Node](), catalyst.alias
    for key in keys:
        if key.attribute is not None:
            lower.append(make(key.put_together(catalyst, columns), key.name, key.attribute.exprId()))
            upper.append(key.attribute)
    for function, told in zip(functions, spec.functions, strict=True):
        result = function.node.resultAttribute()
        if function.is_given:
            column = function.answered(catalyst, columns[told.buffers[0].name])
            column = catalyst.typed(column, result.dataType())
            lower.append(make(column, function.name, result.exprId()))
            upper.append(result)
            continue
        for attribute, buffer in zip(function.attributes(), told.buffers, strict=True):
            column = catalyst.typed(columns[buffer.name], attribute.dataType())
            lower.append(make(column, attribute.name(), attribute.exprId()))
        upper.append(make(function.told.evaluateExpression(), function.name, result.exprId()))
    return catalyst.project(upper, catalyst.project(lower, leaf))


def _prepared(catalyst: Catalyst, node: Node) -> Node:
    """Return an aggregate over a leaf, as Spark's optimiser first makes it: ``count_if`` and the like are written out.

    No more of the optimiser: it would keep sums of decimals otherwise, and what is stored must not depend on it.
    """
    plan = node.withNewChildren(catalyst.seq([catalyst.no_rows(node.child().output())]))
    plan = catalyst.module("optimizer.ReplaceExpressions").apply(plan)
    return catalyst.module("optimizer.RewriteWithExpression").apply(plan)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The map side of an aggregate: keys and one-row buffers over what is below it, and what counts once."""

    catalyst: Catalyst
    keys: list[GroupingKey]
    functions: list[PlannedFunction]
    below: Node
    elements: Elements

    def specs(self) -> tuple[tuple[FunctionSpec, ...], pa.Schema]:
        """Return what is told of each function, and the schema of the key columns."""
        plan = self._plan(lambda _function, _index: True)
        sent = [one for one in self.functions for _ in range(1 if one.is_given else len(one.attributes()))]
        shown = {f"buffer_{index}": one.text for index, one in enumerate(sent)}
        schema = arrow_schema(self.catalyst.frame(plan), shown=shown)
        count = sum(len(key.columns) for key in self.keys)
        literals, results = _literals(self.catalyst, plan), self._results()
        specs, index, taken = list[FunctionSpec](), count, [*schema.names[:count], *self.elements.names]
        for function in self.functions:
            wide = 1 if function.is_given else len(function.attributes())
            types = schema.types[index : index + wide]
            values = [None if asks_time(function.node) else value for value in literals[index : index + wide]]
            specs.append(function.spec(types, values, taken, results.get(id(function))))
            taken += [buffer.name for buffer in specs[-1].buffers]
            index += wide
        return tuple(specs), pa.schema(list(schema)[:count])

    def _results(self) -> dict[int, pa.DataType]:
        """Return the types of what slots answer for functions that are sent their argument."""
        given, spark = [function for function in self.functions if function.is_given], self.catalyst
        if not given:
            return {}
        columns = [spark.alias(spark.null(function.told), str(index)) for index, function in enumerate(given)]
        shown = {str(index): function.text for index, function in enumerate(given)}
        types = arrow_schema(spark.frame(spark.project(columns, self.below)), shown=shown).types
        return {id(function): function.answer(result) for function, result in zip(given, types, strict=True)}

    def map_side(self, specs: tuple[FunctionSpec, ...]) -> Node:
        """Return the plan of what rows bring, over the leaf that stands for the rows."""
        told = dict(zip(map(id, self.functions), specs, strict=True))

        def is_sent(function: PlannedFunction, index: int) -> bool:
            return function.is_given or told[id(function)].buffers[index].literal is None

        names = [buffer.name for spec in specs for buffer in spec.sent]
        plan = self._plan(is_sent, names)
        if not self.elements.names:
            return plan
        count = sum(len(key.columns) for key in self.keys)
        return self.elements.beside(self.catalyst, plan, count, [spec.distinct for spec in specs for _ in spec.sent])

    def beside(self, map_side: Node) -> pa.Schema:
        """Return the columns of elements that rows bring."""
        names = self.elements.names
        return pa.schema(list(map(arrow_schema(self.catalyst.frame(map_side)).field, names)) if names else [])

    def _plan(self, is_sent: Callable[[PlannedFunction, int], bool], names: list[str] | None = None) -> Node:
        spark = self.catalyst
        first, then = list[Node](), list[Node]()
        for function in self.functions:
            if function.is_given:
                then.append(function.argument(spark))
                continue
            told, attributes = function.told, function.attributes()
            for attribute, value in zip(attributes, items(told.initialValues()), strict=True):
                first.append(spark.alias(value, attribute.name(), attribute.exprId()))
            for index, update in enumerate(items(told.updateExpressions())):
                if is_sent(function, index):
                    then.append(function.filtered(spark, update, attributes[index]))
        beside = {} if names is None else self.elements.taken_apart(spark)
        names = [f"buffer_{index}" for index in range(len(then))] if names is None else names
        columns = [spark.alias(part, name) for key in self.keys for name, part in key.taken_apart(spark).items()]
        columns += [spark.alias(spark.plain(one), name) for one, name in zip(then, names, strict=True)]
        columns += [spark.alias(spark.plain(one), name) for name, one in beside.items()]
        return spark.project(columns, spark.project([*items(self.below.output()), *first], self.below))


def _literals(catalyst: Catalyst, plan: Node) -> list[Literal | None]:
    """Return of each column of a projection the one value that it has for whatever row, if Spark folds it to that.

    What asks for the time is folded too, to that of now.
    """
    folded = catalyst.optimised(plan)
    found = dict[int, Literal]()
    for one in items(folded.projectList()) if kind(folded) == "Project" else ():
        if kind(one) == "Alias" and kind(one.child()) == "Literal":
            value = one.child().value()
            if isinstance(value, bool | int | float):
                found[one.exprId().id()] = value
    return [found.get(one.exprId().id()) for one in items(plan.output())]
