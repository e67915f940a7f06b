"""When a running query assigns anew without a change of members: what a play asks of the protocol's own rules, which
are above this room. Knows what a batch would have measured. Does not know the rules.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from riffle_spark.assign.model import Assignment, MemberId, TaskId, Traffic, View
from riffle_spark.simulate.world import WorldMember

__all__ = ["MeasuredWorld", "MemberRules", "Probing", "Rules", "Waiting"]


class Probing(Protocol):
    """What is asked of the protocol's probes."""

    def assigned(self, assignment: Assignment, now: float) -> None:
        """Note an assignment."""

    def due(self, assignment: Assignment, lags: Iterable[int], settings: tuple[int, float], now: float) -> bool:
        """Tell whether to probe."""


class Waiting(Protocol):
    """What is asked of the protocol's patience."""

    def weights_are_outside(self, outside: bool) -> bool:
        """Note whether work is outside its band; tell whether it has been for long enough."""

    def fall_behind(self, lags: Mapping[tuple[TaskId, MemberId], int]) -> Mapping[tuple[TaskId, MemberId], int]:
        """Note the standbys' lags; return those that have grown for long enough."""

    def start_over(self) -> None:
        """Begin to count again."""


@dataclass(frozen=True, slots=True)
class MeasuredWorld:
    """What a query would know after a batch, tasks by position: its last assignment, the bytes of each task's state and
    memory, where its rows come from, and of the members' disks and memory as much as is taken.

    ``disks`` are the share in use and the bytes of a disk; ``memories`` the bytes that are taken, and those left.
    """

    view: View
    present: Assignment
    now: float
    live: Mapping[MemberId, WorldMember]
    bytes: Mapping[int, int]
    memory: Mapping[int, float]
    traffic: Mapping[int, Traffic]
    disks: Mapping[MemberId, tuple[float, int]]
    memories: Mapping[MemberId, tuple[int, int]]


class MemberRules(Protocol):
    """What is asked of the protocol's rules about disks, memory, racks and standbys that fall behind."""

    @property
    def emptied(self) -> frozenset[MemberId]:
        """The members on whose disks no copy stays that nobody needs."""

    def looks(self, slow: Mapping[tuple[TaskId, MemberId], int]) -> bool:
        """Tell whether there is anything to look at, with standbys that have fallen behind for long enough."""

    def due(self, seen: MeasuredWorld, slow: Mapping[tuple[TaskId, MemberId], int]) -> bool:
        """Look at what a batch has shown; tell whether to assign anew."""

    def told(self, seen: MeasuredWorld) -> View:
        """Return what the assignor is told, with what was measured."""

    def assigned(self, answer: Assignment, seen: MeasuredWorld) -> None:
        """Note an assignment, and what it leaves undone."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a running query assigns anew without a change of members; without ``acting`` none looks at disks, memory and
    racks, and each standby that falls behind is a reason.
    """

    probes: Probing
    patience: Waiting
    outside_band: Callable[[Mapping[int, float], Mapping[int, MemberId], Mapping[MemberId, int], float], bool]
    acting: MemberRules | None = None
