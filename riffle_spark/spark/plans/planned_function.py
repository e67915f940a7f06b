"""One aggregate function of Spark's plan: what it is sent of rows, and what is told of it. Knows Spark's functions by
their classes. Does not know how their buffers merge.

One of users' own is there a function of pandas that has the whole group at once. As that it runs where a query is not
wrapped, and it says which one it is where it is.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.process.merging.merge_registry import COLLECTED, HASHED
from riffle_spark.process.merging.shared_sketches import sketches_library
from riffle_spark.process.merging.user_aggregate import MergedByUser, TopRows, UserAggregate
from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.grouping_keys import is_exact, without_ids
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.kept_types import check_columns
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import Buffer, FunctionSpec, Literal, free_name
from riffle_spark.spark.plans.plan_nodes import Node, items
from riffle_spark.spark.plans.plan_reader import PlanReader

__all__ = ["PlannedFunction", "check_function", "named_functions", "top_k", "user_aggregate"]

_OWN: Final = "riffle_spark_aggregate"
_ANSI_KNOWING: Final = ("Sum", "Average")
_NULLS_KNOWING: Final = ("First", "Last")
_MODE: Final = re.compile(r"\b(ANSI|LEGACY|TRY)\b")
_RANKED: Final = "ApproximatePercentile"
_SKETCHES: Final = ("HllSketchAgg", "HllUnionAgg")
_OF_PYTHON: Final = "PythonUDAF"
_OF_USERS: Final = (_OF_PYTHON, "ScalaAggregator", "ScalaUDAF")
_DECLARATIVE: Final = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
"""The class of functions that say in expressions what they do."""
_ALWAYS_KEPT: Final = ("boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "binary")
_COMPARED: Final = {("Max", 0), ("Min", 0), ("MaxBy", 1), ("MinBy", 1), ("CollectSet", 0)}
"""Functions that compare the values of an argument on slots, and the argument's position."""
_WHOLE: Final = ("Sum", "First", "Last", "MaxBy", "MinBy")
"""Functions whose first buffer is called as the result is."""


@dataclass(slots=True)
class PlannedFunction:
    """A function of the plan: its aggregate expression, its name in columns, its text in SQL, and which one of the
    user's own aggregates it is.
    """

    reader: PlanReader
    value: Expression
    name: str
    text: str
    own: UserAggregate | None
    _attributes: list[Node] | None = field(default=None, init=False)

    @property
    def node(self) -> Node:
        """Its aggregate expression in the JVM."""
        return self.reader.found(self.value.handle)

    @property
    def function(self) -> Node:
        """The function in the JVM, without its filter."""
        return self.reader.found(self.value.children[0].handle)

    @property
    def kind(self) -> str:
        """Spark's name of the function's class."""
        return self.value.children[0].kind

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """The arguments of the function."""
        return self.value.children[0].children

    @property
    def is_given(self) -> bool:
        """Whether it is sent its argument, that one's hash, or its arguments as a struct: Spark keeps the buffers of
        such functions in a form of its own.
        """
        return self.own is not None or self.kind in COLLECTED | HASHED

    @property
    def is_exact(self) -> bool:
        """Whether it counts each value of a group once."""
        return is_exact(self.value)

    @property
    def is_hashed(self) -> bool:
        """Whether it is sent a hash, and Spark evaluates its result of hashes."""
        return self.kind in HASHED

    @property
    def meaning(self) -> str:
        """Its text in SQL, and what that leaves out."""
        return f"{self.text}, relativeSD {self.function.relativeSD()}" if self.is_hashed else self.text

    def argument(self) -> Node:
        """Return what it is sent of a row; null if its filter leaves the row out."""
        catalyst, arguments = self.reader.catalyst, [self.reader.found(each.handle) for each in self.arguments]
        if self.own is not None:
            return catalyst.struct([(str(index), argument) for index, argument in enumerate(arguments)])
        sent = arguments[0]
        if self.is_hashed:
            sent = catalyst.hashed(sent)
        elif self.kind == "HllSketchAgg":
            sent = catalyst.hashed_for_sketches(sent)
        return self.filtered(sent, catalyst.null(sent))

    def answered(self, column: Node) -> Node:
        """Return its result of the column that slots answer, if it is sent its argument."""
        return self.reader.catalyst.estimated(self.function, column) if self.is_hashed else column

    def check_types(self, columns: Mapping[int, Column]) -> None:
        """Raise ``ConfigError`` if state keeps or compares the values of an argument and cannot do so with its type."""
        for position, argument in enumerate(self.arguments):
            stated = self.reader.field(argument, columns)
            is_compared = (self.kind, position) in _COMPARED
            if is_compared or (self.is_given and not self.is_hashed) or self._keeps(stated):
                check_columns([stated], "order" if is_compared else "value", where=self.text)

    def _keeps(self, stated: Mapping[str, object]) -> bool:
        """Tell whether a buffer has the type of an argument. Types that state always keeps need no look."""
        if self.is_given or str(stated["type"]) in _ALWAYS_KEPT:
            return False
        return catalog_name(stated) in {str(each.dataType().catalogString()) for each in self.attributes()}

    def attributes(self) -> list[Node]:
        """Return the attributes of its buffers in the JVM."""
        if self._attributes is None:
            self._attributes = items(self.function.aggBufferAttributes())
        return self._attributes

    def filtered(self, expression: Node, otherwise: Node) -> Node:
        """Return an expression for rows that its filter lets pass, and another one for all others."""
        if len(self.value.children) == 1:
            return expression
        return self.reader.catalyst.where(self.reader.found(self.value.children[1].handle), expression, otherwise)

    def answer(self, result: pa.DataType) -> pa.DataType:
        """Return the type of what slots answer, if it is sent its argument."""
        if not self.is_hashed:
            return result
        return pa.struct([(f"word_{at}", pa.int64()) for at in range(len(self.attributes()))])

    def spec(
        self, types: list[pa.DataType], literals: list[Literal | None], taken: list[str], answer: pa.DataType | None
    ) -> FunctionSpec:
        """Return its specification: ``types`` are those of the columns that it is sent, ``literals`` their values if
        these are the same in all rows; ``answer`` is the type of what slots answer, if it is sent its argument.
        """
        facts = tuple(_facts(self.kind, self.function))
        if answer is not None:
            sent = Buffer(free_name(self.name, taken), types[0], self.meaning)
            return FunctionSpec(self.kind, (replace(sent, type=answer),), sent, facts, user_function=self.own)
        names = [str(attribute.name()) for attribute in self.attributes()]
        buffers, used = list[Buffer](), list(taken)
        for index, name in enumerate(names):
            is_whole = len(names) == 1 or (index == 0 and self.kind in _WHOLE)
            column = free_name(self.name if is_whole else f"{self.name}_{name}", used)
            buffers.append(Buffer(column, types[index], f"{self.text}: {name}", literals[index]))
            used.append(column)
        distinct = self.text if self.is_exact else None
        return FunctionSpec(self.kind, tuple(buffers), options=facts, distinct=distinct)


def named_functions(
    reader: PlanReader, functions: Sequence[Expression], results: Sequence[Expression], taken: Sequence[str]
) -> list[PlannedFunction]:
    """Return functions by the names of the results that are nothing but they, others by their text in SQL."""
    whole = {
        each.children[0].id: each.name
        for each in reversed(results)
        if each.kind == "Alias" and each.children[0].kind == "AttributeReference"
    }
    named: list[PlannedFunction] = []
    used = list(taken)
    for value in functions:
        own = _aggregate_of(reader.found(value.children[0].handle)) if value.children[0].kind == _OF_PYTHON else None
        text = _text(reader, value, own)
        result = value.fields["resultId"]
        assert isinstance(result, Mapping), "the id of a result is an object of its own"
        result_name = whole.get(int(result["id"]), text)
        name = free_name(result_name if without_ids(result_name) == result_name else text, used)
        named.append(PlannedFunction(reader, value, name, text, own))
        used.append(name)
    return named


def _text(reader: PlanReader, value: Expression, own: UserAggregate | None) -> str:
    """Return a function in SQL. Spark's own text of one of Python's has ids, which differ in each run."""
    if own is None:
        return reader.sql(value)
    called = value.children[0]
    distinct = "DISTINCT " if value.fields["isDistinct"] is True else ""
    name = called.fields.get("name") or reader.found(called.handle).name()
    return f"{name}({distinct}{', '.join(map(reader.sql, called.children))})"


def check_function(function: PlannedFunction, *, has_sessions: bool) -> None:
    """Refuse what only Spark's own operators can do."""
    name = function.kind
    if function.is_exact and (function.is_given or has_sessions):
        raise refusal("distinct", function.text)
    if name in _SKETCHES:
        sketches_library()
    if name in _OF_USERS and function.own is None:
        raise refusal("user_function", function.text)
    if not function.is_given and not function.reader.catalyst.is_a(function.function, _DECLARATIVE):
        raise refusal("own_buffer", function.text)
    if name == "ListAgg":
        called = function.function
        if called.orderExpressions().size() or str(called.dataType().typeName()) == "binary":
            raise refusal("ordered_texts", function.text)


def _facts(name: str, told: Node) -> Iterator[tuple[str, str]]:
    """Yield what a function says beside its buffers, which merging may have to know."""
    if name in _ANSI_KNOWING:
        # An enumeration's value, in later versions of Spark inside another object.
        mode = _MODE.search(str(told.productElement(1).toString()))
        yield "evalMode", mode[1] if mode else "ANSI"
    if name in _NULLS_KNOWING:
        yield "ignoreNulls", str(told.ignoreNulls())
    if name == "ListAgg":
        yield "delimiter", str(told.delimiter().value() or "")
    if name == _RANKED:
        asked = told.percentageExpression().eval(None)
        yield "percentages", str(asked if isinstance(asked, float) else list(asked.toDoubleArray()))
        yield "accuracy", str(told.accuracyExpression().eval(None))
    if name == "HllSketchAgg":
        yield "lgConfigK", str(told.lgConfigK())
    if name == "HllUnionAgg":
        yield "allowDifferentLgConfigK", str(told.allowDifferentLgConfigK())
    if name in HASHED:
        yield "relativeSD", str(told.relativeSD())


def user_aggregate(function: UserAggregate) -> Callable[..., Any]:
    """Return an aggregate function of one's own as Spark takes it: for columns in ``agg(...)``, and for SQL where it
    was given to ``spark.udf.register``.

    Over a wrapped frame slots keep its state from batch to batch; over any other it has each group's rows at once, as
    a function of pandas. Raises ``ConfigError`` for what is no such function.
    """
    name = type(function).__name__
    if isinstance(function, type) or not isinstance(function, UserAggregate):
        raise ConfigError(
            f"user_aggregate() was given {name} {function!r:.80}",
            remedy="Give an object with rows, state and result in DDL, and init, update, merge and finish: "
            "riffle_spark.user_aggregate(GeometricMean()).",
            id="RIFFLE-0317",
        )
    for text in (function.rows, function.state):
        schema_of_ddl(text)
    check_importable("pandas", "user_aggregate", "Run pip install 'pandas>=2.2,<3' on driver and executors.")
    import pandas as pd

    def whole(*columns: pd.Series) -> object:
        return MergedByUser(function).whole([pa.array(column, from_pandas=True) for column in columns])

    whole.__name__ = name
    whole.__dict__[_OWN] = function
    told: Any = F.pandas_udf(whole, returnType=function.result)  # type: ignore[call-overload]
    return told  # type: ignore[no-any-return]


def top_k(most: int, rows: str) -> Callable[..., Any]:
    """Return an aggregate function whose result are the greatest rows of each group, so many, as a list of structs.

    ``rows`` names the columns that it is called with, and their types, in DDL. The first one says which row is greater,
    then the next; a null is less than all else.
    """
    if most < 1:
        raise ConfigError(f"top_k() was asked for {most} rows", remedy="Ask for one at least.", id="RIFFLE-0318")
    return user_aggregate(TopRows(most, rows))


def _aggregate_of(udaf: Node) -> UserAggregate | None:
    """Return which one of users' own a Python function of a plan is; ``None``: one that only pandas knows."""
    pickled = bytes(udaf.func().command().unsafeArray())
    function, *_ = CPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
    found = vars(function).get(_OWN) if callable(function) and hasattr(function, "__dict__") else None
    return found if isinstance(found, UserAggregate) else None
