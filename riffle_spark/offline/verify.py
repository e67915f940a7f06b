"""Check every object that a root's retained records and savepoints list, and the query's checkpoint."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, RiffleError, command
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.checkpoint_comparison import describe_mismatch
from riffle_spark.offline.finding import Finding, Level, Verified
from riffle_spark.protocol.batch.enter import describe_stale_rows
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.copies.part_runs import split_into_runs
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import first_sequence
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record, decode, digest
from riffle_spark.state.log.record_commits import RECORD_BYTES_MAX
from riffle_spark.state.log.record_manifests import RecordManifests
from riffle_spark.state.log.savepoints import read_savepoint
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.objects.open import masked, open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader, missing_object_error, name_range
from riffle_spark.state.restore.reader import group_into_bounded_runs as bounded_runs
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.worker.member_folders import keys_in

__all__ = ["Finding", "Verified", "verify"]

_RESTORE = "Restore it from a backup, or roll back to a batch that does not need it (riffle rollback)."
_GAP_MAX = 100
"""Limit of records that are searched or reported individually in a gap of the log's numbers."""


class _Part(NamedTuple):
    """A part that a record lists. ``key_group`` is ``None`` for sealed output rows."""

    store: str
    key_group: int | None
    part: Link | Snapshot


@dataclass(slots=True)
class _Verification:
    """The state of one verification: the root, the records that were read, and the findings so far.

    ``digests`` has the digest of each record by number. ``unread`` counts parts that could not be read, by problem,
    kind of part and remedy.
    """

    objects: ObjectStore
    names: Sequence[str]
    keys: Keys | None
    findings: list[Finding] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    unread: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    checked_bytes: int = 0
    manifests: RecordManifests = field(init=False)

    def __post_init__(self) -> None:
        """Make manifests from the records that were read."""
        self.manifests = RecordManifests(lambda sequences: [self.records[sequence] for sequence in sequences])

    def add(self, level: Level, where: str, problem: str, remedy: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(level, where, problem, remedy))

    def add_error(self, level: Level, error: RiffleError, where: str = "") -> None:
        """Add an error as a finding at ``where``, or at the error's own place."""
        self.add(level, where or error.where, error.problem, error.remedy)

    @property
    def tail(self) -> Record | None:
        """Return the newest record that can be read, ``None`` if there is none."""
        return self.records[max(self.records)] if self.records else None


def verify(
    root: str, checkpoint: str | None = None, *, options: StoreOptions | None = None, encryption_keys: str | None = None
) -> Verified:
    """Check everything that the retained records and savepoints of a root list, and whether ``checkpoint`` matches.

    Sends GETs and LISTs only. If the query runs during the check, findings of older batches may name objects that its
    retention deletes. ``encryption_keys`` is the setting. Raises ``UnavailableError`` if the store does not answer, and
    ``ConfigError`` if it cannot be read or no keys are set for encrypted state.
    """
    options = options or StoreOptions()
    root = only_root(root, options)
    objects = open_store(root, options)
    spark = None if checkpoint is None else Checkpoint(checkpoint, options)
    if spark is not None:
        spark.find_query_id()  # refuses an invalid location before the state is read, which may take long
    verification = _Verification(objects, objects.list(""), keys_in(encryption_keys, options.s3.region))
    _read_log(verification, root)
    tail = verification.tail
    if tail is not None:
        _check_line(verification, tail)
        _check_parts(verification, tail)
        for store, last_batch in tail.stale_stores.items():
            problem = f"Store {store!r} {describe_stale_rows(last_batch)}, but the query is at batch {tail.version}."
            remedy = f"Do nothing while the query runs without the store. To use it again, set accept = {store!r}."
            verification.add("note", store, problem, remedy)
    for (problem, parts, remedy), count in verification.unread.items():
        verification.add("unread", root, f"{problem} {count} {parts} were not checked.", remedy)
    way_back = _find_way_back(verification, root, checkpoint)
    if spark is not None:
        read_newer = partial(_newer_records, objects, tail)
        mismatch = describe_mismatch(spark, root, tail, verification.records, read_newer)
        if mismatch is not None:
            verification.add("state", spark.shown, *mismatch)
    return Verified(
        records=len(verification.digests),
        objects=len(verification.names),
        checked_bytes=verification.checked_bytes,
        version=None if tail is None else tail.version,
        findings=tuple(verification.findings),
        way_back=way_back,
    )


def _read_log(verification: _Verification, root: str) -> None:
    """Read all records into ``verification``. Add findings for damaged records, gaps and foreign objects."""
    names = verification.names
    sequences = sorted(s for s in map(paths.parse_record_name, names) if s is not None)
    own_names = (name for name in names if not paths.is_of_shared_root(name) and name not in paths.REPLACED)
    foreign = [
        name for name in own_names if paths.parse_object_name(name) is None and paths.parse_record_name(name) is None
    ]
    if foreign and len(foreign) == len(names):
        verification.add("state", root, "This is not a riffle root: it has no riffle object.", "Correct the root.")
        return
    for name in foreign:
        level: Level = "state" if name.startswith(paths.LOG) or not sequences else "note"
        verification.add(level, name, "This is not a riffle object.", "Move it elsewhere. A root belongs to one query.")
    if not sequences:
        empty = command("adopt", "--empty", "--execute", root=root, checkpoint="CHECKPOINT")
        move = "move the remaining objects elsewhere and " if names else ""  # adopt refuses a root with objects
        remedy = f"Correct the root, or restore the root from a backup, or {move}start without state: {empty}"
        verification.add("state", root, "The root has no log: it is empty, or the log is lost.", remedy)
        return
    errors = {sequence: error for sequence in sequences if (error := _read_record(verification, sequence))}
    for gap in (range(a + 1, b) for a, b in pairwise(sequences)):
        if gap.stop - gap.start >= paths.FAR and gap.stop in errors:
            errors[gap.stop] = paths.far_beyond_error(gap.stop)
            verification.digests.pop(gap.stop)
            continue
        gap_errors = {sequence: _read_record(verification, sequence) for sequence in gap[:_GAP_MAX]}  # a LIST may lag
        errors |= {sequence: error for sequence, error in gap_errors.items() if error}
    tail = verification.tail
    first = _first_sequence(verification, tail)
    for sequence in sorted(s for s in verification.digests if s < first):
        problem = f"This record is older than the log, which starts with record {first}. Nothing reads it."
        remedy = "None: a scan of the query deletes it."
        verification.add("note", paths.record_name(sequence), problem, remedy)
        verification.records.pop(sequence, None)
    lost_records = {
        sequence: missing_object_error(paths.record_name(sequence))
        for sequence in _lost_below(verification, first, tail)
    }
    for sequence, error in sorted((errors | lost_records).items()):
        if sequence >= first or sequence in lost_records:
            verification.add_error(_record_level(verification, sequence, tail), error, paths.record_name(sequence))


def _newer_records(objects: ObjectStore, tail: Record | None) -> Iterator[Record]:
    """Yield the intact records that were appended after ``tail``, oldest first."""
    for sequence in filter(None, map(paths.parse_record_name, objects.list(paths.LOG))):
        name = paths.record_name(sequence)
        data = objects.get(name) if tail is not None and sequence > tail.sequence else None
        if data is not None:
            with suppress(CorruptStateError):
                yield decode(data, name, with_entries=False)


def _read_record(verification: _Verification, sequence: int) -> CorruptStateError | None:
    """Read a record into ``verification``. Return its error if it is missing or damaged, else ``None``."""
    name = paths.record_name(sequence)
    damage: CorruptStateError | None = None
    for _ in range(2):  # the bytes may have been damaged in transit
        data = verification.objects.get(name, 0, RECORD_BYTES_MAX)
        if data is None:
            return missing_object_error(name)
        verification.digests[sequence] = digest(data)
        try:
            verification.records[sequence] = decode(data, name)
        except CorruptStateError as error:
            damage = error
        else:
            return None
    return damage


def _lost_below(verification: _Verification, first: int, tail: Record | None) -> set[int]:
    """Return the records before the log's first that the newest record promises, or that other records need."""
    if tail is None:
        return set()
    promised = [record for record in verification.records.values() if record.sequence >= tail.promised]
    needed_records = {tail.full, *(record.full for record in promised), *range(tail.promised, first)[-_GAP_MAX:]}
    return {sequence for sequence in needed_records if sequence < first}


def _first_sequence(verification: _Verification, tail: Record | None) -> int:
    """Return the number of the log's first record. A rollback needs none before it."""
    if tail is None:
        return 0
    promised = verification.records.get(tail.promised, tail)
    needed = min(tail.full, tail.promised, promised.full)
    return first_sequence(verification.objects, verification.digests, needed)


def _record_level(verification: _Verification, sequence: int, tail: Record | None) -> Level:
    """Return the level of a finding about a record: whether it breaks the newest state or only a rollback.

    A driver that starts reads the newest record and its bases, checks that all in between exist, and compares the
    digest of the second newest.
    """
    if tail is None or sequence in (tail.sequence, *tail.bases) or sequence > tail.sequence:
        return "state"
    record_digest = verification.digests.get(sequence)
    if record_digest and sequence == tail.sequence - 1:
        is_refused = record_digest != tail.previous
    else:
        is_refused = not record_digest
    return "state" if is_refused and sequence > tail.full else "rollback"


def _check_line(verification: _Verification, tail: Record) -> None:
    """Check that all records belong to one log and follow each other, and that the operator requests can be read."""
    for sequence, record in verification.records.items():
        previous = verification.digests.get(sequence - 1)
        name = paths.record_name(sequence)
        if record.log_id != tail.log_id:
            level = _record_level(verification, sequence, tail)
            verification.add(level, name, "This record belongs to another log.", _RESTORE)
        elif previous is not None and previous != record.previous:
            problem = "This record does not follow the one before it: one of them was changed."
            verification.add("state" if record is tail else "rollback", name, problem, _RESTORE)
    try:
        read_requests(tail.orders)
    except CorruptStateError as error:
        verification.add_error("state", error, paths.record_name(tail.sequence))


def _check_parts(verification: _Verification, tail: Record) -> None:
    """Check all parts that ``tail``, the records that it promises and its savepoints list, and note orphans."""
    schemas = dict(_read_schemas(verification, tail))
    levels: dict[_Part, Level] = {}
    for sequence in sorted(verification.records, reverse=True):
        record = verification.records[sequence]
        if sequence == tail.sequence or sequence >= tail.promised:
            level: Level = "state" if record is tail else "rollback"
            for part in _parts_of(verification, record, level):
                levels.setdefault(part, level)
    for record in _read_savepoints(verification, tail):
        for part in _parts_of(verification, record, "rollback"):
            levels.setdefault(part, "rollback")
    listed_names: set[str] = set()
    reader = Reader(verification.objects, verification.keys)
    links: dict[Link, list[_Part]] = {}
    for part in levels:
        if isinstance(part.part, Link):
            links.setdefault(part.part, []).append(part)
    for run in bounded_runs(reader, links):
        listed_names.add(run[0].object)
        _check_links(verification, reader, run, links, levels, schemas)
    for part, level in levels.items():
        if isinstance(part.part, Snapshot) and part.key_group is not None:
            address = (part.store, part.key_group)
            listed_names.add(_check_snapshot(verification, address, part.part, level, schemas))
    _note_orphans(verification, listed_names, tail)


def _read_savepoints(verification: _Verification, tail: Record) -> Iterator[Record]:
    """Yield the record of each savepoint. Add a finding for a savepoint that cannot be read."""
    for savepoint in tail.savepoints:
        try:
            yield read_savepoint(verification.objects, savepoint)
        except CorruptStateError as error:
            verification.add_error("rollback", error)


def _read_schemas(verification: _Verification, tail: Record) -> Iterator[tuple[str, StoreSchema]]:
    """Yield each store with its schema. Add a finding for a schema that cannot be read."""
    for store, text in tail.schemas.items():
        try:
            yield store, schema_of_text(store, text)
        except (CorruptStateError, ConfigError) as error:
            verification.add_error("state", error, paths.record_name(tail.sequence))


def _parts_of(verification: _Verification, record: Record, level: Level) -> Iterator[_Part]:
    """Yield the parts that a record and its bases list together."""
    if not verification.records.keys() >= {*record.bases}:
        return  # already reported
    try:
        manifest = verification.manifests.of(record)
    except CorruptStateError as error:
        verification.add_error(level, error, paths.record_name(record.sequence))
        return
    for (store, key_group), entry in manifest.entries.items():
        yield from (_Part(store, key_group, link) for link in entry.chain)
        if entry.snapshot is not None:
            yield _Part(store, key_group, entry.snapshot)
    yield from (_Part(store, None, link) for store, link in record.outputs)


def _check_links(
    verification: _Verification,
    reader: Reader,
    run: list[Link],
    links: Mapping[Link, Sequence[_Part]],
    levels: Mapping[_Part, Level],
    schemas: Mapping[str, StoreSchema],
) -> None:
    """Check the parts of a run of adjacent links, with one GET."""
    try:
        fetched = reader.fetch_run(run)
    except CorruptStateError as error:
        verification.add_error(_worst_level(levels[part] for link in run for part in links[link]), error)
        return
    intact = {link: data for link, data in fetched.items() if not isinstance(data, CorruptStateError)}

    @cache
    def open_block(store: str) -> Mapping[Link, pa.Table]:
        return reader.open_links(store, intact, {link: link.start for link in intact})

    for link, data in fetched.items():
        where = name_range(link)
        if isinstance(data, CorruptStateError) or len(data) != (link.length if link.block is None else link.block.size):
            verification.add_error(_worst_level(levels[part] for part in links[link]), part_codec.altered_error(where))
            continue
        verification.checked_bytes += link.length
        for part in links[link]:  # an altered record may list one part for several key-groups
            schema = None if part.key_group is None else schemas.get(part.store)
            if link.block is not None:
                open_rows = partial(lambda store, link: open_block(store)[link], part.store, link)
            elif part.key_group is None:
                open_rows = partial(_open_part, reader, data, paths.output_place(part.store, *link.head), where)
            else:
                open_rows = partial(_open_part, reader, data, link.place(part.store, part.key_group), where)
            _check_rows(verification, levels[part], open_rows, link.rows, where, schema)


def _open_part(reader: Reader, data: part_codec.Data, place: Place, where: str) -> pa.Table:
    return part_codec.open_part(reader.decrypt(data, place, where), where)


def _worst_level(levels: Iterable[Level]) -> Level:
    return "state" if "state" in levels else "rollback"


def _check_snapshot(
    verification: _Verification, address: Address, snapshot: Snapshot, level: Level, schemas: Mapping[str, StoreSchema]
) -> str:
    """Check a snapshot. Return the name of its object."""
    name = paths.snapshot_name(*address, snapshot.id)
    data: bytes | None = None
    is_intact = False
    for _ in range(2):  # the bytes may have been damaged in transit
        data = verification.objects.get(name, 0, snapshot.length + 1)
        is_intact = data is not None and len(data) == snapshot.length
        is_intact = is_intact and part_codec.checksum(data) == snapshot.checksum
        if is_intact or data is None:
            break
    if data is None:
        verification.add_error(level, missing_object_error(name))
    elif not is_intact:
        verification.add_error(level, part_codec.altered_error(name))
    else:
        place = paths.snapshot_place(*address, snapshot.id)
        open_rows = partial(_open_part, Reader(verification.objects, verification.keys), data, place, name)
        _check_rows(verification, level, open_rows, snapshot.rows, name, schemas.get(address[0]))
    verification.checked_bytes += len(data or b"")
    return name


def _check_rows(
    verification: _Verification,
    level: Level,
    open_rows: Callable[[], pa.Table],
    rows: int,
    where: str,
    schema: StoreSchema | None,
) -> None:
    """Check that a part can be decrypted and decoded, has ``rows`` rows, and fits its schema."""
    try:
        table = open_rows()
        if table.num_rows != rows:
            verification.add(level, where, f"The part has {table.num_rows} rows, but the log lists {rows}.", _RESTORE)
        elif schema is not None and not schema.history.changes:
            split_into_runs(table, schema)
    except RefusedError as error:  # a key is missing: for some parts, or without any keys for all
        if verification.keys is None:
            raise
        parts = "parts of deltas" if "[" in where else "snapshots"
        need = "that the state needs" if level == "state" else "that only a rollback needs"
        verification.unread[error.problem, f"{parts} {need}", error.remedy] += 1
    except CorruptStateError as error:
        verification.add_error(level, error, where)


def _note_orphans(verification: _Verification, listed: set[str], tail: Record) -> None:
    """Add findings for unlisted objects of a newer epoch than the log's, because its newest records may be lost."""
    for name in verification.names:
        object_name = paths.parse_object_name(name)
        if object_name is not None and object_name.epoch > tail.epoch and name not in listed:
            problem = f"The object is of epoch {object_name.epoch}, but the newest record is of epoch {tail.epoch}."
            remedy = "Check whether a newer driver runs. If none does, the newest records are lost: restore log/."
            verification.add("note", name, problem, remedy)


def _find_way_back(verification: _Verification, root: str, checkpoint: str | None) -> str | None:
    """Return the newest undamaged batch and the command that returns to it, or ``None``.

    It is ``None`` if the newest state is undamaged, if no batch is, or if some parts could not be read.
    """
    if not verification.records or verification.unread:
        return None
    if all(finding.level != "state" for finding in verification.findings):
        return None
    damaged = {finding.where for finding in verification.findings if finding.level in ("state", "rollback")}
    line_end = max(verification.records)
    promised = verification.records[line_end].promised
    damaged_versions: set[int] = set()
    for sequence, record in sorted(verification.records.items(), reverse=True):
        if not promised <= sequence <= line_end:
            continue
        if _is_undamaged(verification, record, damaged):
            target = f"record:{sequence}" if record.version in damaged_versions else record.version
            shown = masked(checkpoint) if checkpoint else "CHECKPOINT"
            way_back = command("rollback", "--execute", root=root, checkpoint=shown, to=target)
            is_needed = sequence < max(verification.digests) or _has_damage_before(verification, sequence)
            return f"{record.version}: {way_back}" if is_needed else None
        damaged_versions.add(record.version)
        line_end = sequence if record.target is None else record.target
    return None


def _has_damage_before(verification: _Verification, newest: int) -> bool:
    """Return whether a start is refused because of a record before number ``newest``.

    A rollback to that record ends this, because it writes a new full record.
    """
    sequences = {paths.parse_record_name(f.where) for f in verification.findings if f.level == "state"}
    return any(sequence is not None and sequence < newest for sequence in sequences)


def _is_undamaged(verification: _Verification, record: Record, damaged: Set[str]) -> bool:
    """Return whether no finding concerns the record or an object that it needs.

    ``damaged`` are the places of findings.
    """
    if {*map(paths.record_name, (record.sequence, *record.bases))} & damaged:
        return False
    if not verification.records.keys() >= {*record.bases}:
        return False
    needed_places: set[str] = set()
    for store, key_group, part in _parts_of(verification, record, "rollback"):
        if isinstance(part, Link):
            needed_places |= {part.object, name_range(part)}
        else:
            assert key_group is not None, "only links of output have no key-group"
            needed_places.add(paths.snapshot_name(store, key_group, part.id))
    return needed_places.isdisjoint(damaged)
