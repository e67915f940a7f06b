"""Random schedules of a simulated query: crashes, duplicates, zombies, executors that come and go, faults, orders of
operators and second drivers.

``Schedule(seed, folder).run()`` plays one and compares state and sink with what plain Python computes. The same seed
plays the same schedule.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest

from riffle_spark.errors import CorruptStateError, FencedError, UnavailableError
from riffle_spark.state.copies import folder
from riffle_spark.testing import Attempt, InlineBackground, SimWork
from riffle_spark.testing.faulty_store import Fault
from tests.kit.simulated.disturbances import Disturbances, drawn_operators, drawn_settings
from tests.kit.simulated.invariants import History
from tests.kit.simulated.placement_invariants import check_converges, check_valid, watch_the_cleaner
from tests.kit.simulated.world import Crash, Oracle, World, drawn_batch

STEPS = ("before run", "after seal", "after sink", "after record", "after record")
SHORT, LONG = 4, 14
TRIES = 90
QUIET_AFTER = 60


class _DrawnNames:
    """Folders are named by chance, too: so that the same seed finds them in the same order."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uuid4(self) -> uuid.UUID:
        """Draw a name."""
        return uuid.UUID(bytes=self._chance.randbytes(16))


class Schedule:
    """One random history of a query. ``history`` tells what happened, for a failing test to print. ``groups`` are the
    stores that are in co-location groups of their own.
    """

    def __init__(self, seed: int, local_dir: Path, groups: Mapping[str, str] = MappingProxyType({})) -> None:
        self.chance = random.Random(seed)
        batches = LONG if seed % 10 == 0 else SHORT
        self.history: list[str] = [f"seed {seed}"]
        self.world = World(
            local_dir, executors=("1", "2"), seed=seed, operators=drawn_operators(self.chance), key_groups=6,
            snapshot_chain_links=2, deliver_after_commit=seed % 5 == 1, store_groups=dict(groups),
            **drawn_settings(self.chance),
        )  # fmt: skip
        self.world.background = InlineBackground(deferred=True)
        self.log = History(self.world)
        self.batches = [drawn_batch(self.chance, version) for version in range(batches)]
        self.zombies: list[Attempt] = []
        self.committed = -1
        self.cluster = Disturbances(self.world, self.chance, self._say)
        self.quiet = False
        self.contents = _contents(self.batches)

    def run(self) -> list[str]:
        """Play the schedule to its end and compare; return what happened."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folder, "uuid", _DrawnNames(self.chance))
            watch_the_cleaner(patch)
            self._play()
        return self.history

    def _play(self) -> None:
        self._start()
        for turn in range(TRIES):
            if self.committed + 1 == len(self.batches):
                break
            self.quiet = turn > QUIET_AFTER
            self._disturb()
            self._batch(self.committed + 1)
            self.log.look()
        self._finish()

    def _finish(self) -> None:
        assert self.committed + 1 == len(self.batches), "the query never came to its end"
        self.cluster.quiet()
        self.world.background.run()
        check_converges(self.world)
        self._run_zombies(1.0)
        self.world.store.heal()
        self.world.store.land()
        self.log.look()
        self.log.check_copies(self.contents)
        for store, wanted in self.contents[len(self.batches) - 1].items():
            assert self.world.state(store) == wanted, f"the state of {store} differs"
        self._compare_sinks()

    def _compare_sinks(self) -> None:
        for store, columns in (("totals", ("k", "count", "total")), ("tails", ("k", "last"))):
            for version, rows in enumerate(self.batches):
                touched, state = set(rows["k"].to_pylist()), self.contents[version][store]
                wanted = [dict(zip(columns, (key, *state[key]), strict=True)) for key in touched if key in state]
                delivered = self.world.sinks[store].by_id.get(f"query/0/{version}")
                got = [] if delivered is None else delivered.to_pylist()
                assert sorted(got, key=repr) == sorted(wanted, key=repr), f"sink of {store}, batch {version}"
            assert len(self.world.sinks[store].by_id) <= len(self.batches), "a delivery under an id of its own"

    def _say(self, event: str) -> None:
        self.history.append(event)

    def _often(self, share: float) -> bool:
        return not self.quiet and self.chance.random() < share

    def _start(self, why: str = "start") -> None:
        self._say(why)
        if self._often(0.3) and self.world.runs > 1:
            self.world.runs += 1
            self.world.run_id = f"run-{self.world.runs}"  # the query is started again in the same process
        else:
            self.world.start(InlineBackground(deferred=True))

    def _disturb(self) -> None:
        if self._often(0.3):
            self._say("upkeep runs")
            self.world.background.run()
        if self._often(0.25):
            self.cluster.executors()
        if self._often(0.3):
            self.cluster.operator()
        if self._often(0.2):
            self.cluster.answers()
        elif self._often(0.5) or self.quiet:
            self.cluster.quiet()
        if self._often(0.3):
            self.cluster.time()
        if self._often(0.15):
            self._fault()
        if self._often(0.1):
            self._damage_a_copy()
        if self._often(0.2):
            self._say(f"late puts land: {self.world.store.land()}")
        if self._often(0.3):
            self._look()
        self._run_zombies(0.3)

    def _look(self) -> None:
        """Let no batch come for a while: the driver looks after the query, and may die of it."""
        self.world.crash_at = self.chance.choice(["before will", "after will"]) if self._often(0.2) else None
        try:
            for _ in range(self.chance.choice([1, 1, 4])):
                self._say(f"no batch comes: {self.world.rest()}")
                self.world.background.run()
        except Crash as crash:
            self._start(f"crash {crash}")
        except (UnavailableError, FencedError, CorruptStateError) as error:
            self._say(f"a look failed: {type(error).__name__}")

    def _fault(self) -> None:
        fault = self.chance.choice(
            [
                Fault("answer_lost", "put", "log/", times=self.chance.choice([1, 6])),
                Fault("request_lost", "put", "log/", times=self.chance.choice([1, 6])),
                Fault("late", "put", "log/"),
                Fault("unavailable", name="log/", times=self.chance.choice([1, 3, 12])),
                Fault("unavailable", name="delta/", times=self.chance.choice([1, 2])),
                Fault("answer_lost", "put", "delta/"),
                Fault("late", "put", "delta/"),
                Fault("truncated", name="delta/"),
                Fault("flipped", name="totals/"),
                Fault("missing", name="tails/"),
            ]
        )
        self._say(f"fault: {fault}")
        self.world.store.script(fault)

    def _damage_a_copy(self) -> None:
        names = ("stacks/*/*", "sealed/*", "fetched/*")
        files = [file for name in names for file in sorted(self.world.local_dir.glob(f"*/m*/{name}"))]
        if files:
            file = self.chance.choice(files)
            self._say("a file of copies is damaged")
            file.write_bytes(b"\xff" * self.chance.choice([0, 4096, file.stat().st_size]))

    def _run_zombies(self, share: float) -> None:
        for zombie in [z for z in self.zombies if self.chance.random() < share]:
            self._say(f"a zombie of batch {zombie.order.version} runs, slot {zombie.slot}")
            self.zombies.remove(zombie)
            zombie.run()

    def perform(self, attempt: Attempt) -> pa.Table:
        """Execute a slot: once, twice, elsewhere, or now and once more much later."""
        if self._often(0.15):
            self.zombies.append(attempt)
        if self._often(0.1):
            executor = self.chance.choice(self.world.cluster.executors()).id
            self._say(f"slot {attempt.slot} runs on {executor} instead of {attempt.executor}")
            attempt = replace(attempt, executor=executor)
        if not self._often(0.15):
            return attempt.run()
        self._say(f"slot {attempt.slot} runs twice")
        return self.chance.choice([attempt.run(), attempt.run()])

    def _batch(self, version: int) -> None:
        self._say(f"batch {version}")
        self.world.crash_at = self.chance.choice(STEPS) if self._often(0.3) else None
        self.world.at_step = {self.chance.choice(STEPS): self._upkeep_beside} if self._often(0.5) else {}
        if self._often(0.1):
            self.world.at_step = {self.chance.choice(STEPS): lambda: self._intrude(version)}
        lost = self.chance.choice(["totals", "tails"]) if self._often(0.1) else None
        try:
            report = self.world.batch(version, self.batches[version], self.perform, lost)
        except Crash as crash:
            self._start(f"crash {crash}")
        except (UnavailableError, FencedError, CorruptStateError) as error:
            self._start(f"failed: {type(error).__name__}")
        else:
            if self._often(0.15):
                self._start(f"{report.decision}, crash before Spark's commit log")
            else:
                self._say(report.decision)
                self.committed = version
                if report.decision == "run":
                    check_valid(self.world)

    def _upkeep_beside(self) -> None:
        """Let upkeep run in the middle of a batch."""
        self._say("upkeep runs beside the batch")
        self.world.background.run()

    def _intrude(self, version: int) -> None:
        """Let another driver take over in the middle of this one's batch, run it to its end and go away."""
        self.world.at_step, crash, self.world.crash_at = {}, self.world.crash_at, None
        before = self.world.driver, self.world.run_id, self.world.background
        self.world.start(InlineBackground(deferred=True))
        self._say(f"another driver intrudes as {self.world.run_id}")
        work = SimWork(self.world.cluster, self.batches[version], self.world.operators, self.world.sinks, Attempt.run)
        try:
            self.world.driver.process(self.world.incoming(version), self.world.operators, work)
        except (UnavailableError, CorruptStateError) as error:
            self._say(f"the intruder failed: {type(error).__name__}")
        self.world.driver, self.world.run_id, self.world.background = before
        self.world.crash_at = crash


def _contents(batches: list[pa.Table]) -> dict[int, dict[str, dict[object, tuple[object, ...]]]]:
    """Return what each store holds after each batch."""
    oracle, contents = Oracle(), dict[int, dict[str, dict[object, tuple[object, ...]]]]()
    for version, rows in enumerate(batches):
        oracle.feed(rows)
        tails: dict[object, tuple[object, ...]] = {key: (list(value),) for key, value in oracle.tails.items()}
        contents[version] = {"totals": dict(oracle.totals.items()), "tails": tails}
    return contents
