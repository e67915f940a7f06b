"""One history of a query with faults: drivers, upkeep, executors and operators are actors.

``Schedule(seed, folder).run()`` plays a history and compares all results with those of plain Python. The same seed with
the same aims plays the same history.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark.errors import RiffleError
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.ports import Delivery, IncomingBatch
from riffle_spark.protocol.upkeep import claim_work, merges, retention, upkeep
from riffle_spark.state.log import log, paths
from riffle_spark.state.restore import reader, stack_parts
from riffle_spark.worker import upkeep_piece, whole_groups
from tests.dst.assignments import watch_assignments
from tests.dst.cluster import SkewedClock, SteppedBackground, SteppedCluster, SteppedSink, SteppedWork
from tests.dst.dispatched import Dispatched, parted
from tests.dst.encrypted import Encrypted
from tests.dst.excuses import Excuses, TriedBatch
from tests.dst.faults import ON_EXECUTORS, Aim, Faults
from tests.dst.jobs import JOBS, same
from tests.dst.lines import Lines, LinesHistory, Remedies, SlowReader
from tests.dst.mailers import Mailers
from tests.dst.process_table import ProcessTable
from tests.dst.roots import Roots
from tests.dst.s3_in_memory import S3InMemory
from tests.dst.scheduler import FOREVER, Actor, Process, Scheduler
from tests.dst.stepped_files import SteppedFiles
from tests.dst.stepped_store import SteppedStore
from tests.dst.wrong_starts import WrongStarts
from tests.kit.simulated.disturbances import Disturbances, drawn_settings
from tests.kit.simulated.fixtures import trusted_for
from tests.kit.simulated.placement_invariants import check_copies_bounded, watch_the_cleaner
from tests.kit.simulated.world import World
from tests.kit.state.local_copies import unremembered

__all__ = ["Schedule"]

MOST_DRIVERS = 3
MOST_READERS = 2
MOST_STARTS = 200
CALM_AFTER = 20
"""After this many starts further starts are rare, because drivers that only take over commit nothing."""
REST_SECONDS = 5_000.0
STILL_SECONDS = 20.0
S3_SHARE = 0.1
"""The share of histories that use the S3 client, whose calls take a millisecond each.

These have standbys that fetch snapshots in several ranges.
"""
TASKS_SHARED = 0.5
"""The share of histories in which one task runs a slot for all stores with the same key."""
LOOKS_SECONDS = 1.5
IDLE_LOOKS_SECONDS = 15.0
"""The time between a driver's checks between batches.

It is longer without faults, because it is most of the simulated time.
"""
RETAINED_FOR = [0, 0, 0, 5, 5, 300]
"""Each driver has a random one of these settings."""
OLD_SECONDS = 700.0
"""A time longer than scans, clean-ups and retention wait."""


class _Program(Process):
    """The process of a driver."""

    driver: Driver
    background: SteppedBackground
    clock: SkewedClock

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(name)
        self.run_id = run_id
        self.ended = self.claimed = False


class Schedule(World):
    """One random history. ``history`` lists the events, ``faults`` the faults by step."""

    def __init__(
        self,
        seed: int,
        local_dir: Path,
        *,
        aims: Iterable[Aim] = (),
        job: str = "",
    ) -> None:
        self.ready = False
        self.seed = seed
        aims = list(aims)
        chance = random.Random(seed)
        self.kind = job or chance.choice(list(JOBS))
        self.roots = Roots(self, local_dir)
        self.pace = chance.choice([1.0] * 4 + [0.15])
        """The pace of random events. A slow pace lets a driver live for many batches."""
        batches = chance.choice([3, *[4] * 4, *[5] * 3, 9]) if self.pace == 1.0 else 12
        self.lines = Lines(seed, self.kind, max(batches, self.roots.batches))
        self.job = self.lines.jobs[0]
        self.encrypted = Encrypted(seed)
        server = random.Random(f"{seed}/store")
        is_s3 = server.random() < S3_SHARE
        settings = {
            "orphan_scan_interval": chance.choice([1, 60, 600]),
            "retained_for": 0,
            "retained_versions": chance.choice([2, 2, 3, 4, 20]),
            "snapshot_chain_links": chance.choice([2, 3, 16, 20, 20, 20]),
            "folder_cleanup_delay": chance.choice([0, 30, 86_400]),
            "upkeep_timeout": chance.choice([1, 5, 60, 60]),
            **drawn_settings(chance),
            **self.job.settings,
            "upkeep_bandwidth": chance.choice([1, 1, 1_000, 50_000_000]),
            **({"num_standbys": 1, "upkeep_bandwidth": 300} if is_s3 else {}),
            **self.encrypted.settings,
            **Mailers.settings(seed),
        }
        super().__init__(
            local_dir,
            executors=(),
            operators=self.job.operators,
            seed=seed,
            key_groups=6,
            root=self.roots.url,
            **settings,
        )
        self.chance = chance
        self.history = [f"seed {seed}, {self.kind}"]
        self.scheduler = Scheduler(chance, self.clock, chance.choice([0.02, 0.1, 0.3, 1.0]))
        self.files = SteppedFiles(local_dir, self.scheduler)
        self.scheduler.at_step = self._at_step
        self.scheduler.died = self.files.tear
        self.faults = Faults(chance, aims)
        self.server = S3InMemory(self.memory, server, self.scheduler.sleep) if is_s3 else None
        reached = self.server.store if self.server else self.memory
        self.stepped = SteppedStore(reached, self.scheduler, self._changed)
        self.cluster: Any = SteppedCluster(self.home, self.stepped, self.scheduler)
        self.cluster.clock = self.clock
        self.cluster.shares_tasks = random.Random(f"{seed}/tasks").random() < TASKS_SHARED
        self.cluster.worked = self._worked
        self.stepped.read = self._has_read
        self.stepped.deletes = self._deletes
        for name in ("1", "2"):
            self.cluster.add(name)
        self.sinks: Any = {
            operator.store: SteppedSink(self.scheduler, partial(self._delivered, operator.store))
            for operator in self.operators
        }
        self._make_actors(local_dir)
        self.last = len(self.job.batches) - 3
        self.programs: list[_Program] = []
        self.executors = 2
        self.readers = 0
        self.ready = True

    def _make_actors(self, local_dir: Path) -> None:
        self.log_seen = LinesHistory(self)
        self.log_seen.lines = self.lines
        self.dispatched = Dispatched(self, local_dir)
        self.wrong_starts = WrongStarts(self)
        self.remedies = Remedies(self, local_dir)
        self.mailers = Mailers(self)
        self.reader = SlowReader(self, local_dir)
        self.excuses = Excuses(self)
        self.damaged: set[str] = set()
        """Objects whose bytes were damaged or missing."""
        self.stepped.damages = self._damages
        self.operator = Disturbances(self, self.chance, self.say)
        self.skew_ms = 0
        self.skews = {0}
        self.committed = -1
        self.disturbed: Counter[str] = Counter()

    def start(self, background: Any = None) -> Driver:  # noqa: ARG002 - each driver has one of its own here
        """Start a driver in a new process."""
        if not self.ready:
            return None  # type: ignore[return-value]  # the base class starts one before there are actors
        assert self.runs < MOST_STARTS, f"the query did not end in {MOST_STARTS} starts"
        self.runs += 1
        name = f"driver {self.runs}"
        self.run_id = f"run-{self.runs}"
        with self.scheduler.quiet():
            self.log_seen.look()
        records = self.log_seen.records
        newest = records[max(records)] if records else None
        self.query_id = newest.query_id if newest else self.roots.query_id  # the query that owns the state now
        self.settings = self.settings.but(**self.dispatched.settings(newest))
        program = self.program(name)
        self.driver = program.driver
        self.scheduler.spawn(f"{name} batches", "driver", program, lambda: self._drive(program))
        self.scheduler.spawn(f"{name} looks", "look", program, lambda: self._look_after(program))
        self.say(f"{name} starts")
        return self.driver

    def program(self, name: str) -> _Program:
        """Create a driver in a new process."""
        program = _Program(name, self.run_id)
        program.background = SteppedBackground(self.scheduler, program, self._failed_beside)
        skew_ms = self.skew_ms + self.chance.choice([0, 0, -90_000, 90_000])
        program.clock = SkewedClock(self.clock, program, skew_ms)
        self.skews.add(skew_ms)
        ports = DriverPorts(
            self.stepped,
            self.cluster,
            program.clock,
            program.background,
            reached=self.step,
            upkeep_objects=None,
            new_id=lambda: self.log_seen.begins(self.chance.randbytes(16).hex()),
        )
        settings = self.settings.but(retained_for=self.chance.choice(RETAINED_FOR))
        program.driver = Driver(settings, self.home, ports)
        self.programs.append(program)
        return program

    def run(self) -> list[str]:
        """Play the schedule to its end and compare. Return its events."""
        with pytest.MonkeyPatch.context() as patch, self.files.watched(patch):
            watch_the_cleaner(patch)
            watch_assignments(patch, self.holds)
            self.log_seen.watch_copies(patch)
            patch.setattr(stack_parts, "_PARTS_MAX", self.chance.choice([1, 1, 2, 9]))  # private: the state is small
            ranges = random.Random(f"{self.seed}/ranges").choice([300, reader.RANGE_BYTES, reader.RANGE_BYTES])
            patch.setattr(reader, "RANGE_BYTES", ranges)
            self.encrypted.plant(patch)
            patch.setattr(upkeep, "_SWEEP_RECORDS", 2)  # private: there are few batches
            self._plant_merges(patch)
            rows_min = random.Random(f"{self.seed}/whole").choice([1, 4, 128])
            patch.setattr(whole_groups, "_ROWS_MIN", rows_min)  # private: the state is small
            steps = random.Random(f"{self.seed}/steps").choice([1, 1, 2, 3, 16])
            patch.setattr(claim_work, "_STEPS_PER_PIECE", steps)  # private: there are few records
            self.remedies.plant(patch)
            ProcessTable(self).plant(patch)
            self.dispatched.plant(patch)
            if self.server:
                self.server.plant(patch)
            trusted_for(random.Random(f"{self.seed}/trusted").choice([0.0, 2.0, 2.0, 60.0]), patch)
            patch.setattr(log, "FULL_EVERY", 8)
            patch.setattr(retention, "FULL_EVERY", 8)
            try:
                self.scheduler.run(self._conduct)
                self._compare()
            finally:
                self.roots.end()
                self.history.append(f"{self.scheduler.count} steps, {self.scheduler.digest:08x}")
        return self.history

    def _plant_merges(self, patch: pytest.MonkeyPatch) -> None:
        """Make small merged deltas be split and merged again in some histories."""
        drawn = random.Random(f"{self.seed}/merges")
        patch.setattr(merges, "_DEAD_BYTES_MIN", drawn.choice([0, 64 * 1024]))  # private: the state is small
        patch.setattr(upkeep_piece, "_MERGED_BYTES", drawn.choice([1, 2_000, 4 << 20]))  # private: the state is small

    # --- actors -------------------------------------------------------------------------------------------------------

    def _drive(self, program: _Program) -> None:
        """Run the query. If it fails, its process ends or starts the query again."""
        while not self._runs(program):
            repeats = self.chance.random() < 0.4 and not self.remedies.at_work()
            if not repeats or self.runs >= MOST_STARTS:
                self.stop(program)
            self.runs += 1
            program.run_id = f"run-{self.runs}"
            self.say(f"{program.name} starts the query again")

    def _runs(self, program: _Program) -> bool:
        version = self.committed + 1
        line = self.remedies.line
        tried = None
        job = self.lines.jobs[line]
        try:
            while version <= self.last:
                self.step("begins")
                offsets = self.dispatched.offsets(line, version)
                previous_offsets = self.dispatched.offsets(line, version - 1) if version else None
                incoming = self.incoming(
                    version, run_id=program.run_id, offsets=offsets, offsets_before=previous_offsets, **job.incoming
                )
                operators = job.operators_of(version)
                initial = job.initial_of(version)
                work = SteppedWork(self.cluster, parted(job.batches[version]), operators, self.sinks, initial)
                tried = self._tries(incoming, work)
                report = program.driver.process(incoming, operators, work)
                self.step("batch done")
                program.claimed = True
                self.holds(partial(job.check, report))
                tail = program.driver._log.tail  # private: the last record that the driver considers committed
                if tail is not None:
                    self.holds_told(tail.commit_id)
                self.say(f"{program.name}, batch {version}: {report.decision}")
                if line == self.remedies.line:
                    self.committed = max(self.committed, version)
                version += 1
            program.ended = True
        except RiffleError as error:
            lost = self._is_taken_over(program) and self.excuses.is_gone(error)
            if not (lost or self.dispatched.is_of_before(error, program.driver.settings)):
                self.check_expected(error, tried)
            self.say(f"{program.name}, batch {version}: {type(error).__name__}: {str(error)[:150]}")
        return program.ended

    def _tries(self, incoming: IncomingBatch, work: SteppedWork) -> TriedBatch:
        with self.scheduler.quiet():
            self.log_seen.look()
        return TriedBatch(incoming, work, max(self.log_seen.records, default=-1))

    def _is_taken_over(self, program: _Program) -> bool:
        """Return whether another driver has taken over, so that objects of this one may be deleted."""
        with self.scheduler.quiet():
            self.log_seen.look()
        tail = program.driver._log.tail  # private: the last record that the driver knows
        return tail is not None and tail.epoch < self.log_seen.records[max(self.log_seen.records)].epoch

    def _look_after(self, program: _Program) -> None:
        while True:
            self.scheduler.sleep(IDLE_LOOKS_SECONDS if self.faults.over else LOOKS_SECONDS)
            self.step("begins")
            try:
                program.driver.between_batches(self.cluster.executors())
            except RiffleError as error:
                self.check_expected(error)
                self.say(f"{program.name}, a look: {type(error).__name__}")

    def _conduct(self) -> None:
        """Start missing drivers and inject events until all batches are committed and all is quiet."""
        self.start()
        while self.committed < self.last or self.roots.begins():
            steps = self.scheduler.count + self.chance.choice([10, 50, 250])
            self.scheduler.wait(lambda: self.scheduler.count >= steps or self._is_next(), 30.0)  # noqa: B023
            if self.remedies.at_work() or self.remedies.begins() or self.roots.begins():
                continue
            driving = self._driving()
            share = 0.4 if self.roots.is_copied or any(map(self._stands_still, driving)) else 0.04
            if not driving or (len(driving) < MOST_DRIVERS and self.often(share)):
                self.start()
            if self.often(0.08):
                self.wrong_starts.begin()
            if self.readers < MOST_READERS and self.often(0.06):
                self.readers += 1
                self.reader.begin(self.readers)
            still = [
                executor.id
                for executor in self.cluster.executors()
                if self._stands_still(self.cluster.processes[executor.id])
            ]
            if self.often(0.4 if still else 0.1):
                self._change_executors(still)
            if self.often(0.15):
                self.operator.operator()
            if self.often(0.15):
                self.mailers.begin()
        self.say("the faults end")
        self.disturbed = Counter(self.scheduler.seen)
        self.faults.over = True
        self.cluster.astray = 0.0
        self._let_go()
        self.scheduler.wait(lambda: not self._zombies(), REST_SECONDS)
        self.scheduler.wait(lambda: not self._driving(), STILL_SECONDS)
        for program in [program for program in self.programs if program.alive]:
            self.stop(program)
        self.last += 1
        self.scheduler.switches = 0.1
        self.remedies.finish()
        self.start()
        self.scheduler.wait(lambda: self.committed >= self.last or not self._driving(), REST_SECONDS)
        assert self.committed >= self.last, "the query does not continue after the faults"
        self._rest()
        self._age(self.programs[-1])

    def _is_next(self) -> bool:
        return self.committed >= self.last or self.roots.is_due()

    def _rest(self) -> None:
        self.scheduler.wait(lambda: not self.programs[-1].background.is_busy(), REST_SECONDS)

    def _age(self, program: _Program) -> None:
        """Let old objects expire, with one more batch of the same driver, and check that stored objects are bounded."""
        self.scheduler.sleep(OLD_SECONDS)
        self.last += 1
        self.scheduler.spawn(f"{program.name} batches", "driver", program, lambda: self._drive(program))
        self.scheduler.wait(lambda: self.committed >= self.last or not program.alive, REST_SECONDS)
        assert self.committed >= self.last, "the query does not continue after a long pause"
        self._rest()
        self.scheduler.sleep(OLD_SECONDS)
        self._rest()
        self.holds(self._check_bounded)

    def _driving(self) -> list[_Program]:
        return [
            program for program in self.programs if program.alive and not program.ended and not self._hangs(program)
        ]

    def _hangs(self, program: _Program) -> bool:
        return any(
            actor.until >= FOREVER and actor.ready is None
            for actor in self.scheduler.actors
            if actor.process is program
        )

    def _stands_still(self, process: Process) -> bool:
        """Return whether a process does not respond for a while, so that it is replaced or lost."""
        later = self.scheduler.now + STILL_SECONDS
        if process.asleep_until >= later:
            return True
        kinds = ("driver", "background", *ON_EXECUTORS)
        actors = [actor for actor in self.scheduler.actors if actor.process is process and actor.kind in kinds]
        return any(actor.until >= later and actor.ready is None for actor in actors)

    def _zombies(self) -> list[Actor]:
        lone = ("late put", "operator", "switch", "reader", "mailer")
        return [actor for actor in self.scheduler.actors if actor.kind in (*ON_EXECUTORS, *lone)]

    def _let_go(self) -> None:
        """Let hanging actors continue."""
        for actor in self.scheduler.actors:
            actor.slow = 0.0
            actor.process.wake(self.scheduler.now)
            if actor.ready is None and actor.kind != "conductor":
                actor.until = 0.0

    def _change_executors(self, still: Sequence[str]) -> None:
        """Remove an executor, preferably a hanging one, and add one."""
        live = [executor.id for executor in self.cluster.executors()]
        if len(live) > 1 and self.chance.random() < 0.5:
            name = self.chance.choice(still or live)
            if self.chance.random() < (0.7 if still else 0.3):
                self.say(f"executor {name} is lost but continues unseen")
                self.cluster.lose(name, planned=self.chance.random() < 0.2)
            else:
                self._end_executor(name)
        if len(self.cluster.executors()) < 4:
            self._join()

    def _join(self) -> None:
        self.executors += 1
        self.say(f"executor {self.executors} joins")
        self.cluster.add(str(self.executors), cores=self.chance.choice([1, 2]))

    def often(self, share: float) -> bool:
        """Return randomly whether an event happens. It is rarer in a long history."""
        calm = 0.1 if self.runs > CALM_AFTER else 1.0
        return self.chance.random() < share * self.pace * calm

    def say(self, event: str) -> None:
        """Add an event to the history."""
        named = event.replace(self.home.root, "the root")
        named = re.sub(r"(memory|file)://[^\s\],]*", "the root", named)  # also if the message is cut off
        self.history.append(f"{self.scheduler.count:6} {named}")

    def step(self, label: str) -> None:
        """Stop at a step, at which other actors may continue and faults may occur."""
        self.scheduler.step(label)

    # --- faults -------------------------------------------------------------------------------------------------------

    def _at_step(self, actor: Actor, label: str) -> str | None:
        step = f"{actor.kind}: {label}"
        kind = self.faults.due(step, self.scheduler.seen[step])
        if kind is None:
            return None
        self.say(f"{kind} at {actor.name}: {label}")
        actor.met.add(kind)
        if kind == "crash":
            self._crash(actor)
        elif kind == "reboot":
            self._end_executor(actor.process.executor, torn=True)
        elif kind == "hang":
            self.scheduler.hang()
        elif kind == "pause":
            shortly = [1.0, 3.0] if actor.process.executor else [1.0]
            self.scheduler.sleep(self.chance.choice([*shortly, 40.0, 400.0]))
        elif kind == "slow":
            actor.slow = self.chance.choice([0.05, 1.0])
        elif kind == "sleep":
            actor.process.sleep(self.scheduler.now, self.chance.choice([40.0, 400.0]))
            self.scheduler.sleep(0.0)
        elif kind == "clock back":
            self._set_back(actor.process, self.chance.choice([1_000, 60_000, 3_600_000]))
        return kind

    def _set_back(self, process: Process, by_ms: int) -> None:
        """Set back a wall clock: that of this driver, or that of later drivers."""
        if isinstance(process, _Program):
            process.clock.skew_ms -= by_ms
            self.skews.add(process.clock.skew_ms)
        else:
            self.skew_ms -= by_ms

    def _crash(self, actor: Actor) -> None:
        """End the driver, a task (a Python worker that dies), or an executor with all its tasks."""
        if not actor.process.executor:
            self.stop(actor.process)
        elif self.chance.random() < 0.5:
            self.files.forget_process(f"{self.home.application}/{actor.process.executor}")
            self.scheduler.kill(actor)
        else:
            self._end_executor(actor.process.executor)

    def stop(self, process: Process) -> None:
        """End a process with all its actors."""
        process.alive = False
        current_actor = self.scheduler.mine()
        for actor in [
            actor for actor in self.scheduler.actors if actor.process is process and actor is not current_actor
        ]:
            self.scheduler.kill(actor)
        if current_actor is not None and current_actor.process is process:
            self.scheduler.kill(current_actor)

    def _end_executor(self, name: str, *, torn: bool = False) -> None:
        """Kill an executor. Its disk is lost, kept, or torn by a reboot."""
        live = {executor.id for executor in self.cluster.executors()}
        process = self.cluster.processes[name]
        disk = not torn and self.chance.random() < 0.2
        owner = f"{self.home.application}/{name}"
        current_actor = self.scheduler.mine()
        for actor in [
            actor for actor in self.scheduler.actors if actor.process is process and actor is not current_actor
        ]:
            self.scheduler.kill(actor)
        process.alive = False
        folders = self.files.forget_process(owner)
        self.say(f"executor {name} dies, its disk is {'lost' if disk else 'torn' if torn else 'kept'}")
        with self.scheduler.quiet():
            if name in live:
                if disk:
                    self.files.lose(owner)
                self.cluster.lose(name, disk=disk, planned=self.chance.random() < 0.2)
            if torn:
                mine_still = [
                    folder for folder in folders if _owner_of(folder) == owner
                ]  # other executors use the folders that they took over
                self.say(f"{self.files.reboot(mine_still)} files are torn")
        if not self.cluster.executors():
            self._join()
        if current_actor is not None and current_actor.process is process:
            self.scheduler.kill(current_actor)

    # --- checks -------------------------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        """Check the log after each put of a record and after each delete."""
        if name and paths.parse_record_name(name) is None:
            return
        self.holds(self.log_seen.look)
        self.holds(self.mailers.check)

    def holds_told(self, commit_id: str) -> None:
        """Check that a record is committed that an actor considers committed."""
        self.holds(partial(self.log_seen.check_told, commit_id))

    def _damages(self, name: str) -> None:
        self.damaged.add(name)
        self.excuses.damages(name)

    def _has_read(self, sequence: int) -> None:
        actor = self.scheduler.mine()
        record = self.log_seen.records.get(sequence)
        if actor is None or record is None or sequence in self.log_seen.swept:  # the object may be its own
            return
        if self.log_seen.writers.get(record.commit_id) is not actor.process:
            actor.epoch = max(actor.epoch, record.epoch)

    def _deletes(self, names: Sequence[str]) -> None:
        """I4: a fenced driver that knows it deletes nothing, and no driver deletes objects of a newer epoch.

        An unfinished dispatch switch may list such objects.
        """
        actor = self.scheduler.mine()
        program = next((program for program in self.programs if actor is not None and program is actor.process), None)
        tail = program.driver._log.tail if program is not None else None  # private: the last record it knows
        swept = {paths.record_name(sequence) for sequence in self.log_seen.swept}
        if swept.issuperset(names):  # a late put of a number that is free again, which its driver removes
            return
        if actor is not None and tail is not None:
            newer = [name for name in names if (parsed := paths.parse_object_name(name)) and parsed.epoch > tail.epoch]
            if newer:
                self.scheduler.broke(AssertionError(f"I4: {actor.name} of epoch {tail.epoch} deletes {newer}"))
            if tail.epoch < actor.epoch:
                self.scheduler.broke(AssertionError(f"I4: {actor.name} deletes although it knows that it is fenced"))

    def _worked(self, executor: str) -> None:
        """Check the local copies of an executor after a piece of upkeep."""
        with unremembered():
            self.holds(lambda: self.log_seen.check_copies({}, f"{self.home.application}/{executor}"))

    def holds(self, check: Callable[[], object]) -> None:
        """Run a check, and end the schedule if it fails."""
        with self.scheduler.quiet():
            failure: BaseException | None = None
            try:
                check()
            except Exception as error:  # noqa: BLE001 - a product that is broken breaks checks in any way
                failure = error
        if failure is not None:
            self.scheduler.broke(failure)

    def _delivered(self, store: str, rows: pa.Table, delivery: Delivery) -> None:
        self.holds(partial(self.lines.check_delivery, store, rows, delivery))

    def check_expected(self, error: RiffleError, tried: TriedBatch | None = None) -> None:
        """End the schedule if no fault that happened explains the error."""
        if not self.expects(error, tried):
            self.scheduler.broke(error)

    def _failed_beside(self, error: RiffleError) -> None:
        """Accept a failure of background work of an earlier run, whose objects may be deleted."""
        if not self.excuses.is_gone(error):
            self.check_expected(error)

    def expects(self, error: RiffleError, tried: TriedBatch | None = None) -> bool:
        """Return whether a fault that happened explains the error of the current actor."""
        actor = self.scheduler.mine()
        assert actor is not None
        return self.excuses.allow(error, actor, tried)

    def _check_bounded(self) -> None:
        """Check that stored objects, and local copies of live members, are bounded."""
        self.log_seen.look()
        self.log_seen.check_bounded()
        check_copies_bounded(self)
        self._check_links()

    def _check_links(self) -> None:
        """Check that snapshots keep chains short, unless snapshots are delayed or not listed yet."""
        driver = self.programs[-1].driver
        links = self.settings.snapshot_chain_links + 1
        job = self.lines.jobs[-1]
        last = [{operator.store for operator in job.operators_of(version)} for version in (self.last - 1, self.last)]
        unlisted_snapshots = driver._upkeep._taken_snapshots  # private: the snapshots not yet listed
        taken_snapshots = {(address, snapshot.head) for address, snapshot in unlisted_snapshots}
        for address, entry in driver._log.manifest.entries.items():  # private: the current manifest
            held_up = self.settings.upkeep_bandwidth <= 1 or address[0] not in last[0] & last[1]
            held_up = held_up or (address, entry.head) in taken_snapshots
            assert held_up or len(entry.chain) <= links, f"{address} has a chain of {len(entry.chain)}"

    def _compare(self) -> None:
        """Compare state, deliveries and records with the expected ones."""
        self.log_seen.look()
        self.log_seen.check_copies({})
        for record in self.log_seen.records.values():
            self.lines.jobs[record.rollbacks].check_records([record])
        for store, state in self.lines.jobs[-1].contents[self.last].items():
            same(self.state(store), dict(state), f"the state of {store}")
        self.lines.check_sinks(self.sinks, self.log_seen.records)
        self.mailers.compare()


def _owner_of(folder: Path) -> str:
    with suppress(OSError):
        return (folder / "owner").read_text(errors="replace")
    return ""
