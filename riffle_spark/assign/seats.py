"""How many tasks each member should have. Knows capacities. Does not know who owns what.

Highest averages: the next task goes where the load per slot stays lowest. Members that tie at the last task may have it
or not, so the answer is a range, and whoever owns more already keeps it: that freedom is what saves moves. With equal
capacities it is floor and ceiling of the fair share, KIP-441's instance balance.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import lcm

__all__ = ["Range", "fair_range"]

Range = tuple[list[int], list[int]]


def fair_range(count: int, slots: Sequence[int], most: Sequence[int] | None = None) -> Range:
    """Return the fewest and the most tasks of ``count`` each member should have; a member of no slots gets none.

    ``most`` caps single members; what they cannot take goes to the others.

    >>> fair_range(5, [1, 1, 2])
    ([1, 1, 3], [1, 1, 3])
    """
    if most is None and len({slot for slot in slots if slot}) == 1:
        return _equal(count, slots)
    cap = [count if slot else 0 for slot in slots] if most is None else list(most)
    unit = lcm(*(slot for slot in slots if slot)) if any(slots) else 1
    step = [unit // slot if slot else 0 for slot in slots]
    total = sum(slots)
    seats = [min(count * slot // total, cap[m]) if slot else 0 for m, slot in enumerate(slots)]
    last = _fill(seats, cap, step, count)
    if last == 0:
        last = max((seats[m] * step[m] for m in range(len(slots)) if step[m] and seats[m] < cap[m]), default=0)
        last = last or max((seats[m] * step[m] for m in range(len(slots))), default=0)
    fewest = [min(-(-last // step[m]) - 1, cap[m]) if step[m] else 0 for m in range(len(slots))]
    highest = [min(last // step[m], cap[m]) if step[m] else 0 for m in range(len(slots))]
    if sum(highest) <= count:
        return highest, highest
    return [max(0, low) for low in fewest], highest


def _equal(count: int, slots: Sequence[int]) -> Range:
    members = sum(1 for slot in slots if slot)
    low, rest = divmod(count, members)
    high = low + (1 if rest else 0)
    return [low if slot else 0 for slot in slots], [high if slot else 0 for slot in slots]


def _fill(seats: list[int], cap: Sequence[int], step: Sequence[int], count: int) -> int:
    """Give out the seats that are left, one by one; return the load at which the last one went."""
    heap = [((seats[m] + 1) * step[m], m) for m in range(len(seats)) if step[m] and seats[m] < cap[m]]
    heapq.heapify(heap)
    last = 0
    for _ in range(count - sum(seats)):
        if not heap:
            return last
        load, m = heapq.heappop(heap)
        last = max(last, load)
        seats[m] += 1
        if seats[m] < cap[m]:
            heapq.heappush(heap, (load + step[m], m))
    return last
