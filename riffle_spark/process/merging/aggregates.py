"""Running aggregates per key, as users declare them with ``aggregate(...)``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.merging.accumulators import Accumulator, Count, First, Last, Max, Mean, Min, Sum
from riffle_spark.process.merging.merge_function import Groups

__all__ = ["Aggregates", "aggregate", "count", "first", "last", "max_", "mean", "min_", "sum_"]


def aggregate(**columns: Accumulator) -> "Aggregates":
    """Declare running aggregates per key: every batch emits one row a touched key with its key columns and the results.

    Types, nulls and NaN are as in Spark's aggregate functions of the same names. Example::

        aggregate(orders=count(), total=sum_("amount"), latest=max_("at"))
    """
    if not columns:
        raise ConfigError(
            "aggregate() was given nothing", remedy="Name a result: aggregate(total=sum_('amount')).", id="RIFFLE-0174"
        )
    for name, accumulator in columns.items():
        if not isinstance(accumulator, Accumulator):
            raise ConfigError(
                f"aggregate({name}=...) was given a {type(accumulator).__name__}",
                remedy=f"Use riffle's own functions: {name}=sum_('amount'), or count, min_, max_, mean, first, last.",
                id="RIFFLE-0175",
            )
    return Aggregates(tuple(columns.items()))


def count(column: str | None = None) -> Accumulator:
    """Count rows, or the values of a column that are not null."""
    return Count(None if column == "*" else column)


def sum_(column: str) -> Accumulator:
    """Sum a column: integers exactly as int64, floats as double, decimals exactly with ten digits more.

    A sum that does not fit its type fails the batch. Floats are added in the order of the rows.
    """
    return Sum(column)


def min_(column: str) -> Accumulator:
    """Keep the least value of a column; NaN is above every number, strings go by their UTF-8 bytes."""
    return Min(column)


def max_(column: str) -> Accumulator:
    """Keep the greatest value of a column; NaN is above every number, strings go by their UTF-8 bytes."""
    return Max(column)


def mean(column: str) -> Accumulator:
    """Keep the mean of a column: double, of decimals a decimal with four more digits on either side of the point."""
    return Mean(column)


def first(column: str, ignore_nulls: bool = False) -> Accumulator:
    """Keep the value of a key's first row, which may be null; order columns say which row is first."""
    return First(column, ignore_nulls)


def last(column: str, ignore_nulls: bool = False) -> Accumulator:
    """Keep the value of a key's last row, which may be null; order columns say which row is last."""
    return Last(column, ignore_nulls)


@dataclass(frozen=True, slots=True)
class Aggregates:
    """A ``BlockComputation`` of several running aggregates; made by ``aggregate``."""

    columns: tuple[tuple[str, Accumulator], ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """See ``NamesColumns``."""
        columns = (accumulator.column for _, accumulator in self.columns)
        return tuple(dict.fromkeys(column for column in columns if column is not None))

    @property
    def compared(self) -> tuple[str, ...]:
        """See ``NamesColumns``."""
        extremes = (accumulator.column for _, accumulator in self.columns if isinstance(accumulator, (Min, Max)))
        return tuple(column for column in extremes if column is not None)

    def on(self, names: Mapping[str, str]) -> "Aggregates":
        """See ``NamesColumns``."""
        if all(name == given for given, name in names.items()):
            return self
        return Aggregates(tuple((name, _on(accumulator, names)) for name, accumulator in self.columns))

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare state and output; ``ConfigError`` where a column is missing or of a type that is not supported."""
        sources = [(name, accumulator, _source(name, accumulator, rows)) for name, accumulator in self.columns]
        state = [pa.field(column, type) for column, type in self._state(rows)]
        output = [*key, *(pa.field(name, accumulator.result(type)) for name, accumulator, type in sources)]
        _refuse_repeated([*key.names, *(field.name for field in state)], "state")
        _refuse_repeated([field.name for field in output], "output")
        needed = tuple(name for name in rows.names if name in self.sources and name not in key.names)
        meanings = {name: accumulator.meaning for name, accumulator in self.columns}
        return Declared(pa.schema(state), pa.schema(output), columns=needed, per_key_group=False, meanings=meanings)

    def __call__(self, batch: Batch) -> Update:
        """Fold the batch's rows into the state of their keys."""
        groups = Groups(batch.codes, batch.keys.num_rows, batch.key_text)
        state: dict[str, pa.Array] = {}
        output = batch.keys
        for name, accumulator in self.columns:
            values = _values(batch.rows, accumulator.column)
            suffixes = [name + suffix for suffix in accumulator.state(values.type)]
            old = [one_array(batch.state.column(column)) for column in suffixes]
            folded = accumulator.fold(values, old, groups, batch.found)
            state.update(zip(suffixes, folded, strict=True))
            output = output.append_column(name, accumulator.finish(folded, values.type, groups))
        everything = np.arange(batch.keys.num_rows, dtype=np.int64)
        return Update(output, everything, pa.table(state), deleted=everything[:0])

    def _state(self, rows: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
        for name, accumulator in self.columns:
            for suffix, type in accumulator.state(_source(name, accumulator, rows)).items():
                yield name + suffix, type


def _on(accumulator: Accumulator, names: Mapping[str, str]) -> Accumulator:
    column = accumulator.column
    return accumulator if column is None else replace(accumulator, column=names.get(column, column))


def _source(name: str, accumulator: Accumulator, rows: pa.Schema) -> pa.DataType:
    """Return the type of the aggregate's column, or refuse it."""
    column, where = accumulator.column, f"aggregate {name!r}"
    if column is None:
        return pa.null()
    if rows.names.count(column) != 1:
        problem = "no" if column not in rows.names else "more than one"
        raise ConfigError(
            f"{accumulator}: the input has {problem} column {column!r}",
            remedy=f"Use one of {', '.join(rows.names)}.",
            where=where,
            id="RIFFLE-0176",
        )
    type = rows.field(column).type
    if not accumulator.state(type):
        raise ConfigError(
            f"{accumulator} cannot take column {column!r} of type {type}",
            remedy=f"Cast the column; supported are {accumulator.supported}.",
            where=where,
            id="RIFFLE-0177",
        )
    return type


def _refuse_repeated(names: list[str], what: str) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(
            f"The {what} would have more than one column named {', '.join(repeated)}",
            remedy="Name the aggregate otherwise: not as a key column, nor as another one's NAME_sum or NAME_count.",
            id="RIFFLE-0178",
        )


def _values(rows: pa.Table, column: str | None) -> pa.Array:
    return pa.repeat(True, rows.num_rows) if column is None else one_array(rows.column(column))
