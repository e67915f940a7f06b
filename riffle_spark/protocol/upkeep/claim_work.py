"""Run background work of the driver's present claim of the log, in short pieces."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar

from riffle_spark.protocol.ports import Background

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Work that yields after each short step and returns its result."""
_STEPS_PER_PIECE = 16
"""Other background work gets its turn after this many steps."""


def run_to_end(steps: Steps[_T]) -> _T:
    """Run all steps and return the result of the work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class _ClaimResult:
    """The result of work that was submitted under a claim."""

    claim: str
    result: object


class ClaimWork:
    """Runs work of the newest claim in the order of its submission, so that deletes wait for a scan that reads records.

    Work of an earlier claim is abandoned and its results are dropped: if the root was restored in between, the record
    numbers that it uses belong to other records.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._claim = ""
        self._queue: deque[tuple[str, Callable[[], Steps[object]]]] = deque()
        self._running: Steps[object] | None = None
        """The steps of the first work in the queue, once it has started."""

    def begin(self, claim: str) -> None:
        """Start a new claim, named by its commit id; drop the results of earlier work."""
        self._background.collect()
        self._claim = claim

    def submit(self, work: Callable[[], Steps[object]]) -> None:
        """Queue a function that returns work in steps. It runs in the background."""
        self._queue.append((self._claim, work))
        self._background.submit(self._run_piece)

    def _run_piece(self) -> _ClaimResult | None:
        """Run a piece of the first work in the queue, and submit its next piece."""
        claim, work = self._queue[0]
        has_ended = True
        try:
            if claim == self._claim:
                self._running = self._running or work()
                for _ in range(_STEPS_PER_PIECE):
                    next(self._running)
                has_ended = False
        except StopIteration as end:
            return _ClaimResult(claim, end.value)
        finally:
            if has_ended:
                self._running = None
                self._queue.popleft()
        if not has_ended:
            self._background.submit(self._run_piece)
        return None

    def collect(self) -> Iterator[object]:
        """Yield the results of all background work since the last call, also of work that was submitted elsewhere.

        Failed work has its exception as the result.
        """
        for result in self._background.collect():
            if not isinstance(result, _ClaimResult):
                yield result
            elif result.claim == self._claim:
                yield result.result
