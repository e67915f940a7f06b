"""A query without Spark, in one process: executors, clock, upkeep. Knows the protocol's ports. Does not know chance.

Slots and driver are the project's own, on real local copies. Simulated are only Spark's parts: which rows are routed
where, which attempt runs when, and whose answer counts (``simulated_work``).

    cluster = SimCluster(home_of("memory://mine", folder), store)
    cluster.add("1")
    ports = DriverPorts(store, cluster, ManualClock(), InlineBackground(), new_id=lambda: uuid4().hex)
    driver = Driver(settings, cluster.home, ports)
    driver.process(incoming, [operator], SimWork(cluster, rows, [operator], {"totals": SimSink()}))
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from riffle_spark.messages.slot_orders import Home, Receipt
from riffle_spark.messages.upkeep_orders import Census, CensusOrder, UpkeepOrder, UpkeepReceipt, overdue_receipt
from riffle_spark.protocol.ports import Executor, Lock
from riffle_spark.state.objects.store import ObjectStore, StoreOptions
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.upkeep_piece import run_upkeep

__all__ = ["InlineBackground", "InlineLock", "ManualClock", "RandomBytes", "SimCluster", "home_of"]

RandomBytes = Callable[[int], bytes]
Told = TypeVar("Told", Census, Receipt, UpkeepReceipt)
_STANDING_STILL = float
"""The clock of a piece of upkeep: always zero, so that how far it comes never depends on how fast the machine is."""


class ManualClock:
    """A clock that goes on only when it is told to. Implements ``protocol.ports.Clock``."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self._ms = ms

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._ms += int(seconds * 1000)

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._ms

    def seconds(self) -> float:
        """Return seconds of a clock that never goes back."""
        return self._ms / 1000


class InlineBackground:
    """Implements ``protocol.ports.Background`` on the caller's thread: at once or, if ``deferred``, at ``run``."""

    def __init__(self, *, deferred: bool = False) -> None:
        self._deferred = deferred
        self._waiting: list[Callable[[], object]] = []
        self._results: list[object] = []

    def submit(self, work: Callable[[], object]) -> None:
        """Take one piece of work."""
        self._waiting.append(work)
        if not self._deferred:
            self.run()

    def run(self) -> None:
        """Do all work that waits."""
        while self._waiting:
            work = self._waiting.pop(0)
            try:
                self._results.append(work())
            except Exception as error:  # noqa: BLE001 - as on a real background: the driver looks at it
                self._results.append(error)

    def collect(self) -> Sequence[object]:
        """Return the results since the last call; failures as exceptions."""
        found, self._results = self._results, []
        return found

    def busy(self) -> bool:
        """Tell whether submitted work has not finished yet."""
        return bool(self._waiting)

    def rest(self, seconds: float) -> None:
        """Go on at once: nobody waits in a simulation."""

    def lock(self) -> Lock:
        """Return a new lock."""
        return InlineLock()


class InlineLock:
    """A lock where there is one thread: who enters it twice would wait for ever, so that is refused."""

    def __init__(self) -> None:
        self.held = False

    def __enter__(self) -> None:
        assert not self.held, "the thread that is inside would wait for itself"
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


def home_of(root: str, local_dir: Path, application: str = "app") -> Home:
    """Return where a simulated query keeps its state."""
    return Home(root, StoreOptions(), str(local_dir), application, frozenset())


class SimCluster:
    """Executors that live in this process, each with a folder of its own. Implements ``protocol.ports.Cluster``: orders
    and answers go through their JSON.

    ``store`` is what their slots read and write, ``random_bytes`` names their attempts. Executors in ``stalled`` do no
    upkeep, those in ``silent`` answer no census. Pieces of those in ``frozen`` never end: ``clock`` goes on to their
    deadline, and all answers are lost. ``disks`` says how full an executor's disk is, and of how many bytes, instead of
    the disk that all share; ``memories`` what its Python takes and has left, in bytes: else nothing tells.
    """

    def __init__(self, home: Home, store: ObjectStore, random_bytes: RandomBytes = os.urandom) -> None:
        self.store = use_store(home, store)
        self.home = home
        self.random_bytes = random_bytes
        self._live: dict[str, Executor] = {}
        self._dismissed: set[str] = set()
        self.stalled: set[str] = set()
        self.silent: set[str] = set()
        self.frozen: set[str] = set()
        self.disks: dict[str, Callable[[], tuple[float, int]]] = {}
        self.memories: dict[str, Callable[[], tuple[int, int]]] = {}
        self.clock = ManualClock()

    def add(self, name: str, cores: int = 1) -> None:
        """Start an executor; it takes a folder that a lost one left behind, if there is one."""
        self._live[name] = Executor(name, f"host-{name}", cores)

    def lose(self, name: str, *, disk: bool = False, planned: bool = False) -> None:
        """Lose an executor; with ``disk``, its folder too. ``planned``: somebody took it away on purpose."""
        del self._live[name]
        if planned:
            self._dismissed.add(name)
        if disk:
            owners, gone = Path(self.home.local_dir or "").glob("*/*/owner"), f"{self.home.application}/{name}"
            for owner in [path for path in owners if path.read_text() == gone]:
                shutil.rmtree(owner.parent)

    def executors(self) -> tuple[Executor, ...]:
        """Return the live executors, sorted by id."""
        return tuple(sorted(self._live.values()))

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Ask each of these executors that lives what it finds."""
        asked = [executor.id for executor in executors if executor.id in self._live.keys() - self.silent]
        text = order.to_json()
        found = [take_census(CensusOrder.from_json(text), executor).to_json() for executor in asked]
        return [self.on_its_disk(Census.from_json(answer)) for answer in found]

    def on_its_disk(self, told: Told) -> Told:
        """Return what an executor told, of its own disk and memory."""
        memory = self.memories[told.executor]() if told.executor in self.memories else (0, 0)
        told = replace(told, memory=memory)
        return replace(told, disk=self.disks[told.executor]()) if told.executor in self.disks else told

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's piece of upkeep."""
        told = sorted(orders.keys() & self._live.keys() - self.stalled)
        frozen = [executor for executor in told if executor in self.frozen]
        work = [executor for executor in told if executor not in self.frozen]
        receipts = [self._upkeep(orders[executor].to_json(), executor) for executor in work]
        if not frozen:
            return receipts
        seconds = max(orders[executor].seconds + orders[executor].timeout_seconds for executor in frozen)
        self.clock.advance(seconds)
        return [overdue_receipt(executor, seconds) for executor in frozen]

    def _upkeep(self, text: str, executor: str) -> UpkeepReceipt:
        receipt = run_upkeep(UpkeepOrder.from_json(text), executor, self.random_bytes, _STANDING_STILL)
        return self.on_its_disk(UpkeepReceipt.from_json(receipt.to_json()))

    def planned(self, executors: Sequence[str]) -> frozenset[str]:
        """Return those of the executors that were taken away on purpose."""
        return frozenset(executors) & self._dismissed
