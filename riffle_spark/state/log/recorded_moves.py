"""The moves of key-groups that a record of the log stores."""

from dataclasses import dataclass
from typing import cast


@dataclass(frozen=True, slots=True)
class RecordedMoves:
    """Key-groups that moved at one time, in one role, between the same two members and for one reason.

    Attributes:
        time_ms: when the driver decided it, in milliseconds since the epoch.
        role: ``owner``, ``standby`` or ``warmup``.
        source: the member that they left; empty if there was none.
        target: the member that they moved to.
        reason: why they moved.
        goal: the goal of the assignment that this improves.
        tasks: the key-groups as ``Record.owners`` names them.
    """

    time_ms: int
    role: str
    source: str
    target: str
    reason: str
    goal: str
    tasks: tuple[str, ...]

    def to_json(self) -> list[object]:
        """Return the moves as a row."""
        return [self.time_ms, self.role, self.source, self.target, self.reason, self.goal, list(self.tasks)]

    @classmethod
    def from_json(cls, row: list[object]) -> "RecordedMoves":
        """Return the moves of a row. Raises ``TypeError`` or ``ValueError`` for other rows."""
        time_ms, role, source, target, reason, goal, tasks = row
        if type(time_ms) is not int or type(tasks) is not list or any(type(task) is not str for task in tasks):
            raise TypeError(f"invalid moves {row!r}")
        texts = (role, source, target, reason, goal)
        if any(type(text) is not str for text in texts):
            raise TypeError(f"invalid moves {row!r}")
        return cls(time_ms, *cast("tuple[str, str, str, str, str]", texts), tuple(tasks))
