"""Validation of setting values, and the declaration of a setting.

A check takes a value as a user wrote it and returns the parsed value. It raises ``ValueError``. The text describes the
allowed values; ``checked`` converts it to a ``ConfigError``. A ``Range`` is a check with a description for the docs.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from riffle_spark.errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_NAMES = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_LONGEST_SECONDS = 36_500 * 86_400.0
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DURATION = re.compile(r"\s*([0-9.]+)\s*([a-z]*)\s*\Z")

_Parsed_co = TypeVar("_Parsed_co", covariant=True)
_Accepted_contra = TypeVar("_Accepted_contra", contravariant=True)
Value = object
Check = Callable[[Value], Value]


@dataclass(frozen=True, slots=True)
class Range:
    """A check, a short description of the allowed values in Markdown, and the format of a parsed value in the docs."""

    check: Check
    words: str
    written: Check = lambda value: value

    def __call__(self, value: Value) -> Value:
        """Return the parsed value. Raises ``ValueError`` with the allowed values."""
        return self.check(value)

    def of(self, unit: str) -> "Range":
        """Return the same check with a unit after its description: ``whole(2).of("records")``."""
        return replace(self, words=f"{self.words} {unit}".strip())


def _described(words: str, written: Check | None = None) -> Callable[[Check], Range]:
    return lambda check: Range(check, words, written) if written else Range(check, words)


def checked(name: str, value: Value, check: Check, *, remedy: str, where: str) -> Value:
    """Return the parsed value. Raises ``ConfigError`` with the allowed values."""
    try:
        return check(value)
    except ValueError as error:
        problem = f"{name} = {value!r} is not allowed. It must be {error}."
        raise ConfigError(problem, remedy=remedy, where=where, id="RIFFLE-0249") from None


def whole(low: int, high: int | None = None) -> Range:
    """Return a check for integers from ``low`` to ``high``."""
    allowed = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"

    def check(value: Value) -> Value:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value) else value
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or not low <= number <= (math.inf if high is None else high)
        ):
            raise ValueError(allowed)
        return number

    return Range(check, f"≥ {low}" if high is None else f"{low} to {high}")


def seconds(low: float) -> Range:
    """Return a check for durations of at least ``low`` seconds, as a number or as text with a unit."""
    allowed = (
        f"a duration of at least {low:g} s and at most 36500 d, as seconds or as text such as '10 min' "
        "or '10 minutes' (units: ms, s, min, h, d, second, minute, hour, day)"
    )

    def check(value: Value) -> Value:
        number = _duration(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not low <= number <= _LONGEST_SECONDS:
            raise ValueError(allowed)
        return float(number)

    return Range(check, f"≥ {_duration_text(low)}", _duration_text)


def _duration_text(value: Value) -> str:
    """Format seconds in the largest unit that gives an integer."""
    number = float(value)  # type: ignore[arg-type]
    units = (unit for unit in ("d", "h", "min", "s", "ms") if number and (number / _UNITS[unit]).is_integer())
    unit = next(units, "s")
    return f"{number / _UNITS[unit]:.15g} {unit}"


def _duration(text: str) -> float | None:
    """Return the seconds in a text such as ``10 min``, or ``None`` if it is not a duration."""
    match = _DURATION.match(text)
    name = match[2] if match else ""
    unit = _UNITS.get(name or "s") or _UNIT_NAMES.get(name.removesuffix("s"))
    try:
        return float(match[1]) * unit if match and unit else None
    except ValueError:
        return None


def number(low: float, high: float = math.inf) -> Range:
    """Return a check for finite numbers from ``low`` to ``high``."""
    allowed = f"a number of at least {low:g}" if high == math.inf else f"a number from {low:g} to {high:g}"

    def check(value: Value) -> Value:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError, OverflowError):
            number = low - 1
        if isinstance(value, bool) or not low <= number <= high or number == math.inf:
            raise ValueError(allowed)
        return number

    return Range(check, f"≥ {low:g}" if high == math.inf else f"{low:g} to {high:g}")


@_described("0 to 1", lambda value: f"{100 * float(value):g} %")  # type: ignore[arg-type]
def share(value: Value) -> Value:
    """Parse a fraction from 0 to 1, or text in percent."""
    try:
        number = float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise ValueError("a share from 0 to 1, or text such as '20 %'")
    return number


def one_of(*names: str, also: Mapping[str, str] = MappingProxyType({})) -> Range:
    """Return a check for one of ``names``. ``also`` maps synonyms to them."""

    def check(value: Value) -> Value:
        name = also.get(value, value) if isinstance(value, str) else value
        if name not in names:
            raise ValueError("one of " + ", ".join(names))
        return name

    return Range(check, ", ".join(f"`{name}`" for name in names))


@_described("")
def text(value: Value) -> Value:
    """Check for text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("text that is not empty")
    return value


@_described("folder on each executor")
def folder(value: Value) -> Value:
    """Check for an absolute path. A relative path or a URL would depend on the working folder of each process."""
    if not isinstance(value, str) or not PurePosixPath(value).is_absolute():
        raise ValueError("an absolute path such as /mnt/nvme/riffle, not a URL")
    return value


def optional(allowed: Range) -> Range:
    """Return a check that also accepts ``None`` and empty text, both as ``None``."""
    return replace(allowed, check=lambda value: None if value in (None, "") else allowed(value))


def unset_or(allowed: Range) -> Range:
    """Return a check that also accepts ``None``, but not empty text: it may be an unset variable in a configuration."""
    return replace(allowed, check=lambda value: None if value is None else allowed(value))


@_described("true, false")
def flag(value: Value) -> Value:
    """Parse a boolean, or ``true`` and ``false`` as text."""
    text = str(value).lower() if isinstance(value, (bool, str)) else ""
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


@_described("octal, `0600` to `0666`")
def file_mode(value: Value) -> Value:
    """Parse a file mode to octal text, from text or from a number (``0o640`` in TOML). The owner can read and write."""
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        mode = None
    if isinstance(mode, bool) or not isinstance(mode, int) or mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError("an octal mode from 0600 to 0666 without execution, such as 0640")
    return f"{mode:04o}"


@_described("names")
def names(value: Value) -> Value:
    """Parse names, from a list or from text with commas."""
    items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError("names, as a list or separated by commas")
    return tuple(items)


def pairs_such_as(example: str) -> Range:
    """Return a check for pairs of names, as a table or as ``left=right`` texts in a list or separated by commas."""

    def check(value: Value) -> Value:
        pairs = _pairs(value)
        if pairs is None:
            raise ValueError(f"pairs such as {example!r}, in a list or separated by commas, or a table")
        return pairs

    return Range(check, "pairs")


def _split(value: Value) -> list[object] | None:
    """Return the items of a table, a list, or text with commas, with ``left=right`` texts as pairs."""
    items = value
    if isinstance(items, Mapping):
        items = list(items.items())
    elif isinstance(items, str):
        items = [item for item in items.split(",") if item.strip()]
    if not isinstance(items, (list, tuple)):
        return None
    return [tuple(w.strip() for w in item.split("=", 1)) if isinstance(item, str) else item for item in items]


def _pairs(value: Value) -> tuple[tuple[str, str], ...] | None:
    """Return (name, value) pairs of text, from a mapping, a list or text such as ``a=b,c=d``; ``None`` for anything
    else.
    """
    pairs: list[tuple[str, str]] = []
    items = _split(value)
    for pair in items or ():
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return None
        if not all(isinstance(word, str) and word.strip() for word in pair):
            return None
        pairs.append((pair[0].strip(), pair[1].strip()))
    return None if items is None else tuple(pairs)


@_described("pairs `store=group`")
def groups(value: Value) -> Value:
    """Parse pairs of a store and its group. A group name has letters, digits and ``._-``."""
    pairs = _pairs(value)
    stores = {store for store, group in pairs or () if _GROUP.match(group)}
    if pairs is None or len(stores) < len(pairs):
        raise ValueError("a group per store, such as 'models=heavy', of letters, digits and ._-, or a table")
    return pairs


@_described("`tag=value`, or values by tag")
def values_by_tag(value: Value) -> Value:
    """Parse tags with their values, from a table or from ``tag=value`` texts in a list or separated by commas."""
    by_tag: dict[str, tuple[str, ...]] = {}
    items = _split(value)
    for pair in [()] if items is None else items:
        tag, tag_values = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else ("", ())
        if isinstance(tag_values, str):
            tag_values = [tag_values]
        is_list = isinstance(tag_values, (list, tuple)) and len(tag_values) > 0 and "" not in tag_values
        if not isinstance(tag, str) or not tag or not is_list:
            raise ValueError('values by tag, such as {"zone": ["a", "b"]} or "zone=a, zone=b"')
        by_tag[tag] = (*by_tag.get(tag, ()), *names(tag_values))  # type: ignore[misc]
    return tuple(by_tag.items())


@_described("a function, or its dotted path")
def function(value: Value) -> Value:
    """Return the value if it is callable or a text that is not empty. The text is a dotted path, which is not imported.

    Raises ``ValueError`` otherwise.
    """
    if not callable(value) and not (isinstance(value, str) and value):
        raise ValueError("a function, or its path as text: package.module.name")
    return value


@dataclass(frozen=True, slots=True)
class Setting(Generic[_Parsed_co, _Accepted_contra]):
    """The declaration of one setting, as a field of ``Settings``.

    Its types are that of the parsed value and that of the values that the constructor accepts. It is a descriptor, so
    that type checkers know both. At run time an instance's own attribute is found first.

    ``./run reference`` writes docs/configuration.md from these declarations. ``meaning`` is Markdown. A ``live``
    setting can change while a query runs; other settings change with a restart, or as ``fixed`` describes. Settings
    with ``of_assignment`` have no effect with the ``hash`` assignor. ``example`` is shown if there is no default.
    ``section`` is the heading of this and the following settings.
    """

    default: _Parsed_co
    allowed: Range
    meaning: str
    live: bool = False
    of_assignment: bool = False
    fixed: str = ""
    example: object = None
    section: str = ""

    def __get__(self, instance: object, owner: object = None) -> _Parsed_co:
        """Return the default, for ``Settings.name``."""
        return self.default

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: _Accepted_contra) -> None:
            """Accept a value in the constructor."""
