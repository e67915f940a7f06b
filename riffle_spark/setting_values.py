"""What the value of a setting may be. Knows units and ranges. Does not know any setting.

Each check takes what a user wrote and returns the value, or raises ``ValueError`` that says what is allowed. Of that
``checked`` makes the error for users. A ``Range`` is a check that can also be listed in a table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError

__all__ = [
    "Check",
    "Range",
    "checked",
    "flag",
    "names",
    "number",
    "one_of",
    "optional",
    "pairs",
    "seconds",
    "share",
    "text",
    "whole",
]

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_SECONDS = 36_500 * 86_400.0
_DURATION = re.compile(r"\s*([0-9.]+)\s*([a-z]*)\s*\Z")

Value = object
Check = Callable[[Value], Value]


def _as_it_is(value: Value) -> Value:
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """A check, what it allows in a few words of Markdown, and how a user would write a value that it returned."""

    check: Check
    words: str
    written: Check = _as_it_is

    def __call__(self, value: Value) -> Value:
        """Return the value that is meant. Raises ``ValueError`` that says what is allowed."""
        return self.check(value)

    def of(self, unit: str) -> "Range":
        """Return the same check, its words followed by what is counted or named: ``whole(2).of("records")``."""
        return replace(self, words=f"{self.words} {unit}".strip())


def _range(words: str, written: Check = _as_it_is) -> Callable[[Check], Range]:
    return lambda check: Range(check, words, written)


def checked(name: str, value: Value, check: Check, *, remedy: str, where: str) -> Value:
    """Return what a check makes of a value. Raises ``ConfigError`` that says what is allowed."""
    try:
        return check(value)
    except ValueError as error:
        raise ConfigError(
            f"{name} = {value!r} is not allowed: it must be {error}", remedy=remedy, where=where
        ) from None


def whole(low: int, high: int | None = None) -> Range:
    """Return a check for whole numbers in a range."""
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else " up")

    def check(value: Value) -> Value:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value) else value
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or number < low
            or (high is not None and number > high)
        ):
            raise ValueError(allowed)
        return number

    return Range(check, f"≥ {low}" if high is None else f"{low} to {high}")


def seconds(low: float) -> Range:
    """Return a check for durations: finite seconds, or text with a unit."""
    allowed = f"a duration of at least {low:g} s and at most 36500 d, as seconds or as text such as '10 min'"

    def check(value: Value) -> Value:
        number = _duration(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not low <= number <= _LONGEST_SECONDS:
            raise ValueError(allowed)
        return float(number)

    return Range(check, f"≥ {_duration_text(low)}", _duration_text)


def _duration_text(value: Value) -> str:
    """Return seconds with the largest unit of which they are a whole number."""
    number = float(value)  # type: ignore[arg-type]
    fitting = (unit for unit in ("d", "h", "min", "s", "ms") if number and (number / _UNITS[unit]).is_integer())
    unit = next(fitting, "s")
    return f"{number / _UNITS[unit]:.15g} {unit}"


def _duration(text: str) -> float | None:
    found = _DURATION.match(text)
    unit = _UNITS.get(found[2] or "s") if found else None
    try:
        return float(found[1]) * unit if found and unit else None
    except ValueError:
        return None


def number(low: float) -> Range:
    """Return a check for numbers with a lower bound."""

    def check(value: Value) -> Value:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            number = low - 1
        if isinstance(value, bool) or not number >= low:
            raise ValueError(f"a number of at least {low:g}")
        return number

    return Range(check, f"≥ {low:g}")


@_range("0 to 1", lambda value: f"{100 * float(value):g} %")  # type: ignore[arg-type]
def share(value: Value) -> Value:
    """Return a fraction, also from text in percent."""
    try:
        number = float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise ValueError("a share from 0 to 1, or text such as '20 %'")
    return number


def one_of(*names: str) -> Range:
    """Return a check for one of some names."""

    def check(value: Value) -> Value:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return Range(check, ", ".join(f"`{name}`" for name in names))


@_range("")
def text(value: Value) -> Value:
    """Return text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("text that is not empty")
    return value


def optional(allowed: Range) -> Range:
    """Return a check that lets ``None`` and empty text through as ``None``."""
    return replace(allowed, check=lambda value: None if value in (None, "") else allowed(value))


@_range("true, false")
def flag(value: Value) -> Value:
    """Return a truth value, also from text."""
    words: dict[Value, bool] = {"true": True, "false": False, True: True, False: False}
    if isinstance(value, str):
        value = value.lower()
    if not isinstance(value, (str, bool)) or value not in words:
        raise ValueError("true or false")
    return words[value]


@_range("names")
def names(value: Value) -> Value:
    """Return a tuple of names, also from text with commas."""
    items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError("names, as a list or separated by commas")
    return tuple(items)


@_range("pairs")
def pairs(value: Value) -> Value:
    """Return pairs of names, from ``pattern=name`` texts in a list or separated by commas, or from a table."""
    items = list(value.items()) if isinstance(value, dict) else value
    if isinstance(items, str):
        items = [v.strip() for v in items.split(",") if v.strip()]
    if isinstance(items, (list, tuple)):
        cut = [tuple(v.split("=", 1)) if isinstance(v, str) else tuple(v) for v in items]
        if all(len(pair) == 2 and all(isinstance(word, str) and word.strip() for word in pair) for pair in cut):
            return tuple((left.strip(), right.strip()) for left, right in cut)
    raise ValueError("pairs such as '10.0.1.*=rack-a', in a list or separated by commas, or a table")
