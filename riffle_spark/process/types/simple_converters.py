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

__all__ = ["Convert", "Converter", "Misfit", "simple_converter"]

Convert: TypeAlias = Callable[[Any], Any]

_DIGITS: Final = Context(prec=76)
_FLOAT32: Final = struct.Struct("<f")
_PLAIN_FROM: Final = 1e-3
_PLAIN_BELOW: Final = 1e7


class Misfit(Exception):
    """A value that does not fit its field. ``problem`` is ``type``, ``null``, ``length`` or ``range``."""

    def __init__(self, problem: str, value: object, expected: object) -> None:
        super().__init__(problem, value, expected)
        self.problem = problem
        self.value = value
        self.expected = expected
        self.path = ""

    def within(self, field: str) -> "Misfit":
        """Add the name of an enclosing field to the path, and return the error."""
        self.path = f"{field}.{self.path}" if self.path else field
        return self

    def __str__(self) -> str:
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


def simple_converter(kind: pa.DataType) -> Converter | None:
    """Return the converter of a type that is not nested; ``None`` for other types."""
    return next((make(kind) for fits, make in _BY_KIND if fits(kind)), None)


def _plain(*classes: type) -> Callable[[pa.DataType], Converter]:
    """Return a factory of converters that accept values of these classes unchanged."""

    def make_converter(kind: pa.DataType) -> Converter:
        def normalize(value: object) -> object:
            if type(value) in classes:
                return value
            raise Misfit("type", value, kind)

        return Converter(frozenset(classes), normalize)

    return make_converter


def _integers(kind: pa.DataType) -> Converter:
    bound = 1 << (kind.bit_width - 1)

    def normalize(value: object) -> int:
        if type(value) is not int:
            raise Misfit("type", value, kind)
        if not -bound <= value < bound:
            raise Misfit("range", value, kind)
        return value

    return Converter(frozenset({int}), normalize)


def _doubles(kind: pa.DataType) -> Converter:
    def normalize(value: object) -> float:
        if isinstance(value, float):
            return float(value)
        if type(value) is int:
            return _exactly(value, kind)
        raise Misfit("type", value, kind)

    return Converter(frozenset({float}), normalize)


def _singles(kind: pa.DataType) -> Converter:
    double = _doubles(kind).normalize

    def normalize(value: object) -> float:
        number: float = double(value)
        try:
            rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
        except OverflowError:
            return float("inf") if number > 0 else float("-inf")
        return rounded

    return Converter(frozenset(), normalize)


def _exactly(value: int, kind: pa.DataType) -> float:
    """Return an integer as a float. Raise ``Misfit`` if the float differs."""
    try:
        number = float(value)
    except OverflowError:
        raise Misfit("range", value, kind) from None
    if number != value:
        raise Misfit("range", value, kind)
    return number


def _decimals(kind: pa.DataType) -> Converter:
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


def _texts(kind: pa.DataType) -> Converter:
    def normalize(value: object) -> str:
        if isinstance(value, str):
            return str(value)
        text = _java_text(value)
        if text is None:
            raise Misfit("type", value, kind)
        return text

    return Converter(frozenset({str}), normalize)


def _java_text(value: object) -> str | None:
    """Return the text of a number or boolean in Java, and so in Spark; ``None`` for other values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int or isinstance(value, Decimal):
        return str(value)
    return _java_float_text(value) if isinstance(value, float) else None


def _java_float_text(value: float) -> str:
    """Return the text of a float in Java: with an exponent if it is below 0.001, or 10,000,000 or more."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    shift = exponent + len(digits) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{shift}"


def _binaries(kind: pa.DataType) -> Converter:
    def normalize(value: object) -> bytes:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        raise Misfit("type", value, kind)

    return Converter(frozenset({bytes}), normalize)


def _dates(kind: pa.DataType) -> Converter:
    def normalize(value: object) -> date:
        if type(value) is date:
            return value
        if isinstance(value, datetime):  # As in Spark, the time of day is dropped.
            return value.date()
        raise Misfit("type", value, kind)

    return Converter(frozenset({date}), normalize)


def _timestamps(kind: pa.DataType) -> Converter:
    def normalize(value: object) -> datetime:
        if not isinstance(value, datetime):
            raise Misfit("type", value, kind)
        if kind.tz is None:
            return value.replace(tzinfo=None)
        return value if value.tzinfo is None else _to_local(value)

    if kind.tz is None:
        return Converter(frozenset(), normalize)
    return Converter(frozenset(), normalize, to_arrow=_to_utc, from_arrow=_to_local)


def _to_local(value: datetime) -> datetime:
    return value.astimezone().replace(tzinfo=None)


def _to_utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)


_BY_KIND: Final = (
    (types.is_null, _plain()),
    (types.is_boolean, _plain(bool)),
    (types.is_signed_integer, _integers),
    (types.is_float64, _doubles),
    (types.is_float32, _singles),
    (types.is_decimal, _decimals),
    (lambda kind: types.is_string(kind) or types.is_large_string(kind), _texts),
    (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), _binaries),
    (types.is_date32, _dates),
    (types.is_time, _plain(time)),
    (types.is_timestamp, _timestamps),
    (types.is_duration, _plain(timedelta)),
)
