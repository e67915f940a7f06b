"""The status of a query, as the object ``status.json`` below its root stores it (docs/formats.md).

The driver writes it at most once a minute, also while the query is idle. Commands read it without the driver. It has
names of stores, members, executors and topics, and never keys of user data.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from riffle_spark.errors import UNREADABLE, CorruptStateError
from riffle_spark.observe.json_values import from_plain, to_plain

__all__ = [
    "BATCHES_MAX",
    "FORMAT",
    "MOVES_MAX",
    "WARNINGS_MAX",
    "BatchSummary",
    "DriverFacts",
    "GroupFacts",
    "MemberFacts",
    "MoveSummary",
    "PartitionLag",
    "State",
    "Status",
    "StoreFacts",
    "WarningSummary",
    "decode",
    "encode",
    "from_json",
    "to_json",
]

FORMAT: Final = 1
"""The format of ``status.json``. Later versions may add fields without a new format."""
BATCHES_MAX: Final = 60
MOVES_MAX: Final = 100
WARNINGS_MAX: Final = 20
_GZIP_FROM_BYTES: Final = 16 << 10
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTES_MAX: Final = 64 << 20

State = Literal["running", "idle", "paused", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a partition of the source is read.

    Attributes:
        topic: the topic, or another name of the source.
        partition: the partition of the topic.
        records: records behind the latest offset.
        seconds: age of the oldest unread record in seconds; ``None`` if unknown.
    """

    topic: str
    partition: int
    records: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """A member of the query.

    Attributes:
        id: the member's id, the name of its folder.
        executor: Spark's id of its executor.
        host: the executor's host.
        rack: its rack; ``None`` if unknown.
        state: ``active``, ``drained``, ``quarantined``, or ``awaited``: lost, but expected to return.
        slots: how many tasks the executor runs at once.
        owned: key-groups that it owns.
        standbys: standbys that it keeps.
        warmups: copies that it warms up.
        lag_records: changed records that its standbys and warm-ups lack together.
        lag_trend: growth of ``lag_records`` over the last ten batches.
        warmup_bytes: bytes that its warm-ups still have to read.
        warmup_seconds: estimate of the time until they are ready; ``None`` if unknown.
        disk_used: share of its disk in use, 0 to 1; ``None`` if not measured.
        memory_used: share of its memory in use, 0 to 1; ``None`` if not measured.
    """

    id: str
    executor: str
    host: str
    rack: str | None = None
    state: Literal["active", "drained", "quarantined", "awaited"] = "active"
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


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The stored state of a store: rows and bytes in all its parts, and the parts of its longest chain."""

    store: str
    rows: int = 0
    bytes: int = 0
    chain_parts: int = 0


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The owners of a co-location group's key-groups. Numbers are positions in ``DriverFacts.members``.

    Attributes:
        name: the name of the group.
        stores: its stores.
        owners: the owner of each key-group, -1 for none.
        standbys: the members with a standby of each key-group.
        warmups: the members that warm up each key-group.
    """

    name: str
    stores: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()
    standbys: tuple[tuple[int, ...], ...] = ()
    warmups: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What a driver knows about its query without asking the object store. Times are milliseconds since the epoch.

    Attributes:
        time_ms: when the facts were collected.
        query_id: Spark's id of the query.
        query_name: its name; empty if it has none.
        run_id: Spark's id of this run.
        epoch: the number of the driver's claim.
        version: the last committed batch, -1 for none.
        commit_ms: when it was committed; ``None`` before the first commit.
        watermark_ms: the watermark; ``None`` without one.
        source: the lag of each partition of the source.
        members: the members.
        stores: the stores.
        groups: the co-location groups.
        next_probe_seconds: seconds to the next probing rebalance; ``None`` if none is due.
        counters: totals since the driver started, by name.
    """

    time_ms: int
    query_id: str
    query_name: str = ""
    run_id: str = ""
    epoch: int = 0
    version: int = -1
    commit_ms: int | None = None
    watermark_ms: int | None = None
    source: tuple[PartitionLag, ...] = ()
    members: tuple[MemberFacts, ...] = ()
    stores: tuple[StoreFacts, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    next_probe_seconds: float | None = None
    counters: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A committed batch.

    Attributes:
        version: the batch id.
        time_ms: when it was committed, in milliseconds since the epoch.
        rows: its input rows.
        seconds: seconds by phase (``enter assign run deliver commit upkeep``) and in ``total``.
        lag_records: records of the source that were unread after it; ``None`` if unknown.
    """

    version: int
    time_ms: int
    rows: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    lag_records: int | None = None


@dataclass(frozen=True, slots=True)
class MoveSummary:
    """A key-group that changed a member.

    Attributes:
        time_ms: when the batch with the move was committed, in milliseconds since the epoch.
        version: the batch.
        key_group: the number of the key-group.
        group: its co-location group.
        role: ``owner``, ``standby`` or ``warmup``.
        from_member: the member that it left; empty if it had none.
        to_member: the member that it moved to.
        reason: why it moved.
        goal: what the assignment achieves by it.
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
class WarningSummary:
    """A warning of the query: its time in milliseconds since the epoch, its id (``RIFFLE-0123``) and its text."""

    time_ms: int
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a query.

    Attributes:
        facts: what the driver knows.
        state: ``running`` during or shortly after a batch, ``idle``, ``paused``, ``stopped``, or ``failed`` if an
            error ended the query.
        product: the version of riffle_spark that wrote it.
        interval_seconds: how often the driver writes the status, in seconds.
        batches: the last ``BATCHES_MAX`` batches, oldest first.
        moves: the last ``MOVES_MAX`` moves, oldest first.
        warnings: the last ``WARNINGS_MAX`` warnings, oldest first.
        settings: the settings that matter for an operator, as text by name.
    """

    facts: DriverFacts
    state: State = "running"
    product: str = ""
    interval_seconds: float = 60.0
    batches: tuple[BatchSummary, ...] = ()
    moves: tuple[MoveSummary, ...] = ()
    warnings: tuple[WarningSummary, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def to_json(status: Status) -> str:
    """Return a status as one line of JSON."""
    return json.dumps({"format": FORMAT, **cast("dict[str, object]", to_plain(status))}, separators=(",", ":"))


def from_json(text: str | bytes, where: str = "status.json") -> Status:
    """Return the status in ``to_json``'s text. ``where`` names its object.

    Raises ``CorruptStateError`` for other text, and for a format of a later version.
    """
    try:
        body = json.loads(text)
        if body["format"] == FORMAT:
            return from_plain(Status, body)
        problem = f"The status has format {str(body['format'])[:20]}, but this version reads {FORMAT}."
    except UNREADABLE as error:
        problem = f"The status cannot be read: {error}"
    # Cause: The bytes were altered, or another version of riffle-spark wrote them.
    raise CorruptStateError(
        problem,
        remedy="Run the version of riffle-spark that the query runs. If the object is damaged, delete it: the running "
        "query writes it again within a minute.",
        where=where,
        id="RIFFLE-1310",
    )


def encode(status: Status) -> bytes:
    """Return the bytes of ``status.json``: ``to_json``, compressed with gzip if it is long."""
    data = to_json(status).encode()
    return gzip.compress(data, compresslevel=6, mtime=0) if len(data) >= _GZIP_FROM_BYTES else data


def decode(data: bytes, where: str = "status.json") -> Status:
    """Return the status of ``encode``'s bytes. Raises ``CorruptStateError`` for other bytes."""
    if data.startswith(_GZIP_MAGIC):
        unpacked = zlib.decompressobj(wbits=31)
        try:
            data = unpacked.decompress(data, _BYTES_MAX)
        except zlib.error:
            data = b""
        if not unpacked.eof:
            data = b""
    return from_json(data, where)
