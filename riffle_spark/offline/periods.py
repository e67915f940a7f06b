"""Parse the times in a user's text, and compare times with a period."""

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import cast

from riffle_spark.setting_values import seconds


@dataclass(frozen=True, slots=True)
class Period:
    """A period including both ends, in milliseconds since the epoch. ``None``: the period has no such end."""

    since_ms: int | None = None
    until_ms: int | None = None

    def __contains__(self, time_ms: int) -> bool:
        """Return whether a time is in the period."""
        is_late_enough = self.since_ms is None or time_ms >= self.since_ms
        return is_late_enough and (self.until_ms is None or time_ms <= self.until_ms)


ALWAYS = Period()


def parse_time(text: str) -> int:
    """Return a time in milliseconds since the epoch: an ISO time with its zone, or a duration before now.

    Raises ``ValueError`` for other text.

    >>> parse_time("1970-01-01T00:00:01Z")
    1000
    """
    text = text.strip()
    try:
        time_at = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        time_at = datetime.now(timezone.utc) - timedelta(seconds=cast(float, seconds(0)(text)))
    if time_at.tzinfo is None:
        raise ValueError(f"{text!r} has no zone")
    return round(time_at.timestamp() * 1000)
