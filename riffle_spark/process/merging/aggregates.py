"""Running aggregates per key: ``aggregate(...)`` and its functions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.blocks.combining import ROWS, Combined, CombinedColumn, CombinedFunction, can_compare
from riffle_spark.process.merging.accumulators import Accumulator, CombinedCount, Count, Extreme, Mean, Pick, Sum
from riffle_spark.process.merging.merge_function import Groups


def aggregate(**columns: Accumulator) -> "Aggregates":
    """Declare running aggregates per key.

    Each batch emits one row per key of its input: the key columns and the results. Types, nulls and NaN are as in
    Spark's aggregate functions of the same names.

    Args:
        columns: the result columns by name, each from ``count``, ``sum_``, ``min_``, ``max_``, ``mean``, ``first`` or
            ``last``.

    Returns:
        The ``compute`` argument of ``Stateful``.

    Raises:
        ConfigError: if there is no column, or if a value is not one of these functions.

    >>> from riffle_spark import aggregate, count, max_, sum_
    >>> totals = aggregate(orders=count(), total=sum_("amount"), latest=max_("at"))
    >>> totals.sources
    ('amount', 'at')
    """
    if not columns:
        raise ConfigError(
            "aggregate() has no columns.", remedy="Name a result: aggregate(total=sum_('amount')).", id="RIFFLE-0174"
        )
    for name, accumulator in columns.items():
        if not isinstance(accumulator, Accumulator):
            raise ConfigError(
                f"aggregate({name}=...) is a {type(accumulator).__name__}, not an aggregate function.",
                remedy=f"Call a function of riffle_spark: {name}=count() or {name}=sum_('amount'), or min_, max_, "
                "mean, first, last.",
                id="RIFFLE-0175",
            )
    return Aggregates(tuple(columns.items()))


def count(column: str | None = None) -> Accumulator:
    """Count rows, or the values of a column that are not null.

    Args:
        column: the input column; without it, or with ``"*"``, rows are counted.

    Returns:
        An argument of ``aggregate``, whose result is an int64.

    >>> from riffle_spark import aggregate, count
    >>> visits = aggregate(rows=count(), users=count("user"))
    """
    return Count("count", None if column == "*" else column)


def sum_(column: str) -> Accumulator:
    """Sum a column.

    Integers are summed exactly as int64 and decimals exactly with ten more digits. Floats are summed as doubles, in the
    order of the rows. The result is null without values. A sum that does not fit its type fails the batch.

    Args:
        column: the input column: integers, float, double or decimal.

    Returns:
        An argument of ``aggregate``.

    >>> from riffle_spark import aggregate, sum_
    >>> totals = aggregate(total=sum_("amount"))
    """
    return Sum("sum_", column)


def min_(column: str) -> Accumulator:
    """Keep the smallest value of a column, ignoring nulls.

    NaN is above every number. Strings are ordered by their UTF-8 bytes.

    Args:
        column: the input column, of any type that is not nested.

    Returns:
        An argument of ``aggregate``, whose result has the column's type.

    >>> from riffle_spark import aggregate, min_
    >>> lowest = aggregate(lowest=min_("price"))
    """
    return Extreme("min_", column, greatest=False)


def max_(column: str) -> Accumulator:
    """Keep the greatest value of a column, ignoring nulls.

    NaN is above every number. Strings are ordered by their UTF-8 bytes.

    Args:
        column: the input column, of any type that is not nested.

    Returns:
        An argument of ``aggregate``, whose result has the column's type.

    >>> from riffle_spark import aggregate, max_
    >>> highest = aggregate(highest=max_("price"))
    """
    return Extreme("max_", column, greatest=True)


def mean(column: str) -> Accumulator:
    """Keep the arithmetic mean of a column, ignoring nulls.

    The result is a double. For decimals it is a decimal with four more digits on each side of the point, rounded half
    up. It is null without values.

    Args:
        column: the input column: integers, float, double or decimal.

    Returns:
        An argument of ``aggregate``.

    >>> from riffle_spark import aggregate, mean
    >>> prices = aggregate(price=mean("price"))
    """
    return Mean("mean", column)


def first(column: str, ignore_nulls: bool = False) -> Accumulator:
    """Keep the value of each key's first row, by ``order_by`` of the operator.

    Without ``order_by`` the rows of a batch have no order, as in Spark's ``first``. So any row of the key's first batch
    may be the first, and a repeated batch may keep another one.

    Args:
        column: the input column, of any type.
        ignore_nulls: whether to keep the first value that is not null.

    Returns:
        An argument of ``aggregate``, whose result has the column's type.

    >>> from riffle_spark import aggregate, first
    >>> pages = aggregate(landing_page=first("page"))
    """
    return Pick("first", column, ignore_nulls, latest=False)


def last(column: str, ignore_nulls: bool = False) -> Accumulator:
    """Keep the value of each key's last row, by ``order_by`` of the operator.

    Without ``order_by`` the rows of a batch have no order, as in Spark's ``last``. So any row of the key's newest batch
    may be the last, and a repeated batch may keep another one.

    Args:
        column: the input column, of any type.
        ignore_nulls: whether to keep the last value that is not null.

    Returns:
        An argument of ``aggregate``, whose result has the column's type.

    >>> from riffle_spark import aggregate, last
    >>> pages = aggregate(page=last("page", ignore_nulls=True))
    """
    return Pick("last", column, ignore_nulls, latest=True)


@dataclass(frozen=True, slots=True)
class Aggregates:
    """A ``BlockComputation`` of several running aggregates, made by ``aggregate``."""

    columns: tuple[tuple[str, Accumulator], ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the input columns of all aggregates, each once."""
        columns = (accumulator.column for _, accumulator in self.columns)
        return tuple(dict.fromkeys(column for column in columns if column is not None))

    @property
    def compared_columns(self) -> tuple[str, ...]:
        """The names of the input columns of ``min_`` and ``max_``."""
        extremes = (accumulator.column for _, accumulator in self.columns if isinstance(accumulator, Extreme))
        return tuple(column for column in extremes if column is not None)

    def with_column_names(self, names: Mapping[str, str]) -> "Aggregates":
        """Return the aggregates with other input columns.

        ``names`` maps the names in ``sources`` to names in the input.
        """
        return Aggregates(tuple((result, accumulator.with_column_names(names)) for result, accumulator in self.columns))

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare the state and output columns.

        Raises ``ConfigError`` if an input column is missing or its type is not supported.
        """
        sources = [
            (name, accumulator, _check_input_type(name, accumulator, rows)) for name, accumulator in self.columns
        ]
        state = [
            pa.field(name + suffix, state_type)
            for name, accumulator, type in sources
            for suffix, state_type in accumulator.state_types(type).items()
        ]
        output = [*key, *(pa.field(name, accumulator.result_type(type)) for name, accumulator, type in sources)]
        _check_unique([*key.names, *(field.name for field in state)], "state")
        _check_unique([field.name for field in output], "output")
        needed = tuple(name for name in rows.names if name in self.sources and name not in key.names)
        meanings = {name: accumulator.meaning for name, accumulator in self.columns}
        return Declared(pa.schema(state), pa.schema(output), columns=needed, per_key_group=False, meanings=meanings)

    def combine(self, key: Collection[str], rows: pa.Schema) -> Combined | None:
        """Return how rows are combined by ``key``, or ``None`` if the result of a function depends on their order.

        The combined column of a sum has the name of its input column, so that errors name that column.
        """
        taken = {name.lower() for name in (*key, ROWS)}
        combined = dict[tuple[CombinedFunction, str | None], CombinedColumn]()
        accumulators = dict[str, Accumulator]()
        for name, accumulator in sorted(self.columns, key=lambda column: not isinstance(column[1], Sum)):
            function = _combined_function(accumulator, rows)
            if function is None:
                return None
            source = accumulator.column
            column = combined.get((function, source))
            if column is None and source is not None:
                type = pa.int64() if isinstance(accumulator, (Count, Sum)) else rows.field(source).type
                column = CombinedColumn(_unused_name(source, function, taken), function, source, type)
                combined[function, source] = column
                taken.add(column.name.lower())
            inner = ROWS if column is None else column.name
            is_count = isinstance(accumulator, Count)
            accumulators[name] = (
                CombinedCount(accumulator.function, inner) if is_count else replace(accumulator, column=inner)
            )
        columns = tuple((name, accumulators[name]) for name, _ in self.columns)
        return Combined(tuple(combined.values()), Aggregates(columns))

    def __call__(self, batch: Batch) -> Update:
        """Fold the batch's rows into the state of their keys. Return the new state and the results of these keys."""
        groups = Groups(batch.codes, batch.keys.num_rows, batch.key_text)
        state: dict[str, pa.Array] = {}
        output = batch.keys
        for name, accumulator in self.columns:
            values = _input_values(batch.rows, accumulator.column)
            state_columns = [name + suffix for suffix in accumulator.state_types(values.type)]
            old = [one_array(batch.state.column(column)) for column in state_columns]
            folded = accumulator.fold(values, old, groups, batch.has_state)
            state.update(zip(state_columns, folded, strict=True))
            output = output.append_column(name, accumulator.finish(folded, values.type, groups))
        all_keys = np.arange(batch.keys.num_rows, dtype=np.int64)
        return Update(output, all_keys, pa.table(state), deleted=all_keys[:0])


def _combined_function(accumulator: Accumulator, rows: pa.Schema) -> CombinedFunction | None:
    """Return the function that combines rows for an accumulator, or ``None`` if the order of rows matters."""
    type = pa.null() if accumulator.column is None else rows.field(accumulator.column).type
    if isinstance(accumulator, Count):
        return "count"
    if isinstance(accumulator, Sum) and pa.types.is_signed_integer(type):
        return "sum" if pa.types.is_int64(type) else "add"
    if isinstance(accumulator, Extreme) and can_compare(type):
        return "max" if accumulator.greatest else "min"
    return None


def _unused_name(source: str, function: str, taken: Collection[str]) -> str:
    """Return a name for a combined column: the name of its source. If it is taken, append the function and a number."""
    names = [source, f"{source} {function}", *(f"{source} {function} {number}" for number in range(len(taken)))]
    return next(name for name in names if name.lower() not in taken)


def _check_input_type(name: str, accumulator: Accumulator, rows: pa.Schema) -> pa.DataType:
    """Return the type of an aggregate's input column, a boolean for rows.

    Raises ``ConfigError`` if the column is missing or its type not supported. ``name`` is the result column.
    """
    column = accumulator.column
    if column is None:
        return pa.null()
    where = f"aggregate {name!r}"
    if rows.names.count(column) != 1:
        problem = "no" if column not in rows.names else "more than one"
        raise ConfigError(
            f"{accumulator}: the input has {problem} column {column!r}.",
            remedy=f"Use one of {', '.join(rows.names)}.",
            where=where,
            id="RIFFLE-0176",
        )
    type = rows.field(column).type
    if not accumulator.state_types(type):
        raise ConfigError(
            f"{accumulator} does not support column {column!r} of type {type}.",
            remedy=f"Cast the column. Supported are {accumulator.supported_types}.",
            where=where,
            id="RIFFLE-0177",
        )
    return type


def _check_unique(names: list[str], table: str) -> None:
    """Raise ``ConfigError`` if a column name is repeated. ``table`` names the table in the error."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        # Cause: aggregate stores a mean in the columns NAME_sum and NAME_count, and a count or sum in NAME.
        raise ConfigError(
            f"The {table} has more than one column named {', '.join(repeated)}.",
            remedy="Rename the aggregate. Its name must not be a key column or another aggregate's NAME_sum or "
            "NAME_count.",
            id="RIFFLE-0178",
        )


def _input_values(rows: pa.Table, column: str | None) -> pa.Array:
    """Return the values of an input column, or true for each row if ``column`` is ``None``."""
    return pa.repeat(True, rows.num_rows) if column is None else one_array(rows.column(column))
