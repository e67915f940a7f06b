"""The times of a batch: processing time, watermark, and the clock of its timers."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from riffle_spark.errors import ConfigError

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]
"""The clock of timers, in Spark's words: none, the batch's time, or the watermark."""


def parse_time_mode(text: str) -> TimeMode:
    """Return the time mode that ``text`` names in upper or lower case. Raises ``ConfigError`` for an unknown mode."""
    modes = get_args(TimeMode)
    for mode in modes:
        if mode.lower() == str(text).lower():
            return cast(TimeMode, mode)
    raise ConfigError(
        f"Unknown time_mode {text!r}.",
        remedy=f"Use one of {', '.join(modes)}.",
        where="time_mode",
        id="RIFFLE-0111",
    )


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one batch, in milliseconds since the epoch.

    ``last_pass_ms`` is the watermark of a second pass of timers, if any. Rows at or before ``late_ms`` are
    late.
    """

    mode: TimeMode
    now_ms: int
    watermark_ms: int | None = None
    last_pass_ms: int | None = None
    late_ms: int | None = None

    @property
    def passes(self) -> list[tuple[int, int | None]]:
        """The passes of timers, each as (time by which timers are due, watermark that the processor sees)."""
        if self.mode == "ProcessingTime":
            return [(self.now_ms, self.watermark_ms)]
        if self.mode == "None":
            return []
        first = self.watermark_ms or 0
        last = self.last_pass_ms
        return [(first, first)] if last is None or last <= first else [(first, first), (last, last)]
