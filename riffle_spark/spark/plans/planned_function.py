"""An aggregate function of Spark's plan: its arguments, buffers and result, and users' own aggregate functions."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.process.merging.merge_registry import COLLECTED, HASHED
from riffle_spark.process.merging.shared_sketches import import_sketches_library
from riffle_spark.process.merging.user_aggregate import MergedByUser, TopRows, UserAggregate
from riffle_spark.process.plans.columns import Column, catalog_name
from riffle_spark.process.plans.grouping_keys import counts_distinct, remove_column_ids
from riffle_spark.process.plans.plan_values import Expression
from riffle_spark.process.plans.rules import refusal_error
from riffle_spark.process.types.kept_types import check_columns
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import Buffer, FunctionSpec, Literal, make_unique_name
from riffle_spark.spark.plans.plan_nodes import Node, items
from riffle_spark.spark.plans.plan_reader import PlanReader

_USER_AGGREGATE: Final = "riffle_spark_aggregate"
"""The attribute of a pandas function that holds the user's aggregate behind it."""
_WITH_EVAL_MODE: Final = ("Sum", "Average")
_WITH_IGNORE_NULLS: Final = ("First", "Last")
_EVAL_MODE: Final = re.compile(r"\b(ANSI|LEGACY|TRY)\b")
_PERCENTILE: Final = "ApproximatePercentile"
_HASHED_BY_JVM: Final = "HllSketchAgg"
_SKETCHES: Final = (_HASHED_BY_JVM, "HllUnionAgg")
_PYTHON: Final = "PythonUDAF"
_USER_DEFINED: Final = (_PYTHON, "ScalaAggregator", "ScalaUDAF")
_DECLARATIVE: Final = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
"""The class of functions whose buffers are updated and merged by expressions."""
_ALWAYS_STORABLE: Final = (
    *("boolean", "byte", "short", "integer", "long", "float", "double", "date", "timestamp", "binary"),
)
_COMPARED: Final = {("Max", 0), ("Min", 0), ("MaxBy", 1), ("MinBy", 1), ("CollectSet", 0)}
"""Functions that compare the values of an argument in slots, and the argument's position."""
_RESULT_FIRST: Final = ("Sum", "First", "Last", "MaxBy", "MinBy")
"""Functions whose first buffer has the name of the result."""


@dataclass(slots=True)
class PlannedFunction:
    """An aggregate function of the plan: its expression, its name in columns, its SQL, and the user's aggregate."""

    reader: PlanReader
    value: Expression
    name: str
    text: str
    user_aggregate: UserAggregate | None
    _attributes: list[Node] | None = field(default=None, init=False)

    @property
    def node(self) -> Node:
        """Return its aggregate expression in the JVM."""
        return self.reader.fetch(self.value.handle)

    @property
    def function(self) -> Node:
        """Return the function in the JVM, without its filter."""
        return self.reader.fetch(self.value.children[0].handle)

    @property
    def kind(self) -> str:
        """Return Spark's name of the function's class."""
        return self.value.children[0].kind

    @property
    def arguments(self) -> tuple[Expression, ...]:
        """Return the arguments of the function."""
        return self.value.children[0].children

    @property
    def sends_argument(self) -> bool:
        """Return whether slots get the function's argument instead of one-row buffers.

        Spark keeps the buffers of such functions in its own binary form. The argument is a hash for approximate counts,
        and a struct of all arguments for a user's aggregate.
        """
        return self.user_aggregate is not None or self.kind in COLLECTED | HASHED

    @property
    def counts_distinct(self) -> bool:
        """Return whether the function counts each value of a group once."""
        return counts_distinct(self.value)

    @property
    def is_hashed(self) -> bool:
        """Return whether slots get a hash, and Spark computes the result from words of hashes."""
        return self.kind in HASHED

    @property
    def meaning(self) -> str:
        """Return its SQL, and what the SQL omits: the precision, and the type by which Spark hashes the values."""
        precision = f", relativeSD {self.function.relativeSD()}" if self.is_hashed else ""
        if not precision and self.kind != _HASHED_BY_JVM:
            return self.text
        type_name = str(self.reader.fetch(self.arguments[0].handle).dataType().catalogString())
        if self.kind == _HASHED_BY_JVM and type_name == "int":
            type_name = "bigint"  # These sketches hash both alike.
        return f"{self.text}{precision}, of {type_name}"

    def argument(self) -> Node:
        """Return the argument that slots get from a row, or null if the function's filter drops the row."""
        catalyst = self.reader.catalyst
        arguments = [self.reader.fetch(argument.handle) for argument in self.arguments]
        if self.user_aggregate is not None:
            return catalyst.struct([(str(index), argument) for index, argument in enumerate(arguments)])
        sent = arguments[0]
        if self.is_hashed:
            sent = catalyst.value_hash(sent)
        elif self.kind == _HASHED_BY_JVM:
            sent = catalyst.sketch_hash(sent)
        return self.filtered(sent, catalyst.null(sent))

    def result_of(self, column: Node) -> Node:
        """Return an expression for its result, given the ``column`` that slots return, if slots get its argument."""
        return self.reader.catalyst.estimate_distinct(self.function, column) if self.is_hashed else column

    def check_types(self, columns: Mapping[int, Column]) -> None:
        """Raise ``ConfigError`` for an argument with a type that state cannot store or compare.

        ``columns`` are the columns of the aggregate's input by attribute id.
        """
        for position, argument in enumerate(self.arguments):
            argument_field = self.reader.field_json(argument, columns)
            is_compared = (self.kind, position) in _COMPARED
            if is_compared or (self.sends_argument and not self.is_hashed) or self._stores(argument_field):
                check_columns([argument_field], "order" if is_compared else "value", where=self.text)

    def _stores(self, argument_field: Mapping[str, object]) -> bool:
        """Return whether a buffer has the type of an argument. Skips types that state can always store."""
        if self.sends_argument or str(argument_field["type"]) in _ALWAYS_STORABLE:
            return False
        buffer_types = {str(attribute.dataType().catalogString()) for attribute in self.attributes()}
        return catalog_name(argument_field) in buffer_types

    def attributes(self) -> list[Node]:
        """Return the attributes of its buffers in the JVM."""
        if self._attributes is None:
            self._attributes = items(self.function.aggBufferAttributes())
        return self._attributes

    def filtered(self, expression: Node, otherwise: Node) -> Node:
        """Return an expression that is ``expression`` for rows that pass the function's filter, else ``otherwise``."""
        if len(self.value.children) == 1:
            return expression
        return self.reader.catalyst.if_else(self.reader.fetch(self.value.children[1].handle), expression, otherwise)

    def slot_type(self, result: pa.DataType) -> pa.DataType:
        """Return the type of the column that slots return, if they get its argument."""
        if not self.is_hashed:
            return result
        return pa.struct([(f"word_{index}", pa.int64()) for index in range(len(self.attributes()))])

    def spec(
        self,
        types: list[pa.DataType],
        literals: list[Literal | None],
        used_names: list[str],
        slot_type: pa.DataType | None,
    ) -> FunctionSpec:
        """Return its specification for the slots.

        ``types`` are the types of the columns that slots get, and ``literals`` the values of columns that are the same
        in all rows. ``used_names`` are names that its columns must not have. ``slot_type`` is the type of the column
        that slots return, if they get the argument.
        """
        options = tuple(_merge_options(self.kind, self.function))
        if slot_type is not None:
            sent = Buffer(make_unique_name(self.name, used_names), types[0], self.meaning)
            buffers = (replace(sent, type=slot_type),)
            return FunctionSpec(self.kind, buffers, sent, options, user_function=self.user_aggregate)
        names = [str(attribute.name()) for attribute in self.attributes()]
        columns = list[Buffer]()
        used = list(used_names)
        for index, name in enumerate(names):
            is_result = len(names) == 1 or (index == 0 and self.kind in _RESULT_FIRST)
            column = make_unique_name(self.name if is_result else f"{self.name}_{name}", used)
            columns.append(Buffer(column, types[index], f"{self.text}: {name}", literals[index]))
            used.append(column)
        distinct = self.text if self.counts_distinct else None
        return FunctionSpec(self.kind, tuple(columns), options=options, distinct=distinct)


def named_functions(
    reader: PlanReader, functions: Sequence[Expression], results: Sequence[Expression], used_names: Sequence[str]
) -> list[PlannedFunction]:
    """Return functions with names: the alias if a result is the function alone, else the function's SQL.

    ``used_names`` are names that none of them gets.
    """
    result_names = {
        result.children[0].id: result.name
        for result in reversed(results)
        if result.kind == "Alias" and result.children[0].kind == "AttributeReference"
    }
    planned = list[PlannedFunction]()
    used = list(used_names)
    for value in functions:
        called = value.children[0]
        aggregate = _unpickle_aggregate(reader, called) if called.kind == _PYTHON else None
        text = _sql(reader, value, aggregate)
        result_name = result_names.get(result_id(value), text)
        name = make_unique_name(result_name if remove_column_ids(result_name) == result_name else text, used)
        planned.append(PlannedFunction(reader, value, name, text, aggregate))
        used.append(name)
    return planned


def result_id(function: Expression) -> int:
    """Return Spark's id of the result of an aggregate expression."""
    identity = function.fields["resultId"]
    assert isinstance(identity, Mapping), "the id of a result is an object"
    return int(identity["id"])


def _sql(reader: PlanReader, value: Expression, aggregate: UserAggregate | None) -> str:
    """Return a function in SQL. Spark's own SQL of a Python function has ids that differ in each run."""
    if aggregate is None:
        return reader.sql(value)
    called = value.children[0]
    distinct = "DISTINCT " if value.fields["isDistinct"] is True else ""
    name = called.fields.get("name") or reader.fetch(called.handle).name()
    return f"{name}({distinct}{', '.join(map(reader.sql, called.children))})"


def check_function(function: PlannedFunction, *, has_sessions: bool) -> None:
    """Raise ``ConfigError`` for a function that only Spark's own operators can compute."""
    if function.counts_distinct and (function.sends_argument or has_sessions):
        raise refusal_error("distinct", function.text)
    if function.kind in _SKETCHES:
        import_sketches_library()
    if function.kind in _USER_DEFINED and function.user_aggregate is None:
        raise refusal_error("user_function", function.text)
    if not function.sends_argument and not function.reader.catalyst.is_instance(function.function, _DECLARATIVE):
        raise refusal_error("own_buffer", function.text)
    if function.kind == "ListAgg":
        listagg = function.function
        if listagg.orderExpressions().size() or str(listagg.dataType().typeName()) == "binary":
            raise refusal_error("ordered_texts", function.text)


def _merge_options(kind: str, function: Node) -> Iterator[tuple[str, str]]:
    """Yield the properties of a function that merging needs, by Spark's names."""
    if kind in _WITH_EVAL_MODE:
        # Some versions of Spark nest this enumeration in another object.
        mode = _EVAL_MODE.search(str(function.productElement(1).toString()))
        yield "evalMode", mode[1] if mode else "ANSI"
    if kind in _WITH_IGNORE_NULLS:
        yield "ignoreNulls", str(function.ignoreNulls())
    if kind == "ListAgg":
        yield "delimiter", str(function.delimiter().eval(None) or "")
    if kind == _PERCENTILE:
        percentages = function.percentageExpression().eval(None)
        yield "percentages", str(percentages if isinstance(percentages, float) else list(percentages.toDoubleArray()))
        yield "accuracy", str(function.accuracyExpression().eval(None))
    if kind == "HllSketchAgg":
        yield "lgConfigK", str(function.lgConfigK())
    if kind == "HllUnionAgg":
        yield "allowDifferentLgConfigK", str(function.allowDifferentLgConfigK())
    if kind in HASHED:
        yield "relativeSD", str(function.relativeSD())


def user_aggregate(function: UserAggregate) -> Callable[..., SparkColumn]:
    """Return a function for ``agg(...)`` or ``spark.udf.register`` that computes your own aggregate.

    Parameters: ``function`` is an object with the attributes ``rows``, ``state`` and ``result`` (types in DDL) and the
    methods ``init``, ``update``, ``merge`` and ``finish``, as ``UserAggregate`` describes.

    In a wrapped query slots keep the aggregate's state from batch to batch. In any other query it is a pandas function
    that gets all rows of a group at once. Raises ``ConfigError`` for an object that lacks one of
    these members.

    >>> geometric_mean = riffle_spark.user_aggregate(GeometricMean())  # doctest: +SKIP
    >>> events.groupBy("sensor").agg(geometric_mean("reading"))  # doctest: +SKIP
    """
    name = type(function).__name__
    if isinstance(function, type) or not isinstance(function, UserAggregate):
        raise ConfigError(
            f"user_aggregate() got {name} {function!r:.80}, which is not a user aggregate.",
            remedy="Pass an object with rows, state and result in DDL, and init, update, merge and finish: "
            "riffle_spark.user_aggregate(GeometricMean()).",
            id="RIFFLE-0317",
        )
    for ddl in (function.rows, function.state):
        schema_of_ddl(ddl)
    check_importable("pandas", "user_aggregate", "pandas>=2.2,<3", " on driver and executors")
    import pandas as pd

    def aggregate_group(*columns: pd.Series) -> object:
        return MergedByUser(function).aggregate_all_rows([pa.array(column, from_pandas=True) for column in columns])

    aggregate_group.__name__ = name
    aggregate_group.__dict__[_USER_AGGREGATE] = function
    pandas_function: Callable[..., SparkColumn] = F.pandas_udf(  # type: ignore[call-overload]
        aggregate_group, returnType=function.result
    )
    return pandas_function


def top_k(most: int, rows: str) -> Callable[..., SparkColumn]:
    """Return an aggregate function for the greatest rows of each group, as a list of structs.

    Parameters: ``most`` is the number of rows, at least 1. ``rows`` names the columns that the function is called with,
    and their types, in DDL. Rows are compared by the first column, then by the next. Null is less than all values.

    Raises ``ConfigError`` if ``most`` is less than 1.

    >>> top_3 = riffle_spark.top_k(3, "score double, player string")  # doctest: +SKIP
    >>> games.groupBy("level").agg(top_3("score", "player"))  # doctest: +SKIP
    """
    if most < 1:
        raise ConfigError(f"top_k() got {most} rows.", remedy="Pass at least 1.", id="RIFFLE-0318")
    return user_aggregate(TopRows(most, rows))


def _unpickle_aggregate(reader: PlanReader, udaf: Expression) -> UserAggregate | None:
    """Return the user's aggregate behind a Python function of a plan, or ``None`` for a plain pandas function."""
    pickled = reader.catalyst.pickled_function(reader.fetch(udaf.handle))
    function, *_ = CPickleSerializer().loads(pickled)  # type: ignore[no-untyped-call]
    has_attributes = callable(function) and hasattr(function, "__dict__")
    aggregate = vars(function).get(_USER_AGGREGATE) if has_attributes else None
    return aggregate if isinstance(aggregate, UserAggregate) else None
