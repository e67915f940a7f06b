"""Work beside the batches that is of one claim of the log, piece by piece. Knows the claim. Does not know what the work
is.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from riffle_spark.protocol.ports import Background

__all__ = ["ClaimWork", "Steps", "through"]

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Work in short steps, which returns what it found."""
_STEPS = 16
"""So many steps are done at once; then others have their turn."""


def through(steps: Steps[_T]) -> _T:
    """Do work to its end; return what it found."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _Found:
    claim: str
    found: object


class ClaimWork:
    """Does work under the newest claim, one after the other: deletes of records wait for the scan that reads them. In a
    root that was restored meanwhile the numbers that work of an earlier claim goes by are those of other records: what
    is left of it is not done any more, and nobody hears what is found.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._claim = ""
        self._waiting: deque[tuple[str, Callable[[], Steps[object]]]] = deque()
        self._begun: Steps[object] | None = None
        """The first that waits, once it has begun."""

    def begin(self, claim: str) -> None:
        """Begin anew after the record of this commit id; what has come of earlier work is dropped."""
        self._background.collect()
        self._claim = claim

    def submit(self, work: Callable[[], Steps[object]]) -> None:
        """Have something done beside the batches."""
        self._waiting.append((self._claim, work))
        self._background.submit(self._piece)

    def _piece(self) -> _Found | None:
        """Do a piece of the first work that waits; of each that waits one piece is submitted."""
        claim, work = self._waiting[0]
        is_over = True
        try:
            if claim == self._claim:
                self._begun = self._begun or work()
                for _ in range(_STEPS):
                    next(self._begun)
                is_over = False
        except StopIteration as end:
            return _Found(claim, end.value)
        finally:
            if is_over:
                self._begun = None
                self._waiting.popleft()
        if not is_over:
            self._background.submit(self._piece)
        return None

    def collect(self) -> Iterator[object]:
        """Yield what came of all work, of this kind and of others, since the last call; failures as exceptions."""
        for result in self._background.collect():
            if not isinstance(result, _Found):
                yield result
            elif result.claim == self._claim:
                yield result.found
