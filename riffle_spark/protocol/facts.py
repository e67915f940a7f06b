"""The facts of a driver about its query at one moment: members, placement, sizes, lags and counters.

The driver makes a ``DriverFacts`` after each batch, and about once a second while the query is idle. It sends no
request for it. All values are immutable, so any thread may read them. They never contain keys or values of user data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MemberStatus: TypeAlias = Literal["active", "drained", "quarantined", "awaited"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a query is behind the newest offset of a source's partition.

    ``records`` counts the records that no committed batch has read. ``seconds`` is the time since the driver first saw
    an offset beyond the last one read, ``None`` if that is unknown. It is a lower bound for the age of the oldest
    unread record.
    """

    topic: str
    partition: int
    records: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A member of the query and its copies.

    Attributes:
        id: the name of the member's folder.
        executor: the id of its executor.
        host: the executor's host.
        rack: its rack, ``None`` if unknown.
        state: ``active``; ``drained`` by an operator; ``quarantined``: it gets no new copies, because its disk or
            memory is full, its disk refuses, or its standbys never catch up; ``awaited``: lost, and its return is
            awaited.
        slots: how many tasks the executor runs at once.
        owned: how many key-groups it owns.
        standbys: how many standbys it keeps.
        warmups: how many copies it warms up.
        lag_records: how many changed records its standbys and warm-ups lack together.
        lag_trend: the growth of ``lag_records`` over the last ten batches; negative if it shrinks.
        warmup_bytes: how many bytes its warm-ups still have to fetch.
        warmup_seconds: an estimate of the seconds until its warm-ups have caught up; ``None`` if nothing was fetched
            in the last minute.
        state_rows: rows in the snapshots and deltas of its owned key-groups; ``None`` if not measured. A key counts
            once for each of them that has it.
        state_bytes: their bytes.
        disk_used: the share of its local disk in use, 0 to 1; ``None`` if not measured.
        memory_used: the share of its memory that its Python workers use, 0 to 1; ``None`` if not measured.
    """

    id: str
    executor: str
    host: str
    rack: str | None = None
    state: MemberStatus = "active"
    slots: int = 1
    owned: int = 0
    standbys: int = 0
    warmups: int = 0
    lag_records: int = 0
    lag_trend: int = 0
    warmup_bytes: int = 0
    warmup_seconds: float | None = None
    disk_used: float | None = None
    memory_used: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The size of a store's state in the object store.

    ``rows`` are its state rows: keys, sessions, or elements of variables without timers. If their number is unknown,
    ``has_exact_rows`` is false, and ``rows`` is an upper bound: it counts a key once for each snapshot and delta that
    has it. ``bytes`` are those of all snapshots and deltas that the log lists. ``chain_parts`` is the number of deltas
    of all key-groups.
    """

    store: str
    rows: int = 0
    bytes: int = 0
    chain_parts: int = 0
    has_exact_rows: bool = False


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The placement of a co-location group. ``owners``, ``standbys`` and ``warmups`` have an element per key-group.

    Elements are positions in ``DriverFacts.members``; an owner of -1 means that there is none.
    """

    name: str
    stores: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()
    standbys: tuple[tuple[int, ...], ...] = ()
    warmups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class MoveSummary:
    """A key-group that changed a member.

    Attributes:
        time_ms: when the driver decided it, in milliseconds since the epoch.
        version: the first batch after it.
        key_group: the number of the key-group.
        group: its co-location group.
        role: ``owner``, ``standby`` or ``warmup``.
        from_member: the member that it left; empty if it had none.
        to_member: the member that it moved to.
        reason: why it moved.
        goal: the goal of the assignment that it improves.
        topic: the topic of the key-group with dispatch by partition, else empty.
        partition: the partition with dispatch by partition, else ``None``.
    """

    time_ms: int
    version: int
    key_group: int
    group: str
    role: str
    from_member: str
    to_member: str
    reason: str
    goal: str = ""
    topic: str = ""
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """The error that ended a query.

    ``error`` is the name of its class, ``id`` its id (``RIFFLE-0123``), empty for errors of other packages. ``time_ms``
    is when the driver saw it, in milliseconds since the epoch. The text of the error is left out, because it may quote
    data.
    """

    error: str
    id: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The facts of one moment.

    Attributes:
        time_ms: when they were collected (milliseconds since the epoch).
        query_id: Spark's id of the query, empty before the first batch.
        query_name: Spark's name of the query, empty if it has none.
        run_id: Spark's id of the query's run, empty before the first batch.
        epoch: the number of the driver's claim, -1 before the first batch.
        version: the newest committed batch, -1 for none.
        commit_ms: when that batch was committed (milliseconds since the epoch); ``None`` if this driver does not know.
        watermark_ms: the watermark after that batch, ``None`` for none.
        source: the lag of each partition of a source with offsets per partition, as of the last batch.
        members: the live and awaited members, sorted by id.
        stores: the durable stores, sorted by name.
        groups: the co-location groups, sorted by name.
        batch_seconds: how long the current batch has run, 0 if none runs.
        next_probe_seconds: seconds to the next probing rebalance, ``None`` if none is needed.
        paused_since_ms: since when an operator holds the query (milliseconds since the epoch), ``None`` if it is not
            paused.
        drained: the ids of drained members, also of those that have left, sorted.
        pins: the member that each pinned key-group is kept on, by the name of its task (``3``, ``group/3``).
        slot_limit: the most slots per executor, ``None`` for one per core.
        disk_limit: a member whose local disk is used to a larger share gets no new copies; ``None`` if unknown.
        failure: the error that ended the query, ``None`` while it runs.
        answered: the number of the newest request of an operator's command with an answer, 0 for none.
        counters: sums since the driver started, by name. ``riffle_spark.observe.metric_list`` describes them: the
            name is that of the metric without ``riffle_`` and ``_total``. Values of labels follow after slashes.
    """

    time_ms: int
    query_id: str = ""
    query_name: str = ""
    run_id: str = ""
    epoch: int = -1
    version: int = -1
    commit_ms: int | None = None
    watermark_ms: int | None = None
    source: tuple[PartitionLag, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    stores: tuple[StoreFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    batch_seconds: float = 0.0
    next_probe_seconds: float | None = None
    paused_since_ms: int | None = None
    drained: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    slot_limit: int | None = None
    disk_limit: float | None = None
    failure: FailureFacts | None = None
    answered: int = 0
    counters: Mapping[str, int | float] = field(default_factory=dict)
