"""The input and output of an assignor: ``assign(view, settings) -> Assignment``. All values are immutable."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

MemberId: TypeAlias = str
Lag: TypeAlias = int | None
"""How many changed records a copy lacks; ``None`` if unknown. A member without a copy has no lag."""
Kind: TypeAlias = Literal["stateful", "unlogged", "stateless"]
"""``stateful`` tasks have durable state and lags. ``unlogged`` tasks have state that cannot be restored, so all members
are equal. ``stateless`` tasks are placed last."""
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
"""The reason of a move: the first goal in order that it improves. A user's goal has the name of its function."""


class TaskId(NamedTuple):
    """The unit that has an owner and moves: one key-group of a co-location group."""

    group: str
    key_group: int

    def __str__(self) -> str:
        """Return ``<group>_<key-group>``."""
        return f"{self.group}_{self.key_group}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The input that each copy of a task reads, in parts.

    Attributes:
        total: the number of parts.
        local: by rack, how many of the parts have a replica there.
        unit: how many parts make one whole; 1 if a part is a Kafka partition.
        later: whether the input is read only after the copy takes over. Copies in different racks then count more than
            reading.
    """

    total: int = 0
    local: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    unit: int = 1
    later: bool = False

    def parts_read_across(self, rack: str | None) -> int:
        """Return how many parts a member in ``rack`` reads from other racks."""
        return self.total - (self.local.get(rack, 0) if rack is not None else 0)


NO_TRAFFIC: Final = Traffic()


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    Attributes:
        id: its group and key-group.
        kind: ``stateful``, ``unlogged`` or ``stateless``.
        size: the number of records in its whole state, which a member without a copy lacks.
        weight: its measured work in any unit, the same for all tasks; ``None`` if not measured.
        memory_bytes: the room that one copy of its state takes on a member.
        owner_traffic: what its owner reads.
        standby_traffic: what a standby reads.
        topic: the topic with dispatch by partition, else ``None``.
        partition: the partition with dispatch by partition, else ``None``.
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
    """A member: the folder of an executor.

    Attributes:
        id: the name of the folder.
        slots: how many tasks its executor runs at once.
        rack: its rack, ``None`` if unknown.
        tags: its tags by name.
        memory_bytes: the room for copies of state, the sum over all its copies; ``None`` if unknown.
    """

    id: MemberId
    slots: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    memory_bytes: int | None = None

    def attribute(self, tag: str) -> str | None:
        """Return the value of the member's tag ``tag``, or ``None`` without it.

        ``id`` and ``rack`` count as tags, too.
        """
        return self.tags[tag] if tag in self.tags else {"id": self.id, "rack": self.rack}.get(tag)


@dataclass(frozen=True, slots=True)
class View:
    """Everything an assignment depends on, except the settings. The order of members and tasks has no effect.

    ``lags`` lists every known copy by task and member, the owner's included (0 while it runs). ``awaited`` are lost
    members that may return. ``prior_owners`` names, by task, the lost or just returned member that owned it before.
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

    def read_only(self) -> "View":
        """Return a copy with mappings that a user's assignor cannot change."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["lags"] = {task: MappingProxyType(dict(lags)) for task, lags in self.lags.items()}
        mappings = {name: MappingProxyType(dict(value)) for name, value in values.items() if isinstance(value, Mapping)}
        return replace(self, **mappings)  # type: ignore[arg-type] # each in its own field


UserCost: TypeAlias = Callable[[Task, Member], int | None]
"""A user's integer cost of a task on a member; ``None`` if the task must not be there."""

UserGoal: TypeAlias = Callable[[Member, tuple[Task, ...]], int]
"""A user's goal: by how much a member misses it with these tasks; 0 if it meets it."""

Assignor: TypeAlias = "Callable[[View, AssignSettings], Assignment]"
"""A function from a view and settings to an assignment (KIP-924)."""


@dataclass(frozen=True, slots=True)
class AssignSettings:
    """The settings that concern assignment, with their defaults.

    ``include`` and ``exclude`` are (tag, value) pairs; ``id`` and ``rack`` are tags, too. ``forced_awareness`` maps a
    tag to all the values it should have. ``instance_balance`` and ``store_balance`` are the weights of the two
    balances; 0 switches one off. ``moves_at_once`` limits the owner moves of an assignment, except forced ones.
    ``goals`` are in order, built-in goals by name; empty for the assignor's own order. If a goal of ``hard_goals``
    is missed, no owner moves.
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
        """Whether a copy can stay as a standby when its member is not the owner. Pointers are not copies."""
        return self.num_standbys > 0 and not self.points


@dataclass(frozen=True, slots=True)
class Move:
    """A change of an assignment.

    Attributes:
        task: the task that moves.
        role: ``owner``, ``standby`` or ``warmup``.
        source: the present owner, ``None`` if the task has none.
        target: the member that gets the task or copy.
        goal: the goal that the move improves.
        reason: the reason in words.
        forced: whether the move is exempt from ``moves_at_once``.
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
    """Maximum minus minimum per slot over the members, and maximum minus minimum of one group's owners."""

    owners: float = 0.0
    stateful_owners: float = 0.0
    stateful_copies: float = 0.0
    worst_group: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The result of an assignor.

    Attributes:
        owners: the owner of every task from now on.
        standbys: the members that keep a spare copy, by task.
        warmups: the members that fetch a copy in order to become owner or standby, by task.
        target: the owner of every task in the end.
        moves: the changes, with their reasons.
        needs_probe: whether to assign again when warm-ups have caught up.
        probe_reason: the tasks that have yet to move, in words.
        cost: the cost of reading across racks in the target.
        balance: how even the assignment is.
        warnings: texts for the batch report.
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
