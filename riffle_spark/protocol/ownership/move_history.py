"""The moves of key-groups that assignments decided: the newest ones, and those that no record has yet."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from riffle_spark.assign.model import TaskId
from riffle_spark.protocol.facts import MoveSummary
from riffle_spark.protocol.ownership.groups import GROUP, task_name
from riffle_spark.protocol.ownership.rebalance import MoveFields
from riffle_spark.protocol.ports import Clock
from riffle_spark.state.log.recorded_moves import RecordedMoves

RECENT_MOVES: Final = 100
_UNRECORDED_MAX: Final = 20_000
"""While the query is idle, moves wait for the next record. Beyond this number, the oldest are dropped."""


class MoveHistory:
    """Keeps moves with their time, also those that were made while the query was idle or paused."""

    def __init__(self, clock: Clock) -> None:
        """Create a history without moves."""
        self._clock = clock
        self._next_version = 0
        self._recent: tuple[MoveSummary, ...] = ()
        self._unrecorded: deque[RecordedMoves] = deque(maxlen=_UNRECORDED_MAX)

    def start_run(self, version: int) -> None:
        """Start a run after batch ``version``. Moves that no record has were lost with the run before."""
        self._unrecorded.clear()
        self._next_version = version + 1

    def add(self, moves: Sequence[MoveFields]) -> None:
        """Add the moves of an assignment that was made now."""
        now_ms = self._clock.wall_ms()
        tasks_by_move: dict[tuple[str, str, str, str, str], list[str]] = {}
        for move in moves:
            task = TaskId(str(move.get("group", GROUP)), int(move["key_group"]))
            texts = (str(move["role"]), str(move["from"]), str(move["to"]), str(move["reason"]), str(move["goal"]))
            tasks_by_move.setdefault(texts, []).append(task_name(task))
        self._unrecorded.extend(RecordedMoves(now_ms, *texts, tuple(tasks)) for texts, tasks in tasks_by_move.items())
        summaries = (self._summary(move, now_ms) for move in moves[-RECENT_MOVES:])
        self._recent = (*self._recent, *summaries)[-RECENT_MOVES:]

    def _summary(self, move: MoveFields, now_ms: int) -> MoveSummary:
        partition = move.get("partition")
        return MoveSummary(
            now_ms,
            self._next_version,
            int(move["key_group"]),
            str(move.get("group", GROUP)),
            str(move["role"]),
            str(move["from"]),
            str(move["to"]),
            str(move["reason"]),
            str(move["goal"]),
            str(move.get("topic", "")),
            None if partition is None else int(partition),
        )

    def recent(self) -> tuple[MoveSummary, ...]:
        """Return the newest moves of this process, oldest first. May be called from any thread."""
        return self._recent

    def unrecorded(self) -> tuple[RecordedMoves, ...]:
        """Return the moves for the next record."""
        return tuple(self._unrecorded)

    def record_append(self, moves: Sequence[RecordedMoves], version: int) -> None:
        """Record that a record with these moves was appended after batch ``version``."""
        recorded = frozenset(moves)
        self._unrecorded = deque(
            (move for move in self._unrecorded if move not in recorded), maxlen=self._unrecorded.maxlen
        )
        self._next_version = version + 1
