"""Decide when failed work may be tried again. Each failure in a row doubles the delay, up to a maximum."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Delay:
    """The failures of a key in a row, and the time until which it may not be tried again."""

    failures: int
    until: float


class Delays(Generic[Key]):
    """The delay until the next try of each key.

    The first failure delays a key by ``first_seconds``, each further failure by twice as long, up to
    ``longest_seconds``. A failure more than ``forgotten_after`` seconds after the end of a delay counts as the first
    (``None``: never).
    """

    def __init__(self, first_seconds: float, longest_seconds: float, forgotten_after: float | None = None) -> None:
        """Create delays without failures. The class describes the arguments."""
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._forgotten_after = forgotten_after
        self._delays: dict[Key, _Delay] = {}

    def __len__(self) -> int:
        """Return how many keys have failed."""
        return len(self._delays)

    def record_failure(self, key: Key, now: float) -> float:
        """Record a failure of a key at time ``now``; return the seconds until it may be tried again."""
        delay = self._delays.get(key)
        if delay and self._forgotten_after is not None and now > delay.until + self._forgotten_after:
            self.forget(key)
        failures = self.failures(key) + 1
        seconds = float(min(self._first_seconds * 2 ** min(failures - 1, 32), self._longest_seconds))
        self._delays[key] = _Delay(failures, now + seconds)
        return seconds

    def failures(self, key: Key) -> int:
        """Return how often a key has failed in a row, 0 if it has not failed."""
        delay = self._delays.get(key)
        return delay.failures if delay else 0

    def is_delayed(self, key: Key, now: float) -> bool:
        """Return whether a key may not be tried yet at time ``now``."""
        delay = self._delays.get(key)
        return delay is not None and now < delay.until

    def forget(self, key: Key) -> None:
        """Forget the failures of a key, after a success or to allow a try at once."""
        self._delays.pop(key, None)

    def keep_only(self, is_kept: Callable[[Key], bool]) -> None:
        """Forget the failures of all keys for which ``is_kept`` returns false."""
        self._delays = {key: delay for key, delay in self._delays.items() if is_kept(key)}

    def clear(self) -> None:
        """Forget the failures of all keys."""
        self._delays.clear()
