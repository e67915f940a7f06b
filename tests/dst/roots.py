"""Operators who empty a root and restart, or restore the root, the checkpoint or both from an earlier copy.

Local copies stay on the executors' disks. These events have separate random numbers, so that other histories of a seed
do not change.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riffle_spark.offline.verify import Verified, verify
from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import open_store
from tests.dst.faults import ON_EXECUTORS

__all__ = ["Roots"]

_COMES = ("", "", "", "", "emptied", "restored", "restored", "restored")
_AFTER = (-1, 0, 0, 1, 2, 3)
"""The batch after which a root is emptied or copied. Negative: before the last one."""
_LATER = (1, 2, 2, 20)
"""The number of batches between a copy and its restore. The last batch ends the wait."""
_REFUSED_SECONDS = 2_000.0


@dataclass
class _Copy:
    """A copy of root and checkpoint, with its newest record and the number of lines at that time."""

    log: dict[str, bytes]
    newest: int
    swept: frozenset[int]
    lines: int
    query_id: str
    rest: dict[str, bytes]
    committed: int = -1


class Roots:
    """An operator who empties, or copies and restores the root, at most once per history. ``world`` is the schedule."""

    def __init__(self, world: Any, folder: Path) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/roots")
        self._comes = self._chance.choice(_COMES)
        self.stays = not self._comes
        """Whether the root is never emptied or restored in this history."""
        self._after = self._chance.choice(_AFTER)
        self._later = self._chance.choice(_LATER)
        self._beside = self._chance.random() < 0.5
        self._lasts, self._drivers = self._chance.choice([(0, 0), (0, 0), (1, 0), (0, 2), (3, 2)])
        """The number of batches and of drivers between the copy of the log and of the other objects."""
        self._folder = folder.with_name(f"{folder.name}-root")
        self._copy: _Copy | None = None
        self.url = f"file://{self._folder}" if self._chance.random() < 0.1 else ""
        """The URL of the root. Sometimes it is a directory."""
        self.batches = 6 if self._comes == "restored" else 0
        """The minimum number of batches that these events need."""
        self.query_id = "query"
        """The id of a query that starts without state."""

    def end(self) -> None:
        """Remove the files of a root."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def is_copied(self) -> bool:
        """Whether the log of the running query was copied and the other objects are not yet."""
        return bool(self._comes) and self._copy is not None and self._beside

    def is_due(self) -> bool:
        """Return whether an operator acts now."""
        world = self._world
        copy = self._copy
        if not self._comes or self.is_copied:
            return False
        batch = max(self._after, -(self._comes == "restored")) if copy is None else copy.committed + self._later
        return bool(world.committed >= min(batch, world.last - (copy is None))) and self._is_quiet()

    def _is_quiet(self) -> bool:
        """Return whether no put and no other operator is under way."""
        world = self._world
        is_on_its_way = any(actor.kind == "late put" for actor in world.scheduler.actors)
        is_busy = is_on_its_way or world.remedies.at_work() or world.remedies.unfinished()
        return bool(world.log_seen.records) and not is_busy

    def _goes_on(self) -> bool:
        """Return whether the second part of a copy of the running query is due."""
        world = self._world
        copy = self._copy
        if copy is None or not self.is_copied:
            return False
        records = world.log_seen.records
        have_come = records[max(records)].epoch >= records[copy.newest].epoch + self._drivers
        goes_on = world.committed >= copy.committed + self._lasts and have_come
        return bool(goes_on or world.committed >= world.last) and self._is_quiet()

    def begins(self) -> bool:
        """Do or continue what is due. Return whether anything was."""
        if not (self._goes_on() or self.is_due()):
            return False
        with self._world.scheduler.quiet():
            self._world.log_seen.look()
        if self._comes == "emptied":
            self._empty()
        elif self._copy is None:
            self._begin_copy()
        elif self._beside:
            self._end_copy()
        else:
            self._restore(self._copy)
        return True

    def _stop(self) -> None:
        """Stop the query and its tasks. Executors stay, with their memory."""
        world = self._world
        for program in [program for program in world.programs if program.alive]:
            world.stop(program)
        for actor in [actor for actor in world.scheduler.actors if actor.kind in (*ON_EXECUTORS, "reader")]:
            world.scheduler.kill(actor)

    def _stored(self, *, log: bool) -> dict[str, bytes]:
        memory = self._world.memory
        names = [name for name in memory.list("") if name.startswith(paths.LOG) == log]
        return {name: memory.get(name) for name in names}

    def _refused(self) -> None:
        """Start the query with a mismatched root and checkpoint, and check that it writes nothing."""
        world = self._world
        before = self._own_names()
        world.start()
        program = world.programs[-1]
        world.scheduler.wait(lambda: program.ended or not program.alive, _REFUSED_SECONDS)
        self._stop()
        assert self._own_names() == before, "a query whose root and checkpoint do not match has written objects"

    def _own_names(self) -> set[str]:
        """Return the names of all objects except the mailbox, which an operator may write meanwhile."""
        return {*self._world.memory.list("")} - {paths.MAILBOX}

    # --- a root that is emptied ---------------------------------------------------------------------------------------

    def _empty(self) -> None:
        world = self._world
        self._comes = ""
        self._stop()
        world.say("the root is emptied")
        with world.scheduler.quiet():
            queries = {record.query_id for record in world.log_seen.records.values()}
            world.memory.delete(world.memory.list(""))
            world.log_seen.begin_anew()
        if world.committed >= 0 and self._chance.random() < 0.5:
            self._refused()
        self.query_id = "query-anew"
        world.lines.begin_anew(queries)
        world.committed = -1
        world.remedies.line = 0

    # --- a root that is copied, and restored --------------------------------------------------------------------------

    def _begin_copy(self) -> None:
        """Copy the log. If the query is stopped, copy the other objects too."""
        world = self._world
        records = self._world.log_seen.records
        newest = records[max(records)]
        if not self._beside:
            self._stop()
        with world.scheduler.quiet():
            log = self._stored(log=True)
            rest = self._stored(log=False)
        swept = frozenset(world.log_seen.swept)
        lines = len(world.lines.jobs)
        world.say(f"the {'log' if self._beside else 'stopped query'} is copied, to record {newest.sequence}")
        self._copy = _Copy(log, newest.sequence, swept, lines, newest.query_id, rest, world.committed)

    def _end_copy(self) -> None:
        """Copy the other objects, then the checkpoint. Verification must report an incomplete copy.

        If the query was rolled back or adopted meanwhile, the copy is taken again.
        """
        world = self._world
        copy = self._copy
        assert copy is not None
        with world.scheduler.quiet():
            copy.rest = self._stored(log=False)
            copy.committed = world.committed
            newest = world.log_seen.records[max(world.log_seen.records)]
            verified = self._verified(copy)
        retained = range(world.log_seen.records[copy.newest].promised, copy.newest + 1)
        listed = {name for sequence in retained for name in world.log_seen.listed_by(sequence)}
        for savepoint in world.log_seen.records[copy.newest].savepoints:
            listed |= {paths.savepoint_name(savepoint.id), *world.log_seen.listed_by_savepoint(savepoint)}
        missing = listed - copy.rest.keys()
        assert bool(missing) == verified.is_damaged, f"a copy that lacks {missing} has the findings {verified.findings}"
        is_one = (len(world.lines.jobs), newest.query_id) == (copy.lines, copy.query_id)
        self._lasts = 0
        self._drivers = 0
        self._beside = not is_one or bool(missing)
        self._copy = copy if is_one and not missing else None
        world.say(f"the rest is copied, the checkpoint at batch {copy.committed}, {len(missing)} objects are missing")

    def _verified(self, copy: _Copy) -> Verified:
        url = f"memory://copy-of-{self._world.home.root.rpartition('/')[2]}"
        aside = open_store(url)
        _fill(aside, (copy.log, copy.rest))
        try:
            return verify(url, encryption_keys=self._world.settings.encryption_keys)
        finally:
            aside.delete(aside.list(""))

    def _restore(self, copy: _Copy) -> None:
        """Restore root and checkpoint, or only one of them if the other is of the same line."""
        world = self._world
        history = self._world.log_seen
        self._comes = ""
        self._stop()
        newest = history.records[max(history.records)]
        is_one = (len(world.lines.jobs), newest.query_id) == (copy.lines, copy.query_id)
        part = self._chance.choice(["both", "both", "root", "checkpoint"]) if is_one else "both"
        if part != "checkpoint":
            with world.scheduler.quiet():
                world.memory.delete(world.memory.list(""))
                _fill(world.memory, (copy.log, copy.rest))
            self._go_back(copy)
        if part != "root":
            world.committed = copy.committed
        tail = history.records[max(history.records)]
        fits = tail.version - 1 <= world.committed <= tail.version
        world.say(f"restored: {part}, record {tail.sequence}, batch {tail.version}, checkpoint at {world.committed}")
        self._look(tail, fits=fits)
        if not fits:
            world.remedies.astray = world.committed
            if self._chance.random() < 0.5:
                self._refused()

    def _go_back(self, copy: _Copy) -> None:
        """Continue from a copy. The sink's deliveries of later batches are removed, as by a user."""
        world = self._world
        world.log_seen.restore(copy.newest, copy.swept)
        tail = world.log_seen.records[copy.newest]
        epochs = {name: parsed.epoch for name in copy.rest if (parsed := paths.parse_object_name(name))}
        world.log_seen.strays = frozenset(name for name, epoch in epochs.items() if epoch > tail.epoch)
        world.lines.restore(tail.rollbacks, tail.version)
        world.remedies.line = tail.rollbacks
        for sink in world.sinks.values():
            for name in [*sink.by_id]:
                line, version = map(int, name.split("/")[1:])
                if (line, version) > (tail.rollbacks, tail.version):  # deliveries of earlier lines were there before
                    del sink.by_id[name]

    def _look(self, tail: Any, *, fits: bool) -> None:
        """Check that the restored root is complete, and that a checkpoint that does not match is reported."""
        world = self._world
        with world.scheduler.quiet():
            world.log_seen.look()
            world.query_id = tail.query_id
            checkpoint = world.remedies.checkpoint(looked=" restored")
            findings = verify(
                world.home.root, checkpoint.location, encryption_keys=world.settings.encryption_keys
            ).findings
        wrong = [finding for finding in findings if finding.level != "note"]
        assert len(wrong) == (not fits), f"restored, at batch {tail.version} of {world.committed}: {wrong}"


def _fill(store: Any, parts: Iterable[dict[str, bytes]]) -> None:
    for part in parts:
        for name, data in part.items():
            store.put_if_absent(name, data)
