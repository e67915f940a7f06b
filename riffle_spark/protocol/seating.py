"""Who owns what from one batch to the next. Knows when to assign anew. Does not know batches, rows or the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.assign.model import Move
from riffle_spark.keygroups import few_key_groups_warning
from riffle_spark.protocol.layout import assigned, laid_out
from riffle_spark.protocol.ports import Executor, Layout
from riffle_spark.settings import Settings

__all__ = ["News", "Seating"]


@dataclass(frozen=True, slots=True)
class News:
    """What an assignment changed, for the next report: moves with their reasons, and warnings."""

    moves: tuple[Mapping[str, str | int], ...] = ()
    warnings: tuple[str, ...] = ()


class Seating:
    """Keeps the owners and their layout; assigns anew only when the executors changed or a batch lost its place."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._news = News()
        self._layout: Layout | None = None
        self.executors: tuple[Executor, ...] = ()
        self.owners: dict[int, str] = {}

    def layout_for(self, executors: Sequence[Executor]) -> Layout:
        """Return the slots for these live executors: the same object as long as nothing has to change."""
        if self._layout is None or tuple(executors) != self.executors:
            self.executors = tuple(executors)
            self._layout = self._assign()
        return self._layout

    def forget(self) -> None:
        """Assign anew before the next run."""
        self._layout = None

    def take_news(self) -> News:
        """Return what changed since the last call."""
        news, self._news = self._news, News()
        return news

    def _assign(self) -> Layout:
        assignment = assigned(self.executors, self.owners, self._settings)
        self.owners = {task.key_group: owner for task, owner in assignment.owners.items()}
        layout = laid_out(self.executors, self.owners)
        few = few_key_groups_warning(self._settings.key_groups, len(layout.slots))
        moves = (*self._news.moves, *map(_told, assignment.moves))
        self._news = News(moves, (*self._news.warnings, *assignment.warnings, *([few] if few else [])))
        return layout


def _told(move: Move) -> dict[str, str | int]:
    return {
        "key_group": move.task.key_group, "from": move.source or "", "to": move.target, "reason": move.reason,
        "goal": move.goal,
    }  # fmt: skip
