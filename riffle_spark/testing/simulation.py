"""A query without Spark in one process: its executors, clock and background work.

Slots and driver are real and use real local copies. Only Spark's parts are simulated: the routing of rows to
slots, the time of an attempt, and the choice of the attempt that counts (``simulated_work``).

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
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import use_store
from riffle_spark.worker.upkeep_piece import run_upkeep

RandomBytes = Callable[[int], bytes]
Answer = TypeVar("Answer", Census, Receipt, UpkeepReceipt)
_EMPTY_DISK = (0.0, 1 << 40)
"""The used share and the bytes of a simulated disk."""
_STOPPED_CLOCK = float
"""The clock of a piece of upkeep. It is always zero, so that results do not depend on the speed of the machine."""


class ManualClock:
    """A clock that moves only by ``advance``. Implements ``protocol.ports.Clock``. ``ms`` is its time since the epoch.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(2.5)
    >>> clock.wall_ms(), clock.seconds()
    (3500, 3.5)
    """

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self._ms = ms

    def advance(self, seconds: float) -> None:
        """Move the time forward."""
        self._ms += int(seconds * 1000)

    def wall_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return self._ms

    def seconds(self) -> float:
        """Return the same time in seconds."""
        return self._ms / 1000


class InlineBackground:
    """Runs background work on the caller's thread. Implements ``protocol.ports.Background``.

    Work runs when it is submitted, or with ``deferred`` when ``run`` is called.

    >>> background = InlineBackground(deferred=True)
    >>> background.submit(lambda: "done")
    >>> background.is_busy()
    True
    >>> background.run()
    >>> background.collect()
    ['done']
    """

    def __init__(self, *, deferred: bool = False) -> None:
        self._deferred = deferred
        self._waiting: list[Callable[[], object]] = []
        self._results: list[object] = []

    def submit(self, work: Callable[[], object]) -> None:
        """Queue one piece of work."""
        self._waiting.append(work)
        if not self._deferred:
            self.run()

    def run(self) -> None:
        """Run all queued work."""
        while self._waiting:
            work = self._waiting.pop(0)
            try:
                self._results.append(work())
            except Exception as error:  # noqa: BLE001 - collected, as on a real background
                self._results.append(error)

    def collect(self) -> Sequence[object]:
        """Return the results since the last call; failures as exceptions."""
        results = self._results
        self._results = []
        return results

    def is_busy(self) -> bool:
        """Whether submitted work has not run yet."""
        return bool(self._waiting)

    def rest(self, seconds: float) -> None:
        """Return at once."""

    def lock(self) -> Lock:
        """Return a new lock."""
        return InlineLock()


class InlineLock:
    """A lock for one thread. It fails instead of waiting if it is held."""

    def __init__(self) -> None:
        self.held = False

    def __enter__(self) -> None:
        """Take the lock. Fail if it is held, because its only thread would wait for itself."""
        assert not self.held, "the thread that holds the lock would wait for itself"
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False


def home_of(root: str, local_dir: Path, application: str = "app") -> Home:
    """Return where a simulated query stores its state: ``root`` and, for local copies, ``local_dir``."""
    return Home(root, StoreOptions(), str(local_dir), application, frozenset())


class SimCluster:
    """Executors in this process, each with its own folder. Implements ``protocol.ports.Cluster``.

    Orders and answers are converted to JSON and back. All attributes may be changed at any time.

    Attributes:
        store: the object store of all executors.
        home: where state is stored.
        random_bytes: returns the random bytes that name attempts.
        stalled: executors that run no upkeep.
        silent: executors that answer no census.
        frozen: executors on which pieces of upkeep never end. ``clock`` moves to their deadline, and all answers are
            lost.
        disks: by executor, a function that returns the used share of its disk and the disk's bytes.
        memories: by executor, a function that returns the bytes that its Python worker uses and the bytes left.
    """

    def __init__(self, home: Home, store: ObjectStore, random_bytes: RandomBytes = os.urandom) -> None:
        """Create a cluster without executors."""
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
        """Start an executor. It takes over the folder of a lost executor, if any."""
        self._live[name] = Executor(name, f"host-{name}", cores)

    def lose(self, name: str, *, disk: bool = False, planned: bool = False) -> None:
        """Lose an executor, with ``disk`` also its folder. ``planned`` marks it as removed on purpose."""
        del self._live[name]
        if planned:
            self._dismissed.add(name)
        if disk:
            owners = Path(self.home.local_dir or "").glob("*/*/owner")
            lost_owner = f"{self.home.application}/{name}"
            for owner in [path for path in owners if path.read_text() == lost_owner]:
                shutil.rmtree(owner.parent)

    def executors(self) -> tuple[Executor, ...]:
        """Return the live executors, sorted by id."""
        return tuple(sorted(self._live.values()))

    def census(self, executors: Sequence[Executor], order: CensusOrder) -> list[Census]:
        """Return the census of each of these executors that is live and not silent."""
        names = [executor.id for executor in executors if executor.id in self._live.keys() - self.silent]
        text = order.to_json()
        answers = [take_census(CensusOrder.from_json(text), name).to_json() for name in names]
        return [self.with_usage(Census.from_json(answer)) for answer in answers]

    def with_usage(self, answer: Answer) -> Answer:
        """Return an executor's answer with the disk and memory usage that are set for it, instead of the machine's.

        An executor without them has an empty disk. Its memory is not measured.
        """
        memory = self.memories[answer.executor]() if answer.executor in self.memories else (0, 0)
        disk = self.disks[answer.executor]() if answer.executor in self.disks else _EMPTY_DISK
        return replace(answer, disk=disk, memory=memory)

    def upkeep(self, orders: Mapping[str, UpkeepOrder]) -> list[UpkeepReceipt]:
        """Run each live executor's piece of upkeep."""
        names = sorted(orders.keys() & self._live.keys() - self.stalled)
        frozen = [name for name in names if name in self.frozen]
        receipts = [self._upkeep(orders[name].to_json(), name) for name in names if name not in self.frozen]
        if not frozen:
            return receipts
        seconds = max(orders[executor].seconds + orders[executor].timeout_seconds for executor in frozen)
        self.clock.advance(seconds)
        return [overdue_receipt(executor, seconds) for executor in frozen]

    def _upkeep(self, text: str, executor: str) -> UpkeepReceipt:
        receipt = run_upkeep(UpkeepOrder.from_json(text), executor, self.random_bytes, _STOPPED_CLOCK)
        return self.with_usage(UpkeepReceipt.from_json(receipt.to_json()))

    def find_planned_removals(self, executors: Sequence[str]) -> frozenset[str]:
        """Return the executors that were removed on purpose."""
        return frozenset(executors) & self._dismissed
