"""Find the cheapest target as a min-cost flow on a small network.

Theory of operation (KIP-925, on a smaller network). The cost of a task depends only on the zone of the member (its
rack), except on the few members that need no move. Tasks with the same costs form one class. The network is

    class --cost of the zone--> (row, zone) --0--> (row, member) --> member
    class --cost without the move--> (row, member)               for the members of its free set, and for its copies

with the fair ranges as bounds on (row, member) and member. All numbers are integers, so the vertex of the linear
programme is the flow. Costs are scaled so that ties prefer the free set, then members with a copy. The same input gives
the same vertex, because HiGHS runs serially.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from riffle_spark.assign.counts import Bounds
from riffle_spark.optional_packages import check_importable

Ints = npt.NDArray[np.int64]
OUT = -1


@dataclass(frozen=True, slots=True)
class TaskClass:
    """``count`` alike tasks of ``units`` units: edges to zones as (zone, cost, units), to members as (member, cost).

    If a class has several edges to the same zone, each costs more than the one before.
    """

    row: int
    edges: tuple[tuple[int, int, int], ...]
    direct: tuple[tuple[int, int], ...] = ()
    count: int = 0
    units: int = 1


@dataclass(frozen=True, slots=True)
class Network:
    """The classes, the zone of each member (-1: none), and the bounds by (row, member) and by member."""

    classes: Sequence[TaskClass]
    zones: Sequence[int]
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Flow:
    """Units by (class, zone), by (class, member) directly, and by (row, member) from its zone."""

    to_zone: dict[tuple[int, int], int]
    direct: dict[tuple[int, int], int]
    from_zone: dict[tuple[int, int], int]


def solve(network: Network) -> Flow:
    """Return the cheapest flow through the network.

    Raises ``ConfigError`` if SciPy is missing. The bounds must admit a flow.
    """
    return _Programme(network).solve()


class _Edge(NamedTuple):
    """An edge from one node's equation to another's or out of the network, with its cost and bounds."""

    source: int
    sink: int
    cost: int
    low: int
    high: int


class _Programme:
    """A network as a sparse linear programme: a column per edge, an equation per node."""

    def __init__(self, network: Network) -> None:
        """Write the columns and equations of this network."""
        self._network = network
        self._edges: list[_Edge] = []
        self._supplies: list[int] = []
        rows, members = network.bounds.low.shape
        self._places = [[self._add_equation() for _ in range(members)] for _ in range(rows)]
        self._to_zone: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._direct: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._from_zone: dict[tuple[int, int], list[int]] = {}
        self._write_classes()
        self._write_places()

    def _add_equation(self, supply: int = 0) -> int:
        """Add the equation of a node that supplies ``supply`` units, and return its number."""
        self._supplies.append(supply)
        return len(self._supplies) - 1

    def _add_column(self, edge: _Edge) -> int:
        """Add the variable of an edge, and return its number."""
        self._edges.append(edge)
        return len(self._edges) - 1

    def _write_classes(self) -> None:
        """Add the edges from classes of tasks to zones and single members, and from zones to members."""
        network = self._network
        places = self._places
        hubs: dict[tuple[int, int], int] = {}
        for c, task_class in enumerate(network.classes):
            supply = self._add_equation(task_class.count * task_class.units)
            for zone, cost, units in task_class.edges:
                if (task_class.row, zone) not in hubs:
                    hubs[task_class.row, zone] = self._add_equation()
                edge = _Edge(supply, hubs[task_class.row, zone], cost, 0, task_class.count * units)
                self._to_zone[c, zone].append(self._add_column(edge))
            for member, cost in task_class.direct:
                edge = _Edge(supply, places[task_class.row][member], cost, 0, task_class.count)
                self._direct[c, member].append(self._add_column(edge))
        high = network.bounds.high.tolist()
        for row in range(len(places)):
            for m, zone in enumerate(network.zones):
                if (row, zone) in hubs and high[row][m] > 0:
                    edge = _Edge(hubs[row, zone], places[row][m], 0, 0, high[row][m])
                    self._from_zone[row, m] = [self._add_column(edge)]

    def _write_places(self) -> None:
        """Add the edges from (row, member) to members and out of the network, with the bounds as their limits."""
        bounds = self._network.bounds
        places = self._places
        low = bounds.low.tolist()
        high = bounds.high.tolist()
        for m, (least, highest) in enumerate(zip(bounds.member_low.tolist(), bounds.member_high.tolist(), strict=True)):
            if len(places) == 1:
                self._add_column(_Edge(places[0][m], OUT, 0, max(low[0][m], least), min(high[0][m], highest)))
                continue
            total = self._add_equation()
            for row, place in enumerate(places):
                self._add_column(_Edge(place[m], total, 0, low[row][m], high[row][m]))
            self._add_column(_Edge(total, OUT, 0, least, highest))

    def solve(self) -> Flow:
        """Solve the programme, and return the units on its edges as a ``Flow``."""
        amounts = self._solve_amounts().tolist()
        to_zone, direct, from_zone = (
            {key: amount for key, columns in edges.items() if (amount := sum(amounts[column] for column in columns))}
            for edges in (self._to_zone, self._direct, self._from_zone)
        )
        return Flow(to_zone, direct, from_zone)

    def _solve_amounts(self) -> Ints:
        """Solve the programme with SciPy, and return the units on each edge, by number."""
        check_importable(
            "scipy.optimize",
            "an assignment by racks or by user_cost",
            "scipy>=1.11",
            ", or assign without racks and user_cost",
        )
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        source, sink, cost, low, high = (np.array(values, np.int64) for values in zip(*self._edges, strict=True))
        column = np.arange(len(source))
        inside = sink != OUT
        matrix = csr_array(
            (
                np.concatenate([np.ones(len(source), np.int64), -np.ones(inside.sum(), np.int64)]),
                (np.concatenate([source, sink[inside]]), np.concatenate([column, column[inside]])),
            ),
            shape=(len(self._supplies), len(source)),
        )
        answer = linprog(
            cost.astype(float),
            A_eq=matrix,
            b_eq=np.array(self._supplies, float),
            bounds=np.stack([low, high], axis=1).astype(float),
            method="highs-ds",
            options={"presolve": False},  # the network has nothing to presolve: three to eight times faster without
        )
        assert answer.status == 0, f"the network has no flow: {answer.message}"
        amounts: Ints = np.rint(answer.x).astype(np.int64)
        return amounts
