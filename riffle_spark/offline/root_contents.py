"""Read the contents of a root: the records of its log, its stores, and the place of a key. Writes nothing."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice, tee, zip_longest

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.keygroups import key_groups
from riffle_spark.observe.rates import Rates, rates_of
from riffle_spark.observe.status import Status, WarningSummary, decode
from riffle_spark.offline.periods import ALWAYS, Period
from riffle_spark.offline.record_reader import list_records, read_back, read_record
from riffle_spark.offline.root_status import members_of_record, newest_record
from riffle_spark.offline.scenario_of_root import open_log
from riffle_spark.protocol.ownership.groups import GROUP, parse_task, task_name
from riffle_spark.protocol.ownership.groups import task as task_of
from riffle_spark.protocol.shards import Shards
from riffle_spark.state.formats.json_keys import parse_key
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import first_sequence
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.log.recorded_moves import RecordedMoves
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.unknown_names import check_known

_LARGEST = 5


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record of the log.

    Attributes:
        sequence: its number.
        kind: ``batch``, ``claim``, ``orders`` (requests of operators), ``rollback``, ``adopt``, ``dispatch``,
            ``savepoint`` or ``state`` (state that an operator changed).
        version: the newest batch after it, -1 for none.
        time_ms: when it was written, in milliseconds since the epoch.
        epoch: the number of the driver's claim.
        changed_rows: stored rows that the batch changed.
        sealed_bytes: bytes of these changes.
        owner_moves: key-groups with another owner than in the record before, as (key-group, from, to).
        moves: the moves since the record before, with their reasons; empty in records of earlier formats.
        rollback_to: the target of ``riffle rollback --to`` that returns to it; ``None`` if it is not retained.
        offsets: Spark's offset-log entry, one text per source; empty if unknown.
        edit: of kind ``state``: the action, the store, the number of keys, the operator and the reason.
    """

    sequence: int
    kind: str
    version: int
    time_ms: int
    epoch: int
    changed_rows: int
    sealed_bytes: int
    owner_moves: tuple[tuple[str, str, str], ...]
    rollback_to: str | None
    offsets: tuple[str, ...]
    moves: tuple[RecordedMoves, ...] = ()
    edit: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the record as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StoreOnRoot:
    """The state of a store as of the newest record.

    Attributes:
        store: the name of the store.
        key: the name and type of each key column.
        columns: the name and type of each other column or variable.
        rows: state rows: keys, sessions, or elements of variables without timers. An upper bound unless
            ``has_exact_rows``: then it counts a key once for each snapshot and delta that has it.
        has_exact_rows: whether the number of state rows is known.
        bytes: bytes of all snapshots and deltas.
        snapshots: key-groups with a snapshot.
        deltas: parts of deltas after the snapshots.
        longest_chain: the most deltas of a key-group.
        key_groups: how many key-groups have state.
        largest: the (key-group, rows, bytes) of the largest key-groups. These rows count a key once for each snapshot
            and delta that has it.
        skew: the bytes of the largest key-group as a multiple of the mean of all key-groups; 0 without state.
    """

    store: str
    key: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    rows: int
    has_exact_rows: bool
    bytes: int
    snapshots: int
    deltas: int
    longest_chain: int
    key_groups: int
    largest: tuple[tuple[int, int, int], ...]
    skew: float

    def to_json(self) -> dict[str, object]:
        """Return the store as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KeyOnRoot:
    """The place of a key as of the newest record: its key-group, owner and standbys. ``None`` if there is no owner."""

    key_group: int
    group: str
    owner: RecordedMember | None
    standbys: tuple[RecordedMember, ...]
    version: int
    topic: str | None = None
    partition: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the place as JSON."""
        return asdict(self)


def read_records(
    root: str, limit: int, options: StoreOptions | None = None, period: Period = ALWAYS
) -> list[LoggedRecord]:
    """Return the last ``limit`` records of the log that were written in a period, oldest first.

    Missing and damaged records are left out. Reads these records and the one before them. The ends of the period are
    found by bisection, which reads a few more. Records after the period are read only if a rollback is among them.

    Raises ``ConfigError`` if there is no log, ``CorruptStateError`` if the newest record is damaged.
    """
    root = only_root(root, options or StoreOptions())
    objects = open_store(root, options or StoreOptions())
    tail = newest_record(objects, root)
    first = first_sequence(objects, [*list_records(objects), tail.sequence], min(tail.full, tail.promised))
    end = tail.sequence + 1
    if period.until_ms is not None:
        end = _first_written(objects, first, end, period.until_ms + 1)
    start = first if period.since_ms is None else _first_written(objects, first, end, period.since_ms)
    start = max(start, end - limit)
    current = end - 1 if end > tail.sequence else _current_before(objects, tail, end)
    shown: list[LoggedRecord] = []
    for record, previous in _with_previous(read_back(objects, range(max(first, start - 1), end))):
        is_current = record.sequence <= current
        if is_current:
            current = _sequence_before(record)
        if record.sequence >= start:
            shown.append(_logged(record, previous, _target(record, tail, is_current=is_current)))
    return shown[::-1]


def read_savepoints(root: str, options: StoreOptions | None = None) -> tuple[RecordedSavepoint, ...]:
    """Return the savepoints in the newest record. Raises ``ConfigError`` if there is no log."""
    root = only_root(root, options or StoreOptions())
    return newest_record(open_store(root, options or StoreOptions()), root).savepoints


def _with_previous(records: Iterable[Record]) -> Iterator[tuple[Record, Record | None]]:
    """Return each of these records, the newest first, with the next older one; ``None`` for the last."""
    newer, older = tee(records)
    return zip_longest(newer, islice(older, 1, None))


def _sequence_before(record: Record) -> int:
    """Return the number of the record before this one in its history: the target of a rollback, else the last one."""
    return record.sequence - 1 if record.target is None else min(record.target, record.sequence - 1)


def _current_before(objects: ObjectStore, tail: Record, end: int) -> int:
    """Return the number of the newest record before ``end`` that no later rollback discarded.

    If there was no later rollback, that takes one request.
    """
    last_record = read_record(objects, end - 1)
    if last_record is not None and last_record.rollbacks == tail.rollbacks:
        return end - 1
    current = tail.sequence
    for record in read_back(objects, range(end, tail.sequence + 1)):
        if record.sequence <= current:
            current = _sequence_before(record)
    return min(current, end - 1)


def _first_written(objects: ObjectStore, first: int, end: int, time_ms: int) -> int:
    """Return the number of the first record from ``first`` on that was written at a time or later; ``end`` if none was.

    Records are taken to be in the order of their times. Those that are missing or damaged count as written before.
    """
    low = first
    high = end
    while low < high:
        middle = (low + high) // 2
        record = read_record(objects, middle)
        if record is not None and record.written_ms >= time_ms:
            high = middle
        else:
            low = middle + 1
    return low


def read_warnings(root: str, options: StoreOptions | None = None, period: Period = ALWAYS) -> list[WarningSummary]:
    """Return the warnings of a period among the last ones that the driver's status has.

    There are none without a status, and if it cannot be read.
    """
    status = _status_of(root, options)
    return [] if status is None else [warning for warning in status.warnings if warning.time_ms in period]


def _status_of(root: str, options: StoreOptions | None) -> Status | None:
    """Return the driver's status, ``None`` if there is none that can be read."""
    store_options = options or StoreOptions()
    data = open_store(only_root(root, store_options), store_options).get(paths.STATUS)
    with suppress(CorruptStateError):
        return None if data is None else decode(data)
    return None


def _target(record: Record, tail: Record, *, is_current: bool) -> str | None:
    """Return the target of a rollback to a record, ``None`` if it is not retained.

    ``is_current`` is whether no rollback gave the record up.
    """
    if record.sequence < tail.promised:
        return None
    return str(record.version) if record.kind == "batch" and is_current else f"record:{record.sequence}"


def _logged(record: Record, previous: Record | None, target: str | None) -> LoggedRecord:
    """Return a record as it is shown. ``previous`` is the record before it, if it was read."""
    rows = 0
    size = 0
    if record.kind == "batch":
        for entry in record.entries.values():
            link = entry.chain[-1] if entry.chain else None
            if link is not None and link.head.version == record.version and link.head.epoch == record.epoch:
                rows += link.rows
                size += link.length
    before = {} if previous is None else previous.owners
    moves = tuple(
        (task, before.get(task, ""), owner)
        for task, owner in record.owners.items()
        if previous is not None and before.get(task, "") != owner
    )
    offsets = tuple(line for line in (record.offsets or "").split("\n")[2:] if line not in ("", "-"))
    return LoggedRecord(
        record.sequence,
        record.kind,
        record.version,
        record.written_ms,
        record.epoch,
        rows,
        size,
        moves,
        target,
        offsets,
        record.moves,
        record.edit,
    )


def read_stores(root: str, options: StoreOptions | None = None) -> list[StoreOnRoot]:
    """Return the stores below a root, sorted by name.

    Raises ``ConfigError`` if there is no log, ``CorruptStateError`` for a schema that cannot be read.
    """
    log, tail = open_log(root, options)
    entries: dict[str, dict[int, Entry]] = {store: {} for store in tail.schemas}
    for (store, key_group), entry in log.manifest.entries.items():
        entries.setdefault(store, {})[key_group] = entry
    total = max(len(tail.shards) if tail.dispatch != "key_group" else tail.total, 1)
    return [
        _store_on_root(schema_of_text(store, tail.schemas[store]), entries[store], total, tail.row_counts.get(store))
        for store in sorted(tail.schemas)
    ]


def read_rates(root: str, options: StoreOptions | None = None) -> Rates:
    """Return the rates of the query by its status. They are unknown without a status, and if it cannot be read."""
    status = _status_of(root, options)
    return Rates() if status is None else rates_of(status)


def _store_on_root(schema: StoreSchema, entries: Mapping[int, Entry], total: int, row_count: int | None) -> StoreOnRoot:
    """Return a store with the sizes of its key-groups, out of ``total``. ``row_count`` is ``None`` if unknown."""
    sizes = {key_group: entry.measure() for key_group, entry in entries.items()}
    largest = sorted(sizes, key=lambda key_group: (-sizes[key_group].bytes, key_group))[:_LARGEST]
    total_bytes = sum(size.bytes for size in sizes.values())
    state = schema.either(
        lambda plain: tuple((field.name, str(field.type)) for field in plain.state),
        lambda variables: tuple((variable.name, variable.kind) for variable in variables.variables),
    )
    return StoreOnRoot(
        schema.store,
        tuple((field.name, str(field.type)) for field in schema.key),
        state,
        rows=sum(size.rows for size in sizes.values()) if row_count is None else row_count,
        has_exact_rows=row_count is not None,
        bytes=total_bytes,
        snapshots=sum(entry.snapshot is not None for entry in entries.values()),
        deltas=sum(size.deltas for size in sizes.values()),
        longest_chain=max((len(entry.chain) for entry in entries.values()), default=0),
        key_groups=len(entries),
        largest=tuple((key_group, sizes[key_group].rows, sizes[key_group].bytes) for key_group in largest),
        skew=sizes[largest[0]].bytes * total / total_bytes if total_bytes else 0.0,
    )


def find_key(root: str, key: str, store: str | None = None, options: StoreOptions | None = None) -> KeyOnRoot:
    """Return the place of a key as of the newest record.

    ``key`` is text as ``parse_key`` takes it: all columns, or those that decide the key-group. With dispatch by
    partition it is ``topic:partition``. Raises ``ConfigError`` for other keys, for an unknown store, and if the stores
    have different keys and none is named.
    """
    root = only_root(root, options or StoreOptions())
    objects = open_store(root, options or StoreOptions())
    tail = newest_record(objects, root)
    check_known("store", [] if store is None else [store], tail.schemas, source="--store", where=root)
    group = _group_of(tail, store, objects)
    topic: str | None = None
    partition: int | None = None
    if tail.dispatch == "key_group":
        schema = _schema_for(tail, store, root)
        columns = parse_key(key, schema.key, schema.store, schema.routing).select(schema.routing).columns
        number = int(key_groups(columns, tail.total)[0])
    else:
        topic, partition = _parse_partition(key)
        number = Shards(tail.shards).number_of((topic, partition))
    name = task_name(task_of(number, group))
    members = {member.id: member for member in members_of_record(objects, tail)}
    return KeyOnRoot(
        number,
        group,
        members.get(tail.owners.get(name, "")),
        tuple(members[holder] for holder in tail.standbys.get(name, ()) if holder in members),
        tail.version,
        topic,
        partition,
    )


def _group_of(tail: Record, store: str | None, objects: ObjectStore) -> str:
    """Return the co-location group of a store, or the only group.

    The log has the names of groups, and the driver's status their stores. Raises ``ConfigError`` if there are several
    groups and the group of the store is unknown.
    """
    groups = {parse_task(name).group for name in tail.owners}
    if len(groups) < 2:
        return next(iter(groups), GROUP)
    data = objects.get(paths.STATUS) if store is not None else None
    for group in decode(data).facts.groups if data is not None else ():
        if store in group.stores:
            return group.name
    # Cause: The log has the owners of each group of `store_groups`, and only the driver's status has its stores.
    raise ConfigError(
        f"The query has several co-location groups: {', '.join(sorted(groups))}.",
        remedy=f"Name a store with --store ({', '.join(sorted(tail.schemas))}) while the driver writes its status.",
        where="store_groups",
        id="RIFFLE-1312",
    )


def _schema_for(tail: Record, store: str | None, root: str) -> StoreSchema:
    """Return the schema of a store, or of any store if all have the same key."""
    schemas = {name: schema_of_text(name, text) for name, text in tail.schemas.items()}
    if store is not None:
        return schemas[store]
    if not schemas:
        raise ConfigError(
            f"{root} has no store yet.", remedy="Wait until the query has run a batch.", where=root, id="RIFFLE-1313"
        )
    routings = {tuple(schema.key.field(name) for name in schema.routing) for schema in schemas.values()}
    if len(routings) > 1:
        raise ConfigError(
            "The query's stores have different keys.",
            remedy=f"Name one of them with --store: {', '.join(sorted(schemas))}.",
            where=root,
            id="RIFFLE-1314",
        )
    return next(iter(schemas.values()))


def _parse_partition(key: str) -> tuple[str, int]:
    """Return the topic and partition of ``topic:partition``. Raises ``ConfigError`` for other text."""
    topic, _, number = key.rpartition(":")
    if not topic or not (number.isascii() and number.isdigit()):
        # Cause: The partition of the source decides the owner, and not the key.
        raise ConfigError(
            f"{key!r} is not a partition.",
            remedy="Give TOPIC:PARTITION, such as orders:3, because the query dispatches by partition.",
            where="dispatch",
            id="RIFFLE-1316",
        )
    return topic, int(number)
