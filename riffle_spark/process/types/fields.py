"""Conversion between tuples of values, as users read and write them, and Arrow columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyarrow import types

from riffle_spark.process.types.converters import RecordMaker, accept_null, make_converter
from riffle_spark.process.types.simple_converters import Convert, Misfit
from riffle_spark.state.formats.arrow_values import find_undecodable

Values = tuple[object, ...]
_Converted = TypeVar("_Converted")
_SHAPES_MAX = 64


def plain_records(names: Sequence[str]) -> type[Values]:  # noqa: ARG001 - a RecordMaker
    """Return ``tuple``, the maker of records that are plain tuples. ``names`` is unused."""
    return tuple


class Fields:
    """Converts tuples with a value for each field. A written value reads back as if it had been stored.

    Most tuples need no change. That depends only on the classes of their values, so these *shapes* are remembered.
    """

    def __init__(self, schema: pa.Schema, record: RecordMaker = plain_records) -> None:
        """Prepare the conversions of all fields. ``record`` makes the records that users get for structs."""
        self.schema = schema
        self._converters = [make_converter(field.type, record) for field in schema]
        pairs = zip(self._converters, schema, strict=True)
        self._normalizers = [accept_null(converter.normalize, field) for converter, field in pairs]
        self._nullable = [field.nullable for field in schema]
        self._shapes: set[tuple[type, ...]] = set()
        self._to_arrow = [converter.to_arrow for converter in self._converters]
        self._from_arrow = [converter.from_arrow for converter in self._converters]
        self._copies = [converter.copy for converter in self._converters]
        self._converts_to_arrow = any(self._to_arrow)
        self._converts_from_arrow = any(self._from_arrow)
        self.can_change = any(self._copies)

    def normalize(self, values: object) -> Values:
        """Return the tuple that reads back after the user writes ``values``.

        Raises ``Misfit`` for values that do not fit the fields.
        """
        if type(values) is tuple and tuple(map(type, values)) in self._shapes:
            return values
        return self._normalize_and_remember(values)

    def normalize_all(self, rows: Iterable[object]) -> list[Values]:
        """Return the tuples that read back after the user writes these rows.

        Raises ``Misfit`` for values that do not fit.
        """
        values = list(rows)
        if {*map(type, values)} == {tuple} and {tuple(map(type, row)) for row in values} <= self._shapes:  # type: ignore[call-overload]
            return values  # type: ignore[return-value]
        return [self.normalize(row) for row in values]

    def _normalize_and_remember(self, values: object) -> Values:
        """Return the normalized tuple, and remember the classes of its values if tuples of these classes need no
        change.
        """
        if not isinstance(values, tuple | list):
            values = self._as_tuple(values)
        if len(values) != len(self._normalizers):
            raise Misfit("length", len(values), len(self._normalizers))
        row = tuple(normalize(value) for normalize, value in zip(self._normalizers, values, strict=True))
        shape = tuple(map(type, row))
        if len(self._shapes) < _SHAPES_MAX and self._is_unchanged(shape):
            self._shapes.add(shape)
        return row

    def _as_tuple(self, values: object) -> Values:
        """Return the items of an iterable, as Spark does: the letters of a string, the keys of a dictionary.

        A dictionary with the names of the fields is refused, because Spark would store the names instead of the values.
        """
        expected = f"tuple of {len(self._normalizers)} fields"
        if isinstance(values, Mapping) and [*values] == self.schema.names:
            raise Misfit("type", values, expected)
        try:
            return tuple(values)  # type: ignore[arg-type]
        except TypeError:
            raise Misfit("type", values, expected) from None

    def _is_unchanged(self, shape: tuple[type, ...]) -> bool:
        """Return whether values of these classes, one per field, are stored as they are."""
        columns = zip(shape, self._converters, self._nullable, strict=True)
        return all(
            cls in converter.unchanged or (is_nullable and cls is type(None)) for cls, converter, is_nullable in columns
        )

    def columns(self, rows: Sequence[Values]) -> list[pa.Array]:
        """Return normalized tuples as one array per field. Raises ``Misfit`` for a number that is out of range."""
        if not rows:
            return [pa.array([], kind) for kind in self.schema.types]
        fields = enumerate(zip(self._to_arrow, self.schema, strict=True))
        return [_make_array([values[index] for values in rows], convert, field) for index, (convert, field) in fields]

    def structs(self, rows: Sequence[Values]) -> pa.StructArray:
        """Return normalized tuples as an array of structs."""
        return pa.StructArray.from_arrays(self.columns(rows), fields=list(self.schema))

    def tuples(self, table: pa.Table) -> Iterator[Values]:
        """Yield the rows of a table of these fields as tuples for the user."""
        named = zip(table.column_names, table.columns, self._from_arrow, strict=True)
        columns = [
            convert_column(name, column, partial(self._user_values, convert=convert)) for name, column, convert in named
        ]
        return zip(*columns, strict=True)

    def _user_values(self, column: pa.ChunkedArray, convert: Convert | None) -> Iterable[object]:
        if types.is_timestamp(column.type):
            return _to_local_times(column) if column.type.tz else to_python_list(column)
        values = to_python_list(column)
        return values if convert is None else [None if value is None else convert(value) for value in values]

    def from_arrow(self, values: Values) -> Values:
        """Return a tuple of values, as Arrow's ``to_pylist`` returns them, as the tuple that the user reads."""
        return _convert_each(values, self._from_arrow) if self._converts_from_arrow else values

    def copy(self, values: Values) -> Values:
        """Return the tuple with copies of lists and dictionaries, because users may modify them."""
        return _convert_each(values, self._copies) if self.can_change else values

    def to_arrow(self, values: Values) -> Values:
        """Return a normalized tuple as the values that ``pa.array`` takes."""
        return _convert_each(values, self._to_arrow) if self._converts_to_arrow else values


def _convert_each(values: Values, converts: list[Convert | None]) -> Values:
    """Return the values, each converted by the function at its position, if any. Nulls stay."""
    pairs = zip(values, converts, strict=True)
    return tuple(v if convert is None or v is None else convert(v) for v, convert in pairs)


def _make_array(values: Sequence[object], convert: Convert | None, field: pa.Field) -> pa.Array:
    """Return values as an array of the field's type, after ``convert``, if any.

    Raises ``Misfit`` for a number that is out of range.
    """
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, OverflowError):
        misfit = next(value for value in values if not _fits_type(value, field.type))
        raise Misfit("range", misfit, field.type).add_field(field.name) from None


def _fits_type(value: object, kind: pa.DataType) -> bool:
    """Return whether Arrow can store a value in this type."""
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def _to_local_times(column: pa.ChunkedArray) -> list[object]:
    """Return timestamps with a zone as naive times of the machine's zone, as Spark reads them from state."""
    return [
        time.astimezone().replace(tzinfo=None) if isinstance(time, datetime) else None
        for time in to_python_list(column)
    ]


def to_python_list(column: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return a column's values as ``to_pylist`` does, but dates and times many times faster."""
    kind = column.type
    if types.is_date32(kind):
        return _list_times_by_numpy(column, column)
    if types.is_timestamp(kind) and kind.unit == "us":
        return _list_times_by_numpy(column, column.cast(pa.timestamp("us")))
    values: list[object] = column.to_pylist()
    return values


class NotText(ValueError):
    """A string column has bytes that are not UTF-8. Spark's Arrow conversions refuse them too."""

    def __init__(self, column: str, value: bytes) -> None:
        super().__init__(f"column {column!r} has a string that is not UTF-8: {value[:100]!r}")


def convert_column(name: str, column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], _Converted]) -> _Converted:
    """Return ``convert(column)``.

    Raises ``NotText`` with the column's name if that fails because a string is not UTF-8.
    """
    try:
        return convert(column)
    except (ValueError, pa.ArrowException) as error:
        value = find_undecodable(column)
        if value is None:
            raise
        raise NotText(name, value) from error


def rows_as_tuples(table: pa.Table) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table as tuples of Python values."""
    if not table.num_columns:
        return iter([()] * table.num_rows)
    named = zip(table.column_names, table.columns, strict=True)
    return zip(*(convert_column(name, column, to_python_list) for name, column in named), strict=True)


def _list_times_by_numpy(column: pa.Array | pa.ChunkedArray, without_zone: pa.Array | pa.ChunkedArray) -> list[object]:
    """Return dates or times as a list of Python values, by NumPy if it can represent all of them.

    ``without_zone`` are the same times without a zone.
    """
    chunked = without_zone if isinstance(without_zone, pa.ChunkedArray) else pa.chunked_array([without_zone])
    values: list[date | None] = chunked.to_numpy().tolist()
    if not all(value is None or isinstance(value, date) for value in values):
        python_values: list[object] = column.to_pylist()  # Arrow raises for years before 1 or after 9999.
        return python_values
    zone = getattr(column.type, "tz", None)
    if zone is None:
        return list(values)
    timezone_info = pa.lib.string_to_tzinfo(zone)
    return [
        v.replace(tzinfo=timezone.utc).astimezone(timezone_info) if isinstance(v, datetime) else None for v in values
    ]
