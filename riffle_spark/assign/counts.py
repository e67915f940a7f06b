"""How many tasks of each group each member should have, with the fewest moves. Knows ranges. Does not know task names.

Theory of operation. Tasks of one row (a group, or the part of it that may go to the same members) are alike, so the
whole question is a flow of units from rows to members with convex costs:

    cost of x[row, member]   store_weight x excess outside [low, high]  +  stops made, for each task lost to others
    cost of n[member]        instance_weight x excess outside [low, high]

One unit of excess outweighs all moves together. Units without an owner are dealt out first, then moves from the fullest
to the emptiest member are made while they pay, and in the end negative cycles of the residual network are cancelled
until there are none, which proves the optimum. The network has rows + members nodes, not tasks, so a search is a few
NumPy operations on a rows x members matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Demand", "balanced_counts"]

Ints = npt.NDArray[np.int64]
FORBIDDEN: Final = 1 << 58


@dataclass(frozen=True, slots=True)
class Demand:
    """The question: rows x members matrices, and vectors over rows or members.

    ``owned`` units are there already, of which ``held`` may not leave; ``free`` units of a row have no place yet.
    ``strays`` of the owned ones lost their owner and only stop here if they have to go on. The two prices are those of
    moving an owned unit and, beyond it, a stray one (less than zero: strays are moved first).
    ``base`` is what members carry beside these rows. ``allowed`` says where a row may go.
    """

    owned: Ints
    strays: Ints
    held: Ints
    free: Ints
    allowed: npt.NDArray[np.bool_]
    low: Ints
    high: Ints
    base: Ints
    member_low: Ints
    member_high: Ints
    slots: Ints
    store_weight: int
    instance_weight: int
    move_price: int = 1
    stray_price: int = 0
    stateless: bool = False

    @property
    def last_price(self) -> int:
        """Return the lower of the two prices: units lost first are the cheaper ones."""
        return self.move_price + min(self.stray_price, 0)

    @property
    def kept_first(self) -> Ints:
        """Return how many of the owned units are the dearer ones."""
        return self.strays if self.stray_price > 0 else self.owned - self.strays


def balanced_counts(demand: Demand) -> Ints:
    """Return how many units of each row each member should have: least excess, then fewest units moved."""
    state = _State(demand)
    state.release()
    state.deal()
    state.shift()
    state.cancel_cycles()
    return state.x


class _State:
    """The flow while it is found; every method keeps marginal costs up to date."""

    def __init__(self, demand: Demand) -> None:
        self.d = demand
        self.x: Ints = demand.owned.copy()
        self.free: Ints = demand.free.copy()
        self.n: Ints = demand.base + self.x.sum(axis=0)
        units = (int(demand.owned.sum() + demand.free.sum()) + 1) * (demand.move_price + abs(demand.stray_price))
        self.store_price = demand.store_weight * units
        self.instance_price = demand.instance_weight * units
        self.up, self.down = _store_marginals(self.x, demand, self.store_price)
        self.more, self.less = _member_marginals(self.n, demand, self.instance_price)

    def _add(self, row: int, member: int, units: int) -> None:
        self.x[row, member] += units
        cell = np.s_[row : row + 1, member : member + 1]
        up, down = _store_marginals(self.x[cell], self.d, self.store_price, cell)
        self.up[row, member], self.down[row, member] = up[0, 0], down[0, 0]

    def _load(self, member: int, units: int) -> None:
        self.n[member] += units
        cell = np.s_[member : member + 1]
        more, less = _member_marginals(self.n[cell], self.d, self.instance_price, cell)
        self.more[member], self.less[member] = more[0], less[0]

    def release(self) -> None:
        """Give up what no good placement can keep: units where they may not be, and those over a group's range."""
        keep = np.where(self.d.allowed, np.minimum(self.x, np.maximum(self.d.high, self.d.held)), self.d.held)
        if self.store_price == 0:
            keep = np.where(self.d.allowed, self.x, self.d.held)
        gone = self.x - keep
        if not gone.any():
            return
        self.x, self.free = keep, self.free + gone.sum(axis=1)
        self.n = self.d.base + keep.sum(axis=0)
        self.up, self.down = _store_marginals(self.x, self.d, self.store_price)
        self.more, self.less = _member_marginals(self.n, self.d, self.instance_price)

    def deal(self) -> None:
        """Place the units that have no place, each where it costs least, then where the load is lowest."""
        fill = np.where(self.d.slots > 0, 1000 // np.maximum(self.d.slots, 1), 1000)
        for row, units in enumerate(self.free.tolist()):
            for _ in range(units):
                cost = self.up[row] + self.more
                cheapest = np.flatnonzero(cost == cost.min())
                member = int(cheapest[((self.n[cheapest] + 1) * fill[cheapest]).argmin()])
                self._add(row, member, 1)
                self._load(member, 1)

    def shift(self) -> None:
        """Move single units from the fullest to the emptiest member while that pays."""
        for _ in range(int(self.x.sum())):
            giver, taker = int(self.less.argmin()), int(self.more.argmin())
            cost = self.down[:, giver] + self.up[:, taker]
            row = int(cost.argmin())
            if giver == taker or cost[row] + self.less[giver] + self.more[taker] >= 0:
                return
            for member, units in ((giver, -1), (taker, 1)):
                self._add(row, member, units)
                self._load(member, units)

    def cancel_cycles(self) -> None:
        """Cancel negative cycles until there is none: then no cheaper placement exists."""
        for _ in range(4 * int(self.x.sum()) + 100):
            cycle = _negative_cycle(self.up, self.down, self.more, self.less)
            if not cycle:
                return
            rows, members = self.x.shape
            for tail, head in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                self._follow(tail, head, rows, rows + members)

    def _follow(self, tail: int, head: int, rows: int, sink: int) -> None:
        if head == sink:
            self._load(tail - rows, 1)
        elif tail == sink:
            self._load(head - rows, -1)
        elif tail < rows:
            self._add(tail, head - rows, 1)
        else:
            self._add(head, tail - rows, -1)


def _store_marginals(x: Ints, d: Demand, price: int, cell: tuple[slice, slice] = np.s_[:, :]) -> tuple[Ints, Ints]:
    """Return what one unit more and one unit less cost in each place."""
    low, high, owned, first, step = d.low[cell], d.high[cell], d.owned[cell], d.kept_first[cell], d.stray_price
    up = np.where(x >= high, x - high + 1, np.where(x < low, x - low, 0)) * price
    down = np.where(x <= low, low - x + 1, np.where(x > high, high - x, 0)) * price
    up = up - (x < owned) * d.last_price - (x < first) * abs(step)
    down = down + (x <= owned) * d.last_price + (x <= first) * abs(step)
    return np.where(d.allowed[cell], up, FORBIDDEN), np.where(x > d.held[cell], down, FORBIDDEN)


def _member_marginals(n: Ints, d: Demand, price: int, cell: slice = np.s_[:]) -> tuple[Ints, Ints]:
    low, high = d.member_low[cell], d.member_high[cell]
    more = np.where(n >= high, n - high + 1, np.where(n < low, n - low, 0)) * price
    less = np.where(n <= low, low - n + 1, np.where(n > high, high - n, 0)) * price
    return more, less


def _negative_cycle(up: Ints, down: Ints, more: Ints, less: Ints) -> list[int]:
    """Return the nodes of a negative cycle: rows, then members, then the sink; empty if there is none.

    Bellman and Ford, all rows and members at once; a cycle shows in the predecessors as soon as it is closed.
    """
    rows, members = up.shape
    sink = rows + members
    row_cost, member_cost, sink_cost = np.zeros(rows, np.int64), np.zeros(members, np.int64), 0
    before = np.full(sink + 1, -1, np.int64)
    every_row, every_member = np.arange(rows), np.arange(members)
    while True:
        giver = (member_cost + down).argmin(axis=1)
        cost = member_cost[giver] + down[every_row, giver]
        better_rows = cost < row_cost
        row_cost = np.where(better_rows, cost, row_cost)
        before[:rows] = np.where(better_rows, rows + giver, before[:rows])
        row = (row_cost[:, None] + up).argmin(axis=0)
        cost = np.minimum(row_cost[row] + up[row, every_member], sink_cost + less)
        better = cost < member_cost
        source = np.where(cost == sink_cost + less, sink, row)
        member_cost = np.where(better, cost, member_cost)
        before[rows:sink] = np.where(better, source, before[rows:sink])
        last = int((member_cost + more).argmin())
        closed = int(member_cost[last] + more[last])
        if closed < sink_cost:
            sink_cost, before[sink] = closed, rows + last
        elif not better.any() and not better_rows.any():
            return []
        cycle = _closed(before, int(member_cost.argmin()) + rows)
        if cycle:
            return cycle


def _closed(before: Ints, start: int) -> list[int]:
    """Follow the predecessors from ``start``; return the cycle they run into, in the direction of flow, if any."""
    seen: dict[int, int] = {}
    path: list[int] = []
    node = start
    while node >= 0:
        if node in seen:
            return path[seen[node] :][::-1]
        seen[node] = len(path)
        path.append(node)
        node = int(before[node])
    return []
