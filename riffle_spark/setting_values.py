"""What a setting is, and what its value may be. Knows units and ranges. Does not know any setting.

Each check takes what a user wrote and returns the value, or raises ``ValueError`` that says what is allowed. Of that
``checked`` makes the error for users. A ``Range`` is a check that can also be listed in a table.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TypeVar

from riffle_spark.errors import ConfigError

__all__ = [
    "Check",
    "Range",
    "SettingLine",
    "checked",
    "file_mode",
    "flag",
    "function",
    "groups",
    "names",
    "number",
    "one_of",
    "optional",
    "pairs_such_as",
    "seconds",
    "setting",
    "share",
    "text",
    "unset_or",
    "values_by_tag",
    "whole",
]

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_SECONDS = 36_500 * 86_400.0
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_DURATION = re.compile(r"\s*([0-9.]+)\s*([a-z]*)\s*\Z")

_Default = TypeVar("_Default")
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
            f"{name} = {value!r} is not allowed: it must be {error}", remedy=remedy, where=where, id="RIFFLE-0249"
        ) from None


def whole(low: int, high: int | None = None) -> Range:
    """Return a check for whole numbers in a range."""
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else " up")
    most = math.inf if high is None else high

    def check(value: Value) -> Value:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value) else value
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= most:
            raise ValueError(allowed)
        return number

    return Range(check, f"≥ {low}" if high is None else f"{low} to {high}")


def seconds(low: float) -> Range:
    """Return a check for durations: finite seconds, or text with a unit."""
    allowed = (
        f"a duration of at least {low:g} s and at most 36500 d, as seconds or as text such as '10 min' "
        "(units: ms, s, min, h, d)"
    )

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


def number(low: float, high: float = math.inf) -> Range:
    """Return a check for finite numbers in a range."""
    told = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"

    def check(value: Value) -> Value:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError, OverflowError):
            number = low - 1
        if isinstance(value, bool) or not low <= number <= high or number == math.inf:
            raise ValueError(f"a number {told}")
        return number

    return Range(check, f"≥ {low:g}" if high == math.inf else f"{low:g} to {high:g}")


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


def one_of(*names: str, also: Mapping[str, str] = MappingProxyType({})) -> Range:
    """Return a check for one of some names; ``also`` are names that others have for some of them."""

    def check(value: Value) -> Value:
        meant = also.get(value, value) if isinstance(value, str) else value
        if meant not in names:
            raise ValueError("one of " + ", ".join(names))
        return meant

    return Range(check, ", ".join(f"`{name}`" for name in names))


@_range("")
def text(value: Value) -> Value:
    """Return text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("text that is not empty")
    return value


@_range("folder on each executor")
def folder(value: Value) -> Value:
    """Return an absolute path: a relative one, or a URL, would be a folder wherever a process happens to be."""
    if not isinstance(value, str) or not PurePosixPath(value).is_absolute():
        raise ValueError("an absolute path such as /mnt/nvme/riffle, no URL")
    return value


def optional(allowed: Range) -> Range:
    """Return a check that lets ``None`` and empty text through as ``None``."""
    return replace(allowed, check=lambda value: None if value in (None, "") else allowed(value))


def unset_or(allowed: Range) -> Range:
    """Return a check that lets ``None`` through, and not empty text: where that comes of a variable that is not set, to
    do without must not be taken for what was meant.
    """
    return replace(allowed, check=lambda value: None if value is None else allowed(value))


@_range("true, false")
def flag(value: Value) -> Value:
    """Return a truth value, also from text."""
    words: dict[Value, bool] = {"true": True, "false": False, True: True, False: False}
    meant = value.lower() if isinstance(value, str) else value
    if not isinstance(meant, (str, bool)) or meant not in words:
        raise ValueError("true or false")
    return words[meant]


@_range("octal, `0600` to `0666`")
def file_mode(value: Value) -> Value:
    """Return the mode of a file as octal text, also from a number: TOML has ``0o640``. The owner reads and writes."""
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        mode = None
    if isinstance(mode, bool) or not isinstance(mode, int) or mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError("an octal mode from 0600 to 0666 without execution, such as 0640")
    return f"{mode:04o}"


@_range("names")
def names(value: Value) -> Value:
    """Return a tuple of names, also from text with commas."""
    items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError("names, as a list or separated by commas")
    return tuple(items)


def pairs_such_as(example: str) -> Range:
    """Return a check for pairs of names, from ``pattern=name`` texts in a list or with commas, or from a table."""

    def check(value: Value) -> Value:
        if (found := _pairs(value)) is None:
            raise ValueError(f"pairs such as {example!r}, in a list or separated by commas, or a table")
        return found

    return Range(check, "pairs")


def _pairs(value: Value) -> tuple[tuple[str, str], ...] | None:
    items = list(value.items()) if isinstance(value, dict) else value
    if isinstance(items, str):
        items = [v.strip() for v in items.split(",") if v.strip()]
    if isinstance(items, (list, tuple)):
        cut = [tuple(v.split("=", 1)) if isinstance(v, str) else v for v in items]
        if not all(isinstance(pair, (list, tuple)) for pair in cut):
            return None
        if all(len(pair) == 2 and all(isinstance(word, str) and word.strip() for word in pair) for pair in cut):
            return tuple((left.strip(), right.strip()) for left, right in cut)
    return None


@_range("pairs `store=group`")
def groups(value: Value) -> Value:
    """Return pairs of a store and its group, written as pairs are; a group's name is letters, digits and `._-`."""
    told = _pairs(value)
    stores = [store for store, group in told or () if _GROUP.match(group)]
    if told is None or len(set(stores)) < len(told):
        raise ValueError("a group by store, such as 'models=heavy', of letters, digits and ._-, or a table")
    return told


@_range("`tag=value`, or values by tag")
def values_by_tag(value: Value) -> Value:
    """Return pairs of a tag and its values, from a table, or from ``tag=value`` texts in a list or with commas."""
    found: dict[str, tuple[str, ...]] = {}
    for pair in _tagged(value):
        tag, held = pair if isinstance(pair, (list, tuple)) and len(pair) == 2 else ("", ())
        held = [held] if isinstance(held, str) else held
        if not isinstance(tag, str) or not tag or not isinstance(held, (list, tuple)) or not held or "" in held:
            raise ValueError('values by tag, such as {"zone": ["a", "b"]} or "zone=a, zone=b"')
        found[tag] = (*found.get(tag, ()), *names(held))  # type: ignore[misc]
    return tuple(found.items())


def _tagged(value: Value) -> list[object]:
    """Return what may be pairs."""
    items = [v for v in value.split(",") if v.strip()] if isinstance(value, str) else value
    items = list(items.items()) if isinstance(items, Mapping) else items
    if not isinstance(items, (list, tuple)):
        return [items]
    return [[w.strip() for w in item.split("=", 1)] if isinstance(item, str) else item for item in items]


@_range("a function, or its dotted path")
def function(value: Value) -> Value:
    """Return what can be called, or the text that names it."""
    if not callable(value) and not (isinstance(value, str) and value):
        raise ValueError("a function, or text that names one, as package.module.name")
    return value


@dataclass(frozen=True, slots=True)
class SettingLine:
    """What one setting is, beside its name. ``meaning`` is Markdown as in docs/configuration.md, which ``./run
    reference`` writes from these lines.

    ``live`` settings can change while a query runs; the others take a restart, or what ``fixed`` says. Those with
    ``of_assignment`` have no effect where hashes name the owners. ``example`` is shown where the default says nothing;
    ``section`` is the heading of this setting and of those after it. ``users`` are two kinds of users who change it.
    """

    default: object
    allowed: Range
    meaning: str
    live: bool
    of_assignment: bool
    fixed: str
    example: object
    section: str
    users: tuple[str, str]


def setting(  # noqa: PLR0913 - all that a setting's line declares
    default: _Default, allowed: Range, meaning: str, *, live: bool = False, of_assignment: bool = False,
    fixed: str = "", example: object = None, section: str = "", users: tuple[str, str],
) -> _Default:  # fmt: skip
    """Return the field of ``Settings`` that one line declares."""
    line = SettingLine(default, allowed, meaning, live, of_assignment, fixed, example, section, users)
    return field(default=default, metadata={"line": line})
