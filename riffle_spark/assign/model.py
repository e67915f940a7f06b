"""What the assignor is told and what it answers. Knows the words of assignment. Does not know any rule.

One in, one out: ``assign(view, settings) -> Assignment``. Everything is frozen; nothing here computes a placement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "NO_TRAFFIC",
    "AssignSettings",
    "Assignment",
    "Assignor",
    "Balance",
    "Goal",
    "Kind",
    "Lag",
    "Member",
    "MemberId",
    "Move",
    "Role",
    "Strategy",
    "Task",
    "TaskId",
    "Traffic",
    "UserCost",
    "UserGoal",
    "View",
]

MemberId: TypeAlias = str
Lag: TypeAlias = int | None
"""Changed records a copy lacks; ``None`` is a copy of unknown lag. A member without a copy is not listed."""
Kind: TypeAlias = Literal["stateful", "unlogged", "stateless"]
"""``stateful`` has durable state and a lag; ``unlogged`` has state that nobody can restore, so every member is equal;
``stateless`` has none and is placed last."""
Role: TypeAlias = Literal["owner", "standby", "warmup"]
Strategy: TypeAlias = Literal["none", "min_cost", "balance_subtopology"]
Goal: TypeAlias = Literal[
    "valid",
    "caught_up",
    "operator",
    "allowed",
    "memory",
    "balance",
    "weight",
    "spread",
    "rack",
    "user",
    "standby",
    "return",
]
"""Why a move is made: the first goal of the ordered list that asked for it. A user's own goal has the name of its
function."""


class TaskId(NamedTuple):
    """A unit that is owned and moved: a co-location group of stores and one key-group of it."""

    group: str
    key_group: int

    def __str__(self) -> str:
        return f"{self.group}_{self.key_group}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a copy of a task reads, in parts, and how many of the parts each rack holds itself.

    For Kafka partitions a part is a partition; for measured shares ``unit`` says how many parts are one whole.
    ``later``: it is read only once the copy takes over, so copies in different racks come before what is read.
    """

    total: int = 0
    local: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    unit: int = 1
    later: bool = False

    def parts_read_across(self, rack: str | None) -> int:
        """Return how many parts a member in ``rack`` reads from elsewhere."""
        return self.total - (self.local.get(rack, 0) if rack is not None else 0)


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class Task:
    """One task: ``size`` is the number of records in its whole state, what a member without a copy lacks.

    ``weight`` is its measured work (rows or time; any unit, the same for all), ``None`` if not measured.
    ``memory_bytes`` is what a copy needs on its member. Where dispatch is by partition, ``topic`` and ``partition`` are
    what its key-group stands for; else they are ``None``.
    """

    id: TaskId
    kind: Kind = "stateful"
    size: int = 0
    weight: int | None = None
    memory_bytes: int = 0
    owner_traffic: Traffic = NO_TRAFFIC
    standby_traffic: Traffic = NO_TRAFFIC
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One live executor folder: ``slots`` is its capacity, ``memory_bytes`` what it can hold (``None``: not known)."""

    id: MemberId
    slots: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    memory_bytes: int | None = None

    def attribute(self, tag: str) -> str | None:
        """Return the member's tag of that name, else its ``id`` or ``rack``."""
        return self.tags[tag] if tag in self.tags else {"id": self.id, "rack": self.rack}.get(tag)


@dataclass(frozen=True, slots=True)
class View:
    """Everything an assignment depends on beside the settings. Order of members and tasks does not matter.

    ``lags`` lists every known copy by task and member, the owner's included (0 while it runs). ``awaited`` are lost
    members that may come back. ``prior_owners`` names, by task, the lost or just returned member that owned it before.
    ``pointers`` are standbys that hold a pointer to a snapshot instead of a copy. ``target`` is the target of the last
    assignment, if it is known; it is kept if it is still as good as any other. ``pins`` name live members only.
    ``drained`` are live members that an operator drains; ``exclude`` of the settings names them too. ``quarantined``
    names, by task, members that should end up without a copy, because their disk or memory is too full or their standby
    never catches up.
    """

    members: tuple[Member, ...]
    tasks: tuple[Task, ...]
    owners: Mapping[TaskId, MemberId] = field(default_factory=lambda: MappingProxyType({}))
    standbys: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    warmups: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    lags: Mapping[TaskId, Mapping[MemberId, Lag]] = field(default_factory=lambda: MappingProxyType({}))
    pins: Mapping[TaskId, MemberId] = field(default_factory=lambda: MappingProxyType({}))
    prior_owners: Mapping[TaskId, MemberId] = field(default_factory=lambda: MappingProxyType({}))
    awaited: tuple[Member, ...] = ()
    pointers: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    target: Mapping[TaskId, MemberId] = field(default_factory=lambda: MappingProxyType({}))
    drained: frozenset[MemberId] = frozenset()
    quarantined: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def homes(self) -> Mapping[TaskId, MemberId]:
        """Return ``prior_owners`` under its earlier name."""
        return self.prior_owners

    @property
    def shunned(self) -> Mapping[TaskId, tuple[MemberId, ...]]:
        """Return ``quarantined`` under its earlier name."""
        return self.quarantined

    def read_only(self) -> "View":
        """Return it as somebody else may have it: what they do to a mapping fails, and changes nothing here."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        told["lags"] = {task: MappingProxyType(dict(lags)) for task, lags in self.lags.items()}
        held = {name: MappingProxyType(dict(each)) for name, each in told.items() if isinstance(each, Mapping)}
        return replace(self, **held)  # type: ignore[arg-type] # each in its own field


UserCost: TypeAlias = Callable[[Task, Member], int | None]
"""A user's own integer cost of a task on a member; ``None`` means not allowed there."""

UserGoal: TypeAlias = Callable[[Member, tuple[Task, ...]], int]
"""A user's own goal: by how much a member misses it if it owns these tasks; 0 means that it is met there."""

Assignor: TypeAlias = "Callable[[View, AssignSettings], Assignment]"
"""Any assignor: one view and the settings in, one assignment out (KIP-924)."""


@dataclass(frozen=True, slots=True)
class AssignSettings:
    """The settings that concern assignment, with their defaults.

    ``include`` and ``exclude`` are (tag, value) pairs; the tag ``id`` is the member's id and ``rack`` its rack, unless
    a member has tags of those names. ``forced_awareness`` maps a tag to all the values it should have.
    ``instance_balance`` and ``store_balance`` weigh the two balances against each other; 0 switches one off.
    ``moves_at_once`` bounds the owner moves of one assignment that nothing forces. ``goals`` are in the order in which
    they count, built-in ones by name; none is the assignor's own order. ``hard_goals`` names those of them without
    which nothing moves.
    """

    acceptable_recovery_lag: int = 10_000
    num_standbys: int = 0
    standby_mode: Literal["replay", "snapshot_pointer"] = "replay"
    max_warmup_replicas: int = 2
    balance_band: float = 0.20
    rack_aware_assignment_strategy: Strategy = "none"
    rack_aware_assignment_traffic_cost: int = 10
    rack_aware_assignment_non_overlap_cost: int = 1
    rack_aware_assignment_tags: tuple[str, ...] = ()
    assignor: "str | Assignor" = "high_availability"
    include: tuple[tuple[str, str], ...] = ()
    exclude: tuple[tuple[str, str], ...] = ()
    forced_awareness: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    rebalance_enable: Literal["all", "owners", "standbys", "none"] = "all"
    allow_rebalance: Literal["all_owned", "always"] = "all_owned"
    instance_balance: float = 0.45
    store_balance: float = 0.55
    moves_at_once: int | None = None
    user_cost: UserCost | None = None
    goals: tuple[str | UserGoal, ...] = ()
    hard_goals: tuple[str, ...] = ()

    @property
    def points(self) -> bool:
        """Whether standbys hold pointers instead of copies."""
        return self.standby_mode == "snapshot_pointer"

    @property
    def copies_may_stay(self) -> bool:
        """Whether a copy that is no owner's can be kept as a standby: a pointer keeps none."""
        return self.num_standbys > 0 and not self.points


@dataclass(frozen=True, slots=True)
class Move:
    """One change of this assignment against the present: who, from where, where to, why and for which goal.

    ``source`` is ``None`` where nobody gives anything up. ``forced`` moves are not subject to ``moves_at_once``.
    """

    task: TaskId
    role: Role
    source: MemberId | None
    target: MemberId
    goal: Goal | str
    reason: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Balance:
    """Most minus fewest per slot over the members, and most minus fewest of one group's owners on a member."""

    owners: float = 0.0
    stateful_owners: float = 0.0
    stateful_copies: float = 0.0
    worst_group: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who owns, keeps and warms what from now on, where it is heading, and why.

    ``cost`` is the rack traffic cost of the target, owners and standbys. ``needs_probe`` tells whether something is
    still to move, ``probe_reason`` what.
    """

    owners: Mapping[TaskId, MemberId]
    standbys: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    warmups: Mapping[TaskId, tuple[MemberId, ...]] = field(default_factory=lambda: MappingProxyType({}))
    target: Mapping[TaskId, MemberId] = field(default_factory=lambda: MappingProxyType({}))
    moves: tuple[Move, ...] = ()
    needs_probe: bool = False
    probe_reason: str = ""
    cost: int = 0
    balance: Balance = Balance()
    warnings: tuple[str, ...] = ()
