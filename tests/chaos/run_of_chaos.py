"""The phases of a chaos run: faults in several lanes while events are produced, then recovery, then the comparison."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.calls import read_calls
from tests.chaos.drawing import Drawn, draw
from tests.chaos.driver_app import QUERIES
from tests.chaos.faults import Kind
from tests.chaos.ledger import Verdict, compare, ledgers
from tests.chaos.system_under_test import SystemUnderTest

__all__ = ["Lane", "Outcome", "Tally", "committed_share", "lanes_over", "verdicts"]

CATCH_UP_SECONDS = 3_600.0
STANDSTILL_SECONDS = 900.0
"""The time without progress after which the queries are considered stuck.

A Kafka client may wait as long as its clock was set back, before its query catches up.
"""
POLL_SECONDS = 0.5
FIRST_BATCH_SECONDS = 400.0
RECOVERY_SECONDS = 45.0
Say = Callable[[str], None]


@dataclass(slots=True)
class Tally:
    """How often each kind of fault happened, and the errors of the injection itself."""

    happened: Counter[str] = field(default_factory=Counter)
    without_effect: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class Lane(threading.Thread):
    """A thread that injects faults of one lane one after the other until the run ends. Each fault is healed."""

    def __init__(self, name: str, system: SystemUnderTest, kinds: Mapping[str, Kind], tally: Tally, say: Say) -> None:
        super().__init__(name=name, daemon=True)
        self._system = system
        self._kinds = kinds
        self._tally = tally
        self._say = say
        self.over = threading.Event()
        self.pauses = (2.0, 6.0)

    def run(self) -> None:
        """Draw and inject faults until the run ends."""
        for drawn in draw(self._system.seed, self.name, list(self._kinds), self.pauses):
            if self._recovered(drawn.pause_seconds):
                return
            self._one(drawn)

    def _recovered(self, pause_seconds: float) -> bool:
        """Wait for a bounded time until each query has committed another batch. Return whether the run has ended."""
        progress = self._progress()
        give_up = time.monotonic() + RECOVERY_SECONDS
        while not self.over.wait(pause_seconds) and time.monotonic() < give_up:
            if all(current > previous for current, previous in zip(self._progress(), progress, strict=True)):
                break
            pause_seconds = POLL_SECONDS
        return self.over.is_set()

    def _progress(self) -> list[int]:
        return [(self._system.committed_batches(query) or [-1])[-1] for query in QUERIES]

    def _one(self, drawn: Drawn) -> None:
        kind = self._kinds[drawn.kind]
        chance = random.Random(drawn.seed)
        fault = kind.make(self._system, chance)
        holds = chance.uniform(*kind.holds)
        try:
            happened = fault.inject()
            self._say(f"{drawn.kind}: {fault.description if happened else 'nothing to break'}")
            if happened:
                self.over.wait(holds)
        except Exception as error:  # noqa: BLE001 - reported at the end, fails the run
            happened = False
            self._tally.broken.append(f"{drawn.kind}: {type(error).__name__}: {error}")
        finally:
            self._healed(drawn.kind, fault.heal)
        if happened and not fault.came():
            happened = False
            self._say(f"{drawn.kind}: had no effect")
        (self._tally.happened if happened else self._tally.without_effect)[drawn.kind] += 1

    def _healed(self, kind: str, heal: Callable[[], None]) -> None:
        try:
            heal()
        except Exception as error:  # noqa: BLE001 - reported at the end
            self._tally.broken.append(f"healing {kind}: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a chaos run."""

    seed: int
    rows: int
    batches: int
    lost: int
    doubled: int
    wrong: int
    late: int
    faults: Mapping[str, int]
    seconds: float
    rows_per_second: int
    committed_share: float
    repeated_deliveries: int
    drivers: int
    failures: list[str]
    broken: list[str]
    not_met: list[str]
    by_query: Mapping[str, Mapping[str, int]]


def lanes_over(lanes: list[Lane]) -> None:
    """End the lanes. Wait until their faults are healed."""
    for lane in lanes:
        lane.over.set()
    for lane in lanes:
        lane.join()


def await_first_batches(system: SystemUnderTest) -> None:
    """Wait until every query has committed a batch, because earlier faults would only disturb the start."""
    wait(lambda: all(system.read_to(query) for query in QUERIES), FIRST_BATCH_SECONDS, "the first batches")


def wait(reached: Callable[[], bool], seconds: float, condition: str) -> float:
    """Wait until a condition holds. Return the seconds that it took."""
    started = time.monotonic()
    while not reached():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"timeout after {seconds:g} s: {condition}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


def catch_up(system: SystemUnderTest, events: int, say: Say) -> bool:
    """Wait until each query has read all events. Return whether they have.

    Give up after ``CATCH_UP_SECONDS``, or when the queries make no progress.
    """
    started = advanced = time.monotonic()
    most = 0
    while True:
        now = time.monotonic()
        read = {query: system.read_to(query) for query in QUERIES}
        if all(position >= events for position in read.values()):
            say(f"all {events} events are read, {now - started:.0f} s after the last one")
            return True
        if sum(read.values()) > most:
            most = sum(read.values())
            advanced = now
        if now - started > CATCH_UP_SECONDS or now - advanced > STANDSTILL_SECONDS:
            say(f"not all is read: {', '.join(f'{query} {position}' for query, position in read.items())} of {events}")
            return False
        time.sleep(POLL_SECONDS)


def verdicts(system: SystemUnderTest, events: int) -> dict[str, Verdict]:
    """Return the comparison of each query's deliveries with the ledger."""
    by_user, by_window = ledgers(system.plan, events)
    expected = {"totals": by_user, "visits": by_user, "windows": by_window}
    return {
        query: compare(ledger, read_calls(system.folder / "out" / query, query, system.plan), running=query == "totals")
        for query, ledger in expected.items()
    }


def settled_verdicts(system: SystemUnderTest, events: int, seconds: float = 90.0) -> dict[str, Verdict]:
    """Wait for a bounded time until all due timers and windows are delivered. Return the verdicts."""
    give_up = time.monotonic() + seconds
    query_verdicts = verdicts(system, events)
    while not all(verdict.is_exact for verdict in query_verdicts.values()) and time.monotonic() < give_up:
        time.sleep(3)
        query_verdicts = verdicts(system, events)
    return query_verdicts


def committed_share(path: Path, reports_by_query: Mapping[str, Sequence[object]]) -> float:
    """Return the share of the started batches that were committed, for the queries that record both.

    A batch of a killed driver counts as not committed.
    """
    began = {file.name: len(file.read_text().splitlines()) for file in path.iterdir()}
    return sum(len(reports_by_query[query]) for query in began) / max(1, sum(began.values()))


def reports(folder: Path) -> list[dict[str, object]]:
    """Return the batch reports of a query, without lines that a killed driver left unfinished."""
    lines = []
    for line in folder.read_text().splitlines() if folder.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
