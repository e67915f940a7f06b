"""Compare the sent events with the deliveries of three queries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.chaos.events import CHUNK, Plan

__all__ = ["Call", "Delivery", "Ledger", "Verdict", "compare", "given_up", "ledgers", "repeats_that_differ", "standing"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The parts of a delivery id ``<query id>/<rollbacks>/<batch id>``."""

    query: str
    rollbacks: int
    batch: int

    @staticmethod
    def parse(text: str, separator: str = "/") -> Delivery:
        """Parse a delivery id."""
        query, rollbacks, batch = text.split(separator)
        return Delivery(query, int(rollbacks), int(batch))


@dataclass(frozen=True, slots=True)
class Call:
    """A completed call of a sink. Each row has the index of its user or window, a count and a sum."""

    delivery: Delivery
    places: Integers
    counts: Integers
    sums: Integers

    def sorted_rows(self) -> Integers:
        """Return the rows in a fixed order."""
        rows = np.stack([self.places, self.counts, self.sums])
        return rows[:, np.lexsort(rows)]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The number of events and the sum of their amounts for each user or window."""

    counts: Integers
    sums: Integers

    @staticmethod
    def empty(places: int) -> Ledger:
        """Return a ledger of zeros."""
        return Ledger(np.zeros(places, np.int64), np.zeros(places, np.int64))

    def add(self, places: Integers, counts: Integers, sums: Integers) -> None:
        """Add counts and sums at these indexes, which may repeat."""
        np.add.at(self.counts, places, counts)
        np.add.at(self.sums, places, sums)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The differences between a query and its ledger.

    These are lost and doubled events, users or windows with a wrong count or sum, deliveries repeated with other rows,
    and batches without a delivery.
    """

    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    differing: int = 0
    missing: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether there is no difference."""
        return self == Verdict()


def ledgers(plan: Plan, events: int) -> tuple[Ledger, Ledger]:
    """Return the ledgers of the first events by user and by window. The number of events is a multiple of a chunk."""
    assert events % CHUNK == 0, events
    by_user = Ledger.empty(plan.users)
    by_window = Ledger.empty(0)
    if events:
        last = plan.chunk(events // CHUNK - 1)
        by_window = Ledger.empty(int(plan.windows_of(last).max()) // CHUNK * CHUNK + 2 * CHUNK)
    ones = np.ones(CHUNK, np.int64)
    for index in range(events // CHUNK):
        chunk = plan.chunk(index)
        by_user.add(chunk.users, ones, chunk.amounts)
        by_window.add(plan.windows_of(chunk), ones, chunk.amounts)
    return by_user, by_window


def given_up(delivery: Delivery, first_of_line: Mapping[int, int]) -> bool:
    """Return whether a later line of history starts at the delivery's batch or before, so a rollback removed it."""
    return any(line > delivery.rollbacks and first <= delivery.batch for line, first in first_of_line.items())


def standing(calls: Iterable[Call]) -> list[Call]:
    """Return one call per delivery that no rollback removed, ordered by batch."""
    by_delivery = {call.delivery: call for call in calls}
    first: dict[int, int] = {}
    for delivery in by_delivery:
        first[delivery.rollbacks] = min(delivery.batch, first.get(delivery.rollbacks, delivery.batch))
    delivered = [call for delivery, call in by_delivery.items() if not given_up(delivery, first)]
    return sorted(delivered, key=lambda call: call.delivery.batch)


def repeats_that_differ(calls: Iterable[Call]) -> list[Delivery]:
    """Return the deliveries whose calls had different rows."""
    calls_by_delivery: dict[Delivery, list[Call]] = defaultdict(list)
    for call in calls:
        calls_by_delivery[call.delivery].append(call)
    return [delivery for delivery, same in calls_by_delivery.items() if not _alike(same)]


def _alike(calls: Sequence[Call]) -> bool:
    first = calls[0].sorted_rows()
    return all(np.array_equal(first, call.sorted_rows()) for call in calls[1:])


def compare(ledger: Ledger, calls: Sequence[Call], *, running: bool) -> Verdict:
    """Compare delivered rows with the ledger.

    With ``running`` each row is a running total that replaces the previous one. Otherwise rows are added up.
    """
    delivered = standing(calls)
    totals = Ledger.empty(len(ledger.counts))
    backwards = 0
    for call in delivered:
        if running:
            backwards += int((call.counts <= totals.counts[call.places]).sum())
            totals.counts[call.places] = call.counts
            totals.sums[call.places] = call.sums
        else:
            totals.add(call.places, call.counts, call.sums)
    missing = ledger.counts - totals.counts
    wrong = (missing != 0) | (ledger.sums != totals.sums)
    batches = {call.delivery.batch for call in delivered}
    gaps = max(batches) + 1 - len(batches) if batches else 0
    return Verdict(
        lost=int(missing.clip(min=0).sum()),
        doubled=int((-missing).clip(min=0).sum()),
        wrong=int(wrong.sum()) + backwards,
        differing=len(repeats_that_differ(calls)),
        missing=gaps,
    )
