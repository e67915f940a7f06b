"""Compute how many tasks of each group each member should have, with the fewest moves.

Theory of operation. The tasks of a row (a group, or the part of it that may go to the same members) are alike. So the
question is a flow of units from rows to members with convex costs:

    cost of placed[row, member]  store_weight x excess outside [low, high]  +  stops made, for each task lost to others
    cost of load[member]         instance_weight x excess outside [low, high]

One unit of excess outweighs all moves together.

1. Units without an owner are placed where they cost least.
2. Units move from the fullest to the emptiest member while that reduces the cost.
3. Negative cycles of the residual network are cancelled until there are none. Then no cheaper flow exists.

The network has rows + members nodes, not tasks. So a search is a few NumPy operations on a rows x members matrix.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Places = tuple[slice, slice]
FORBIDDEN = 1 << 58
EVERYWHERE: Places = (slice(None), slice(None))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most units of each member, of each row and of all rows together.

    Without ``by_row``, ``low`` and ``high`` have a single row for all rows together.
    """

    low: Ints
    high: Ints
    member_low: Ints
    member_high: Ints
    by_row: bool = True


@dataclass(frozen=True, slots=True)
class Demand:
    """The input: rows x members matrices, and vectors over rows or members.

    ``owned`` units are on a member already; ``pinned_units`` of them may not leave. ``strays`` of the owned units have
    lost their owner, and would move to the member first. ``free`` units of a row have no place. ``move_price`` is the
    price of moving an owned unit, ``stray_price`` the addition for a stray (negative: strays move first).
    ``other_task_counts`` are the tasks of other kinds on each member. The bounds by member include them. ``allowed``
    marks the members of each row.
    """

    owned: Ints
    strays: Ints
    pinned_units: Ints
    free: Ints
    allowed: npt.NDArray[np.bool_]
    bounds: Bounds
    other_task_counts: Ints
    slots: Ints
    store_weight: int
    instance_weight: int
    move_price: int = 1
    stray_price: int = 0
    stateless: bool = False

    @property
    def units(self) -> int:
        """Return how many units there are in all rows: owned and free."""
        return int(self.owned.sum() + self.free.sum())

    @property
    def last_price(self) -> int:
        """Return the lower of the prices of moving an owned unit and a stray. Cheaper units leave first."""
        return self.move_price + min(self.stray_price, 0)


def balance_counts(demand: Demand) -> Ints:
    """Return how many units (tasks) of each row each member should have, as a rows x members matrix.

    It has the least excess over the bounds, then the fewest moves.
    """
    flow = _UnitFlow(demand)
    flow.remove_misplaced()
    flow.place_free_units()
    flow.level_loads()
    flow.cancel_cycles()
    return flow.placed


@dataclass(frozen=True, slots=True)
class _Marginals:
    """The costs of one more and one less unit: of a row on a member, and of any row on a member. Updated in place."""

    row_more: Ints
    row_less: Ints
    member_more: Ints
    member_less: Ints


class _UnitFlow:
    """A flow of units from rows to members that is improved step by step.

    Every method keeps the marginal costs up to date.
    """

    def __init__(self, demand: Demand) -> None:
        """Start with the units that members already own, and compute the prices and marginal costs."""
        self.demand = demand
        self.placed: Ints = demand.owned.copy()
        self.free: Ints = demand.free.copy()
        units = (demand.units + 1) * (demand.move_price + abs(demand.stray_price))
        self.store_price = demand.store_weight * units
        self.instance_price = demand.instance_weight * units
        self._price_all()

    def _price_all(self) -> None:
        """Compute the load of all members and all marginal costs."""
        self.load: Ints = self.demand.other_task_counts + self.placed.sum(axis=0)
        self.marginals = _Marginals(*self._row_marginals(EVERYWHERE), *self._member_marginals(EVERYWHERE))

    def _row_marginals(self, places: Places) -> tuple[Ints, Ints]:
        """Return the costs of one more and one less unit in each of ``places``."""
        demand = self.demand
        placed = self.placed[places]
        price = self.store_price
        low = demand.bounds.low[places]
        high = demand.bounds.high[places]
        owned = demand.owned[places]
        strays = demand.strays[places]
        last_price = demand.last_price
        step = abs(demand.stray_price)
        dearer = strays if demand.stray_price > 0 else owned - strays
        more_cost = np.where(placed >= high, placed - high + 1, np.where(placed < low, placed - low, 0)) * price
        less = np.where(placed <= low, low - placed + 1, np.where(placed > high, high - placed, 0)) * price
        more_cost = more_cost - (placed < owned) * last_price - (placed < dearer) * step
        less = less + (placed <= owned) * last_price + (placed <= dearer) * step
        allowed = demand.allowed[places]
        may_leave = placed > demand.pinned_units[places]
        return np.where(allowed, more_cost, FORBIDDEN), np.where(may_leave, less, FORBIDDEN)

    def _member_marginals(self, places: Places) -> tuple[Ints, Ints]:
        """Return the costs of one more and one less unit on each member of ``places``."""
        members = places[1]
        price = self.instance_price
        bounds = self.demand.bounds
        load = self.load[members]
        low = bounds.member_low[members]
        high = bounds.member_high[members]
        more_cost = np.where(load >= high, load - high + 1, np.where(load < low, load - low, 0)) * price
        less = np.where(load <= low, low - load + 1, np.where(load > high, high - load, 0)) * price
        return more_cost, less

    def _place_units(self, row: int, member: int, units: int) -> None:
        """Add ``units`` (negative: remove) of a row to a member, and update the marginal costs of that place.

        The member's load is left to ``_change_load``.
        """
        place = np.s_[row : row + 1, member : member + 1]
        marginals = self.marginals
        self.placed[row, member] += units
        marginals.row_more[place], marginals.row_less[place] = self._row_marginals(place)

    def _change_load(self, member: int, units: int) -> None:
        """Add ``units`` (negative: remove) to a member's load, and update the member's marginal costs."""
        place = np.s_[:, member : member + 1]
        marginals = self.marginals
        self.load[member] += units
        marginals.member_more[place[1]], marginals.member_less[place[1]] = self._member_marginals(place)

    def remove_misplaced(self) -> None:
        """Take units off members that may not have them, and units above the upper bound of a row on a member.

        They become free units.
        """
        demand = self.demand
        limit = self.placed if self.store_price == 0 else np.maximum(demand.bounds.high, demand.pinned_units)
        keep = np.where(demand.allowed, np.minimum(self.placed, limit), demand.pinned_units)
        released = self.placed - keep
        if released.any():
            self.placed = keep
            self.free = self.free + released.sum(axis=1)
            self._price_all()

    def place_free_units(self) -> None:
        """Place each free unit on the member where it costs least, and of these on the member with the lowest load."""
        slots = self.demand.slots
        fill = np.where(slots > 0, 1000 // np.maximum(slots, 1), 1000)
        for row, units in enumerate(self.free.tolist()):
            for _ in range(units):
                cost = self.marginals.row_more[row] + self.marginals.member_more
                cheapest = np.flatnonzero(cost == cost.min())
                member = int(cheapest[((self.load[cheapest] + 1) * fill[cheapest]).argmin()])
                self._place_units(row, member, 1)
                self._change_load(member, 1)

    def level_loads(self) -> None:
        """Move single units from the fullest to the emptiest member while that reduces the total cost."""
        more_cost = self.marginals.member_more
        less = self.marginals.member_less
        for _ in range(int(self.placed.sum())):
            giver = int(less.argmin())
            taker = int(more_cost.argmin())
            cost = self.marginals.row_less[:, giver] + self.marginals.row_more[:, taker]
            row = int(cost.argmin())
            if giver == taker or cost[row] + less[giver] + more_cost[taker] >= 0:
                return
            for member, units in ((giver, -1), (taker, 1)):
                self._place_units(row, member, units)
                self._change_load(member, units)

    def cancel_cycles(self) -> None:
        """Move units along negative cycles of the residual network until there are none, so that no cheaper flow
        exists.
        """
        rows, members = self.placed.shape
        sink = rows + members
        for _ in range(4 * int(self.placed.sum()) + 100):
            cycle = _find_negative_cycle(self.marginals)
            if not cycle:
                return
            for tail, head in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                if head == sink:
                    self._change_load(tail - rows, 1)
                elif tail == sink:
                    self._change_load(head - rows, -1)
                elif tail < rows:
                    self._place_units(tail, head - rows, 1)
                else:
                    self._place_units(head, tail - rows, -1)


def _find_negative_cycle(marginals: _Marginals) -> list[int]:
    """Return the nodes of a cycle along which moving one unit reduces the cost; empty if there is none. Nodes are
    numbered rows first, then members, then the sink.

    This is the Bellman-Ford algorithm for all rows and members at once. A closed cycle shows in the predecessors.
    """
    row_more = marginals.row_more
    row_less = marginals.row_less
    rows, members = row_more.shape
    sink = rows + members
    row_cost = np.zeros(rows, np.int64)
    member_cost = np.zeros(members, np.int64)
    sink_cost = 0
    predecessor = np.full(sink + 1, -1, np.int64)
    every_row = np.arange(rows)
    every_member = np.arange(members)
    while True:
        giver = (member_cost + row_less).argmin(axis=1)
        cost = member_cost[giver] + row_less[every_row, giver]
        better_rows = cost < row_cost
        row_cost = np.where(better_rows, cost, row_cost)
        predecessor[:rows] = np.where(better_rows, rows + giver, predecessor[:rows])
        row = (row_cost[:, None] + row_more).argmin(axis=0)
        from_sink = sink_cost + marginals.member_less
        cost = np.minimum(row_cost[row] + row_more[row, every_member], from_sink)
        better = cost < member_cost
        source = np.where(cost == from_sink, sink, row)
        member_cost = np.where(better, cost, member_cost)
        predecessor[rows:sink] = np.where(better, source, predecessor[rows:sink])
        to_sink = member_cost + marginals.member_more
        last = int(to_sink.argmin())
        if to_sink[last] < sink_cost:
            sink_cost = int(to_sink[last])
            predecessor[sink] = rows + last
        elif not better.any() and not better_rows.any():
            return []
        cycle = _follow_predecessors(predecessor, int(member_cost.argmin()) + rows)
        if cycle:
            return cycle


def _follow_predecessors(predecessor: Ints, node: int) -> list[int]:
    """Follow the predecessors from a node.

    Return the cycle that they reach, in the direction of flow; empty if they reach none.
    """
    position: dict[int, int] = {}
    path: list[int] = []
    while node >= 0:
        if node in position:
            return path[position[node] :][::-1]
        position[node] = len(path)
        path.append(node)
        node = int(predecessor[node])
    return []
