"""Read an aggregate in a plan as a stage, with its map side and its evaluation in the JVM.

Spark's own expressions do both ends:

1. The map side projects each row to its key and to *one-row buffers*: each function's update of its initial values.
   Spark folds them to almost nothing. ``count(*)``, for example, becomes the literal 1.
2. The slots merge buffers by key.
3. The evaluation computes each function's result from its merged buffers.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merge_registry import COLLECTED
from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.cut import reads_clock
from riffle_spark.process.plans.grouping_keys import (
    ElementColumns,
    GroupingKey,
    KeyColumn,
    Result,
    choose_store_name,
    counts_distinct,
    make_time_spec,
    read_element_columns,
    read_grouping_keys,
    read_projected_results,
)
from riffle_spark.process.plans.new_expressions import Value, leaf_column
from riffle_spark.process.plans.plan_values import Expression, PlanNode, attribute_ids, nodes_with_paths
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types.stage_specs import AggregateSpec, FunctionSpec, Literal
from riffle_spark.spark import compat
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Piece, read_piece
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, analysed, items, optimised
from riffle_spark.spark.plans.plan_reader import PlanReader
from riffle_spark.spark.plans.planned_function import PlannedFunction, check_function, named_functions, result_id
from riffle_spark.spark.plans.tree_builder import TreeBuilder, new_leaf

_NUMBERS: Final[Mapping[object, Callable[[str], Literal]]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": lambda text: text == "true",
}
"""Parsers of literals in Spark's JSON, by type."""


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """A stage that is an aggregate: its specification, and its map side and evaluation as pieces.

    ``map_side`` makes ``spec.rows`` of the input, ``evaluation`` makes the aggregate's output of ``spec.output``.
    ``keys`` maps each key column to the SQL of its expression. ``grouping`` and ``result_ids`` are the grouping
    expressions, and Spark's id of each function's result, in the order of ``spec``.
    """

    spec: AggregateSpec
    keys: Mapping[str, str]
    map_side: Piece
    evaluation: Piece
    grouping: tuple[GroupingKey, ...]
    result_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an aggregate as Spark plans them.

    ``columns`` are the results under the query's own names. ``named`` are the results that only give a column a name.
    """

    grouping: tuple[Column, ...]
    functions: tuple[Expression, ...]
    results: tuple[Expression, ...]
    columns: tuple[Expression, ...]
    named: tuple[Result, ...]
    child: Node


def read_aggregate(reader: PlanReader, node: PlanNode, used_stores: tuple[str, ...] = ()) -> AggregatePlan:
    """Read an aggregate in an analysed plan as a stage.

    ``used_stores`` are the names of the query's other stores. Raises ``ConfigError`` for columns that cannot be keys,
    for functions that are refused, and for an invalid store name.
    """
    catalyst = reader.catalyst
    child = reader.fetch(node.handle).child()
    leaf, output = reader.read_output(child)
    prepared = reader.read(_prepare(catalyst, reader.fetch(node.handle), leaf))
    path, aggregate = next((path, node) for path, node in nodes_with_paths(prepared) if node.kind == "Aggregate")
    parts = _read_parts(reader, aggregate, prepared if path else None)
    random = reader.random_columns(child)
    keys = read_grouping_keys([_key_column(reader, column, random) for column in parts.grouping], parts.named)
    key_names = [column for key in keys for column in key.columns]
    elements = _read_elements(reader, parts, random, key_names)
    functions = named_functions(reader, parts.functions, parts.columns, [*key_names, *elements.names])
    columns = {column.id: column for column in output}
    for function in functions:
        check_function(function, has_sessions=any(key.window == "session" for key in keys))
        function.check_types(columns)
    rows = _MapSideRows(reader, keys, functions, parts.child, elements)
    specs, key_schema = rows.function_specs()
    map_side = rows.plan(specs)
    store = choose_store_name("exact" if elements.names else "aggregate", [*keys, *elements.keys], used_stores)
    is_keyless = all(key.column is None for key in keys)
    element_schema = rows.element_schema(map_side)
    spec = AggregateSpec(store, key_schema, specs, make_time_spec(keys), keyless=is_keyless, elements=element_schema)
    if not len(spec.routing_key):
        raise ConfigError(
            "A session window cannot be the only grouping column.",
            remedy="Group by another column too, or by lit(0) for sessions over all rows.",
            where=store,
            id="RIFFLE-0316",
        )
    result_list = catalyst.seq([reader.fetch(result.handle) for result in parts.results])
    results = catalyst.project_to(result_list, _function_results(reader, spec, keys, functions))
    evaluation = analysed(catalyst.frame(reader.build_with(prepared, {path: results})))
    key_texts = {column: f"key {_key_text(reader, key, parts.child)}" for key in keys for column in key.columns}
    result_ids = tuple(result_id(function.value) for function in functions)
    pieces = read_piece(reader, map_side), read_piece(reader, evaluation)
    return AggregatePlan(spec, key_texts, *pieces, tuple(keys), result_ids)


def function_ids(reader: PlanReader, node: PlanNode) -> list[int]:
    """Return Spark's ids of the results of an aggregate's functions, in the order of their buffers in Spark's state.

    ``node`` is an aggregate of an optimised plan.
    """
    return [result_id(function) for function in _read_parts(reader, node).functions]


def _prepare(catalyst: Catalyst, node: Node, leaf: Node) -> Node:
    """Return the aggregate ``node`` over ``leaf``, with functions like ``count_if`` replaced by others.

    Only two of the optimiser's rules are applied: others would change sums of decimals, and stored values must not
    depend on them.
    """
    plan = node.withNewChildInternal(leaf)
    for rule in compat.REPLACING_RULES:
        plan = catalyst.object_named(f"optimizer.{rule}").apply(plan)
    return plan


def _read_parts(reader: PlanReader, node: PlanNode, projection: PlanNode | None = None) -> _Parts:
    """Return the parts of an aggregate. Its functions and results are read as those of another aggregate.

    ``projection`` is the node above it that has the query's names, if Spark has split the aggregate.
    """
    catalyst = reader.catalyst
    child = reader.fetch(node.children[0].handle)
    parts = catalyst.object_named("planning.PhysicalAggregation").unapply(reader.fetch(node.handle)).get()
    grouping = reader.read_columns(catalyst.project_to(parts._1(), child))
    plan = catalyst.aggregate(parts._2(), parts._3(), child)
    expressions = reader.read(plan).expressions
    functions = expressions.get("groupingExpressions", ())
    results = expressions.get("aggregateExpressions", ())
    columns = results
    if projection is not None:
        columns = read_projected_results(projection.expressions["projectList"], results)
        plan = reader.fetch(projection.handle)
    named = tuple(_named_results(columns, {column.id for column in grouping}, plan))
    return _Parts(grouping, functions, results, columns, named, child)


def _named_results(results: Sequence[Expression], ids: Set[int], plan: Node) -> Iterator[Result]:
    """Yield the results that only give a grouping column a name. ``ids`` are the ids of the grouping columns.

    Metadata is read from the schema of ``plan``, because Spark's JSON omits it.
    """
    fields: list[Mapping[str, Mapping[str, object]]] | None = None
    for position, result in enumerate(results):
        if result.kind != "Alias" or result.children[0].kind != "AttributeReference":
            continue
        column_id = result.children[0].id
        if column_id in ids:
            metadata = None
            if "explicitMetadata" in result.fields:
                fields = fields or json.loads(str(plan.schema().json()))["fields"]
                metadata = fields[position]["metadata"]
            yield Result(column_id, result.name, metadata)


def _key_column(reader: PlanReader, column: Column, random: frozenset[int]) -> KeyColumn:
    """Return a grouping column with its SQL, and whether it reads a column in ``random``.

    ``random`` are the ids of columns that may differ if a batch runs again.
    """
    alias = column.expression
    expression = alias.children[0] if alias.kind == "Alias" else alias
    return KeyColumn(column, reader.sql(expression), not attribute_ids(expression).isdisjoint(random))


def _key_text(reader: PlanReader, key: GroupingKey, child: Node) -> str:
    """Return a key as SQL, with Spark's normalisation of floating-point numbers. It describes the stored key."""
    if key.column is None or isinstance(key.expression, Expression):
        return key.sql
    normalised = TreeBuilder(reader).alias(key.name, key.expression)
    (column,) = reader.read_columns(reader.catalyst.project([normalised], child))
    return reader.sql(column.expression.children[0])


def _read_elements(
    reader: PlanReader, parts: _Parts, random: frozenset[int], key_names: Sequence[str]
) -> ElementColumns:
    """Return the columns for the values that functions with DISTINCT count once."""
    distinct = list[tuple[Expression, str, Sequence[KeyColumn]]]()
    for function in filter(counts_distinct, parts.functions):
        text = reader.sql(function)
        if function.children[0].kind in COLLECTED:  # Its further arguments, such as a delimiter, are not values.
            raise refusal_error("distinct", text)
        arguments = [
            reader.catalyst.alias(reader.fetch(argument.handle), "value") for argument in function.children[0].children
        ]
        columns = reader.read_columns(reader.catalyst.project(arguments, parts.child))
        distinct.append((function, text, [_key_column(reader, column, random) for column in columns]))
    return read_element_columns(distinct, key_names)


def _function_results(
    reader: PlanReader, spec: AggregateSpec, keys: Sequence[GroupingKey], functions: Sequence[PlannedFunction]
) -> Node:
    """Return a plan of the keys and the functions' results over a leaf with the columns of ``spec.output``.

    A first projection restores keys and buffers. A second projection applies Spark's evaluation expressions to the
    buffers.
    """
    catalyst = reader.catalyst
    leaf, leaf_columns = new_leaf(catalyst, spark_schema(spec.output))
    builder = TreeBuilder(reader, leaf_columns)
    restored = list[Node]()
    evaluated = list[Node | int]()  # An index is that of a restored column that already is a result.
    for key in keys:
        if key.column is not None:
            evaluated.append(len(restored))
            value = key.assemble({name: leaf_column(name) for name in key.columns})
            restored.append(builder.alias(key.name, value, key.column.expression))
    for function, function_spec in zip(functions, spec.functions, strict=True):
        result_id = function.node.resultId()
        if function.sends_argument:
            (buffer,) = function_spec.buffers
            column = function.result_of(leaf_columns[buffer.name])
            column = _restore_type(catalyst, column, buffer.type, function.node.resultAttribute())
            evaluated.append(len(restored))
            restored.append(catalyst.alias(column, function.name, result_id))
            continue
        for attribute, buffer in zip(function.attributes(), function_spec.buffers, strict=True):
            column = _restore_type(catalyst, leaf_columns[buffer.name], buffer.type, attribute)
            restored.append(catalyst.alias(column, attribute.name(), attribute.exprId()))
        evaluated.append(catalyst.alias(function.function.evaluateExpression(), function.name, result_id))
    child = catalyst.project(restored, leaf)
    output = child.output()
    columns = [output.apply(column) if isinstance(column, int) else column for column in evaluated]
    return catalyst.project(columns, child)


def _restore_type(catalyst: Catalyst, column: Node, arrow_type: pa.DataType, attribute: Node) -> Node:
    """Return a column in the type of an attribute. Only strings and intervals can differ from it, also nested."""
    is_same = pa.types.is_primitive(arrow_type) and not pa.types.is_duration(arrow_type)
    return column if is_same else catalyst.restore_type(column, attribute.dataType())


@dataclass(slots=True)
class _MapSideRows:
    """Builds the map side of an aggregate: key columns, one-row buffers, and values that are counted once."""

    reader: PlanReader
    keys: Sequence[GroupingKey]
    functions: Sequence[PlannedFunction]
    child: Node
    elements: ElementColumns
    _buffers: list[list[Node]] = field(default_factory=list, init=False)
    """For each function its one-row buffers, or its argument."""
    _initialised: Node = field(init=False)
    """The child with the initial values of all buffers."""
    _key_columns: list[Node] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        catalyst = self.reader.catalyst
        initial = list[Node]()
        for function in self.functions:
            if function.sends_argument:
                self._buffers.append([function.argument()])
                continue
            attributes = function.attributes()
            values = function.function.initialValues()
            updates = function.function.updateExpressions()
            for index, attribute in enumerate(attributes):
                initial.append(catalyst.alias(values.apply(index), attribute.name(), attribute.exprId()))
            self._buffers.append(
                [function.filtered(updates.apply(index), attribute) for index, attribute in enumerate(attributes)]
            )
        output = self.child.output()
        if initial:
            output = catalyst.concat(output, catalyst.seq(initial))
        self._initialised = catalyst.project_to(output, self.child)
        builder = TreeBuilder(self.reader)
        key_values = (column for key in self.keys for column in key.column_values().items())
        self._key_columns = [builder.alias(name, value) for name, value in key_values]

    def function_specs(self) -> tuple[tuple[FunctionSpec, ...], pa.Schema]:
        """Return the specification of each function, and the schema of the key columns."""
        catalyst = self.reader.catalyst
        pairs = list(zip(self.functions, self._buffers, strict=True))
        texts = [function.text for function, buffers in pairs for _ in buffers]
        names = [f"buffer_{index}" for index in range(len(texts))]
        frame = catalyst.frame(self._projection(self._all_buffers(), names, {}))
        if " collate " in frame.schema.simpleString():  # Strings in Python workers have no collation.
            self._buffers = [list(map(catalyst.without_collation, buffers)) for buffers in self._buffers]
            frame = catalyst.frame(self._projection(self._all_buffers(), names, {}))
        schema = arrow_schema(frame, shown=dict(zip(names, texts, strict=True)))
        key_count = len(self._key_columns)
        literals = _literals(self.reader, frame, key_count + len(names))
        result_types = self._result_types()
        specs = list[FunctionSpec]()
        start = key_count
        used_names = [*schema.names[:key_count], *self.elements.names]
        for function, buffers in pairs:
            end = start + len(buffers)
            values = [None if reads_clock(function.value) else value for value in literals[start:end]]
            result_type = result_types.get(id(function))
            specs.append(function.spec(schema.types[start:end], values, used_names, result_type))
            used_names += [buffer.name for buffer in specs[-1].buffers]
            start = end
        return tuple(specs), pa.schema(list(schema)[:key_count])

    def _all_buffers(self) -> list[Node]:
        """Return the one-row buffers of all functions, or their arguments."""
        return [buffer for buffers in self._buffers for buffer in buffers]

    def _result_types(self) -> dict[int, pa.DataType]:
        """Return the type that slots return for each function that is sent its argument.

        The key is the ``id()`` of the function.
        """
        functions = [function for function in self.functions if function.sends_argument]
        if not functions:
            return {}
        catalyst = self.reader.catalyst
        columns = [
            catalyst.alias(catalyst.null(function.function), str(index)) for index, function in enumerate(functions)
        ]
        texts = {str(index): function.text for index, function in enumerate(functions)}
        types = arrow_schema(catalyst.frame(catalyst.project(columns, self.child)), shown=texts).types
        return {id(function): function.slot_type(result) for function, result in zip(functions, types, strict=True)}

    def plan(self, specs: tuple[FunctionSpec, ...]) -> Node:
        """Return the plan of the rows that slots get. Buffers that are the same literal in all rows are left out."""
        sent = list[Node]()
        for buffers, spec in zip(self._buffers, specs, strict=True):
            for buffer, buffer_spec in zip(buffers, spec.inputs, strict=True):
                if buffer_spec.literal is None:
                    sent.append(buffer)
        names = [buffer.name for spec in specs for buffer in spec.row_buffers]
        plan = self._projection(sent, names, self.elements.column_values())
        if not self.elements.names:
            return plan
        return self._expand_elements(plan, [spec.distinct for spec in specs for _ in spec.row_buffers])

    def element_schema(self, map_side: Node) -> pa.Schema:
        """Return the columns of ``map_side`` with the values that are counted once, an empty schema without any."""
        names = self.elements.names
        return pa.schema(list(map(arrow_schema(self.reader.catalyst.frame(map_side)).field, names)) if names else [])

    def _projection(self, buffers: Sequence[Node], names: Sequence[str], values: Mapping[str, Value]) -> Node:
        """Return a plan of the key columns, ``buffers`` under ``names``, and ``values`` by name."""
        catalyst = self.reader.catalyst
        builder = TreeBuilder(self.reader)
        columns = [catalyst.alias(buffer, name) for buffer, name in zip(buffers, names, strict=True)]
        columns += [builder.alias(name, value) for name, value in values.items()]
        return catalyst.project([*self._key_columns, *columns], self._initialised)

    def _expand_elements(self, plan: Node, buffer_functions: Sequence[str | None]) -> Node:
        """Return each row of a plan once for its group, and once per function with DISTINCT that counts its value.

        The row for the group has the buffers of functions without DISTINCT. The row for a function has the function's
        text, its value and its buffers. All other columns are null. ``buffer_functions`` names for each buffer of the
        plan its function with DISTINCT, or is ``None``.
        """
        catalyst = self.reader.catalyst
        key_count = len(self._key_columns)
        output = items(plan.output())
        keys = output[:key_count]
        buffers = output[key_count : key_count + len(buffer_functions)]
        functions = [value.function for value in self.elements.values]
        value_functions = [value.function for value in self.elements.values for _ in value.columns]
        values_end = key_count + len(buffers) + len(value_functions)
        values = output[key_count + len(buffers) : values_end]
        conditions: dict[str | None, Node] = dict(zip(functions, output[values_end:], strict=True))

        def null_unless(columns: Sequence[Node], owners: Sequence[str | None], function: str | None) -> list[Node]:
            pairs = zip(columns, owners, strict=True)
            return [column if owner == function else catalyst.null(column) for column, owner in pairs]

        rows = list[list[Node]]()
        for function in (None, *functions):
            text = catalyst.literal(function or "")
            condition = conditions[function] if function else catalyst.literal(True)
            rows.append(
                [
                    *keys,
                    text if function else catalyst.null(text),
                    *null_unless(values, value_functions, function),
                    *null_unless(buffers, buffer_functions, function),
                    condition,
                ]
            )
        key_names = [str(column.name()) for column in keys]
        buffer_names = [str(column.name()) for column in buffers]
        return catalyst.expand(rows, [*key_names, *self.elements.names, *buffer_names, "passes"], plan)


def _literals(reader: PlanReader, frame: DataFrame, count: int) -> list[Literal | None]:
    """Return for each column of a frame its value in every row, ``None`` unless Spark folds the column to a literal.

    ``count`` is the number of columns. The optimiser also folds the current time.
    """
    folded = reader.read(optimised(frame))
    literals = list[Literal | None]()
    for column in folded.expressions.get("projectList", ()) if folded.kind == "Project" else ():
        expression = column.children[0] if column.kind == "Alias" else column
        literals.append(_literal(reader, expression) if expression.kind == "Literal" else None)
    return literals if len(literals) == count else [None] * count


def _literal(reader: PlanReader, expression: Expression) -> Literal | None:
    """Return the value of a literal, ``None`` if it is null or neither a number nor a boolean."""
    text = expression.fields["value"]
    if text is None:
        return None
    parse = _NUMBERS.get(str(expression.fields["dataType"]))  # The type of a struct is a dict.
    value: object = parse(str(text)) if parse is not None else reader.fetch(expression.handle).value()
    return value if isinstance(value, bool | int | float) else None
