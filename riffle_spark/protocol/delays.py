"""Decide when something that failed may be tried again. Each failure in a row doubles the delay, up to a maximum."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Delays"]

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Delay:
    failures: int
    until: float


class Delays(Generic[Key]):
    """Delays of ``first_seconds`` after the first failure, and of ``longest_seconds`` at most.

    A failure more than ``forgotten_after`` seconds after the end of a delay counts as the first (``None``: never).
    """

    def __init__(self, first_seconds: float, longest_seconds: float, forgotten_after: float | None = None) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._forgotten_after = forgotten_after
        self._delays: dict[Key, _Delay] = {}

    def record_failure(self, key: Key, now: float) -> float:
        """Record a failure; return the delay in seconds."""
        delay = self._delays.get(key)
        if delay and self._forgotten_after is not None and now > delay.until + self._forgotten_after:
            self.forget(key)
        failures = self.failures(key) + 1
        seconds = float(min(self._first_seconds * 2 ** min(failures - 1, 32), self._longest_seconds))
        self._delays[key] = _Delay(failures, now + seconds)
        return seconds

    def failures(self, key: Key) -> int:
        """Return the number of failures in a row."""
        delay = self._delays.get(key)
        return delay.failures if delay else 0

    def is_delayed(self, key: Key, now: float) -> bool:
        """Return whether it is too early to try again."""
        delay = self._delays.get(key)
        return delay is not None and now < delay.until

    def forget(self, key: Key) -> None:
        """Forget the failures, after a success or to try at once."""
        self._delays.pop(key, None)

    def keep_only(self, is_kept: Callable[[Key], bool]) -> None:
        """Forget the failures of all other keys."""
        self._delays = {key: delay for key, delay in self._delays.items() if is_kept(key)}

    def clear(self) -> None:
        """Forget every failure."""
        self._delays.clear()
