"""An aggregate of Spark's plan as a stage: what its rows bring, what its state keeps, and how its results come of that.

Spark's own expressions do both ends. On the map side each row is projected to its key and *one-row buffers*: what each
function's update makes of its initial values, which Spark folds to almost nothing (``count(*)`` is the literal 1).
Slots merge buffers. Results are what the function's evaluation makes of merged ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.built import Value, leaf_column
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import asks_time
from riffle_spark.process.plans.grouping_keys import (
    Elements,
    GroupingKey,
    KeyColumn,
    Result,
    is_exact,
    read_elements,
    read_keys,
    stored_as,
    time_of,
)
from riffle_spark.process.plans.plan_values import Expression, PlanNode, attribute_ids, nodes_with_paths
from riffle_spark.process.types.stage_specs import AggregateSpec, FunctionSpec, Literal
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, analysed, items, optimised
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.planned_function import PlannedFunction, check_function, named_functions
from riffle_spark.spark.plans.tree_builder import TreeBuilder, leaf_of

__all__ = ["AggregatePlan", "read_aggregate"]

_NUMBERS: Final[Mapping[object, Callable[[str], Literal]]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": lambda text: text == "true",
}
"""How literals of these types are read from Spark's JSON."""


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """A stage that is an aggregate: its specification, and its two ends as pieces on the rows of each batch:
    ``map_side`` makes ``spec.rows`` of what is below it, ``evaluation`` its result of ``spec.output``. ``keys`` maps
    each key column to the SQL of its expression.
    """

    spec: AggregateSpec
    keys: Mapping[str, str]
    map_side: Piece
    evaluation: Piece


@dataclass(frozen=True, slots=True)
class _Parts:
    """An aggregate's parts, as Spark plans them: grouping columns, functions, results, and the node below.

    ``named`` are the results that are a column under a name.
    """

    grouping: tuple[Column, ...]
    functions: tuple[Expression, ...]
    results: tuple[Expression, ...]
    named: tuple[Result, ...]
    below: Node


def read_aggregate(reader: PlanReader, node: PlanNode, taken: tuple[str, ...] = ()) -> AggregatePlan:
    """Read an aggregate of an analysed plan. ``taken`` are the names of stores that the query has already.

    Raises ``ConfigError`` for columns that cannot be keys, for functions that are refused, and for a store's name that
    cannot be one.
    """
    catalyst, below = reader.catalyst, reader.found(node.handle).child()
    leaf, output = reader.output(below)
    around = reader.read(_prepared(catalyst, reader.found(node.handle), leaf))
    path, inner = next((path, each) for path, each in nodes_with_paths(around) if each.kind == "Aggregate")
    parts = _parts_of(reader, inner)
    columns, random = {column.id: column for column in output}, reader.random_columns(below)
    keys = read_keys([_key_column(reader, column, random) for column in parts.grouping], parts.named)
    names = [column for key in keys for column in key.columns]
    elements = _elements_of(reader, parts, random, names)
    functions = named_functions(reader, parts.functions, parts.results, [*names, *elements.names])
    for function in functions:
        check_function(function, has_sessions=any(key.window == "session" for key in keys))
        function.check_types(columns)
    rows = _Rows(reader, keys, functions, parts.below, elements)
    specs, key_schema = rows.specs()
    map_side = rows.map_side(specs)
    store = stored_as("exact" if elements.names else "aggregate", [*keys, *elements.keys], taken)
    is_keyless = all(key.column is None for key in keys)
    spec = AggregateSpec(store, key_schema, specs, time_of(keys), keyless=is_keyless, elements=rows.beside(map_side))
    if not len(spec.routing_key):
        raise ConfigError(
            "a session window alone is no key: as in Spark, sessions are those of another key",
            remedy="group by another column, too; by lit(0) for sessions of all rows",
            where=store,
            id="RIFFLE-0316",
        )
    results = catalyst.project_to(
        catalyst.seq([reader.found(each.handle) for each in parts.results]), _results(reader, spec, keys, functions)
    )
    evaluation = analysed(catalyst.frame(reader.with_results(around, {path: results})))
    grouped_by = {column: f"key {_key_text(reader, key, parts.below)}" for key in keys for column in key.columns}
    return AggregatePlan(spec, grouped_by, read_piece(reader, map_side), read_piece(reader, evaluation))


def _prepared(catalyst: Catalyst, node: Node, leaf: Node) -> Node:
    """Return an aggregate over a leaf, as Spark's optimiser first makes it: ``count_if`` and the like are written out.

    No more of the optimiser: it would keep sums of decimals otherwise, and what is stored must not depend on it.
    """
    plan = node.withNewChildInternal(leaf)
    plan = catalyst.module("optimizer.ReplaceExpressions").apply(plan)
    return catalyst.module("optimizer.RewriteWithExpression").apply(plan)


def _parts_of(reader: PlanReader, node: PlanNode) -> _Parts:
    """Return the parts of an aggregate. Its functions and results are read as those of another aggregate."""
    catalyst, below = reader.catalyst, reader.found(node.children[0].handle)
    parts = catalyst.module("planning.PhysicalAggregation").unapply(reader.found(node.handle)).get()
    grouping = reader.columns(catalyst.project_to(parts._1(), below))
    made = catalyst.named("plans.logical.Aggregate")(parts._2(), parts._3(), below, catalyst.none())
    read = reader.read(made)
    functions = read.expressions.get("groupingExpressions", ())
    results = read.expressions.get("aggregateExpressions", ())
    return _Parts(
        grouping, functions, results, tuple(_named_results(results, {each.id for each in grouping}, made)), below
    )


def _named_results(results: Sequence[Expression], ids: Set[int], made: Node) -> Iterator[Result]:
    """Yield the results that are columns under names. Spark's JSON of an expression does not have its metadata."""
    fields: list[Mapping[str, Mapping[str, object]]] | None = None
    for position, each in enumerate(results):
        if each.kind != "Alias" or each.children[0].kind != "AttributeReference" or each.children[0].id not in ids:
            continue
        if "explicitMetadata" in each.fields:
            fields = fields or json.loads(made.schema().json())["fields"]
            yield Result(each.children[0].id, each.name, fields[position]["metadata"])
        else:
            yield Result(each.children[0].id, each.name)


def _key_column(reader: PlanReader, column: Column, random: frozenset[int]) -> KeyColumn:
    named = column.expression
    expression = named.children[0] if named.kind == "Alias" else named
    return KeyColumn(column, reader.sql(expression), not attribute_ids(expression).isdisjoint(random))


def _key_text(reader: PlanReader, key: GroupingKey, below: Node) -> str:
    """Return a key in SQL, as Spark has it once equal floating-point numbers have equal bits."""
    if key.column is None or isinstance(key.expression, Expression):
        return key.sql
    normalised = TreeBuilder(reader).named(key.name, key.expression)
    (column,) = reader.columns(reader.catalyst.project([normalised], below))
    return reader.sql(column.expression.children[0])


def _elements_of(reader: PlanReader, parts: _Parts, random: frozenset[int], taken: Sequence[str]) -> Elements:
    """Return the values that functions count once."""
    exact = list[tuple[Expression, str, Sequence[KeyColumn]]]()
    for function in filter(is_exact, parts.functions):
        arguments = [
            reader.catalyst.alias(reader.found(each.handle), "value") for each in function.children[0].children
        ]
        columns = reader.columns(reader.catalyst.project(arguments, parts.below))
        exact.append((function, reader.sql(function), [_key_column(reader, column, random) for column in columns]))
    return read_elements(exact, taken)


def _results(
    reader: PlanReader, spec: AggregateSpec, keys: Sequence[GroupingKey], functions: Sequence[PlannedFunction]
) -> Node:
    """Return the keys and the functions' results over a leaf of ``spec.output``: Spark's expressions on its buffers."""
    catalyst = reader.catalyst
    leaf, columns = leaf_of(catalyst, spark_schema(spec.output))
    builder, lower, upper = TreeBuilder(reader, columns), list[Node](), list[Node | int]()
    for key in keys:
        if key.column is not None:
            upper.append(len(lower))
            value = key.put_together({name: leaf_column(name) for name in key.columns})
            lower.append(builder.named(key.name, value, key.column.expression))
    for function, told in zip(functions, spec.functions, strict=True):
        result = function.node.resultId()
        if function.is_given:
            column = function.answered(columns[told.buffers[0].name])
            column = _typed(catalyst, column, told.buffers[0].type, function.node.resultAttribute())
            upper.append(len(lower))
            lower.append(catalyst.alias(column, function.name, result))
            continue
        for attribute, buffer in zip(function.attributes(), told.buffers, strict=True):
            column = _typed(catalyst, columns[buffer.name], buffer.type, attribute)
            lower.append(catalyst.alias(column, attribute.name(), attribute.exprId()))
        upper.append(catalyst.alias(function.function.evaluateExpression(), function.name, result))
    below = catalyst.project(lower, leaf)
    passed = below.output()
    return catalyst.project([passed.apply(each) if isinstance(each, int) else each for each in upper], below)


def _typed(catalyst: Catalyst, column: Node, arrow_type: pa.DataType, attribute: Node) -> Node:
    """Return a column in the type of an attribute. Only texts and intervals, also inside others, may differ in it."""
    is_whole = pa.types.is_primitive(arrow_type) and not pa.types.is_duration(arrow_type)
    return column if is_whole else catalyst.typed(column, attribute.dataType())


@dataclass(slots=True)
class _Rows:
    """The map side of an aggregate: keys and one-row buffers over what is below it, and what counts once."""

    reader: PlanReader
    keys: Sequence[GroupingKey]
    functions: Sequence[PlannedFunction]
    below: Node
    elements: Elements
    _sent: list[list[Node]] = field(default_factory=list, init=False)
    _lower: Node = field(default=None, init=False)
    _key_columns: list[Node] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Build what rows bring of each function, and the columns of keys."""
        catalyst, builder, initial = self.reader.catalyst, TreeBuilder(self.reader), list[Node]()
        for function in self.functions:
            if function.is_given:
                self._sent.append([function.argument()])
                continue
            attributes = function.attributes()
            values, updates = function.function.initialValues(), function.function.updateExpressions()
            for index, attribute in enumerate(attributes):
                initial.append(catalyst.alias(values.apply(index), attribute.name(), attribute.exprId()))
            updated = (function.filtered(updates.apply(index), each) for index, each in enumerate(attributes))
            self._sent.append(list(updated))
        output = self.below.output()
        if initial:
            output = output.appendedAll(catalyst.seq(initial))
        self._lower = catalyst.project_to(output, self.below)
        self._key_columns = [
            builder.named(name, part) for key in self.keys for name, part in key.split_letters().items()
        ]

    def specs(self) -> tuple[tuple[FunctionSpec, ...], pa.Schema]:
        """Return the specification of each function, and the schema of the key columns."""
        catalyst = self.reader.catalyst
        texts = [function.text for function, held in zip(self.functions, self._sent, strict=True) for _ in held]
        names = [f"buffer_{index}" for index in range(len(texts))]
        frame = catalyst.frame(self._plan([buffer for held in self._sent for buffer in held], names, {}))
        if " collate " in frame.schema.simpleString():  # Strings in Python workers have no collation.
            self._sent = [list(map(catalyst.plain, held)) for held in self._sent]
            frame = catalyst.frame(self._plan([buffer for held in self._sent for buffer in held], names, {}))
        schema = arrow_schema(frame, shown=dict(zip(names, texts, strict=True)))
        count = len(self._key_columns)
        literals, results = _literals(self.reader, frame, count + len(names)), self._results()
        specs, index, taken = list[FunctionSpec](), count, [*schema.names[:count], *self.elements.names]
        for function, held in zip(self.functions, self._sent, strict=True):
            end = index + len(held)
            types = schema.types[index:end]
            values = [None if asks_time(function.value) else value for value in literals[index:end]]
            specs.append(function.spec(types, values, taken, results.get(id(function))))
            taken += [buffer.name for buffer in specs[-1].buffers]
            index = end
        return tuple(specs), pa.schema(list(schema)[:count])

    def _results(self) -> dict[int, pa.DataType]:
        """Return the types of what slots answer for functions that are sent their argument."""
        given, catalyst = [function for function in self.functions if function.is_given], self.reader.catalyst
        if not given:
            return {}
        columns = [catalyst.alias(catalyst.null(each.function), str(index)) for index, each in enumerate(given)]
        shown = {str(index): function.text for index, function in enumerate(given)}
        types = arrow_schema(catalyst.frame(catalyst.project(columns, self.below)), shown=shown).types
        return {id(function): function.answer(result) for function, result in zip(given, types, strict=True)}

    def map_side(self, specs: tuple[FunctionSpec, ...]) -> Node:
        """Return the plan of what rows bring, over the leaf that stands for the rows."""
        sent = list[Node]()
        for function, held, told in zip(self.functions, self._sent, specs, strict=True):
            is_sent = [function.is_given or buffer.literal is None for buffer in told.buffers]
            sent += [buffer for buffer, passes in zip(held, is_sent, strict=True) if passes]
        names = [buffer.name for spec in specs for buffer in spec.row_buffers]
        plan = self._plan(sent, names, self.elements.split_letters())
        if not self.elements.names:
            return plan
        return self._beside(plan, [spec.distinct for spec in specs for _ in spec.row_buffers])

    def beside(self, map_side: Node) -> pa.Schema:
        """Return the columns of elements that rows bring."""
        names = self.elements.names
        return pa.schema(list(map(arrow_schema(self.reader.catalyst.frame(map_side)).field, names)) if names else [])

    def _plan(self, sent: Sequence[Node], names: Sequence[str], beside: Mapping[str, Value]) -> Node:
        catalyst, builder = self.reader.catalyst, TreeBuilder(self.reader)
        columns = [catalyst.alias(buffer, name) for buffer, name in zip(sent, names, strict=True)]
        columns += [builder.named(name, value) for name, value in beside.items()]
        return catalyst.project([*self._key_columns, *columns], self._lower)

    def _beside(self, plan: Node, sent: Sequence[str | None]) -> Node:
        """Return a plan's rows once for their group, with the buffers of functions that count rows, and once for each
        function that counts values, if there is one, with the value and this function's buffers.

        ``sent`` tells for each buffer of the plan which function that counts values it is of.
        """
        catalyst, values, count = self.reader.catalyst, self.elements.values, len(self._key_columns)
        output, owners = items(plan.output()), [value.function for value in values]
        of_values = [value.function for value in values for _ in value.columns]
        buffers, more = output[count : count + len(sent)], output[count + len(sent) :]
        passes: dict[str | None, Node] = dict(zip(owners, more[len(of_values) :], strict=True))
        rows = list[list[Node]]()
        for owner in (None, *owners):
            mark = catalyst.literal(owner or "")
            held = [each if of == owner else catalyst.null(each) for of, each in zip(of_values, more, strict=False)]
            mine = [each if of == owner else catalyst.null(each) for of, each in zip(sent, buffers, strict=True)]
            passing = passes[owner] if owner else catalyst.literal(True)
            rows.append([*output[:count], mark if owner else catalyst.null(mark), *held, *mine, passing])
        first, then = ([str(each.name()) for each in columns] for columns in (output[:count], buffers))
        return catalyst.for_each(rows, [*first, *self.elements.names, *then, "passes"], plan)


def _literals(reader: PlanReader, frame: DataFrame, count: int) -> list[Literal | None]:
    """Return for each column of a frame its value in every row, if Spark's optimiser knows it.

    The optimiser also knows the time, as that of now.
    """
    folded = reader.read(optimised(frame))
    known = list[Literal | None]()
    for column in folded.expressions.get("projectList", ()) if folded.kind == "Project" else ():
        expression = column.children[0] if column.kind == "Alias" else column
        known.append(_literal(reader, expression) if expression.kind == "Literal" else None)
    return known if len(known) == count else [None] * count


def _literal(reader: PlanReader, expression: Expression) -> Literal | None:
    text, read = expression.fields["value"], _NUMBERS.get(expression.fields["dataType"])
    if text is None:
        return None
    value: object = read(str(text)) if read is not None else reader.found(expression.handle).value()
    return value if isinstance(value, bool | int | float) else None
