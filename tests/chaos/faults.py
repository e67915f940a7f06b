"""Faults of processes and of the store, one class per family."""

from __future__ import annotations

import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from tests.chaos.processes import busiest, drivers, holders, python_workers, send
from tests.chaos.store_proxy import TROUBLES, Trouble
from tests.chaos.system_under_test import APP, SystemUnderTest

__all__ = ["PROCESS_FAULTS", "STORE_FAULTS", "Fault", "Kind"]

SHARE = 0.5
SHORT = (1.0, 1.5)
LONG = (25.0, 90.0)
"""Long pauses exceed ``upkeep_timeout``.

The longest exceed ``spark.network.timeout``, so Spark removes the executor.
"""
SEEKING_SECONDS = 30.0


class Fault(ABC):
    """A fault that can be injected and healed.

    ``inject`` returns whether there was something to break. ``heal`` is always called. Afterwards ``came`` returns
    whether the fault had an effect.
    """

    def __init__(self, system: SystemUnderTest, chance: random.Random) -> None:
        self.system = system
        self.chance = chance
        self.description = ""

    @abstractmethod
    def inject(self) -> bool:
        """Inject the fault. Return whether there was something to break."""

    def heal(self) -> None:
        """End the fault. It has no effect if nothing was broken."""
        return

    def came(self) -> bool:
        """Return whether the fault had an effect."""
        return True


class Kind(NamedTuple):
    """The constructor of a kind of fault, and the range of its duration in seconds."""

    make: Callable[[SystemUnderTest, random.Random], Fault]
    holds: tuple[float, float] = (0.0, 0.0)


class StoreTrouble(Fault):
    """A share of the store's answers is broken in one way."""

    kind = ""

    def __init__(self, system: SystemUnderTest, chance: random.Random) -> None:
        super().__init__(system, chance)
        self._before = system.proxy.met[self.kind]

    def inject(self) -> bool:
        share = 0.2 if self.kind == "slow" else SHARE
        self.system.proxy.trouble = Trouble(self.kind, share)
        return True

    def heal(self) -> None:
        self.system.proxy.trouble = None

    def came(self) -> bool:
        met = self.system.proxy.met[self.kind] - self._before
        self.description = f"{met} requests met it"
        return met > 0


class StoreRefuses(Fault):
    """The store refuses connections, and open connections are closed."""

    def __init__(self, system: SystemUnderTest, chance: random.Random) -> None:
        super().__init__(system, chance)
        self._stack = ExitStack()

    def inject(self) -> bool:
        self._stack.enter_context(self.system.proxy.refusing())
        return True

    def heal(self) -> None:
        self._stack.close()


class Signalled(Fault):
    """A process gets SIGKILL, or SIGSTOP until the fault is healed."""

    number = signal.SIGKILL

    @abstractmethod
    def victim(self) -> int | None:
        """Return a process to signal, or ``None`` if there is none now."""

    def inject(self) -> bool:
        give_up = time.monotonic() + SEEKING_SECONDS
        while (pid := self.victim()) is None or not send(pid, self.number):
            if time.monotonic() > give_up:
                return False
            time.sleep(0.05)
        self._pid = pid
        self.description = f"process {pid}"
        return True

    def heal(self) -> None:
        if self.number == signal.SIGSTOP and hasattr(self, "_pid"):
            send(self._pid, signal.SIGCONT)


class ExecutorKill(Signalled):
    """A random executor."""

    def victim(self) -> int | None:
        executors = self.system.executors()
        return self.chance.choice(executors) if executors else None


class SlotWorkerKill(Signalled):
    """The busiest Python worker that does no upkeep."""

    def victim(self) -> int | None:
        workers = [pid for executor in self.system.executors() for pid in python_workers(executor)]
        return busiest(pid for pid in workers if pid not in self._at_upkeep())

    def _at_upkeep(self) -> list[int]:
        return holders(self.system.folder.glob("local/*/*/upkeep"))


class UpkeepWorkerKill(SlotWorkerKill):
    """A Python worker that does upkeep, recognised by the lock that it holds."""

    def victim(self) -> int | None:
        upkeep_pids = self._at_upkeep()
        worker_pids = [pid for executor in self.system.executors() for pid in python_workers(executor)]
        return next((pid for pid in upkeep_pids if pid in worker_pids), None)


class DriverKill(Fault):
    """Send SIGKILL to the driver: to its Java process, its Python process or both."""

    def inject(self) -> bool:
        java, python = drivers(self.system.driver_pids(), APP.name)
        if not java or not python:
            return False
        self.system.expected_to_end.set()
        which = self.chance.choice(["Java", "Python", "both"])
        self.description = which
        for pid in {"Java": java, "Python": python, "both": [*java, *python]}[which]:
            send(pid, signal.SIGKILL)
        return True


class WorkerDaemonKill(Fault):
    """Send SIGKILL to a worker of the cluster and its executors. The worker returns later with its folders."""

    _index: int | None = None

    def inject(self) -> bool:
        self._index = self.chance.randrange(self.system.size.workers)
        self.description = self.system.cluster.hosts[self._index]
        self.system.cluster.kill_worker(self._index)
        return True

    def heal(self) -> None:
        if self._index is not None:
            self.system.cluster.return_worker(self._index)


class BrokerRestart(Fault):
    """Stop the broker, and start it later on the same folder."""

    def inject(self) -> bool:
        self.system.broker.stop()
        return True

    def heal(self) -> None:
        self.system.broker.start()
        self.system.broker.wait_until_ready()


def _stopped(base: type[Signalled]) -> type[Signalled]:
    return type(f"{base.__name__}Stopped", (base,), {"number": signal.SIGSTOP, "__doc__": base.__doc__})


def _trouble(kind: str) -> type[StoreTrouble]:
    return type("StoreTroubleOfKind", (StoreTrouble,), {"kind": kind, "__doc__": StoreTrouble.__doc__})


STORE_FAULTS: Mapping[str, Kind] = {
    **{f"store: {kind}": Kind(_trouble(kind), (4.0, 8.0)) for kind in TROUBLES},
    "store: refused connections": Kind(StoreRefuses, (30.0, 30.0)),
}
PROCESS_FAULTS: Mapping[str, Kind] = {
    "SIGKILL executor": Kind(ExecutorKill),
    "SIGKILL worker": Kind(WorkerDaemonKill, (1.0, 6.0)),
    "SIGKILL driver": Kind(DriverKill),
    "SIGKILL Python in a slot": Kind(SlotWorkerKill),
    "SIGKILL Python in upkeep": Kind(UpkeepWorkerKill),
    "SIGSTOP executor, short": Kind(_stopped(ExecutorKill), SHORT),
    "SIGSTOP executor, long": Kind(_stopped(ExecutorKill), LONG),
    "SIGSTOP Python in a slot, short": Kind(_stopped(SlotWorkerKill), SHORT),
    "SIGSTOP Python in a slot, long": Kind(_stopped(SlotWorkerKill), LONG),
    "SIGSTOP Python in upkeep, short": Kind(_stopped(UpkeepWorkerKill), SHORT),
    "SIGSTOP Python in upkeep, long": Kind(_stopped(UpkeepWorkerKill), LONG),
    "broker restart": Kind(BrokerRestart, (2.0, 6.0)),
}
