"""What time a batch has, and what its timers go by. Knows Spark's words for it. Does not know timers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from riffle_spark.errors import ConfigError

__all__ = ["TimeMode", "Times", "time_mode_of"]

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]
"""What timers go by, in Spark's words: nothing, the batch's time, or the watermark."""


def time_mode_of(given: str) -> TimeMode:
    """Return the time mode that a user wrote, in letters of any case. Raises ``ConfigError`` for what is none."""
    modes = get_args(TimeMode)
    for mode in modes:
        if mode.lower() == str(given).lower():
            return cast(TimeMode, mode)
    raise ConfigError(
        f"time_mode = {given!r} is unknown",
        remedy=f"use one of {', '.join(modes)}",
        where="time_mode",
        id="RIFFLE-0111",
    )


@dataclass(frozen=True, slots=True)
class Times:
    """What time it is: the batch's, the watermark, and that of a last pass of timers, if there is to be one. Rows are
    late by the watermark ``late_ms``.
    """

    mode: TimeMode
    now_ms: int
    watermark_ms: int | None = None
    last_pass_ms: int | None = None
    late_ms: int | None = None

    @property
    def passes(self) -> list[tuple[int, int | None]]:
        """Return for each pass of timers the time by which they are due, and the watermark."""
        if self.mode == "ProcessingTime":
            return [(self.now_ms, self.watermark_ms)]
        if self.mode == "None":
            return []
        first = self.watermark_ms or 0
        last = self.last_pass_ms
        return [(first, first)] if last is None or last <= first else [(first, first), (last, last)]
