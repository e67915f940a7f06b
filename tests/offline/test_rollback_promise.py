"""A rollback during pending deletes is refused, or keeps everything that its target needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import ConfigError, FencedError, UnavailableError
from riffle_spark.offline.recovery import rollback
from riffle_spark.protocol.upkeep.claim_work import Steps, run_to_end
from riffle_spark.protocol.upkeep.scan import scan
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.testing import InlineBackground
from tests.kit.simulated.world import Crash, World, rows_of, totals
from tests.kit.state.interrupted_store import InterruptedStore

BATCHES = 9
pytestmark = pytest.mark.usefixtures("short_cycles")


class PausedDriver:
    """A driver whose deletes wait, and its root at that time, which can be restored for each try."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder / "local", operators=[totals()], snapshot_chain_links=2)
        self.world.store = self.store = InterruptedStore(self.world.memory)  # type: ignore[assignment]
        self.waiting: list[Callable[[], Steps[object]]] = []
        self.world.start(InlineBackground(deferred=True))
        upkeep = self.world.driver._upkeep  # private: keeps its work, so that it can be run repeatedly
        work = upkeep._work  # private: as above
        work.submit = self.waiting.append  # type: ignore[assignment]
        for version in range(BATCHES):
            self.world.batch(version, rows_of(*((f"k{n}", version, version * 10 + n) for n in range(6))))
            self.world.background.run()
        self.checkpoint = self.checkpoint_at(folder)
        self.kept = {name: self.world.memory.get(name) or b"" for name in self.world.memory.list("")}

    @staticmethod
    def checkpoint_at(folder: Path) -> str:
        """Create a checkpoint without batches and return its path."""
        for name in ("offsets", "commits"):
            (folder / "checkpoint" / name).mkdir(parents=True)
        (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": "query"}))
        return str(folder / "checkpoint")

    def restore_root(self) -> None:
        """Restore the root."""
        self.world.memory.delete(self.world.memory.list(""))
        for name, data in self.kept.items():
            self.world.memory.put_if_absent(name, data)

    def run_with_rollback(self, target: int | str, request: int) -> tuple[bool, int]:
        """Run the waiting work with a rollback at its request with this number.

        Return whether the rollback succeeded, and the number of requests.
        """
        outcomes = []

        def go_back() -> None:
            try:
                outcomes.append(rollback(self.world.home.root, target, self.checkpoint, execute=True).executed)
            except ConfigError:
                outcomes.append(False)

        self.store.calls, self.store.stop_at, self.store.at_call = 0, request, go_back
        for work in self.waiting:
            with suppress(FencedError, UnavailableError):
                run_to_end(work())
        if self.store.stop_at >= 0:
            self.store.stop_at = -1
            go_back()
        return outcomes == [True], self.store.calls


def lost(root: str) -> list[str]:
    """Return the names of objects that the newest record lists and the store lacks."""
    objects = open_store(root)
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    needed = log.manifest.object_names() | {link.object for _, link in tail.outputs}
    return sorted(name for name in needed if not objects.exists(name))


RETAINED = (BATCHES - 2, f"record:{BATCHES - 1}")
DELETED = (0, "record:1")


@pytest.mark.parametrize("target", [*RETAINED, *DELETED, BATCHES // 2])
@pytest.mark.sample(str(BATCHES - 2), "0")
def test_a_rollback_during_deletes_has_all_its_objects_or_is_refused(tmp_path: Path, target: int | str) -> None:
    """A rollback at any request of pending deletes and scans succeeds with all its objects, or is refused."""
    paused_driver = PausedDriver(tmp_path)
    accepted, request, calls = 0, 1, 1
    while request <= calls:
        paused_driver.restore_root()
        succeeded, calls = paused_driver.run_with_rollback(target, request)
        assert lost(paused_driver.world.home.root) == [], f"{target}, rolled back at request {request} of {calls}"
        accepted += succeeded
        request += 1
    if target in RETAINED:
        assert accepted, "no rollback to a retained batch succeeded"
    if target in DELETED:
        assert not accepted, "no pending delete was for objects of the first batches, so the test proves nothing"


def newest(world: World, back: int = 0) -> Record:
    """Return the newest record, or an earlier one."""
    log = world.log()
    assert log.tail is not None
    return log.read(log.tail.sequence + back)


def listed(world: World, first: int) -> set[str]:
    """Return the objects that the records from ``first`` on list."""
    log = world.log()
    assert log.tail is not None
    records = map(log.read, range(first, log.tail.sequence + 1))
    return set().union(*(log.manifest_of(record).object_names() for record in records))


@pytest.mark.parametrize("promised", [0, 4, 8])
def test_a_scan_keeps_all_objects_that_its_record_promises(tmp_path: Path, promised: int) -> None:
    """A scan keeps all objects that its record promises, even if retention would release them by now."""
    world = PausedDriver(tmp_path).world
    needed, every = listed(world, promised), listed(world, 0)
    scanned = run_to_end(scan(world.memory, replace(newest(world), promised=promised), 2, 0))
    left = set(world.memory.list(""))
    assert needed <= left
    assert (scanned.oldest, scanned.is_complete) == (BATCHES - 1, promised >= BATCHES - 1)
    assert every - left == {name for name in every - needed if name.startswith("delta/")}


def test_a_scan_of_a_fenced_driver_deletes_nothing(tmp_path: Path) -> None:
    """A scan of a fenced driver deletes neither records nor objects."""
    paused_driver = PausedDriver(tmp_path)
    tail = newest(paused_driver.world)
    rollback(paused_driver.world.home.root, BATCHES - 1, paused_driver.checkpoint, execute=True)
    with pytest.raises(FencedError):
        run_to_end(scan(paused_driver.world.memory, tail, 2, 0))
    assert set(paused_driver.kept) < set(paused_driver.world.memory.list(""))


def test_the_next_driver_continues_from_the_target_of_a_rollback(tmp_path: Path) -> None:
    """After a rollback during deletes, the next driver continues from the target and keeps promised objects."""
    paused_driver = PausedDriver(tmp_path)
    world, before = paused_driver.world, newest(paused_driver.world).promised
    succeeded, _ = paused_driver.run_with_rollback(BATCHES - 2, 3)
    assert succeeded
    assert newest(world).promised == before > newest(world, -BATCHES).promised
    world.store = world.memory  # type: ignore[assignment]
    world.start()
    for version in range(BATCHES - 1, BATCHES + 8):
        world.batch(version, rows_of(("k0", 100, version)))
        assert lost(world.home.root) == []
    assert world.state("totals")["k0"] == (BATCHES - 1 + 9, sum(range(BATCHES - 1)) + 900)
    assert world.state("totals")["k1"] == (BATCHES - 1, sum(range(BATCHES - 1)))


def test_a_target_before_the_promise_is_refused_with_the_promised_range(tmp_path: Path) -> None:
    """Batches and records before the promise, and unknown ones, are refused with the range that is promised."""
    world = PausedDriver(tmp_path).world
    tail = world.log().tail
    assert tail is not None
    assert tail.promised > 1
    checkpoint, first = str(tmp_path / "checkpoint"), tail.version - (tail.sequence - tail.promised)
    with pytest.raises(ConfigError, match="RIFFLE-0132") as released:
        rollback(world.home.root, first - 1, checkpoint)
    with pytest.raises(ConfigError, match="RIFFLE-0132") as unknown:
        rollback(world.home.root, tail.version + 1, checkpoint)
    assert ["retained_versions" in error.value.remedy for error in (released, unknown)] == [True, False]
    with pytest.raises(ConfigError, match="RIFFLE-0131"):
        rollback(world.home.root, f"record:{tail.promised - 1}", checkpoint)
    with pytest.raises(ConfigError, match="RIFFLE-0131"):
        rollback(world.home.root, f"record:{tail.sequence + 1}", checkpoint)


def test_a_rollback_keeps_the_present_promise(tmp_path: Path) -> None:
    """A rollback keeps the present promise, because objects of the target's older promise may be deleted."""
    world, checkpoint = World(tmp_path / "local", retained_versions=4), PausedDriver.checkpoint_at(tmp_path)
    for version in range(BATCHES):
        world.batch(version, rows_of(("a", 1, version)))
    tail = newest(world)
    assert newest(world, tail.promised - tail.sequence).promised < tail.promised
    rollback(world.home.root, f"record:{tail.promised}", checkpoint, execute=True)
    assert newest(world).promised == tail.promised


def test_a_rollback_can_be_rolled_back(tmp_path: Path) -> None:
    """A rollback can return to records of abandoned histories, again and again."""
    checkpoint, world = PausedDriver.checkpoint_at(tmp_path), World(tmp_path / "local", retained_versions=100)
    root = world.home.root
    states: dict[tuple[int, int], dict[object, tuple[object, ...]]] = {}
    records: dict[tuple[int, int], int] = {}

    def run(first: int, versions: int, value: int) -> None:
        world.start()
        for version in range(first, first + versions):
            world.batch(version, rows_of(("a", value, version)))
            tail = world.log().tail
            assert tail is not None
            states[value, version], records[value, version] = world.state("totals"), tail.sequence

    run(0, 5, 1)
    rollback(root, 2, checkpoint, execute=True)
    run(3, 4, 10)
    for given_up in ((1, 4), (10, 5), (1, 3), (10, 6)):
        plan = rollback(root, f"record:{records[given_up]}", checkpoint, execute=True)
        assert plan.version == given_up[1]
        assert world.state("totals") == states[given_up]
        value = 1000 + given_up[1]
        run(given_up[1] + 1, 2, value)
        state: dict[Any, Any] = states[given_up]
        ((count, total),) = state.values()
        assert world.state("totals") == {"a": (count + 2, total + 2 * value)}
    assert [call.id for call in world.sinks["totals"].calls].count("query/5/8") == 1
    assert rollback(root, 2, checkpoint).version == 2


def test_a_query_starts_with_a_damaged_old_record(tmp_path: Path) -> None:
    """A damaged old record does not prevent a query from starting, and the batch report warns of it."""
    world = World(tmp_path, retained_versions=4)
    for version in range(BATCHES):
        world.batch(version, rows_of(("a", 1, version)))
    old = paths.record_name(newest(world).sequence - 2)
    world.memory.delete([old])
    world.memory.put_if_absent(old, b"rotten")
    world.crash_at = "before run"
    for _ in range(2):
        world.start()
        with suppress(Crash):
            report = world.batch(BATCHES, rows_of(("a", 1, BATCHES)))
    assert world.state("totals") == {"a": (BATCHES + 1, BATCHES + 1)}
    assert any(old in warning for warning in report.warnings)


def test_a_rollback_over_unreadable_claims_fences_their_drivers(tmp_path: Path) -> None:
    """A rollback over unreadable claims gets a higher epoch than they can have, and so fences their drivers."""
    checkpoint, world = PausedDriver.checkpoint_at(tmp_path), World(tmp_path / "local", retained_versions=100)
    for version in range(3):
        world.batch(version, rows_of(("a", 1, version)))
    world.crash_at = "before run"
    world.start()
    with suppress(Crash):
        world.batch(3, rows_of(("a", 1, 3)))
    claim = newest(world)
    world.memory.delete([paths.record_name(claim.sequence)])
    world.memory.put_if_absent(paths.record_name(claim.sequence), b"rotten")
    rollback(world.home.root, 1, checkpoint, execute=True)
    assert world.log().read(claim.sequence + 1).epoch > claim.epoch
    with pytest.raises(FencedError):
        world.batch(3, rows_of(("a", 1, 3)))


def test_a_promise_never_moves_back_if_retention_grows(tmp_path: Path) -> None:
    """A promise never moves back, even if settings retain more, because older objects may be deleted."""
    world = PausedDriver(tmp_path).world
    promised = newest(world).promised
    world.settings = replace(world.settings, retained_versions=1_000, retained_for=86_400)
    assert promised > 1
    for version in (BATCHES, None, BATCHES + 1):
        world.start()
        world.crash_at = "before run" if version is None else None
        with suppress(Crash):
            world.batch(BATCHES + 1 if version is None else version, rows_of(("a", 1, BATCHES)))
        assert newest(world).promised >= promised
