"""Damage trials: a query runs while its local files are damaged between batches.

The trials of a plan run in a separate process, because damage may kill it. They end with the first fault.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.pool import Pool
from pathlib import Path

import pyarrow as pa

from riffle_spark.errors import RiffleError
from riffle_spark.messages.slot_orders import Order
from riffle_spark.messages.upkeep_orders import UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies import journal_file
from riffle_spark.testing import Attempt, SimCluster
from riffle_spark.testing.committed_state import CommittedState
from riffle_spark.worker.slot import run_slot
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.damage.damager import Damager
from tests.kit.damage.loads import LOADS, Load, drawn
from tests.kit.simulated.world import ROWS, World

__all__ = ["Plan", "Trial", "run_trials"]

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
KEY_GROUPS = 4
BATCHES_A_TRIAL = 1
WARM_UP = 8
LOST_SHARE = 0.1
COMPARED_EVERY = 4
SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of some trials: their load, seed and number.

    Slots and upkeep run in this number of additional processes. If it is 0, they run in the process of the driver.
    """

    load: str
    seed: int
    trials: int
    processes: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one damage. ``fault`` says what was wrong, and is empty if nothing was.

    ``fetched_bytes`` were fetched from the store. ``restore_bytes`` are the most that the restore of two damaged files
    may fetch.
    """

    number: int
    damage: str
    fault: str
    fetched_bytes: int = 0
    restore_bytes: int = 0


class _Workers(SimCluster):
    """Executors whose slots and upkeep run in long-lived processes, which take turns."""

    load = ""
    pools: Sequence[Pool] = ()
    turn = 0

    def perform(self, attempt: Attempt) -> pa.Table:
        """Run a slot in the next process."""
        text = attempt.order.to_json(), attempt.slot
        return self._next().apply(_slot, (self.load, *text, attempt.executor, attempt.rows, attempt.random_bytes(16)))

    def _upkeep(self, text: str, executor: str) -> UpkeepReceipt:
        return UpkeepReceipt.from_json(self._next().apply(_piece, (text, executor)))

    def _next(self) -> Pool:
        self.turn += 1
        return self.pools[self.turn % len(self.pools)]


def _slot(load: str, text: str, slot: int, executor: str, rows: pa.Table, name: bytes) -> pa.Table:
    return run_slot(Order.from_json(text, slot), LOADS[load]().operator.compute, slot, executor, rows, lambda _: name)


def _piece(text: str, executor: str) -> str:
    return run_upkeep(UpkeepOrder.from_json(text), executor).to_json()


class _Query:
    """A query with its model and its damager, all from one seed."""

    def __init__(self, folder: Path, plan: Plan, pools: Sequence[Pool]) -> None:
        seed = plan.seed * 1_000_003
        self.chance = random.Random(seed)
        self.load: Load = LOADS[plan.load]()
        self.folder = folder
        root = f"file://{folder}/state" if pools else ""
        self.world = World(
            folder / "local", operators=[self.load.operator], seed=seed, root=root, key_groups=KEY_GROUPS,
            num_standbys=1, retained_versions=3, snapshot_chain_links=6,
        )  # fmt: skip
        if pools:
            cluster = _Workers(self.world.home, self.world.store, self.chance.randbytes)
            cluster.load = plan.load
            cluster.pools = pools
            for name in ("1", "2"):
                cluster.add(name)
            self.world.cluster = cluster
            self.world.start()
        self.damager = Damager(folder / "local", self.chance)
        self.version = self.upkeep_bytes = 0
        self.cost = 0, 0
        self.is_journal_harmed = False
        for _ in range(WARM_UP):
            self.batch()
        assert self.fault() == ""

    def trial(self, number: int) -> Trial:
        """Damage a file, run some batches, compare output and state, and return the trial."""
        damage, fetched, late = self.damager.damage(), 0, 0
        print(f"{number}: {damage}", file=sys.stderr, flush=True)
        self.is_journal_harmed |= journal_file.JOURNAL in damage
        restore = self.restore_bytes()
        if self.chance.random() < LOST_SHARE:
            self.lose_one(str(number))
        for _ in range(BATCHES_A_TRIAL):
            try:
                fetched += self.batch()
                late += self.upkeep_bytes
                # The last batch may cut a chain that is long now.
                restore = max(restore, self.restore_bytes())
            except AssertionError as error:
                return Trial(number, damage, f"wrong rows: {error}", fetched)
            except RiffleError as error:
                return Trial(number, damage, f"failed: {error}", fetched)
        fault = "" if number % COMPARED_EVERY else self.fault()
        before, allowed = self.cost
        self.cost = fetched, restore
        if before + late > allowed:  # the report of the next batch has what upkeep fetched after the previous damage
            return Trial(number, f"the damage before {damage}", fault, before + late, allowed)
        return Trial(number, damage, fault, fetched, restore)

    def lose_one(self, number: str) -> None:
        """Lose an executor. A new executor takes over its folder, while the standby owns its tasks."""
        cluster = self.world.cluster
        cluster.lose(self.chance.choice(cluster.executors()).id)
        cluster.add(f"x{number}")

    def batch(self) -> int:
        """Run one batch and return the bytes that its slots fetched, which are 0 if no file is damaged.

        ``upkeep_bytes`` becomes the bytes of snapshots that upkeep fetched after the previous batch.
        """
        self.damager.remember()
        rows, now_ms = drawn(self.chance, self.version), 1000 * self.version
        expected_rows, load = self.load.feed(rows, now_ms), self.load
        perform = getattr(self.world.cluster, "perform", Attempt.run)
        report = self.world.batch(self.version, pa.Table.from_pylist(rows, schema=ROWS), perform, time_ms=now_ms)
        delivered = list(self.world.sinks[load.operator.store].by_id.values())[-1].to_pylist()
        self.version += 1
        self.upkeep_bytes = report.upkeep_snapshot_bytes
        difference = {repr(row) for row in delivered} ^ {repr(row) for row in expected_rows}
        assert not difference, sorted(difference)[:2]
        return report.fetched_bytes

    def restore_bytes(self) -> int:
        """Return the bytes of the two largest snapshots plus twice the bytes of all deltas after snapshots.

        A journal lists all copies of a member, so its loss restores all of them. Processes that have read it notice the
        damage only when they continue in a new journal. So journals of both members may be lost at once.
        """
        entries = self.world.log().manifest.entries.values()
        snapshots = sorted(entry.snapshot.length for entry in entries if entry.snapshot is not None)
        links = [link for entry in entries for link in entry.chain]
        return sum(2 * snapshots if self.is_journal_harmed else snapshots[-2:]) + 2 * sum(link.length for link in links)

    def fault(self) -> str:
        """Return how the state in the store differs from the model, or an empty text if it does not."""
        contents = CommittedState(self.load.operator, self.world.memory, self.world.home.root, self.folder)
        try:
            return "" if self.load.read(contents) == self.load.held() else "wrong state in the store"
        except RiffleError as error:
            return f"unreadable state in the store: {error}"
        finally:
            for read in self.folder.glob("read-*"):
                shutil.rmtree(read)


def _run(plan: Plan, results: Connection) -> None:
    """Run the trials until the first fault, and send each trial to the parent process."""
    with ExitStack() as stack:
        pools = [stack.enter_context(FORK.Pool(1, lambda: _name_by(os.getpid()))) for _ in range(plan.processes)]
        _name_by(plan.seed)
        query = _Query(Path(stack.enter_context(tempfile.TemporaryDirectory())), plan, pools)
        for number in range(plan.trials):
            trial = query.trial(number)
            results.send(trial)
            if trial.fault:
                break


def _name_by(seed: int) -> None:
    """Draw the names of files and folders from a seed, because the order of the names decides which file is damaged."""
    chance = random.Random(seed)
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)


def run_trials(plan: Plan) -> list[Trial]:
    """Run the trials of a plan and return them. The last one has a fault if the process died or hung in it."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_run, args=(plan, theirs))
    process.start()
    theirs.close()
    trials: list[Trial] = []
    fault = ""
    try:
        while ours.poll(SECONDS_MAX):
            trials.append(ours.recv())
        fault = f"stopped for {SECONDS_MAX} s"
    except EOFError:
        process.join(SECONDS_MAX)
        fault = f"died: {process.exitcode}" if process.exitcode != 0 else ""
    finally:
        process.kill()
        process.join()
        ours.close()
    return [*trials, Trial(len(trials), "printed last", fault)] if fault else trials
