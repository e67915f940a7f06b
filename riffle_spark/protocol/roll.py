"""Calling the roll: a census of executors that are not members yet. Knows who was asked and who answered. Does not know
what becomes of the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from riffle_spark.protocol.ports import Background, Cluster, Executor
from riffle_spark.worker.census import Census, CensusOrder

__all__ = ["Roll"]


class Roll:
    """Asks executors beside the batches, each once at a time."""

    def __init__(self, cluster: Cluster, background: Background) -> None:
        self._cluster = cluster
        self._background = background
        self._asked: set[str] = set()
        self._answers: deque[tuple[frozenset[str], list[Census]]] = deque()

    def ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        """Ask those that have not been asked yet, beside the batches."""
        fresh = [executor for executor in executors if executor.id not in self._asked]
        if fresh:
            self._asked |= {executor.id for executor in fresh}
            self._background.submit(lambda: self._ask(fresh, order))

    def answers(self) -> list[Census]:
        """Return the answers that have come since the last call. Who did not answer is asked again."""
        found: list[Census] = []
        while self._answers:
            asked, answers = self._answers.popleft()
            self._asked -= asked
            found += answers
        return found

    def _ask(self, executors: Sequence[Executor], order: CensusOrder) -> None:
        answers: list[Census] = []
        try:
            answers = self._cluster.census(executors, order)
        finally:
            self._answers.append((frozenset(executor.id for executor in executors), answers))
