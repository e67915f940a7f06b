"""Tuples of a struct's fields, between a user and Arrow columns. Knows a schema. Does not know whose they are."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyarrow import types

from riffle_spark.process.types.converters import RecordMaker, converter_of, nullable
from riffle_spark.process.types.simple_converters import Convert, Misfit
from riffle_spark.state.formats.arrow_values import undecodable

__all__ = ["Fields", "NotText", "Values", "converted", "plain_records", "pylist", "rows_of"]

Values = tuple[object, ...]
_Converted = TypeVar("_Converted")
_SHAPES_MAX = 64


def plain_records(names: Sequence[str]) -> type[Values]:  # noqa: ARG001 - a RecordMaker
    """Show structs as plain tuples."""
    return tuple


class Fields:
    """Converts tuples of values of these fields. What a user wrote reads back as it would after a while in a store.

    Almost all tuples are of values that need no change, and a tuple's classes tell so: such *shapes* are remembered.
    """

    def __init__(self, schema: pa.Schema, record: RecordMaker = plain_records) -> None:
        self.schema = schema
        self._converters = [converter_of(field.type, record) for field in schema]
        self._takes = [nullable(one.take, field) for one, field in zip(self._converters, schema, strict=True)]
        self._nullable = [field.nullable for field in schema]
        self._shapes: set[tuple[type, ...]] = set()
        self._to_arrow = [one.to_arrow for one in self._converters]
        self._from_arrow = [one.from_arrow for one in self._converters]
        self._copied = [one.copied for one in self._converters]
        self._are_told_otherwise = any(self._to_arrow)
        self._are_seen_otherwise = any(self._from_arrow)
        self.can_change = any(self._copied)

    def take(self, values: object) -> Values:
        """Return what reads back of what a user wrote. Raises ``Misfit`` for values that do not fit the fields."""
        if type(values) is tuple and tuple(map(type, values)) in self._shapes:
            return values
        return self._checked(values)

    def take_all(self, rows: Iterable[object]) -> list[Values]:
        """Return several tuples as ``take`` returns each."""
        taken = list(rows)
        if {*map(type, taken)} == {tuple} and {tuple(map(type, values)) for values in taken} <= self._shapes:  # type: ignore[call-overload]
            return taken  # type: ignore[return-value]
        return [self.take(values) for values in taken]

    def _checked(self, values: object) -> Values:
        if not isinstance(values, tuple | list):
            values = self._iterated(values)
        if len(values) != len(self._takes):
            raise Misfit("length", len(values), len(self._takes))
        taken = tuple(take(value) for take, value in zip(self._takes, values, strict=True))
        shape = tuple(map(type, taken))
        if len(self._shapes) < _SHAPES_MAX and self._is_plain(shape):
            self._shapes.add(shape)
        return taken

    def _iterated(self, values: object) -> Values:
        """Return what can be gone through as a tuple, as Spark does: the letters of a string, the keys of a dictionary.

        Not those of a dictionary by the names of the fields, for which Spark keeps the names in place of the values.
        """
        wanted = f"tuple of {len(self._takes)} fields"
        if isinstance(values, Mapping) and [*values] == self.schema.names:
            raise Misfit("type", values, wanted)
        try:
            return tuple(values)  # type: ignore[arg-type]  # what is none says so itself
        except TypeError:
            raise Misfit("type", values, wanted) from None

    def _is_plain(self, shape: tuple[type, ...]) -> bool:
        of_fields = zip(shape, self._converters, self._nullable, strict=True)
        return all(one in plain.plain or (null and one is type(None)) for one, plain, null in of_fields)

    def columns(self, rows: Sequence[Values]) -> list[pa.Array]:
        """Return taken tuples as one array a field. Raises ``Misfit`` for a number that is out of range."""
        if not rows:
            return [pa.array([], kind) for kind in self.schema.types]
        fields = enumerate(zip(self._to_arrow, self.schema, strict=True))
        return [_array([values[at] for values in rows], convert, field) for at, (convert, field) in fields]

    def structs(self, rows: Sequence[Values]) -> pa.StructArray:
        """Return taken tuples as one array of structs."""
        return pa.StructArray.from_arrays(self.columns(rows), fields=list(self.schema))

    def tuples(self, table: pa.Table) -> Iterator[Values]:
        """Yield the rows of a table of these fields as a user sees them."""
        named = zip(table.column_names, table.columns, self._from_arrow, strict=True)
        columns = [converted(name, column, partial(self._column, convert=convert)) for name, column, convert in named]
        return zip(*columns, strict=True)

    def _column(self, column: pa.ChunkedArray, convert: Convert | None) -> Iterable[object]:
        if types.is_timestamp(column.type):
            return _local_times(column) if column.type.tz else pylist(column)
        values = pylist(column)
        return values if convert is None else [None if value is None else convert(value) for value in values]

    def seen(self, values: Values) -> Values:
        """Return as a user sees it a tuple of what ``to_pylist`` gives."""
        return _each(values, self._from_arrow) if self._are_seen_otherwise else values

    def copied(self, values: Values) -> Values:
        """Return the same tuple with other lists and dictionaries in it, where there are any: users may change them."""
        return _each(values, self._copied) if self.can_change else values

    def arrows(self, values: Values) -> Values:
        """Return a taken tuple as what ``pa.array`` takes."""
        return _each(values, self._to_arrow) if self._are_told_otherwise else values


def _each(values: Values, converts: list[Convert | None]) -> Values:
    pairs = zip(values, converts, strict=True)
    return tuple(v if convert is None or v is None else convert(v) for v, convert in pairs)


def _array(values: Sequence[object], convert: Convert | None, field: pa.Field) -> pa.Array:
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, OverflowError):
        wrong = next(value for value in values if not _fits(value, field.type))
        raise Misfit("range", wrong, field.type).at(field.name) from None


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _local_times(column: pa.ChunkedArray) -> list[object]:
    """Return times as naive ones of this machine's zone, as Spark reads them from state."""
    return [time.astimezone().replace(tzinfo=None) if isinstance(time, datetime) else None for time in pylist(column)]


def pylist(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return exactly what ``to_pylist`` returns; dates and times many times as fast."""
    kind = column.type
    if types.is_date32(kind):
        return _by_numpy(column, column)
    if types.is_timestamp(kind) and kind.unit == "us":
        return _by_numpy(column, column.cast(pa.timestamp("us")))
    values: list[object] = column.to_pylist()
    return values


class NotText(ValueError):
    """Text is not UTF-8, so Python's ``str`` cannot hold it. Spark's Arrow conversions refuse it as well."""

    remedy = (
        "Pass make_valid_utf8(column) or the column cast to binary to the function. The batch failed and nothing was "
        "committed."
    )

    def __init__(self, column: str, value: bytes) -> None:
        super().__init__(f"column {column!r} holds text that is not UTF-8, which Python cannot read: {value[:100]!r}")


def converted(name: str, column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], _Converted]) -> _Converted:
    """Convert a column to Python values. Raises ``NotText`` if that fails and the column has text that is not UTF-8."""
    try:
        return convert(column)
    except (ValueError, pa.ArrowException) as error:
        value = undecodable(column)
        if value is None:
            raise
        raise NotText(name, value) from error


def rows_of(table: pa.Table) -> Iterator[tuple[object, ...]]:
    """Yield the rows as tuples of Python values."""
    if not table.num_columns:
        return iter([()] * table.num_rows)
    named = zip(table.column_names, table.columns, strict=True)
    return zip(*(converted(name, column, pylist) for name, column in named), strict=True)


def _by_numpy(column: pa.Array | pa.ChunkedArray, without_zone: pa.Array | pa.ChunkedArray) -> list[object]:
    chunked = without_zone if isinstance(without_zone, pa.ChunkedArray) else pa.chunked_array([without_zone])
    values: list[date | None] = chunked.to_numpy().tolist()
    if not all(value is None or isinstance(value, date) for value in values):
        told: list[object] = column.to_pylist()  # before year 1 or after 9999: Arrow says so
        return told
    zone = getattr(column.type, "tz", None)
    if zone is None:
        return list(values)
    wanted = pa.lib.string_to_tzinfo(zone)
    return [v.replace(tzinfo=timezone.utc).astimezone(wanted) if isinstance(v, datetime) else None for v in values]
