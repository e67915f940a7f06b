"""Spark's interval texts, such as ``10 minutes`` or ``1 hour 30 minutes``. Knows units of fixed length only."""

from __future__ import annotations

import re

from riffle_spark.errors import ConfigError

__all__ = ["interval_ms"]

_UNITS_MS = {
    "ms": 1, "millisecond": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000, "week": 604_800_000,
}  # fmt: skip
_PART = r"(\d+(?:\.\d+)?)\s*([a-z]+)"
_WHOLE = re.compile(rf"\s*(?:interval\s+)?{_PART}(?:\s+{_PART})*\s*\Z")


def interval_ms(text: str, where: str) -> int:
    """Return an interval in milliseconds. Raises ``ConfigError`` that names ``where`` if the text is none.

    >>> interval_ms("10 minutes", "watermark")
    600000
    """
    lower = text.lower()
    parts = re.findall(_PART, lower) if _WHOLE.match(lower) else []
    lengths = [_UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s")) for _, unit in parts]
    if not parts or None in lengths:
        raise ConfigError(
            f"{text!r} is no interval",
            remedy="write a number and a unit: milliseconds, seconds, minutes, hours, days or weeks",
            where=where,
        )
    return round(sum(float(number) * (length or 0) for (number, _), length in zip(parts, lengths, strict=True)))
