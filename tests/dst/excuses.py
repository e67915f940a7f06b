"""The failures that a schedule allows: only those caused by a real fault, about the object that the error names.

``Excuses`` records damaged bytes, lost rows, receipts and results, and the writer of each record.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riffle_spark.errors import (
    ConflictError,
    CorruptStateError,
    FencedError,
    LocalDiskError,
    RiffleError,
    UnavailableError,
)
from riffle_spark.protocol.ports import IncomingBatch
from riffle_spark.state.log import paths
from tests.dst.cluster import SteppedWork
from tests.dst.scheduler import Actor

__all__ = ["Excuses", "TriedBatch"]

_SIMULATED = re.compile(r"the store failed: |no executor is left$|executor \w+ went while it did upkeep$")
_RECORD_DAMAGE = {f"RIFFLE-{number:04}" for number in range(415, 420)}
_QUOTED = re.compile(r"'(/[^']*)'")
_RUN = re.compile(r"Batch \d+ lost (?:its place|rows) in each of (\d+) runs")
_INCOMPLETE = re.compile(r"The receipts of the slots are not complete: missing (\[.*\]), unexpected \[\]\.$")


def object_in(where: str) -> str:
    """Return the object's name in an error's place, which may also have a byte range or an executor."""
    return re.split(r"\[|, ", where)[0]


@dataclass(frozen=True)
class TriedBatch:
    """A batch that a driver tried to run. ``newest`` is the number of the log's newest record before it."""

    incoming: IncomingBatch
    work: SteppedWork
    newest: int


class Excuses:
    """The faults that happened in a schedule and may explain a failure. ``world`` is the schedule."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.damaged: Counter[str] = Counter()
        """How often an object's bytes were damaged or missing without having caused a failure yet."""

    def damages(self, name: str) -> None:
        """Record that the bytes of an object were damaged."""
        self.damaged[name] += 1

    def allow(self, error: RiffleError, actor: Actor, tried: TriedBatch | None = None) -> bool:
        """Return whether a fault that happened explains the error of an actor."""
        with self._world.scheduler.quiet():
            self._world.log_seen.look()
            if isinstance(error, CorruptStateError):
                is_refetched = error.id in _RECORD_DAMAGE or (tried is not None and error.id == "RIFFLE-0397")
                return self._is_damaged(error.where, times=2 if is_refetched else 1)
            if isinstance(error, FencedError):
                return self._is_fenced(error.where, actor)
            if isinstance(error, LocalDiskError):
                return self._is_harmed(error)
            if isinstance(error, UnavailableError):
                return self._is_unavailable(error, tried)
            return type(error) is ConflictError and self._conflicts(error, actor, tried)

    def is_gone(self, error: RiffleError) -> bool:
        """Return whether the error is about missing bytes that are no longer promised."""
        with self._world.scheduler.quiet():
            return isinstance(error, CorruptStateError) and not self._world.memory.exists(object_in(error.where))

    def _is_harmed(self, error: LocalDiskError) -> bool:
        """Return whether the disk refused the named file, or damaged a file in the same member's folder."""
        harmed = self._world.files.harmed
        if named := _QUOTED.findall(error.problem):
            return any(f"{name}/".startswith(f"{path}/") for name in named for path in harmed)
        place = Path(object_in(error.where))
        base = self._world.files.base
        if not place.is_relative_to(base):
            return False
        member = Path(base, *place.relative_to(base).parts[:2])
        return any(f"{name}/".startswith(f"{member}/") for name in harmed)

    def _is_damaged(self, where: str, times: int = 1) -> bool:
        """Return whether the named object was damaged ``times`` times, and use these up.

        Each damage may cause one failure. A record contains the digest of the previous one, so that one may be the
        damaged one. Damaged records, and damaged bytes that slots fetch, are fetched once more, so only repeated damage
        causes a failure.
        """
        name = object_in(where)
        sequence = paths.parse_record_name(object_in(where))
        names = [name] if sequence is None else [name, paths.record_name(max(sequence - 1, 0))]
        if where == self._world.home.root:  # the log cannot be read at all
            names = [name for name in self.damaged if name.startswith(paths.LOG)]
        damaged_object = next((name for name in names if self.damaged[name] >= times), None)
        if damaged_object is not None:
            self.damaged[damaged_object] -= times
        return damaged_object is not None

    def _is_fenced(self, where: str, actor: Actor) -> bool:
        """Return whether another process wrote the named record, or one after the newest that this one knew."""
        history = self._world.log_seen
        sequence = paths.parse_record_name(where)
        if sequence is None:
            driver = getattr(actor.process, "driver", None)
            tail = driver._log.tail if driver is not None else None  # private: the last record that the driver knows
            sequence = tail.sequence + 1 if tail is not None else 0
        later = [record for n, record in history.records.items() if n >= sequence]
        foreign = [record for record in later if history.writers.get(record.commit_id) is not actor.process]
        # Background work may belong to an earlier run of the query in the same process.
        is_beside = actor.kind == "background"
        return bool(foreign) or (is_beside and any(record.kind == "claim" for record in later))

    def _is_unavailable(self, error: UnavailableError, tried: TriedBatch | None) -> bool:
        history = self._world.log_seen
        sequence = paths.parse_record_name(error.where)
        if any(_SIMULATED.search(cause.problem) for cause in _chain(error)):
            return True
        of_log = {
            "RIFFLE-0402": history.records,
            "RIFFLE-0405": history.swept,
            "RIFFLE-0244": history.swept,
            "RIFFLE-0245": history.swept,
        }
        if error.id in of_log:
            return sequence in of_log[error.id]
        if error.id == "RIFFLE-0404":
            return self._is_damaged(error.where)
        return tried is not None and self._was_given_up(error, tried.work)

    def _was_given_up(self, error: UnavailableError, work: SteppedWork) -> bool:
        """Return whether each of the listed runs was given up for a fault, the last one for the stated reason."""
        runs = _RUN.match(error.problem)
        cause = error.__cause__
        if runs is None or len(work.gave_up) < int(runs[1]):
            return False
        last = cause.problem if isinstance(cause, RiffleError) else str(cause)
        return last in work.gave_up[max(work.gave_up)]

    def _conflicts(self, error: ConflictError, actor: Actor, tried: TriedBatch | None) -> bool:
        if error.problem.startswith("The query continued while a command tried to switch the state"):
            return self._is_fenced(error.where, actor)
        if tried is None:
            return False
        incomplete = _INCOMPLETE.match(error.problem)
        if incomplete:
            return {*ast.literal_eval(incomplete[1])} <= tried.work.lost_receipts
        if " rows were routed to store " in error.problem:
            return error.where in tried.work.lost_rows
        return error.where == self._world.home.root and self._does_not_fit(actor.process, tried)

    def _does_not_fit(self, process: Any, tried: TriedBatch) -> bool:
        """Return whether the newest record of the log forbids the batch, and does not contain it."""
        tail = process.driver._log.tail  # private: the record that the driver considers the newest
        incoming = tried.incoming
        if tail is None:
            return not self._world.log_seen.records and incoming.version > 0
        record = self._world.log_seen.records.get(tail.sequence)
        if record is None or record.commit_id != tail.commit_id or tail.sequence < tried.newest:
            return False
        repeats = (record.version, record.offsets) == (incoming.version, incoming.offsets)
        fits = record.query_id == incoming.query_id and (repeats or record.version + 1 == incoming.version)
        return not fits


def _chain(error: BaseException | None) -> list[RiffleError]:
    contents = []
    while error is not None:
        if isinstance(error, RiffleError):
            contents.append(error)
        error = error.__cause__
    return contents
