"""Converters between Python values and Arrow for types that are not nested.

They accept the same values as Spark, and return the same values: timestamps as naive times of the machine's
zone, decimals with all digits of their scale. They raise ``Misfit`` if Spark would silently turn a value into null.
"""

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from math import isfinite, isnan
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import types

Convert: TypeAlias = Callable[[Any], Any]

_DIGITS: Final = Context(prec=76)
_FLOAT32: Final = struct.Struct("<f")
_PLAIN_FROM: Final = 1e-3
_PLAIN_BELOW: Final = 1e7


class Misfit(Exception):
    """A Python value of the user that does not fit its field.

    ``problem`` is ``type``, ``null``, ``length`` or ``range``.
    """

    def __init__(self, problem: str, value: object, expected: object) -> None:
        super().__init__(problem, value, expected)
        self.problem = problem
        self.value = value
        self.expected = expected
        self.path = ""

    def add_field(self, field: str) -> "Misfit":
        """Put the name of an enclosing field in front of the path in the message, and return the error."""
        self.path = f"{field}.{self.path}" if self.path else field
        return self

    def __str__(self) -> str:
        """Return the value, the expected type and the path of the field, for error messages."""
        if self.problem == "length":
            return f"got {self.value} values for {self.expected} fields"
        place = f" for field {self.path}" if self.path else ""
        return f"{self.value!r:.200} of type {type(self.value).__name__} is not a valid {self.expected}{place}"


class Converter(NamedTuple):
    """The conversions of values of a type. Nulls are handled by the caller.

    unchanged: the Python classes of values that ``normalize`` returns unchanged.
    normalize: checks a value from a user and returns the value that reads back from the store. Raises ``Misfit``.
    to_arrow: converts a normalized value to the argument of ``pa.array``; ``None`` if they are the same.
    from_arrow: converts a value of ``to_pylist`` to a normalized value; ``None`` if they are the same.
    copy: copies a value that a user could modify; ``None`` if the value is immutable.
    """

    unchanged: frozenset[type]
    normalize: Convert
    to_arrow: Convert | None = None
    from_arrow: Convert | None = None
    copy: Convert | None = None


def make_simple_converter(kind: pa.DataType) -> Converter | None:
    """Return the converter of a type that is not nested; ``None`` for other types."""
    return next((make(kind) for fits, make in _BY_KIND if fits(kind)), None)


def _accept_classes(*classes: type) -> Callable[[pa.DataType], Converter]:
    """Return a function that makes the converter of a type whose values of these classes are stored unchanged.

    Other values raise ``Misfit``.
    """

    def make_converter(kind: pa.DataType) -> Converter:
        def normalize(value: object) -> object:
            if type(value) in classes:
                return value
            raise Misfit("type", value, kind)

        return Converter(frozenset(classes), normalize)

    return make_converter


def _make_integer_converter(kind: pa.DataType) -> Converter:
    """Return the converter of an integer type. It accepts only ``int`` within the range."""
    bound = 1 << (kind.bit_width - 1)

    def normalize(value: object) -> int:
        if type(value) is not int:
            raise Misfit("type", value, kind)
        if not -bound <= value < bound:
            raise Misfit("range", value, kind)
        return value

    return Converter(frozenset({int}), normalize)


def _make_double_converter(kind: pa.DataType) -> Converter:
    """Return the converter of double. It accepts floats, and integers that a double holds exactly."""

    def normalize(value: object) -> float:
        if isinstance(value, float):
            return float(value)
        if type(value) is int:
            return _to_exact_float(value, kind)
        raise Misfit("type", value, kind)

    return Converter(frozenset({float}), normalize)


def _make_float32_converter(kind: pa.DataType) -> Converter:
    """Return the converter of float.

    It accepts what double does, and rounds to 32 bits. Numbers that are too large become infinite.
    """
    double = _make_double_converter(kind).normalize

    def normalize(value: object) -> float:
        number: float = double(value)
        try:
            rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
        except OverflowError:
            return float("inf") if number > 0 else float("-inf")
        return rounded

    return Converter(frozenset(), normalize)


def _to_exact_float(value: int, kind: pa.DataType) -> float:
    """Return an integer as a float. Raises ``Misfit`` if the float is not equal to it."""
    try:
        number = float(value)
    except OverflowError:
        raise Misfit("range", value, kind) from None
    if number != value:
        raise Misfit("range", value, kind)
    return number


def _make_decimal_converter(kind: pa.DataType) -> Converter:
    """Return the converter of a decimal type.

    It accepts ``Decimal`` and ``int``, rounds half up to the scale, and raises ``Misfit`` if too many digits remain.
    """
    unit = Decimal(1).scaleb(-kind.scale)

    def normalize(value: object) -> Decimal:
        if not isinstance(value, Decimal) and type(value) is not int:
            raise Misfit("type", value, kind)
        try:
            rounded = Decimal(value).quantize(unit, rounding=ROUND_HALF_UP, context=_DIGITS)
        except DecimalException:
            raise Misfit("range", value, kind) from None
        if len(rounded.as_tuple().digits) > kind.precision or not rounded.is_finite():
            raise Misfit("range", value, kind)
        return rounded

    return Converter(frozenset(), normalize)


def _make_string_converter(kind: pa.DataType) -> Converter:
    """Return the converter of string. It accepts strings, and numbers and booleans as Java prints them."""

    def normalize(value: object) -> str:
        if isinstance(value, str):
            return str(value)
        text = _java_text(value)
        if text is None:
            raise Misfit("type", value, kind)
        return text

    return Converter(frozenset({str}), normalize)


def _java_text(value: object) -> str | None:
    """Return a number or boolean as Java, and so Spark, prints it; ``None`` for other values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int or isinstance(value, Decimal):
        return str(value)
    return _java_float_text(value) if isinstance(value, float) else None


def _java_float_text(value: float) -> str:
    """Return a float as Java prints it: with an exponent if it is below 0.001, or 10,000,000 or more."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    shift = exponent + len(digits) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{shift}"


def _make_binary_converter(kind: pa.DataType) -> Converter:
    """Return the converter of binary. It accepts bytes, bytearrays, and strings as UTF-8."""

    def normalize(value: object) -> bytes:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        raise Misfit("type", value, kind)

    return Converter(frozenset({bytes}), normalize)


def _make_date_converter(kind: pa.DataType) -> Converter:
    """Return the converter of date. It accepts dates, and datetimes without their time of day."""

    def normalize(value: object) -> date:
        if type(value) is date:
            return value
        if isinstance(value, datetime):  # As in Spark, the time of day is dropped.
            return value.date()
        raise Misfit("type", value, kind)

    return Converter(frozenset({date}), normalize)


def _make_timestamp_converter(kind: pa.DataType) -> Converter:
    """Return the converter of a timestamp type.

    It accepts datetimes. If the type has no zone, the zone of a datetime is dropped. Otherwise a datetime with a zone
    becomes a naive time in the machine's zone.
    """

    def normalize(value: object) -> datetime:
        if not isinstance(value, datetime):
            raise Misfit("type", value, kind)
        if kind.tz is None:
            return value.replace(tzinfo=None)
        return value if value.tzinfo is None else _to_local_time(value)

    if kind.tz is None:
        return Converter(frozenset(), normalize)
    # Without a zone, Python takes the machine's.
    return Converter(
        frozenset(), normalize, to_arrow=lambda value: value.astimezone(timezone.utc), from_arrow=_to_local_time
    )


def _to_local_time(value: datetime) -> datetime:
    """Return a time as naive time in the machine's zone."""
    return value.astimezone().replace(tzinfo=None)


_BY_KIND: Final = (
    (types.is_null, _accept_classes()),
    (types.is_boolean, _accept_classes(bool)),
    (types.is_signed_integer, _make_integer_converter),
    (types.is_float64, _make_double_converter),
    (types.is_float32, _make_float32_converter),
    (types.is_decimal, _make_decimal_converter),
    (lambda kind: types.is_string(kind) or types.is_large_string(kind), _make_string_converter),
    (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), _make_binary_converter),
    (types.is_date32, _make_date_converter),
    (types.is_time, _accept_classes(time)),
    (types.is_timestamp, _make_timestamp_converter),
    (types.is_duration, _accept_classes(timedelta)),
)
