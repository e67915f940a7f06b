"""An aggregate of Spark's plan as a stage: what its rows bring, what its state keeps, and how its results come of that.

Spark's own expressions do both ends. On the map side each row is projected to its key and *one-row buffers*: what each
function's update makes of its initial values, which Spark folds to as good as nothing (``count(*)`` is the literal 1).
Slots merge buffers. Results are what the function's evaluation makes of merged ones. Knows Spark's aggregate functions
by their classes. Does not know how buffers merge.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from riffle_spark.process.types.stage_specs import AggregateSpec, Buffer, FunctionSpec, Literal, free_name
from riffle_spark.spark.engine.routing import arrow_schema, spark_schema
from riffle_spark.spark.plans.batch_pieces import Hole, Piece, piece_of
from riffle_spark.spark.plans.grouping_keys import (
    Elements,
    GroupingKey,
    is_exact,
    read_elements,
    read_keys,
    stored_as,
    time_of,
)
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, analysed, asks_time, at, items, kind, placed, replaced
from riffle_spark.spark.plans.plan_rules import refusal

__all__ = ["AggregatePlan", "read_aggregate"]

_ANSI_KNOWING: Final = ("Sum", "Average")
_NULLS_KNOWING: Final = ("First", "Last")
_MODE: Final = re.compile(r"\b(ANSI|LEGACY|TRY)\b")
_HASHED: Final = ("HyperLogLogPlusPlus",)
_GIVEN: Final = ("CollectList", "CollectSet", "ListAgg", *_HASHED)
"""Functions that are sent their argument, or its hash, since Spark keeps their buffers in a form of its own."""
_OF_USERS: Final = ("PythonUDAF", "ScalaAggregator", "ScalaUDAF")
_WHOLE: Final = ("Sum", "First", "Last", "MaxBy", "MinBy")
"""Functions whose first buffer is called as the result is."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of the plan: its aggregate expression, its name in columns, itself, and its text in SQL."""

    node: Node
    name: str
    told: Node
    text: str

    @property
    def is_given(self) -> bool:
        """Whether it is sent its argument."""
        return kind(self.told) in _GIVEN

    @property
    def is_exact(self) -> bool:
        """Whether it counts each value of a group once."""
        return is_exact(self.node)

    @property
    def is_hashed(self) -> bool:
        """Whether that is a hash, and Spark evaluates what becomes of hashes."""
        return kind(self.told) in _HASHED

    @property
    def meaning(self) -> str:
        """What it is in SQL, and what that leaves out."""
        return f"{self.text}, relativeSD {self.told.relativeSD()}" if self.is_hashed else self.text

    def argument(self, catalyst: Catalyst) -> Node:
        """Return what it is sent of a row; null where its filter leaves the row out."""
        told = catalyst.hashed(self.told.child()) if self.is_hashed else self.told.child()
        return self.filtered(catalyst, told, catalyst.null(told))

    def answered(self, catalyst: Catalyst, column: Node) -> Node:
        """Return its result of the column that slots answer, where it is sent its argument."""
        return catalyst.estimated(self.told, column) if self.is_hashed else column

    def attributes(self) -> list[Node]:
        """Return the attributes of its buffers."""
        return items(self.told.aggBufferAttributes())

    def filtered(self, catalyst: Catalyst, expression: Node, otherwise: Node) -> Node:
        """Return an expression for rows that its filter lets pass, and another for all others."""
        chosen = self.node.filter()
        return catalyst.where(chosen.get(), expression, otherwise) if chosen.isDefined() else expression


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """A stage that is an aggregate: its specification, and its two ends as pieces on the rows of each batch."""

    catalyst: Catalyst
    spec: AggregateSpec
    map_side: Piece
    evaluation: Piece

    def mapped(self, below: Node, time_ms: int | None = None) -> Node:
        """Return the plan of the rows that slots get: ``spec.rows`` of the rows of a plan below, which has the
        attributes of the aggregate's own child. ``time_ms`` is the batch's, where that is not Spark's own to tell.
        """
        return self.map_side.on({0: below}, time_ms)

    def evaluated(self, rdd: Node, time_ms: int | None = None) -> Node:
        """Return the aggregate's result, under its own attributes, of an RDD of rows of ``spec.answer``."""
        (hole,) = self.evaluation.holes
        leaf = self.catalyst.rows(at(self.evaluation.plan, hole.path).output(), rdd)
        return self.evaluation.on({0: leaf}, time_ms)


def read_aggregate(catalyst: Catalyst, node: Node, taken: tuple[str, ...] = ()) -> AggregatePlan:
    """Read an aggregate of an analysed plan. ``taken`` are names of stores that the query has already.

    Raises ``ConfigError`` for keys and functions that cannot be had, and for a store's name that cannot be one.
    """
    around = _prepared(catalyst, node)
    path = next(path for path, one in placed(around) if kind(one) == "Aggregate")
    inner = at(around, path)
    parts = catalyst.module("planning.PhysicalAggregation").unapply(inner).get()
    keys = read_keys(catalyst, items(parts._1()), items(parts._3()), node.child())
    names = [column for key in keys for column in key.columns]
    elements = read_elements(catalyst, items(parts._2()), node.child(), names)
    functions = _named(items(parts._2()), items(parts._3()), [*names, *elements.names])
    for function in functions:
        _check_function(function, has_sessions=any(key.window == "session" for key in keys))
    every = _Rows(catalyst, keys, functions, inner.child(), elements)
    specs, key_schema = every.specs()
    map_side = every.map_side(specs)
    store = stored_as("exact" if elements.names else "aggregate", [*keys, *elements.keys], taken)
    is_keyless = all(key.attribute is None for key in keys)
    beside = every.beside(map_side)
    spec = AggregateSpec(store, key_schema, specs, time_of(keys), keyless=is_keyless, elements=beside)
    results = catalyst.project(items(parts._3()), _results(catalyst, spec, keys, functions))
    evaluation = analysed(catalyst.frame(replaced(catalyst, around, {path: results})))
    return AggregatePlan(catalyst, spec, _on_leaf(catalyst, map_side), _on_leaf(catalyst, evaluation))


def _results(catalyst: Catalyst, spec: AggregateSpec, keys: list[GroupingKey], functions: list[_Function]) -> Node:
    """Return the keys and the functions' results over a leaf of ``spec.answer``: Spark's expressions on its buffers."""
    leaf = catalyst.no_rows(analysed(catalyst.spark.createDataFrame([], spark_schema(spec.answer))).output())
    columns = {str(one.name()): one for one in items(leaf.output())}
    lower, upper, make = list[Node](), list[Node](), catalyst.alias
    for key in keys:
        if key.attribute is not None:
            lower.append(make(key.put_together(catalyst, columns), key.name, key.attribute.exprId()))
            upper.append(key.attribute)
    for function, told in zip(functions, spec.functions, strict=True):
        result = function.node.resultAttribute()
        if function.is_given:
            column = function.answered(catalyst, columns[told.buffers[0].name])
            lower.append(make(column, function.name, result.exprId()))
            upper.append(result)
            continue
        for attribute, buffer in zip(function.attributes(), told.buffers, strict=True):
            lower.append(make(columns[buffer.name], attribute.name(), attribute.exprId()))
        upper.append(make(function.told.evaluateExpression(), function.name, result.exprId()))
    return catalyst.project(upper, catalyst.project(lower, leaf))


def _prepared(catalyst: Catalyst, node: Node) -> Node:
    """Return an aggregate over a leaf, as Spark's optimiser first makes it: ``count_if`` and the like are written out.

    No more of the optimiser: it would keep sums of decimals otherwise, and what is stored must not depend on it.
    """
    plan = node.withNewChildren(catalyst.seq([catalyst.no_rows(node.child().output())]))
    plan = catalyst.module("optimizer.ReplaceExpressions").apply(plan)
    return catalyst.module("optimizer.RewriteWithExpression").apply(plan)


def _named(functions: list[Node], results: list[Node], taken: list[str]) -> list[_Function]:
    """Return functions by the names of the results that are nothing but they, others by their text in SQL."""
    whole = {
        one.child().exprId().id(): str(one.name())
        for one in reversed(results)
        if kind(one) == "Alias" and kind(one.child()) == "AttributeReference"
    }
    found: list[_Function] = []
    used = list(taken)
    for node in functions:
        name = whole.get(node.resultAttribute().exprId().id(), str(node.sql()))
        found.append(_Function(node, free_name(name, used), node.aggregateFunction(), str(node.sql())))
        used.append(found[-1].name)
    return found


def _check_function(function: _Function, *, has_sessions: bool) -> None:
    """Refuse what only Spark's own operators can do."""
    name, told = kind(function.told), function.told
    if function.is_exact and (function.is_given or has_sessions):
        raise refusal("distinct", function.text)
    if name in _OF_USERS:
        raise refusal("user_function", function.text)
    if not function.is_given and not _is_declarative(told):
        raise refusal("own_buffer", function.text)
    if name == "ListAgg" and (told.orderExpressions().size() or str(told.dataType().typeName()) == "binary"):
        raise refusal("ordered_texts", function.text)


def _is_declarative(told: Node) -> bool:
    """Tell whether a function says in expressions what it does."""
    above = told.getClass()
    while above is not None and str(above.getSimpleName()) != "DeclarativeAggregate":
        above = above.getSuperclass()
    return above is not None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The map side of an aggregate: keys and one-row buffers over what is below it, and what counts once."""

    catalyst: Catalyst
    keys: list[GroupingKey]
    functions: list[_Function]
    below: Node
    elements: Elements

    def specs(self) -> tuple[tuple[FunctionSpec, ...], pa.Schema]:
        """Return what is told of each function, and the schema of the key columns."""
        plan = self._plan(lambda _function, _index: True)
        schema = arrow_schema(self.catalyst.frame(plan))
        count = sum(len(key.columns) for key in self.keys)
        literals, results = _literals(self.catalyst, plan), self._results()
        specs, index, taken = list[FunctionSpec](), count, [*schema.names[:count], *self.elements.names]
        for function in self.functions:
            wide = 1 if function.is_given else len(function.attributes())
            types, values = schema.types[index : index + wide], literals[index : index + wide]
            buffers = _buffers(function, types, [None] * wide if asks_time(function.node) else values, taken)
            taken += [buffer.name for buffer in buffers]
            specs.append(_spec(function, buffers, results.get(id(function))))
            index += wide
        return tuple(specs), pa.schema(list(schema)[:count])

    def _results(self) -> dict[int, pa.DataType]:
        """Return the types of what slots answer for functions that are sent their argument."""
        given, spark = [function for function in self.functions if function.is_given], self.catalyst
        if not given:
            return {}
        columns = [spark.alias(spark.null(function.told), str(index)) for index, function in enumerate(given)]
        types = arrow_schema(spark.frame(spark.project(columns, self.below))).types
        found = dict(zip(map(id, given), types, strict=True))
        return found | {id(function): _words(function) for function in given if function.is_hashed}

    def map_side(self, specs: tuple[FunctionSpec, ...]) -> Node:
        """Return the plan of what rows bring, over the leaf that stands for the rows."""
        told = dict(zip(map(id, self.functions), specs, strict=True))

        def is_sent(function: _Function, index: int) -> bool:
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

    def _plan(self, is_sent: Callable[[_Function, int], bool], names: list[str] | None = None) -> Node:
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
        columns += [spark.alias(one, name) for one, name in zip(then, names, strict=True)]
        columns += [spark.alias(one, name) for name, one in beside.items()]
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


def _buffers(
    function: _Function, types: list[pa.DataType], literals: list[Literal | None], taken: list[str]
) -> list[Buffer]:
    if function.is_given:
        return [Buffer(free_name(function.name, taken), types[0], function.meaning)]
    names = [str(attribute.name()) for attribute in function.attributes()]
    found, used = list[Buffer](), list(taken)
    for index, name in enumerate(names):
        is_whole = len(names) == 1 or (index == 0 and kind(function.told) in _WHOLE)
        column = free_name(function.name if is_whole else f"{function.name}_{name}", used)
        found.append(Buffer(column, types[index], f"{function.text}: {name}", literals[index]))
        used.append(column)
    return found


def _words(function: _Function) -> pa.DataType:
    """Return the type of a buffer of Spark's as one column."""
    return pa.struct([(f"word_{at}", pa.int64()) for at in range(len(function.attributes()))])


def _spec(function: _Function, buffers: list[Buffer], result: pa.DataType | None) -> FunctionSpec:
    facts = tuple(_facts(function.told))
    if result is None:
        distinct = function.text if function.is_exact else None
        return FunctionSpec(kind(function.told), tuple(buffers), facts=facts, distinct=distinct)
    (one,) = buffers
    return FunctionSpec(kind(function.told), (replace(one, type=result),), one, facts)


def _facts(told: Node) -> Iterator[tuple[str, str]]:
    """Yield what a function says beside its buffers, which merging may have to know."""
    name = kind(told)
    if name in _ANSI_KNOWING:
        # An enumeration's value, in later versions of Spark inside another object.
        mode = _MODE.search(str(told.productElement(1).toString()))
        yield "evalMode", mode[1] if mode else "ANSI"
    if name in _NULLS_KNOWING:
        yield "ignoreNulls", str(told.ignoreNulls())
    if name == "ListAgg":
        yield "delimiter", str(told.delimiter().value() or "")
    if name in _HASHED:
        yield "relativeSD", str(told.relativeSD())


def _on_leaf(catalyst: Catalyst, plan: Node) -> Piece:
    """Return a plan that is one way down as a piece whose hole is its leaf."""
    leaf = max((path for path, _ in placed(plan)), key=len)
    return piece_of(catalyst, plan, (Hole(leaf, 0),))
