"""Lines of a query's history, each with its expected results, and the operator who rolls the query back.

After a rollback a new line continues from an earlier batch with other rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError, CorruptStateError, RiffleError
from riffle_spark.offline import recovery, running_log, savepoints
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.protocol.batch.records import Stamp
from riffle_spark.protocol.ports import Delivery
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.copies.stacks import Stacks
from riffle_spark.state.log import log, paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Head
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import root_id
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.testing import SimSink
from riffle_spark.worker.member_folders import keys_of
from tests.dst.assignments import check_record
from tests.dst.dispatched import Dealt
from tests.dst.jobs import JOBS, Drawn, Job, same
from tests.dst.mailers import SAVEPOINTS
from tests.dst.scheduler import FOREVER, Actor, Process
from tests.kit.simulated.invariants import History
from tests.kit.simulated.world import held_by_key
from tests.kit.state.local_copies import unremembered

__all__ = ["Lines", "LinesHistory", "Remedies"]

MOST_REMEDIES = 4
ERA = 100
"""Numbers of lines are below this number. After a root is emptied or restored, rows differ by a multiple of it."""
NOT_SWEPT_YET = 4
"""The number of records after which objects below a raised promise are deleted at the latest."""


class Lines:
    """The job of each line, by the number of rollbacks before it."""

    def __init__(self, seed: int, kind: str, batches: int) -> None:
        self._seed = seed
        self._kind = kind
        self._batches = batches
        self._era = 0
        self.restored = 0
        """How often a root was restored. Each time numbers of records repeat."""
        self._origins = [[0] * batches]
        self.jobs = [self._job(0)]
        self.former: set[str] = set()
        """The ids of queries whose root was emptied."""
        self.dealings: dict[tuple[str, int], Dealt] = {}
        """The mappings of keys to shards that records had, by dispatch and number of key-groups."""

    def _job(self, line: int) -> Job:
        return JOBS[self._kind](Drawn(self._seed, self._origins[line]), self._batches)

    def begin(self, parent: int, version: int) -> None:
        """Start the next line after a batch of another one."""
        line = len(self.jobs)
        self._begin(line, self._origins[parent][: version + 1])

    def _begin(self, line: int, previous: list[int]) -> None:
        rows_of = line + ERA * self._era
        self._origins.append([*previous, *[rows_of] * (self._batches - len(previous))])
        self.jobs.append(self._job(line))

    def begin_anew(self, former: Iterable[str]) -> None:
        """Start with another query and no state. Earlier queries deliver nothing more."""
        self._era = self._era + 1
        self._origins = []
        self.jobs = []
        self.dealings = {}
        self.former.update(former)
        self._begin(0, [])

    def restore(self, line: int, version: int) -> None:
        """Continue a line from an earlier batch after a restore. All later lines are as if they had never started."""
        origin = self._origins[line][: version + 1]
        self._era = self._era + 1
        self.restored = self.restored + 1
        del self._origins[line:], self.jobs[line:]
        self._begin(line, origin)

    def origin(self, line: int, version: int) -> int:
        """Return the line that first ran a batch of a line. The batch's delivery id contains it."""
        return self.rows_of(line, version) % ERA

    def rows_of(self, line: int, version: int) -> int:
        """Return the number that distinguishes a batch's rows from those of other lines with the same batch id."""
        return self._origins[line][version] if version >= 0 else 0

    def check_delivery(self, store: str, rows: pa.Table, delivery: Delivery) -> None:
        """Check a delivery's id and compare its rows with the expected ones."""
        query, line, version = delivery.id.split("/")
        is_adopted = query.startswith("query") and query not in self.former and int(version) == delivery.batch_id
        assert is_adopted, f"wrong delivery id {delivery.id}"
        assert self.origin(int(line), int(version)) == int(line), f"another line delivered {delivery.id} before"
        self._check(store, rows, int(line), int(version))

    def check_sinks(self, sinks: Mapping[str, SimSink], records: Mapping[int, Record]) -> None:
        """Compare the deliveries in sinks with the outputs of the newest line."""
        line = len(self.jobs) - 1
        batches = [record for _, record in sorted(records.items()) if record.kind == "batch"]
        queries = {(batch.rollbacks, batch.version): batch.query_id for batch in batches}
        for store in self.jobs[0].outputs[0]:
            for version in range(self._batches):
                of = (self.origin(line, version), version)
                self._check(store, sinks[store].by_id.get(f"{queries[of]}/{of[0]}/{version}"), line, version)

    def _check(self, store: str, rows: pa.Table | None, line: int, version: int) -> None:
        delivered = [] if rows is None else rows.to_pylist()
        self.jobs[line].check_delivery(store, delivered, version, [*self.dealings.values()])


class LinesHistory(History):
    """A log with rollbacks: a rollback record starts a new line of history.

    By commit id, ``rollbacks`` has the target and operator of a rollback, ``begun`` the time at which the record was
    created, and ``writers`` its writer.
    """

    lines: Lines

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.schedule = world
        self.rollbacks: dict[str, tuple[int | str, Actor]] = {}
        self.begun: dict[str, float] = {}
        self.writers: dict[str, Process] = {}
        self.dealt: dict[Head, Dealt] = {}
        """The mapping of keys to shards of the record that first had a head."""
        self.contents: dict[Head, Mapping[str, Any]] = {}
        """The expected state of all keys at a head."""
        self.former: set[str] = set()
        """The folders of logs that were emptied. Their copies belong to no query."""
        self.strays: frozenset[str] = frozenset()
        """Objects of drivers that started between the copy of the log and the copy of the other objects."""

    def begin_anew(self) -> None:
        """Forget all records, because the root was emptied."""
        self.former |= {f"{root_id(self.world.home.root)}-{record.log_id[:12]}" for record in self.records.values()}
        mappings = (self.bytes, self.records, self.manifests, self.heads, self.timers, self.seen_at, self.dealt)
        for mapping in (*mappings, self.swept, self.contents):
            mapping.clear()
        self._looked_at = None

    def restore(self, newest: int, swept: Iterable[int]) -> None:
        """Forget the records after ``newest``. Their contents stay known, because local copies of them still exist."""
        for by_sequence in (self.bytes, self.records, self.manifests, self.seen_at):
            for sequence in [number for number in by_sequence if number > newest]:
                del by_sequence[sequence]
        self.swept = {*swept}
        self._looked_at = None

    def _note(self, sequence: int, record: Record, log: Any) -> None:
        super()._note(sequence, record, log)
        self.seen_at[sequence] = self.begun.get(record.commit_id, self.seen_at[sequence])
        if record.kind == "rollback":
            assert record.target is not None
            target, operator = self.rollbacks[record.commit_id]
            expected = self.target_of(target, sequence - 1)
            met = operator.met & self.schedule.damaged
            damaged = [name for name in met if paths.parse_record_name(name) is not None]
            assert record.target == expected or damaged, f"{target} led to record {record.target}, not {expected}"
            is_promised = record.target >= record.promised or is_savepoint(target)
            assert is_promised, f"a rollback to record {record.target}, which was not promised"
            self.lines.begin(self.records[record.target].rollbacks, record.version)
        if record.kind == "batch":
            check_record(record)
        dealt = Dealt.by(record)
        self.lines.dealings[record.dispatch, record.total] = dealt
        for entry in self.manifests[sequence].entries.values():
            self.dealt.setdefault(entry.head, dealt)
            self.contents.setdefault(entry.head, self.lines.jobs[record.rollbacks].contents[entry.head.version])
        if record.kind == "dispatch" and record.version >= 0:
            contents = self.lines.jobs[record.rollbacks].contents[record.version]
            self.schedule.dispatched.check_switched(record, self.manifests[sequence], contents)

    def watch_copies(self, patch: pytest.MonkeyPatch) -> None:
        """Check each local copy when an executor replaces its stack."""
        switch = Stacks.replace_many
        current_actor = self.schedule.scheduler.mine

        def switched(stacks: Stacks, replacements: Mapping[int, tuple[Stack | None, Stack]]) -> set[int]:
            actor = current_actor()
            folder = Path(stacks._path).parents[1]  # private: the folder of the copy
            if actor is not None and actor.process.executor:
                with unremembered():
                    for key_group, (_, stack) in replacements.items():
                        address = (stacks.store, key_group)
                        self.schedule.holds(partial(self.check_copy, folder, address, stack, {}))
            return switch(stacks, replacements)

        patch.setattr(Stacks, "replace_many", switched)

    def begins(self, commit_id: str) -> str:
        """Record the time and the writer of a new record."""
        actor = self.schedule.scheduler.mine()
        self.begun[commit_id] = self.schedule.clock.seconds()
        if actor is not None:
            self.writers[commit_id] = actor.process
        return commit_id

    def kept_seconds(self, record: Record) -> float:
        """Return how long the writer of this record retains older records at least, by its clock."""
        skews = self.schedule.skews
        driver = getattr(self.writers.get(record.commit_id), "driver", None)
        retained_for = driver.settings.retained_for if driver else super().kept_seconds(record)
        return max(retained_for, 2 * log.SURE_SECONDS) - (max(skews) - min(skews)) / 1000

    def target_of(self, target: int | str, newest: int) -> int | None:
        """Return the record of a batch id, record number or savepoint, if ``newest`` is the last record."""
        if is_savepoint(target):
            sequences = {f"savepoint:{each.name}": each.sequence for each in self.records[newest].savepoints}
            return sequences.get(str(target))
        if isinstance(target, str):
            return int(target.removeprefix("record:"))
        sequence: int | None = newest
        while sequence is not None and sequence >= 0 and self.records[sequence].version != target:
            record = self.records[sequence]
            sequence = sequence - 1 if record.target is None else record.target
        return sequence if sequence is not None and sequence >= 0 else None

    def check_bounded(self) -> None:
        """Check that stored objects are bounded by what retained records list, after all scans had time."""
        newest = max(self.records)
        tail = self.records[newest]
        first = self.records[newest].promised - NOT_SWEPT_YET
        retained = {n: record for n, record in self.records.items() if n >= first}
        listed = {link.object for record in retained.values() for _, link in record.outputs}
        listed |= {name for n in retained for name in self.manifests[n].object_names()}
        for savepoint in tail.savepoints:
            listed |= {paths.savepoint_name(savepoint.id), *self.listed_by_savepoint(savepoint)}
        present = self.world.memory.list("")
        needed = self.records[max(first, 0)].full - 1
        old = [name for name in present if (n := paths.parse_record_name(name)) is not None and n < needed]
        assert not old, f"{len(old)} unneeded records are not deleted, the first is {old[0]}"
        others_parsed = [
            object_name for name in present if name not in listed and (object_name := self._parsed(name, tail.epoch))
        ]
        given_up = tail.version - 1  # objects of the last failed batches are deleted with the next batches
        unlisted = [s for s in others_parsed if s.epoch < tail.epoch or (s.kind == "delta" and s.version < given_up)]
        assert not unlisted, f"{len(unlisted)} objects without a retained record are not deleted, such as {unlisted[0]}"
        snapshots = [s for s in others_parsed if s.kind == "snapshot"]
        assert len(snapshots) <= self.world.settings.key_groups * len(self.world.operators), "snapshots accumulate"

    def _parsed(self, name: str, epoch: int) -> paths.ObjectName | None:
        """Parse an object's name. Return ``None`` for an object that may belong to a newer driver."""
        parsed = paths.parse_object_name(name)
        return parsed if parsed is None or parsed.epoch < epoch or name not in self.strays else None

    def refuses(self, wanted_target: int | str) -> bool:
        """Return whether a rollback to this target may be refused: it does not exist, or is not promised."""
        self.look()
        newest = max(self.records)
        target = self.target_of(wanted_target, newest)
        if target is None or is_savepoint(wanted_target):
            return target is None
        return not self.records[newest].promised <= target <= newest

    def _part_of(self, state: Mapping[object, Any], key_group: int, head: Head) -> dict[object, Any]:
        places = self.dealt[head].of(list(state))
        return {key: value for (key, value), place in zip(state.items(), places, strict=True) if place == key_group}

    def _contents_at(self, head: Head, contents: Any) -> Any:  # noqa: ARG002 - there are several lines
        return self.contents[head]

    def check_copy(self, folder: Path, address: Address, stack: Stack, contents: Any) -> bool:
        """I2 for a local copy of this log."""
        return folder.parent.name not in self.former and super().check_copy(folder, address, stack, contents)


def is_savepoint(target: int | str) -> bool:
    """Return whether a target of a rollback is a savepoint."""
    return isinstance(target, str) and target.startswith("savepoint:")


class Remedies:
    """An operator who rolls the query back, each time in a new process. ``world`` is the schedule."""

    def __init__(self, world: Any, folder: Path) -> None:
        self._world = world
        self._folder = folder
        self._chance: random.Random = world.chance
        self._actor: Actor | None = None
        self._asking: int | str = -1
        self._stamped = ""
        self.begun = 0
        self.line = 0
        """The line of Spark's checkpoint."""
        self.astray: int | None = None
        """The batch of Spark's checkpoint if it does not match the root after a restore."""

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Patch the recovery commands: their store calls become steps, and their ids come from the seed."""
        patch.setattr(recovery, "open_store", lambda *_: self._world.stepped)
        patch.setattr(recovery, "_stamp", self._drawn_stamp)  # private: its ids must come from the seed
        clocks = lambda: (self._world.clock.seconds(), self._world.clock.wall_ms() / 1000)  # noqa: E731 - two modules
        patch.setattr(recovery, "machine_clocks", clocks)
        patch.setattr(running_log, "machine_clocks", clocks)
        patch.setattr(savepoints, "open_store", lambda *_: self._world.stepped)
        patch.setattr(savepoints, "user_name", lambda: "ann")
        patch.setattr(savepoints, "socket", SimpleNamespace(gethostname=lambda: "host"))
        patch.setattr(savepoints, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=self._drawn_id())))
        now = SimpleNamespace(
            time_ns=lambda: self._world.clock.wall_ms() * 1_000_000, sleep=self._world.scheduler.sleep
        )
        patch.setattr(savepoints, "time", now)

    def _drawn_id(self) -> str:
        """Return a random id that may become the commit id of a record of the current actor."""
        return self._world.log_seen.begins(self._chance.randbytes(16).hex())

    def _drawn_stamp(self) -> Stamp:
        stamp = Stamp(self._drawn_id(), self._world.clock.wall_ms())
        operator = self._world.scheduler.mine()
        assert operator is not None
        self._world.log_seen.rollbacks[stamp.commit_id] = self._asking, operator
        self._stamped = stamp.commit_id
        return stamp

    def begins(self) -> bool:
        """Start an operator sometimes, and always after an unfinished rollback. Return whether one is at work."""
        records = self._world.log_seen.records
        has_savepoints = bool(records) and bool(records[max(records)].savepoints)
        often = has_savepoints or self._world.settings.retained_versions > 4
        share = 0.6 if self._lead_astray() else 0.2 if often else 0.1
        if self.unfinished() or (self.begun < MOST_REMEDIES and self._world.often(share)):
            self._begin()
        elif self.begun < MOST_REMEDIES and self._world.often(0.04):
            self._begin_adopting()
        elif self.begun < MOST_REMEDIES and self._world.often(0.05):
            self._begin_savepoint()
        elif self.begun < MOST_REMEDIES and self._world.often(self._world.dispatched.share):
            self.begun += 1
            self._actor = self._world.dispatched.begins(f"operator {self.begun}")
        return self.at_work()

    def finish(self) -> None:
        """Finish an unfinished rollback."""
        if self.unfinished():
            self._begin()
        self._world.scheduler.wait(lambda: not self.at_work(), 5_000.0)

    def unfinished(self) -> bool:
        """Return whether only the log was rolled back, or only one of log and checkpoint was restored."""
        return self.astray is not None or self.line < len(self._world.lines.jobs) - 1

    def at_work(self) -> bool:
        """Return whether an operator is at work. An operator that hangs is stopped."""
        actor = self._actor
        if actor is not None and not actor.done and actor.until >= FOREVER and actor.ready is None:
            self._world.stop(actor.process)
        return actor is not None and not actor.done

    def _begin(self) -> None:
        """Stop the query, except for work that continues unseen, and roll it back."""
        with self._world.scheduler.quiet():
            to = self._choose()
            is_lost = isinstance(to, int) and self._world.log_seen.refuses(to)  # a driver that continues might reach it
        if to is None:
            return
        self.begun += 1
        running = [program for program in self._world.programs if program.alive]
        for program in running:
            if is_lost or not program.claimed or self._chance.random() < 0.7:
                self._world.stop(program)
        alone = not any(program.alive for program in running)
        self._world.say(f"an operator rolls the query back to {to}, {'alone' if alone else 'while other actors run'}")
        self._asking = to
        process = Process(f"operator {self.begun}")
        self._actor = self._world.scheduler.spawn(
            f"operator {self.begun}", "operator", process, lambda: self._take_back(to)
        )

    def _begin_adopting(self) -> None:
        """Stop the query, and let a query with another checkpoint adopt its state.

        This needs a newest record that is the last batch that Spark committed. Queries with event time are excluded,
        because their watermark would restart.
        """
        world = self._world
        with world.scheduler.quiet():
            world.log_seen.look()
        records = world.log_seen.records
        late = any(actor.kind == "late put" for actor in world.scheduler.actors)
        newest = records[max(records)] if records else None
        sealed = newest is not None and newest.delivers_after_commit and any(link.rows for _, link in newest.outputs)
        undelivered = sealed and newest is not None and newest.version == world.committed + 1
        is_there = newest is not None and newest.version == world.committed >= 0
        by_event_time = any(times.watermark_ms is not None for times in world.job.times)
        if not (is_there or undelivered) or late or by_event_time:
            return
        self.begun += 1
        for program in [program for program in world.programs if program.alive]:
            world.stop(program)
        name = f"operator {self.begun}"
        world.say(f"{name} lets another query adopt the state")
        self._actor = world.scheduler.spawn(name, "operator", Process(name), lambda: self._adopt(undelivered))

    def _begin_savepoint(self) -> None:
        """Stop the query, and create or delete a savepoint by a command, unless a put is still under way."""
        world = self._world
        with world.scheduler.quiet():
            world.log_seen.look()
        records = world.log_seen.records
        if not records or any(actor.kind == "late put" for actor in world.scheduler.actors):
            return
        self.begun += 1
        for program in [program for program in world.programs if program.alive]:
            world.stop(program)
        name = self._chance.choice(SAVEPOINTS)
        is_there = any(each.name == name for each in records[max(records)].savepoints)
        operator = f"operator {self.begun}"
        world.say(f"{operator} {'deletes' if is_there else 'creates'} savepoint {name}")
        self._actor = world.scheduler.spawn(
            operator, "operator", Process(operator), lambda: self._change_savepoint(name, is_there=is_there)
        )

    def _change_savepoint(self, name: str, *, is_there: bool) -> None:
        world = self._world
        world.step("begins")
        try:
            command = savepoints.Savepoints(world.home.root)
            (command.delete if is_there else command.create)(name)
        except RiffleError as error:
            world.say(f"{type(error).__name__}: {str(error)[:150]}")
            world.check_expected(error)
            return
        world.holds_told(command.tail.commit_id)
        world.step("savepoint changed")

    def _adopt(self, undelivered: bool) -> None:
        """Adopt the state. This must be refused if the last output was not delivered."""
        world = self._world
        checkpoint = self.checkpoint(f"query{self.begun}")
        previous = self.checkpoint()
        world.step("begins")
        try:
            recovery.adopt(world.home.root, checkpoint.location, delivered=previous.location, execute=True)
        except RiffleError as error:
            world.say(f"{type(error).__name__}: {str(error)[:150]}")
            if not (undelivered and isinstance(error, ConfigError)):
                world.check_expected(error)
            return
        world.holds_told(self._stamped)
        if undelivered:
            world.scheduler.broke(AssertionError("the state was adopted although its last output was not delivered"))
        world.step("state taken over")

    def _choose(self) -> int | str | None:
        """Return a random target: an earlier batch, record or savepoint, sometimes one that is no longer promised.

        After an unfinished rollback the target is the version of the log.
        """
        history = self._world.log_seen
        history.look()
        newest = history.records[max(history.records, default=0)] if history.records else None
        if newest is None:
            return None
        if self.unfinished():
            is_back = self.astray is not None and self.astray < newest.version and not history.refuses(self.astray)
            return self.astray if is_back and self._chance.random() < 0.5 else newest.version
        candidates = self._kept_from(0 if self._chance.random() < 0.2 else newest.promised)
        if not candidates:
            return None
        led = self._led_elsewhere(newest)
        if led:
            return self._chance.choice(led)
        target = self._chance.choice(candidates)
        lines = self._world.lines
        line = newest.rollbacks
        is_present = lines.origin(line, target.version) == lines.origin(target.rollbacks, target.version)
        if is_present and self._chance.random() < 0.6:
            return target.version
        return f"record:{target.sequence}"

    def _savepoints(self, newest: Record) -> list[str]:
        """Return the savepoints that the query can be rolled back to."""
        sequences = {record.sequence for record in self._kept_from(0)}
        return [f"savepoint:{each.name}" for each in newest.savepoints if each.sequence in sequences]

    def _led_elsewhere(self, newest: Record) -> Sequence[int | str]:
        """Sometimes return savepoints, or batches whose newest record belongs to an abandoned line."""
        choices: list[tuple[Sequence[int | str], float]] = [
            (self._savepoints(newest), 0.5),
            (self._lead_astray(), 0.6),
            (self._given_up(newest), 0.3),
        ]
        for targets, share in choices:
            if targets and self._chance.random() < share:
                return targets
        return []

    def _kept_from(self, first: int) -> list[Record]:
        """Return the records from ``first`` on that the query can be rolled back to."""
        records = self._world.log_seen.records
        first = max([first, *(n + 1 for n, record in records.items() if record.kind == "adopt")])
        back = [record for n, record in records.items() if n >= first and record.version < self._world.committed]
        return [record for record in back if record.offsets or record.version < 0]

    def _lead_astray(self) -> list[int]:
        """Return the batches whose newest promised record is of an abandoned line.

        Their number finds another record.
        """
        history = self._world.log_seen
        newest = max(history.records, default=-1)
        if newest < 0:
            return []
        newest_of = {record.version: record.sequence for record in self._kept_from(history.records[newest].promised)}
        return [v for v, sequence in newest_of.items() if history.target_of(v, newest) not in (sequence, None)]

    def _given_up(self, newest: Record) -> list[int]:
        """Return the batches that only an abandoned line has, if no put of such a batch is under way."""
        if any(actor.kind == "late put" for actor in self._world.scheduler.actors):
            return []
        records = self._world.log_seen.records.values()
        return sorted({record.version for record in records if record.version > newest.version})

    def _take_back(self, to: int | str) -> None:
        world = self._world
        checkpoint = self.checkpoint()
        lines = world.lines
        world.step("begins")
        try:
            plan = recovery.rollback(world.home.root, to, checkpoint.location, execute=True)
        except RiffleError as error:
            world.say(f"{to}: {type(error).__name__}: {str(error)[:150]}")
            with world.scheduler.quiet():
                refused = isinstance(error, (ConfigError, CorruptStateError)) and world.log_seen.refuses(to)
            if not refused:
                world.check_expected(error)
            return
        world.holds_told(self._stamped)
        world.step("query taken back")
        with world.scheduler.quiet():
            self.line = len(lines.jobs) - 1
            world.committed = checkpoint.next_batch() - 1
            self.astray = None
        world.say(f"line {self.line} continues after batch {plan.version}")

    def checkpoint(self, query_id: str = "", looked: str = "") -> Checkpoint:
        """Write Spark's checkpoint as of now, or that of another query at the same batch. Return it."""
        folder = self._folder / f"checkpoint-{self.begun}{query_id}{looked}"
        with self._world.scheduler.quiet():
            for name in ("offsets", "commits"):
                (folder / name).mkdir(parents=True)
                for version in range(self._world.committed + 1):
                    offsets = self._world.dispatched.offsets(self.line, version)
                    (folder / name / str(version)).write_text(offsets if name == "offsets" else f"{name}-{version}")
            (folder / "metadata").write_text(json.dumps({"id": query_id or self._world.query_id}))
        return Checkpoint(str(folder))


class SlowReader:
    """A slow reader of the newest state, which reads objects while the query runs. ``world`` is the schedule."""

    def __init__(self, world: Any, folder: Path) -> None:
        self._world = world
        self._folder = folder

    def begin(self, number: int) -> None:
        """Start a reader."""
        name = f"reader {number}"
        self._world.scheduler.spawn(name, "reader", Process(name), lambda: self._read(name))

    def _read(self, name: str) -> None:
        """Compare the state of every store. Objects that are no longer promised may be deleted meanwhile."""
        world = self._world
        world.step("begins")
        log = Log(world.stepped, world.home.root)
        tail = None
        try:
            tail = log.open()
            if tail is None or tail.version < 0:
                return
            expected = world.lines.jobs[tail.rollbacks].contents[tail.version]
            for store in sorted(expected.keys() & tail.schemas.keys()):
                actual = self._state(log, tail, store, self._folder / name / store)
                same(
                    actual, dict(expected[store]), f"the state of {store} by record {tail.sequence}, as {name} sees it"
                )
                if schema_of_text(store, tail.schemas[store]).one_row_a_key:
                    same(len(actual), tail.row_counts[store], f"the rows of {store} that record {tail.sequence} counts")
                world.scheduler.sleep(world.chance.choice([0.1, 10.0, 200.0]))
            world.say(f"{name} has read record {tail.sequence}")
        except RiffleError as error:
            world.say(f"{name}: {type(error).__name__}: {str(error)[:150]}")
            if not (tail is not None and world.excuses.is_gone(error) and self._is_given_up(tail)):
                world.check_expected(error)

    def _state(self, log: Log, tail: Record, store: str, folder: Path) -> dict[object, tuple[object, ...]]:
        entries = {key_group: entry for (of, key_group), entry in log.manifest.entries.items() if of == store}
        schema = schema_of_text(store, tail.schemas[store])
        state = dict[object, tuple[object, ...]]()
        for table in restore_tables(
            schema, entries, Reader(self._world.stepped, keys_of(self._world.home)), folder
        ).values():
            state |= held_by_key(table)
        return state

    def _is_given_up(self, tail: Record) -> bool:
        history = self._world.log_seen
        with self._world.scheduler.quiet():
            history.look()
        return tail.sequence < history.records[max(history.records)].promised
