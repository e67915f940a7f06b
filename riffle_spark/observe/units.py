"""Show numbers with their units, as the commands and the status page do."""

from datetime import datetime, timezone
from typing import Final

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PERIODS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
"""Seconds of a larger unit, its name, and the same of the next smaller unit."""


def show_count(number: float) -> str:
    """Return a number, with separators between thousands and at most two digits below one: ``1,234`` or ``0.00034``."""
    if 0 < abs(number) < 1:
        return f"{number:.2g}"
    rounded = round(number) if abs(number) >= 10 or number == round(number) else round(number, 1)
    return f"{rounded:,}"


def show_rows(rows: int, *, is_exact: bool) -> str:
    """Return a number of rows: ``1,234``, or ``at most 1,234`` for an upper bound."""
    return show_count(rows) if is_exact else f"at most {show_count(rows)}"


def show_bytes(size: int) -> str:
    """Return a size in binary units with three digits: ``1.25 GiB``."""
    shown = float(size)
    power = 0
    while abs(shown) >= 1000 and power < len(_BYTE_UNITS) - 1:
        shown /= 1024
        power += 1
    unit = _BYTE_UNITS[power]
    return f"{size} B" if unit == "B" else f"{shown:.{max(0, 3 - len(str(int(abs(shown)))))}f} {unit}"


def show_duration(seconds: float) -> str:
    """Return a time span in one or two units: ``350 ms``, ``4.2 s``, ``3 min 5 s``, ``2 d 4 h``."""
    if seconds < 0:
        return f"-{show_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    large, large_name, small, small_name = next(
        period for period in _PERIODS if round(seconds / period[2]) * period[2] >= period[0]
    )
    large_count, small_count = divmod(round(seconds / small), large // small)
    return f"{large_count} {large_name} {small_count} {small_name}" if small_count else f"{large_count} {large_name}"


def show_percent(share: float) -> str:
    """Return a share between 0 and 1: ``42 %``."""
    return f"{share * 100:.0f} %"


def show_time(time_ms: int) -> str:
    """Return a time in milliseconds since the epoch in UTC: ``2026-03-01 14:05:09 UTC``.

    A time outside the years 1 to 9999 is returned as milliseconds.
    """
    try:
        return f"{datetime.fromtimestamp(time_ms // 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms:,} ms"
