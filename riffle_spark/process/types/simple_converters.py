"""One value of one simple type, between a user and Arrow. Knows what Spark gives and takes. Does not know columns.

What a user may write is what Spark takes for the type, and what reads back is what Spark gives: times as naive times of
the machine's zone, decimals with all digits of their scale. Where Spark turns a value of another type into null without
a word, ``Misfit`` is raised.
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
    """A value that a field cannot hold. ``problem`` is ``type``, ``null``, ``length`` or ``range``."""

    def __init__(self, problem: str, value: object, wanted: object) -> None:
        super().__init__(problem, value, wanted)
        self.problem = problem
        self.value = value
        self.wanted = wanted
        self.path = ""

    def at(self, place: str) -> "Misfit":
        """Return the same, of a value below a field of this name."""
        self.path = f"{place}.{self.path}" if self.path else place
        return self

    def __str__(self) -> str:
        if self.problem == "length":
            return f"{self.value} values where there are {self.wanted} fields"
        told = repr(self.value)[:200]
        return f"{told} of {type(self.value).__name__} is no {self.wanted}" + (f", {self.path}" if self.path else "")


class Converter(NamedTuple):
    """How values of one type convert. Nulls never get here.

    ``plain`` are the Python classes whose values are taken as they are. ``take`` checks what a user wrote and returns
    what reads back; ``to_arrow`` makes of that what ``pa.array`` takes, ``from_arrow`` makes it of what ``to_pylist``
    gives, ``copied`` makes another one of it, where a user could change it; all three are ``None`` where there is
    nothing to do.
    """

    plain: frozenset[type]
    take: Convert
    to_arrow: Convert | None = None
    from_arrow: Convert | None = None
    copied: Convert | None = None


def simple_converter(kind: pa.DataType) -> Converter | None:
    """Return the converter of a type that is not nested, ``None`` if it is no such."""
    return next((make(kind) for fits, make in _BY_KIND if fits(kind)), None)


def _plain(*classes: type) -> Callable[[pa.DataType], Converter]:
    """Return what makes converters of types whose values are of these classes, and stay as they are."""

    def make(kind: pa.DataType) -> Converter:
        def take(value: object) -> object:
            if type(value) in classes:
                return value
            raise Misfit("type", value, kind)

        return Converter(frozenset(classes), take)

    return make


def _integers(kind: pa.DataType) -> Converter:
    bound = 1 << (kind.bit_width - 1)

    def take(value: object) -> int:
        if type(value) is not int:
            raise Misfit("type", value, kind)
        if not -bound <= value < bound:
            raise Misfit("range", value, kind)
        return value

    return Converter(frozenset({int}), take)


def _doubles(kind: pa.DataType) -> Converter:
    def take(value: object) -> float:
        if isinstance(value, float):
            return float(value)
        if type(value) is int:
            return _exactly(value, kind)
        raise Misfit("type", value, kind)

    return Converter(frozenset({float}), take)


def _singles(kind: pa.DataType) -> Converter:
    double = _doubles(kind).take

    def take(value: object) -> float:
        number: float = double(value)
        try:
            rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
        except OverflowError:
            return float("inf") if number > 0 else float("-inf")
        return rounded

    return Converter(frozenset(), take)


def _exactly(value: int, kind: pa.DataType) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise Misfit("range", value, kind) from None
    if number != value:
        raise Misfit("range", value, kind)
    return number


def _decimals(kind: pa.DataType) -> Converter:
    unit = Decimal(1).scaleb(-kind.scale)

    def take(value: object) -> Decimal:
        if not isinstance(value, Decimal) and type(value) is not int:
            raise Misfit("type", value, kind)
        try:
            rounded = Decimal(value).quantize(unit, rounding=ROUND_HALF_UP, context=_DIGITS)
        except DecimalException:
            raise Misfit("range", value, kind) from None
        if len(rounded.as_tuple().digits) > kind.precision or not rounded.is_finite():
            raise Misfit("range", value, kind)
        return rounded

    return Converter(frozenset(), take)


def _texts(kind: pa.DataType) -> Converter:
    def take(value: object) -> str:
        if isinstance(value, str):
            return str(value)
        told = _written_down(value)
        if told is None:
            raise Misfit("type", value, kind)
        return told

    return Converter(frozenset({str}), take)


def _written_down(value: object) -> str | None:
    """Return a number or a truth value as Java writes it down, and so Spark; nothing for what has no such text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) is int or isinstance(value, Decimal):
        return str(value)
    return _java_text(value) if isinstance(value, float) else None


def _java_text(value: float) -> str:
    """Return a float as Java has it: with an exponent where it is below 0.001 or from ten millions on."""
    if not isfinite(value):
        return "NaN" if isnan(value) else "-Infinity" if value < 0 else "Infinity"
    if value == 0 or _PLAIN_FROM <= abs(value) < _PLAIN_BELOW:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    shift = exponent + len(digits) - 1
    return f"{'-' * sign}{text[0]}.{text[1:] or '0'}E{shift}"


def _octets(kind: pa.DataType) -> Converter:
    def take(value: object) -> bytes:
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if isinstance(value, str):
            return value.encode()
        raise Misfit("type", value, kind)

    return Converter(frozenset({bytes}), take)


def _dates(kind: pa.DataType) -> Converter:
    def take(value: object) -> date:
        if type(value) is date:
            return value
        if isinstance(value, datetime):  # as Spark does, which looks at its day alone
            return value.date()
        raise Misfit("type", value, kind)

    return Converter(frozenset({date}), take)


def _times_of_day(kind: pa.DataType) -> Converter:
    return _plain(time)(kind)


def _timestamps(kind: pa.DataType) -> Converter:
    def take(value: object) -> datetime:
        if not isinstance(value, datetime):
            raise Misfit("type", value, kind)
        if kind.tz is None:
            return value.replace(tzinfo=None)
        return value if value.tzinfo is None else _local(value)

    if kind.tz is None:
        return Converter(frozenset(), take)
    return Converter(frozenset(), take, to_arrow=_in_utc, from_arrow=_local)


def _local(value: datetime) -> datetime:
    return value.astimezone().replace(tzinfo=None)


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)


_BY_KIND: Final = (
    (types.is_null, _plain()),
    (types.is_boolean, _plain(bool)),
    (types.is_signed_integer, _integers),
    (types.is_float64, _doubles),
    (types.is_float32, _singles),
    (types.is_decimal, _decimals),
    (lambda kind: types.is_string(kind) or types.is_large_string(kind), _texts),
    (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), _octets),
    (types.is_date32, _dates),
    (types.is_time, _times_of_day),
    (types.is_timestamp, _timestamps),
    (types.is_duration, _plain(timedelta)),
)
