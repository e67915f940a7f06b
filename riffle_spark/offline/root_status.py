"""Read the status of a query below its root, beside the running query or after it.

Two objects are read: ``status.json``, which the driver writes at most once a minute, and the newest record of the log,
for the last commit. Without a status, members and owners are those of the log.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from riffle_spark.errors import ConfigError
from riffle_spark.observe.status import Status, decode
from riffle_spark.observe.units import show_duration
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.facts import DriverFacts, GroupFacts, MemberFacts
from riffle_spark.protocol.ownership.groups import parse_task
from riffle_spark.state.log import paths
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.log.record import decode as decode_record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["Health", "RootStatus", "members_of_record", "newest_record", "read_status", "watch_status"]

Health = Literal["ok", "behind", "silent", "stopped", "unknown"]
_SILENT_INTERVALS = 3
"""A query that has not written its status for so many intervals is silent."""
_READ_TRIES = 3


@dataclass(frozen=True, slots=True)
class RootStatus:
    """A query as its root shows it at ``now_ms`` (milliseconds since the epoch, by the clock of this machine).

    Attributes:
        root: the root of the query.
        now_ms: when it was read.
        status: the status that the driver wrote, ``None`` if there is none.
        record: the newest record of the log.
        facts: the facts of the status. Without a status: those that the log has.
    """

    root: str
    now_ms: int
    status: Status | None
    record: Record
    facts: DriverFacts

    @property
    def commit_ms(self) -> int | None:
        """When the last batch was committed; ``None`` if no batch is known."""
        if self.record.kind == "batch":
            return self.record.written_ms
        return self.facts.commit_ms

    @property
    def commit_age(self) -> float | None:
        """Seconds since the last commit."""
        return None if self.commit_ms is None else (self.now_ms - self.commit_ms) / 1000

    @property
    def status_age(self) -> float | None:
        """Seconds since the driver wrote its status."""
        return None if self.status is None else (self.now_ms - self.facts.time_ms) / 1000

    @property
    def lag_records(self) -> int | None:
        """Records of the source that are unread; ``None`` if unknown."""
        return sum(lag.records for lag in self.facts.source) if self.facts.source else None

    @property
    def lag_seconds(self) -> float | None:
        """The largest lag of a partition in seconds; ``None`` if unknown."""
        return max((lag.seconds for lag in self.facts.source if lag.seconds is not None), default=None)

    @property
    def batches_per_minute(self) -> float | None:
        """The rate of the batches that the status lists; ``None`` for fewer than two."""
        batches = self.status.batches if self.status else ()
        span_ms = batches[-1].time_ms - batches[0].time_ms if len(batches) > 1 else 0
        return (len(batches) - 1) * 60_000 / span_ms if span_ms > 0 else None

    @property
    def rows_per_second(self) -> float | None:
        """The input rows per second over the batches that the status lists; ``None`` for fewer than two."""
        batches = self.status.batches if self.status else ()
        span_ms = batches[-1].time_ms - batches[0].time_ms if len(batches) > 1 else 0
        return sum(batch.rows for batch in batches[1:]) * 1000 / span_ms if span_ms > 0 else None

    @property
    def batch_seconds(self) -> float | None:
        """The mean duration of the batches that the status lists."""
        totals = [batch.seconds["total"] for batch in (self.status.batches if self.status else ()) if batch.seconds]
        return fmean(totals) if totals else None

    @property
    def health(self) -> Health:
        """``ok``, ``stopped``, or ``unknown`` without a status; ``silent`` if the driver has not written
        its status for three intervals; ``behind`` if records are unread and the last three commits took that long.
        """
        if self.status is None or self.status_age is None:
            return "unknown"
        if self.status.state == "stopped":
            return "stopped"
        limit = _SILENT_INTERVALS * max(self.status.interval_seconds, 1.0)
        if self.status_age > limit:
            return "silent"
        return "behind" if self.is_stuck(limit) else "ok"

    def is_stuck(self, seconds: float) -> bool:
        """Return whether records are unread, or a batch runs, and the last commit is older than ``seconds``."""
        is_unread = bool(self.lag_records) or self.facts.batch_seconds > 0
        return is_unread and (self.commit_age is None or self.commit_age > seconds)

    def probe(self, seconds: float) -> str | None:
        """Return why a probe with this maximum age fails, ``None`` if it succeeds."""
        if self.status is None:
            return "The driver has written no status."
        if self.status_age is not None and self.status_age > seconds:
            return f"The driver wrote its status {show_duration(self.status_age)} ago."
        if self.is_stuck(seconds):
            age = "never" if self.commit_age is None else f"{show_duration(self.commit_age)} ago"
            unread = f"{self.lag_records} records are unread" if self.lag_records else "A batch runs"
            return f"{unread}, and the last commit was {age}."
        return None

    def to_json(self) -> dict[str, object]:
        """Return what is computed from the status and the log, as JSON. Ages are in seconds."""
        return {
            "root": self.root,
            "now_ms": self.now_ms,
            "health": self.health,
            "status_age_seconds": self.status_age,
            "version": self.record.version,
            "commit_ms": self.commit_ms,
            "commit_age_seconds": self.commit_age,
            "watermark_ms": self.record.watermark_ms,
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            "batches_per_minute": self.batches_per_minute,
            "rows_per_second": self.rows_per_second,
            "batch_seconds": self.batch_seconds,
        }


def read_status(root: str, options: StoreOptions | None = None) -> RootStatus:
    """Return the status of the query below a root. Sends two GETs and one LIST, without a status up to six requests.

    Raises ``ConfigError`` for a root without a log or with several queries, ``CorruptStateError`` if an object cannot
    be read, and ``UnavailableError`` if the store does not answer.
    """
    store_options = options or StoreOptions()
    objects = open_store(root, store_options)
    data = objects.get(paths.STATUS)
    if data is None:
        root = only_root(root, store_options)
        objects = open_store(root, store_options)
        data = objects.get(paths.STATUS)
    record = newest_record(objects, root)
    now_ms = time.time_ns() // 1_000_000
    if data is None:
        return RootStatus(root, now_ms, None, record, _facts_of_log(objects, record))
    status = decode(data, f"{root}/{paths.STATUS}")
    return RootStatus(root, now_ms, status, record, status.facts)


def watch_status(root: str, options: StoreOptions | None, seconds: float) -> Iterator[RootStatus]:
    """Yield the status again and again, with a pause of ``seconds``."""
    while True:
        yield read_status(root, options)
        time.sleep(seconds)


def newest_record(objects: ObjectStore, root: str) -> Record:
    """Return the newest record of the log without entries, with one LIST and one GET.

    It does not check the records before it.

    Raises ``ConfigError`` if there is no log.
    """
    for _ in range(_READ_TRIES):  # the query may delete old records between the two requests
        sequences = [s for s in map(paths.parse_record_name, objects.list(paths.LOG)) if s is not None]
        if not sequences:
            break
        name = paths.record_name(sequences[-1])
        data = objects.get(name)
        if data is not None:
            return decode_record(data, name, with_entries=False)
    raise ConfigError(
        f"{root} holds no state.", remedy="Name the root of a query that has run.", where=root, id="RIFFLE-1311"
    )


def members_of_record(objects: ObjectStore, record: Record) -> tuple[RecordedMember, ...]:
    """Return the members as of a record, with one GET if its full record has them."""
    if record.members or record.full == record.sequence:
        return record.members
    name = paths.record_name(record.full)
    data = objects.get(name)
    return () if data is None else decode_record(data, name, with_entries=False).members


def _facts_of_log(objects: ObjectStore, record: Record) -> DriverFacts:
    """Return the members and owners that the log has."""
    drained = frozenset(read_requests(record.orders).drained)
    owned = Counter(record.owners.values())
    standbys = Counter(holder for holders in record.standbys.values() for holder in holders)
    members = tuple(
        MemberFacts(
            member.id,
            member.executor,
            member.host,
            member.rack,
            "drained" if member.id in drained else "active",
            member.slots,
            owned[member.id],
            standbys[member.id],
        )
        for member in members_of_record(objects, record)
    )
    return DriverFacts(
        record.written_ms,
        record.query_id,
        epoch=record.epoch,
        version=record.version,
        commit_ms=record.written_ms if record.kind == "batch" else None,
        watermark_ms=record.watermark_ms,
        members=members,
        groups=_groups_of_record(record, {member.id: number for number, member in enumerate(members)}),
    )


def _groups_of_record(record: Record, numbers: Mapping[str, int]) -> tuple[GroupFacts, ...]:
    """Return the placement in a record. ``numbers`` has the position of each member."""
    key_groups = len(record.shards) if record.dispatch != "key_group" else record.total
    owners: dict[str, list[int]] = {}
    standbys: dict[str, list[tuple[int, ...]]] = {}
    for name, owner in record.owners.items():
        task = parse_task(name)
        if task.key_group < key_groups:
            owners.setdefault(task.group, [-1] * key_groups)[task.key_group] = numbers.get(owner, -1)
    for name, holders in record.standbys.items():
        task = parse_task(name)
        if task.group in owners and task.key_group < key_groups:
            of_group = standbys.setdefault(task.group, [()] * key_groups)
            of_group[task.key_group] = tuple(numbers[holder] for holder in holders if holder in numbers)
    empty = ((),) * key_groups
    return tuple(
        GroupFacts(name, (), tuple(of_group), tuple(standbys.get(name, empty)), empty)
        for name, of_group in sorted(owners.items())
    )
