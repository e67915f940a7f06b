"""Read the status of a query below its root, while the query runs or after it has ended.

Two objects are read: ``status.json``, which the driver writes at most once a minute, and the newest record of the log,
for the last commit. Without a status, members and owners are those of the log.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from riffle_spark.errors import ConfigError
from riffle_spark.observe.rates import Rates, rates_of
from riffle_spark.observe.status import Status, decode
from riffle_spark.observe.units import show_duration, show_time
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

Health = Literal["ok", "behind", "paused", "silent", "skewed", "failed", "stopped", "unknown"]
_BEHIND_INTERVALS = 3
"""A query with unread records is behind if its last commit is older than this number of intervals of its status."""
_LATE_SECONDS = 15.0
"""How late the driver may write its status."""
_SKEW_SECONDS = 60.0
"""How far the driver's clock may be ahead of this machine's. Beyond it, ages are meaningless."""
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
    def skew_seconds(self) -> float:
        """The seconds by which the newest time that the driver wrote is in the future."""
        newest_ms = max(self.facts.time_ms, self.commit_ms or 0)
        return max(0.0, (newest_ms - self.now_ms) / 1000)

    @property
    def lag_records(self) -> int | None:
        """Records of the source that are unread; ``None`` if unknown."""
        return sum(lag.records for lag in self.facts.source) if self.facts.source else None

    @property
    def lag_seconds(self) -> float | None:
        """The largest lag of a partition in seconds; ``None`` if unknown."""
        return max((lag.seconds for lag in self.facts.source if lag.seconds is not None), default=None)

    @property
    def rates(self) -> Rates:
        """The rates up to the time of the status, all unknown without one."""
        return Rates() if self.status is None else rates_of(self.status)

    @property
    def health(self) -> Health:
        """The first of these that applies.

        ``unknown``: there is no status. ``failed``, ``stopped``: the query has ended. ``skewed``: the driver's times
        are in the future. ``silent``: the status is older than its interval. ``paused``: by an operator. ``behind``:
        records are unread, or a batch runs, and the last commit is older than three intervals. ``ok``.
        """
        if self.status is None:
            return "unknown"
        if self.status.state == "failed" or self.status.state == "stopped":  # noqa: PLR1714 - mypy narrows the type
            return self.status.state
        if self.skew_seconds > _SKEW_SECONDS:
            return "skewed"
        if self.now_ms - self.facts.time_ms > 1000 * (self.status.interval_seconds + _LATE_SECONDS):
            return "silent"
        if self.status.state == "paused":
            return "paused"
        return "behind" if self.is_stuck(_BEHIND_INTERVALS * max(self.status.interval_seconds, 1.0)) else "ok"

    @property
    def problem(self) -> str | None:
        """Why the health is ``failed``, ``paused``, ``silent`` or ``skewed``, or ``unknown`` because no query has the
        state yet, as a sentence; else ``None``.
        """
        health = self.health
        failure = self.facts.failure
        if health == "failed" and failure is not None:
            error = f"{failure.error} ({failure.id})" if failure.id else failure.error
            return f"The query failed with {error} {self._ago(failure.time_ms)}."
        if health == "paused" and self.facts.paused_since_ms is not None:
            return f"The query was paused {self._ago(self.facts.paused_since_ms)}."
        if health == "skewed":
            return (
                f"The driver's times are {show_duration(self.skew_seconds)} in the future. Correct the clock of the "
                "driver or of this machine."
            )
        if health == "unknown" and self.record.is_unbound:
            return "The state belongs to no query until riffle adopt binds it."
        if health == "silent" and self.status is not None:
            return (
                f"The driver wrote its status {self._ago(self.facts.time_ms)}, but writes it every "
                f"{show_duration(self.status.interval_seconds)} while it runs and reaches the store."
            )
        return None

    def _ago(self, time_ms: int) -> str:
        """Return the age of a time of the driver, and the time."""
        return f"{show_duration(max(0.0, (self.now_ms - time_ms) / 1000))} ago ({show_time(time_ms)})"

    def is_stuck(self, seconds: float) -> bool:
        """Return whether records are unread, or a batch runs, and the last commit is older than ``seconds``."""
        is_unread = bool(self.lag_records) or self.facts.batch_seconds > 0
        return is_unread and (self.commit_age is None or self.commit_age > seconds)

    def probe(self, seconds: float) -> str | None:
        """Return why a probe with this maximum age fails, ``None`` if it succeeds."""
        if self.status is None:
            return "The driver has written no status."
        if self.health in ("failed", "skewed"):
            return self.problem
        if self.status_age is not None and self.status_age > seconds:
            return f"The driver wrote its status {show_duration(self.status_age)} ago."
        if self.is_stuck(seconds):
            age = "never" if self.commit_age is None else f"{show_duration(self.commit_age)} ago"
            unread = f"{self.lag_records} records are unread" if self.lag_records else "A batch runs"
            return f"{unread}, and the last commit was {age}."
        return None

    def to_json(self) -> dict[str, object]:
        """Return the values that are computed from the status and the log, as JSON. Ages are in seconds."""
        return {
            "root": self.root,
            "now_ms": self.now_ms,
            "health": self.health,
            "problem": self.problem,
            "status_age_seconds": self.status_age,
            "version": self.record.version,
            "commit_ms": self.commit_ms,
            "commit_age_seconds": self.commit_age,
            "watermark_ms": self.record.watermark_ms,
            "savepoints": [savepoint.name for savepoint in self.record.savepoints],
            "lag_records": self.lag_records,
            "lag_seconds": self.lag_seconds,
            **asdict(self.rates),
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
