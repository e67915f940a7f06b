"""Least cost, exactly: the target as a min-cost flow on a small network. Knows SciPy. Does not know lags or stores.

Theory of operation (KIP-925, on a smaller network). What a task costs depends on a member's zone only (its rack), and
staying costs less on a few members only. So tasks that are alike in both form one class, and the network is

    class --cost of the zone--> (row, zone) --0--> (row, member) --> member
    class --cost without the move--> (row, member)               for the members of its free set, and for its copies

with the fair ranges as bounds on (row, member) and member. All is integral, so the linear programme's vertex is the
flow. Costs are scaled so that ties go to the free set first and to members with a copy second; a smaller move count
can therefore never be beaten by an equal cost. The same input gives the same vertex: HiGHS is run serially.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from riffle_spark.errors import ConfigError

__all__ = ["Network", "TaskClass", "solve"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskClass:
    """Tasks that are alike, ``units`` units each: edges to zones as (zone, cost, units), to members as (member, cost).

    Several edges to one zone are units that cost more and more.
    """

    row: int
    edges: tuple[tuple[int, int, int], ...]
    direct: tuple[tuple[int, int], ...] = ()
    count: int = 0
    units: int = 1


@dataclass(frozen=True, slots=True)
class Network:
    """Classes, the zone of each member (-1: takes nothing), and bounds by (row, member) and by member."""

    classes: Sequence[TaskClass]
    zones: Sequence[int]
    low: Ints
    high: Ints
    member_low: Ints
    member_high: Ints


@dataclass(slots=True)
class _Programme:
    """A sparse linear programme while it is written: columns with cost and bounds, entries by equation."""

    cost: list[int] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    def equation(self, right: int = 0) -> int:
        self.right.append(right)
        return len(self.right) - 1

    def column(self, cost: int, bounds: tuple[int, int], source: int, sink: int | None) -> int:
        column = len(self.cost)
        self.cost.append(cost)
        self.bounds.append(bounds)
        self.entries.append((source, column, 1))
        if sink is not None:
            self.entries.append((sink, column, -1))
        return column


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes where: by (class, zone), by (class, member) directly, and by (row, member) from its zone."""

    to_zone: dict[tuple[int, int], int]
    direct: dict[tuple[int, int], int]
    from_zone: dict[tuple[int, int], int]


def solve(network: Network) -> Flow:
    """Return the cheapest flow.

    Raises ``ConfigError`` if SciPy is missing. The bounds must leave a flow; the caller widens them to one it has.
    """
    programme = _Programme()
    zone_columns, direct_columns, member_columns = _write(network, programme)
    amounts = _run(programme)
    return Flow(
        _taken(zone_columns, amounts),
        _taken(direct_columns, amounts),
        _taken(member_columns, amounts),
    )


_Columns = dict[tuple[int, int], list[int]]


def _write(network: Network, programme: _Programme) -> tuple[_Columns, _Columns, _Columns]:
    rows, members = network.low.shape
    hubs: dict[tuple[int, int], int] = {}
    places = [[programme.equation() for _ in range(members)] for _ in range(rows)]
    zone_columns: _Columns = defaultdict(list)
    direct_columns: _Columns = defaultdict(list)
    for c, each in enumerate(network.classes):
        supply = programme.equation(each.count * each.units)
        for zone, cost, units in each.edges:
            if (each.row, zone) not in hubs:
                hubs[each.row, zone] = programme.equation()
            column = programme.column(cost, (0, each.count * units), supply, hubs[each.row, zone])
            zone_columns[c, zone].append(column)
        for member, cost in each.direct:
            column = programme.column(cost, (0, each.count), supply, places[each.row][member])
            direct_columns[c, member].append(column)
    member_columns = {
        (row, m): [programme.column(0, (0, int(network.high[row, m])), hubs[row, zone], places[row][m])]
        for row in range(rows)
        for m, zone in enumerate(network.zones)
        if (row, zone) in hubs and network.high[row, m] > 0
    }
    _write_sinks(network, programme, places)
    return zone_columns, direct_columns, member_columns


def _write_sinks(network: Network, programme: _Programme, places: list[list[int]]) -> None:
    """Bound what each (row, member) and each member takes."""
    rows, members = network.low.shape
    for m in range(members):
        most = (int(network.member_low[m]), int(network.member_high[m]))
        if rows == 1:
            low, high = int(network.low[0, m]), int(network.high[0, m])
            programme.column(0, (max(low, most[0]), min(high, most[1])), places[0][m], None)
            continue
        total = programme.equation()
        for row in range(rows):
            programme.column(0, (int(network.low[row, m]), int(network.high[row, m])), places[row][m], total)
        programme.column(0, most, total, None)


def _run(programme: _Programme) -> Ints:
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ImportError as missing:
        raise ConfigError(
            "rack-aware assignment needs SciPy", remedy="pip install 'riffle-spark[racks]', or use the strategy none"
        ) from missing
    equation, column, sign = (np.array(part, np.int64) for part in zip(*programme.entries, strict=True))
    shape = (len(programme.right), len(programme.cost))
    matrix = csr_array((sign, (equation, column)), shape=shape)
    answer = linprog(
        np.array(programme.cost, float),
        A_eq=matrix,
        b_eq=np.array(programme.right, float),
        bounds=np.array(programme.bounds, float),
        method="highs-ds",
        options={"presolve": False},  # the network has nothing to presolve: three to eight times faster without
    )
    assert answer.status == 0, f"the network has no flow: {answer.message}"
    amounts: Ints = np.rint(answer.x).astype(np.int64)
    return amounts


def _taken(columns: _Columns, amounts: Ints) -> dict[tuple[int, int], int]:
    taken = {key: sum(int(amounts[column]) for column in each) for key, each in columns.items()}
    return {key: amount for key, amount in taken.items() if amount}
