"""One aggregate function of Spark's plan: what it is sent of rows, and what is told of it. Knows Spark's functions by
their classes. Does not know how their buffers merge.

One of users' own is there a function of pandas that has the whole group at once. As that it runs where a query is not
wrapped, and it says which one it is where it is.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.process.merging.merge_registry import COLLECTED, HASHED
from riffle_spark.process.merging.shared_sketches import sketches_library
from riffle_spark.process.merging.user_aggregate import MergedByUser, TopRows, UserAggregate
from riffle_spark.process.plans.rules import refusal
from riffle_spark.process.types.kept_types import check_columns
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import Buffer, FunctionSpec, Literal, free_name
from riffle_spark.spark.plans import grouping_keys
from riffle_spark.spark.plans.plan_nodes import Catalyst, Node, children, id_of, items, kind, told_in_sql

__all__ = ["PlannedFunction", "check_function", "named_functions", "top_k", "user_aggregate"]

_OWN: Final = "riffle_spark_aggregate"
_ANSI_KNOWING: Final = ("Sum", "Average")
_NULLS_KNOWING: Final = ("First", "Last")
_MODE: Final = re.compile(r"\b(ANSI|LEGACY|TRY)\b")
_RANKED: Final = "ApproximatePercentile"
_SKETCHES: Final = ("HllSketchAgg", "HllUnionAgg")
_OF_PYTHON: Final = "PythonUDAF"
_OF_USERS: Final = (_OF_PYTHON, "ScalaAggregator", "ScalaUDAF")
_COMPARED: Final = {("Max", 0), ("Min", 0), ("MaxBy", 1), ("MinBy", 1), ("CollectSet", 0)}
"""Functions that compare the values of an argument on slots, and the argument's position."""
_WHOLE: Final = ("Sum", "First", "Last", "MaxBy", "MinBy")
"""Functions whose first buffer is called as the result is."""


@dataclass(frozen=True, slots=True)
class PlannedFunction:
    """A function of the plan: its aggregate expression, its name in columns, itself, its text in SQL, and which one of
    users' own it is.
    """

    node: Node
    name: str
    told: Node
    text: str
    own: UserAggregate | None

    @property
    def is_given(self) -> bool:
        """Whether it is sent its argument, that one's hash, or its arguments as a struct: Spark keeps the buffers of
        such functions in a form of its own.
        """
        return self.own is not None or kind(self.told) in COLLECTED | HASHED

    @property
    def is_exact(self) -> bool:
        """Whether it counts each value of a group once."""
        return grouping_keys.is_exact(self.node)

    @property
    def is_hashed(self) -> bool:
        """Whether that is a hash, and Spark evaluates what becomes of hashes."""
        return kind(self.told) in HASHED

    @property
    def meaning(self) -> str:
        """What it is in SQL, and what that leaves out."""
        return f"{self.text}, relativeSD {self.told.relativeSD()}" if self.is_hashed else self.text

    def argument(self, catalyst: Catalyst) -> Node:
        """Return what it is sent of a row; null where its filter leaves the row out."""
        if self.own is not None:
            return catalyst.struct({str(index): one for index, one in enumerate(children(self.told))})
        told = children(self.told)[0]
        if self.is_hashed:
            told = catalyst.hashed(told)
        elif kind(self.told) == "HllSketchAgg":
            told = catalyst.hashed_for_sketches(told)
        return self.filtered(catalyst, told, catalyst.null(told))

    def answered(self, catalyst: Catalyst, column: Node) -> Node:
        """Return its result of the column that slots answer, where it is sent its argument."""
        return catalyst.estimated(self.told, column) if self.is_hashed else column

    def check_types(self, catalyst: Catalyst) -> None:
        """Raise ``ConfigError`` if state keeps or compares an argument's values and cannot do so with its type."""
        arguments = children(self.told)
        kept = {str(one.dataType().catalogString()) for one in self.attributes()} if not self.is_given else set()
        for at, one in enumerate(arguments):
            is_compared = (kind(self.told), at) in _COMPARED
            is_kept = is_compared or str(one.dataType().catalogString()) in kept
            if is_kept or (self.is_given and not self.is_hashed):
                field = catalyst.json_field(one, told_in_sql(one))
                check_columns([field], "order" if is_compared else "value", where=self.text)

    def attributes(self) -> list[Node]:
        """Return the attributes of its buffers."""
        return items(self.told.aggBufferAttributes())

    def filtered(self, catalyst: Catalyst, expression: Node, otherwise: Node) -> Node:
        """Return an expression for rows that its filter lets pass, and another for all others."""
        chosen = self.node.filter()
        return catalyst.where(chosen.get(), expression, otherwise) if chosen.isDefined() else expression

    def answer(self, result: pa.DataType) -> pa.DataType:
        """Return the type of what slots answer, where it is sent its argument."""
        if not self.is_hashed:
            return result
        return pa.struct([(f"word_{at}", pa.int64()) for at in range(len(self.attributes()))])

    def spec(
        self, types: list[pa.DataType], literals: list[Literal | None], taken: list[str], answer: pa.DataType | None
    ) -> FunctionSpec:
        """Return what is told of it: of what it is sent these are the types, and those that are the same in all rows;
        ``answer`` is the type of what slots answer, where it is sent its argument.
        """
        facts = tuple(_facts(self.told))
        if answer is not None:
            sent = Buffer(free_name(self.name, taken), types[0], self.meaning)
            return FunctionSpec(kind(self.told), (replace(sent, type=answer),), sent, facts, own=self.own)
        names = [str(attribute.name()) for attribute in self.attributes()]
        found, used = list[Buffer](), list(taken)
        for index, name in enumerate(names):
            is_whole = len(names) == 1 or (index == 0 and kind(self.told) in _WHOLE)
            column = free_name(self.name if is_whole else f"{self.name}_{name}", used)
            found.append(Buffer(column, types[index], f"{self.text}: {name}", literals[index]))
            used.append(column)
        distinct = self.text if self.is_exact else None
        return FunctionSpec(kind(self.told), tuple(found), facts=facts, distinct=distinct)


def named_functions(functions: list[Node], results: list[Node], taken: list[str]) -> list[PlannedFunction]:
    """Return functions by the names of the results that are nothing but they, others by their text in SQL."""
    whole = {
        id_of(one.child()): str(one.name())
        for one in reversed(results)
        if kind(one) == "Alias" and kind(one.child()) == "AttributeReference"
    }
    found: list[PlannedFunction] = []
    used = list(taken)
    for node in functions:
        told = node.aggregateFunction()
        own = _aggregate_of(told) if kind(told) == _OF_PYTHON else None
        text = _text(node, own)
        told_name = whole.get(id_of(node.resultAttribute()), text)
        name = free_name(told_name if grouping_keys.without_ids(told_name) == told_name else text, used)
        found.append(PlannedFunction(node, name, told, text, own))
        used.append(name)
    return found


def _text(node: Node, own: UserAggregate | None) -> str:
    """Return a function in SQL. Spark's own text of one of Python's has ids, others in each run."""
    if own is None:
        return told_in_sql(node)
    called, distinct = node.aggregateFunction(), "DISTINCT " if node.isDistinct() else ""
    return f"{called.name()}({distinct}{', '.join(map(told_in_sql, children(called)))})"


def check_function(function: PlannedFunction, *, has_sessions: bool) -> None:
    """Refuse what only Spark's own operators can do."""
    name, told = kind(function.told), function.told
    if function.is_exact and (function.is_given or has_sessions):
        raise refusal("distinct", function.text)
    if name in _SKETCHES:
        sketches_library()
    if name in _OF_USERS and function.own is None:
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
        raise ConfigError(f"top_k() was asked for {most} rows", remedy="Ask for one at least.")
    return user_aggregate(TopRows(most, rows))


def _aggregate_of(udaf: Node) -> UserAggregate | None:
    """Return which one of users' own a Python function of a plan is; ``None``: one that only pandas knows."""
    pickled = bytes(udaf.func().command().unsafeArray())
    function, *_ = CPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
    found = vars(function).get(_OWN) if callable(function) and hasattr(function, "__dict__") else None
    return found if isinstance(found, UserAggregate) else None
