"""Estimate when the warm-ups of each member have caught up, from what they fetched in the last minute."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from riffle_spark.assign.model import MemberId, TaskId
from riffle_spark.protocol.ownership.readiness import Readiness

_WINDOW_SECONDS: Final = 60.0


class _Sample(NamedTuple):
    """The time (seconds of the driver's clock), and the bytes that a member's warm-ups have fetched until then."""

    seconds: float
    fetched: int


class WarmupProgress:
    """The bytes that the warm-ups of each member still have to fetch, and the speed at which they fetch."""

    def __init__(self) -> None:
        """Create the progress of a query without warm-ups."""
        self._remaining: dict[tuple[MemberId, TaskId], int] = {}
        self._partial: dict[MemberId, Mapping[TaskId, int]] = {}
        self._samples: dict[MemberId, deque[_Sample]] = {}

    def record_partial(self, member: MemberId, fetched: Mapping[TaskId, int]) -> None:
        """Record the bytes that a member has fetched for copies which are not complete yet, by task."""
        self._partial[member] = fetched

    def record(self, copies: Iterable[Readiness], now: float) -> None:
        """Record what all warm-ups among ``copies`` lack at time ``now`` (seconds of the driver's clock).

        A warm-up counts as fetching what it lacked before and no longer lacks.
        """
        remaining = {
            (copy.member, copy.task): max(0, copy.lag_bytes - self._partial.get(copy.member, {}).get(copy.task, 0))
            for copy in copies
            if copy.role == "warmup"
        }
        if not remaining and not self._remaining:
            self._partial.clear()
            return
        fetched_bytes: dict[MemberId, int] = {member: 0 for member, _ in remaining}
        for (member, task), size in remaining.items():
            fetched_bytes[member] += max(0, self._remaining.get((member, task), size) - size)
        self._remaining = remaining
        self._samples = {member: self._samples.get(member, deque()) for member in fetched_bytes}
        for member, samples in self._samples.items():
            total = samples[-1].fetched if samples else 0
            samples.append(_Sample(now, total + fetched_bytes[member]))
            while len(samples) > 2 and samples[1].seconds <= now - _WINDOW_SECONDS:
                samples.popleft()

    def remaining_bytes(self, member: MemberId) -> int:
        """Return how many bytes the warm-ups of a member lack together."""
        return sum(size for (name, _), size in self._remaining.items() if name == member)

    def remaining_seconds(self, member: MemberId) -> float | None:
        """Return the estimated seconds until a member's warm-ups lack nothing, at the speed of the last minute.

        Return ``None`` if they fetched nothing in that time, and 0 if they lack nothing.
        """
        remaining = self.remaining_bytes(member)
        if not remaining:
            return 0.0
        samples = self._samples[member]
        fetched = samples[-1].fetched - samples[0].fetched
        return remaining * (samples[-1].seconds - samples[0].seconds) / fetched if fetched else None
