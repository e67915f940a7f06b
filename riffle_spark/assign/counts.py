"""How many tasks of each group each member should have, with the fewest moves. Knows ranges. Does not know task names.

Theory of operation. Tasks of one row (a group, or the part of it that may go to the same members) are alike, so the
whole question is a flow of units from rows to members with convex costs:

    cost of placed[row, member]  store_weight x excess outside [low, high]  +  stops made, for each task lost to others
    cost of load[member]         instance_weight x excess outside [low, high]

One unit of excess outweighs all moves together. Units without an owner are dealt out first, then moves from the fullest
to the emptiest member are made while they pay, and in the end negative cycles of the residual network are cancelled
until there are none, which proves the optimum. The network has rows + members nodes, not tasks, so a search is a few
NumPy operations on a rows x members matrix.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "Demand", "balanced_counts"]

Ints = npt.NDArray[np.int64]
Places = tuple[slice, slice]
FORBIDDEN = 1 << 58
EVERYWHERE: Places = (slice(None), slice(None))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most units of each row each member should have, and of all rows together.

    Without ``by_row`` all rows are one: ``low`` and ``high`` have a single row then.
    """

    low: Ints
    high: Ints
    member_low: Ints
    member_high: Ints
    by_row: bool = True


@dataclass(frozen=True, slots=True)
class Demand:
    """The question: rows x members matrices, and vectors over rows or members.

    ``owned`` units are there already, of which ``held`` may not leave; ``free`` units of a row have no place yet.
    ``strays`` of the owned ones lost their owner and only stop here if they have to go on. The two prices are those of
    moving an owned unit and, beyond it, a stray one (less than zero: strays are moved first).
    ``base`` is what members carry beside these rows; the bounds by member are for both together. ``allowed`` says where
    a row may go.
    """

    owned: Ints
    strays: Ints
    held: Ints
    free: Ints
    allowed: npt.NDArray[np.bool_]
    bounds: Bounds
    base: Ints
    slots: Ints
    store_weight: int
    instance_weight: int
    move_price: int = 1
    stray_price: int = 0
    stateless: bool = False

    @property
    def units(self) -> int:
        """Return how many units there are."""
        return int(self.owned.sum() + self.free.sum())

    @property
    def last_price(self) -> int:
        """Return the lower of the two prices: units lost first are the cheaper ones."""
        return self.move_price + min(self.stray_price, 0)


def balanced_counts(demand: Demand) -> Ints:
    """Return how many units of each row each member should have: least excess, then fewest units moved."""
    flow = _UnitFlow(demand)
    flow.release()
    flow.deal()
    flow.shift()
    flow.cancel_cycles()
    return flow.placed


@dataclass(frozen=True, slots=True)
class _Marginals:
    """What one unit more and one unit less cost: of a row on a member, and on a member whatever the row.

    The arrays are kept up to date in place.
    """

    row_more: Ints
    row_less: Ints
    member_more: Ints
    member_less: Ints


class _UnitFlow:
    """The flow while it is found; every method keeps marginal costs up to date."""

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.placed: Ints = demand.owned.copy()
        self.free: Ints = demand.free.copy()
        units = (demand.units + 1) * (demand.move_price + abs(demand.stray_price))
        self.store_price = demand.store_weight * units
        self.instance_price = demand.instance_weight * units
        self._price_all()

    def _price_all(self) -> None:
        self.load: Ints = self.demand.base + self.placed.sum(axis=0)
        self.marginals = _Marginals(*self._row_marginals(EVERYWHERE), *self._member_marginals(EVERYWHERE))

    def _row_marginals(self, places: Places) -> tuple[Ints, Ints]:
        """Return what one unit more and one unit less cost in each of these places."""
        demand, placed, price = self.demand, self.placed[places], self.store_price
        low, high, owned = demand.bounds.low[places], demand.bounds.high[places], demand.owned[places]
        strays, last_price, step = demand.strays[places], demand.last_price, abs(demand.stray_price)
        dearer = strays if demand.stray_price > 0 else owned - strays
        more = np.where(placed >= high, placed - high + 1, np.where(placed < low, placed - low, 0)) * price
        less = np.where(placed <= low, low - placed + 1, np.where(placed > high, high - placed, 0)) * price
        more = more - (placed < owned) * last_price - (placed < dearer) * step
        less = less + (placed <= owned) * last_price + (placed <= dearer) * step
        allowed, may_leave = demand.allowed[places], placed > demand.held[places]
        return np.where(allowed, more, FORBIDDEN), np.where(may_leave, less, FORBIDDEN)

    def _member_marginals(self, places: Places) -> tuple[Ints, Ints]:
        """Return what one unit more and one unit less cost on each of these places' members."""
        members, price, bounds = places[1], self.instance_price, self.demand.bounds
        load, low, high = self.load[members], bounds.member_low[members], bounds.member_high[members]
        more = np.where(load >= high, load - high + 1, np.where(load < low, load - low, 0)) * price
        less = np.where(load <= low, low - load + 1, np.where(load > high, high - load, 0)) * price
        return more, less

    def _add(self, row: int, member: int, units: int) -> None:
        at, marginals = np.s_[row : row + 1, member : member + 1], self.marginals
        self.placed[row, member] += units
        marginals.row_more[at], marginals.row_less[at] = self._row_marginals(at)

    def _carry(self, member: int, units: int) -> None:
        at, marginals = np.s_[:, member : member + 1], self.marginals
        self.load[member] += units
        marginals.member_more[at[1]], marginals.member_less[at[1]] = self._member_marginals(at)

    def release(self) -> None:
        """Give up what no good placement can keep: units where they may not be, and those over a group's range."""
        demand = self.demand
        most = self.placed if self.store_price == 0 else np.maximum(demand.bounds.high, demand.held)
        keep = np.where(demand.allowed, np.minimum(self.placed, most), demand.held)
        gone = self.placed - keep
        if gone.any():
            self.placed, self.free = keep, self.free + gone.sum(axis=1)
            self._price_all()

    def deal(self) -> None:
        """Place the units that have no place, each where it costs least, then where the load is lowest."""
        slots = self.demand.slots
        fill = np.where(slots > 0, 1000 // np.maximum(slots, 1), 1000)
        for row, units in enumerate(self.free.tolist()):
            for _ in range(units):
                cost = self.marginals.row_more[row] + self.marginals.member_more
                cheapest = np.flatnonzero(cost == cost.min())
                member = int(cheapest[((self.load[cheapest] + 1) * fill[cheapest]).argmin()])
                self._add(row, member, 1)
                self._carry(member, 1)

    def shift(self) -> None:
        """Move single units from the fullest to the emptiest member while that pays."""
        more, less = self.marginals.member_more, self.marginals.member_less
        for _ in range(int(self.placed.sum())):
            giver, taker = int(less.argmin()), int(more.argmin())
            cost = self.marginals.row_less[:, giver] + self.marginals.row_more[:, taker]
            row = int(cost.argmin())
            if giver == taker or cost[row] + less[giver] + more[taker] >= 0:
                return
            for member, units in ((giver, -1), (taker, 1)):
                self._add(row, member, units)
                self._carry(member, units)

    def cancel_cycles(self) -> None:
        """Cancel negative cycles until there is none: then no cheaper placement exists."""
        rows, members = self.placed.shape
        sink = rows + members
        for _ in range(4 * int(self.placed.sum()) + 100):
            cycle = _negative_cycle(self.marginals)
            if not cycle:
                return
            for tail, head in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                if head == sink:
                    self._carry(tail - rows, 1)
                elif tail == sink:
                    self._carry(head - rows, -1)
                elif tail < rows:
                    self._add(tail, head - rows, 1)
                else:
                    self._add(head, tail - rows, -1)


def _negative_cycle(marginals: _Marginals) -> list[int]:
    """Return the nodes of a negative cycle: rows, then members, then the sink; empty if there is none.

    Bellman and Ford, all rows and members at once; a cycle shows in the predecessors as soon as it is closed.
    """
    row_more, row_less = marginals.row_more, marginals.row_less
    rows, members = row_more.shape
    sink = rows + members
    row_cost, member_cost, sink_cost = np.zeros(rows, np.int64), np.zeros(members, np.int64), 0
    before = np.full(sink + 1, -1, np.int64)
    every_row, every_member = np.arange(rows), np.arange(members)
    while True:
        giver = (member_cost + row_less).argmin(axis=1)
        cost = member_cost[giver] + row_less[every_row, giver]
        better_rows = cost < row_cost
        row_cost = np.where(better_rows, cost, row_cost)
        before[:rows] = np.where(better_rows, rows + giver, before[:rows])
        row = (row_cost[:, None] + row_more).argmin(axis=0)
        from_sink = sink_cost + marginals.member_less
        cost = np.minimum(row_cost[row] + row_more[row, every_member], from_sink)
        better = cost < member_cost
        source = np.where(cost == from_sink, sink, row)
        member_cost = np.where(better, cost, member_cost)
        before[rows:sink] = np.where(better, source, before[rows:sink])
        to_sink = member_cost + marginals.member_more
        last = int(to_sink.argmin())
        if to_sink[last] < sink_cost:
            sink_cost, before[sink] = int(to_sink[last]), rows + last
        elif not better.any() and not better_rows.any():
            return []
        cycle = _cycle_behind(before, int(member_cost.argmin()) + rows)
        if cycle:
            return cycle


def _cycle_behind(before: Ints, node: int) -> list[int]:
    """Follow the predecessors from a node; return the cycle they run into, in the direction of flow, if any."""
    seen: dict[int, int] = {}
    path: list[int] = []
    while node >= 0:
        if node in seen:
            return path[seen[node] :][::-1]
        seen[node] = len(path)
        path.append(node)
        node = int(before[node])
    return []
