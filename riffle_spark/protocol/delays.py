"""When what failed is tried again. Knows times as it is told. Does not know what it is that failed.

Each failure in a row doubles the delay, up to a longest one. Nothing here waits: whoever tries asks first.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Delays"]

What = TypeVar("What", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Failed:
    tries: int
    until: float


class Delays(Generic[What]):
    """Delays of ``first_seconds`` after the first failure, and of ``longest_seconds`` at most. A failure more than
    ``forgotten_after`` seconds after a delay was over begins a new row (``None``: never).
    """

    def __init__(self, first_seconds: float, longest_seconds: float, forgotten_after: float | None = None) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._forgotten_after = forgotten_after
        self._failed: dict[What, _Failed] = {}

    def failed(self, what: What, now: float) -> float:
        """Note one more failure; return for how many seconds it is not to be tried."""
        found = self._failed.get(what)
        if found and self._forgotten_after is not None and now > found.until + self._forgotten_after:
            self.forget(what)
        tries = self.tries(what) + 1
        seconds = float(min(self._first_seconds * 2 ** min(tries - 1, 32), self._longest_seconds))
        self._failed[what] = _Failed(tries, now + seconds)
        return seconds

    def tries(self, what: What) -> int:
        """Return how often it has failed in a row."""
        found = self._failed.get(what)
        return found.tries if found else 0

    def holds(self, what: What, now: float) -> bool:
        """Tell whether it is too early to try it."""
        found = self._failed.get(what)
        return found is not None and now < found.until

    def forget(self, what: What) -> None:
        """Note that it worked, or is wanted at once."""
        self._failed.pop(what, None)

    def forget_but(self, is_kept: Callable[[What], bool]) -> None:
        """Forget the failures of all others: of what is gone for good."""
        self._failed = {what: failed for what, failed in self._failed.items() if is_kept(what)}

    def clear(self) -> None:
        """Forget every failure."""
        self._failed.clear()
