"""What is wrong with a root, and with the checkpoint that belongs to it: every object that a retained record lists is
read and checked. Knows what records, parts and checkpoints have to be. Changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError, RiffleError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.protocol.batch.will import will_in
from riffle_spark.state.copies.part_files import runs_of
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import RECORD_BYTES_MAX, beginning
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.log.record import Record, decode, digest, joined
from riffle_spark.state.objects.encryption import Keys
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader, missing
from riffle_spark.state.restore.reader import runs_of as bounded_runs
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.worker.member_folders import keys_in

__all__ = ["Finding", "Verified", "verify"]

_RESTORE = "restore it from a backup, or roll back to a version that does not need it (riffle rollback)"
_Level = Literal["state", "rollback", "note"]
_GAP_MOST = 100
"""So many records are looked for one by one where numbers are missing in between."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with an object. ``level``: it keeps the query from its ``state``; or only from a
    ``rollback`` to some older batch; or it is a ``note``, and harms nothing.
    """

    level: _Level
    where: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.level}: {self.problem} [{self.where}]\n  What to do: {self.remedy}"


@dataclass(frozen=True, slots=True)
class Verified:
    """What was looked at, and what was found. ``version`` is the newest batch whose record can be read."""

    records: int
    objects: int
    checked_bytes: int
    version: int | None
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.level == "note" for finding in self.findings)


class _Part(NamedTuple):
    store: str
    key_group: int | None
    part: Link | Snapshot


@dataclass(slots=True)
class _Looked:
    """A root as it is being looked at."""

    objects: ObjectStore
    names: Sequence[str]
    keys: Keys | None
    findings: list[Finding] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    checked_bytes: int = 0

    def say(self, level: _Level, where: str, problem: str, remedy: str) -> None:
        self.findings.append(Finding(level, where, problem, remedy))

    def say_error(self, level: _Level, error: RiffleError, where: str = "") -> None:
        self.say(level, where or error.where, error.problem, error.remedy)


def verify(
    root: str, checkpoint: str | None = None, *, options: StoreOptions | None = None, encryption_keys: str | None = None
) -> Verified:
    """Read all that the retained records of a root list, and check it; say what is wrong, and what to do about it.

    ``checkpoint`` is looked at too, whether it fits. Sends GETs and LISTs alone. Beside a query that runs, what its
    retention deletes meanwhile may be among the findings of older batches. Raises ``UnavailableError`` where the store
    does not answer, ``ConfigError`` where it cannot be read, also for want of a key: ``encryption_keys`` are as in the
    settings.
    """
    options = options or StoreOptions()
    objects = open_store(root, options)
    looked = _Looked(objects, objects.list(""), keys_in(encryption_keys, options.s3_region))
    _read_log(looked, root)
    tail = looked.records[max(looked.records)] if looked.records else None
    if tail is not None:
        _check_line(looked, tail)
        _check_parts(looked, tail)
    if checkpoint is not None:
        _check_checkpoint(looked, Checkpoint(checkpoint, options), root, tail)
    counted = len(looked.names), looked.checked_bytes, None if tail is None else tail.version
    return Verified(len(looked.digests), *counted, tuple(looked.findings))


def _read_log(looked: _Looked, root: str) -> None:
    sequences = sorted(s for s in map(paths.record_sequence, looked.names) if s is not None)
    strange = [n for n in looked.names if paths.parse(n) is None and paths.record_sequence(n) is None]
    if strange and len(strange) == len(looked.names):
        looked.say("state", root, "this is not a riffle root: nothing there is riffle's", "name what `root` is set to")
        return
    for name in strange:
        level: _Level = "state" if name.startswith(paths.LOG) or not sequences else "note"
        looked.say(level, name, "this is no object of riffle's", "move it elsewhere: one root is one query's alone")
    if not sequences:
        remedy = (
            f"restore the root from a backup, or start with no state on purpose: riffle adopt --root {root} --empty"
        )
        looked.say("state", root, "there is no log: the root is empty, or it was lost", remedy)
        return
    wrong = {sequence: error for sequence in sequences if (error := _read_record(looked, sequence))}
    for gap in (range(a + 1, b) for a, b in pairwise(sequences)):
        found = {sequence: _read_record(looked, sequence) for sequence in gap[:_GAP_MOST]}  # a LIST may lag
        wrong |= {sequence: error for sequence, error in found.items() if error}
    tail = looked.records[max(looked.records)] if looked.records else None
    begin = _beginning(looked, tail)
    for sequence in sorted(s for s in looked.digests if s < begin):
        problem = f"a record that came back below the log, which begins with record {begin}: nobody reads it"
        looked.say("note", paths.record(sequence), problem, "none: a scan of the query deletes it")
        looked.records.pop(sequence, None)
    lost = {sequence: missing(paths.record(sequence)) for sequence in _lost_below(looked, begin, tail)}
    for sequence, error in sorted((wrong | lost).items()):
        if sequence >= begin or sequence in lost:
            looked.say_error(_level_of(looked, sequence, tail), error, paths.record(sequence))


def _read_record(looked: _Looked, sequence: int) -> CorruptStateError | None:
    """Take a record; return what is wrong with it."""
    name = paths.record(sequence)
    data = looked.objects.get(name, 0, RECORD_BYTES_MAX)
    if data is None:
        return missing(name)
    looked.digests[sequence] = digest(data)
    try:
        record = decode(data, name)
    except CorruptStateError as error:
        return error
    if record.sequence != sequence:
        return CorruptStateError(f"this is record {record.sequence}, under another number", remedy=_RESTORE)
    looked.records[sequence] = record
    return None


def _lost_below(looked: _Looked, begin: int, tail: Record | None) -> set[int]:
    """Return the records below the log's beginning that the newest one promises, or that those need which are there."""
    if tail is None:
        return set()
    needed = {tail.full, *(one.full for one in looked.records.values() if one.sequence >= tail.promised)}
    return {sequence for sequence in needed.union(range(tail.promised, begin)) if sequence < begin}


def _beginning(looked: _Looked, tail: Record | None) -> int:
    """Return where the log begins: nothing that a rollback may need is below."""
    if tail is None:
        return 0
    promised = looked.records.get(tail.promised, tail)
    return beginning(looked.objects, looked.digests, min(tail.full, tail.promised, promised.full))


def _level_of(looked: _Looked, sequence: int, tail: Record | None) -> _Level:
    """Return what a record's damage harms. A start reads the newest one and the full one that it changes, looks whether
    all since that are there, and compares the bytes of the one before with what the newest says of them.
    """
    if tail is None or sequence in (tail.sequence, tail.full) or sequence > tail.sequence:
        return "state"
    found = looked.digests.get(sequence)
    is_refused = found != tail.previous if found and sequence == tail.sequence - 1 else not found
    return "state" if is_refused and sequence > tail.full else "rollback"


def _check_line(looked: _Looked, tail: Record) -> None:
    """Check that records are of one line, and that those are whole that the newest one needs."""
    for sequence, record in looked.records.items():
        before = looked.digests.get(sequence - 1)
        if record.log_id != tail.log_id:
            level = _level_of(looked, sequence, tail)
            looked.say(level, paths.record(sequence), "this record is of another log", _RESTORE)
        elif before is not None and before != record.previous:
            problem = "this record does not follow the one before it: one of them is not what was written there"
            looked.say("state" if record is tail else "rollback", paths.record(sequence), problem, _RESTORE)
    try:
        will_in(tail.orders)
    except CorruptStateError as error:
        looked.say_error("state", error, paths.record(tail.sequence))


def _check_parts(looked: _Looked, tail: Record) -> None:
    schemas = dict(_schemas(looked, tail))
    levels: dict[_Part, _Level] = {}
    for sequence in sorted(looked.records, reverse=True):
        record = looked.records[sequence]
        if sequence == tail.sequence or sequence >= tail.promised:
            level: _Level = "state" if record is tail else "rollback"
            for part in _parts_of(looked, record, level):
                levels.setdefault(part, level)
    listed: set[str] = set()
    reader = Reader(looked.objects, None)
    links = {part.part: part for part in levels if isinstance(part.part, Link)}
    for run in bounded_runs(reader, links):
        listed.add(run[0].object)
        _check_links(looked, reader, run, links, levels, schemas)
    for part, level in levels.items():
        if isinstance(part.part, Snapshot) and part.key_group is not None:
            listed.add(_check_snapshot(looked, (part.store, part.key_group), part.part, level, schemas))
    _note_orphans(looked, listed, tail)


def _schemas(looked: _Looked, tail: Record) -> Iterator[tuple[str, StoreSchema]]:
    for store, text in tail.schemas.items():
        try:
            yield store, schema_of_text(store, text)
        except (CorruptStateError, ConfigError) as error:
            looked.say_error("state", error, paths.record(tail.sequence))


def _parts_of(looked: _Looked, record: Record, level: _Level) -> Iterator[_Part]:
    """Yield what a record lists, with what it leaves to its full one."""
    full = looked.records.get(record.full)
    if full is None:
        return  # said already: it is missing or damaged
    try:
        manifest = joined(record, full.entries)
    except CorruptStateError as error:
        looked.say_error(level, error, paths.record(record.sequence))
        return
    for (store, key_group), entry in manifest.entries.items():
        yield from (_Part(store, key_group, link) for link in entry.chain)
        if entry.snapshot is not None:
            yield _Part(store, key_group, entry.snapshot)
    yield from (_Part(store, None, link) for store, link in record.outputs)


def _check_links(
    looked: _Looked, reader: Reader, run: list[Link], links: Mapping[Link, _Part], levels: Mapping[_Part, _Level],
    schemas: Mapping[str, StoreSchema],
) -> None:  # fmt: skip
    try:
        fetched = reader.fetched(run)
    except CorruptStateError as error:
        looked.say_error(_worst(levels[links[link]] for link in run), error)
        return
    for link, data in fetched.items():
        part, where = links[link], f"{link.object}[{link.start}:{link.start + link.length}]"
        looked.checked_bytes += link.length
        if isinstance(data, CorruptStateError):
            looked.say_error(levels[part], data)
        else:
            schema = schemas.get(part.store) if part.key_group is not None else None
            place = paths.part(link.head.version, link.head.attempt, part.key_group)
            _check_rows(looked, levels[part], data, link.rows, where, place, schema)


def _worst(levels: Iterable[_Level]) -> _Level:
    return "state" if "state" in levels else "rollback"


def _check_snapshot(
    looked: _Looked, address: Address, snapshot: Snapshot, level: _Level, schemas: Mapping[str, StoreSchema]
) -> str:
    name = paths.snapshot(*address, snapshot.id)
    data = looked.objects.get(name, 0, snapshot.length + 1)
    if data is None:
        looked.say_error(level, missing(name))
    elif part_codec.checksum(data) != snapshot.checksum:
        looked.say_error(level, part_codec.altered(name))
    else:
        _check_rows(looked, level, data, snapshot.rows, name, paths.base(*address), schemas.get(address[0]))
    looked.checked_bytes += len(data or b"")
    return name


def _check_rows(
    looked: _Looked, level: _Level, data: part_codec.Data, rows: int, where: str, place: str,
    schema: StoreSchema | None,
) -> None:  # fmt: skip
    try:
        table = part_codec.opened(looked.keys.opened(data, place, where) if looked.keys else data, where)
        if table.num_rows != rows:
            looked.say(level, where, f"it has {table.num_rows} rows, the log says {rows}", _RESTORE)
        elif schema is not None and not schema.history.changes:
            runs_of(table, schema)
    except ConfigError as error:  # a key that is missing, of some parts or of all: without any keys there is no use
        if looked.keys is None:
            raise
        looked.say_error(level, error, where)
    except CorruptStateError as error:
        looked.say_error(level, error, where)


def _note_orphans(looked: _Looked, listed: set[str], tail: Record) -> None:
    """Note objects that no record lists: leftovers, but where they are newer than the log a record may be lost."""
    for name in looked.names:
        said = paths.parse(name)
        if said is not None and said.epoch > tail.epoch and name not in listed:
            looked.say(
                "note", name, f"it is of epoch {said.epoch}, the newest record there is of {tail.epoch}",
                "look whether a newer driver runs; if none does, the newest records are lost: restore log/",
            )  # fmt: skip


def _check_checkpoint(looked: _Looked, spark: Checkpoint, root: str, tail: Record | None) -> None:
    try:
        query_id, batch = spark.query_id(), spark.next_batch()
    except ConfigError as error:
        remedy = (
            f"restore it, or take the state over with a new one: riffle adopt --root {root} --checkpoint CHECKPOINT"
        )
        looked.say("state", spark.location, error.problem, remedy)
        return
    if tail is None:
        return
    back = f"riffle rollback --root {root} --checkpoint {spark.location} --to {tail.version} --execute"
    if query_id != tail.query_id:
        problem = f"the checkpoint is of query {query_id}, the state of {tail.query_id}"
        remedy = f"name the checkpoint that belongs to it, or riffle adopt --root {root} --checkpoint {spark.location}"
        looked.say("state", spark.location, problem, remedy)
    elif not tail.version <= batch <= tail.version + 1:
        problem = f"Spark's next batch is {batch}, the state is at {tail.version}"
        remedy = f"restore the newer of both from a backup, or take Spark's offsets to the state: {back}"
        looked.say("state", spark.location, problem, remedy)
    elif batch == tail.version and tail.offsets is not None and spark.offsets(batch) not in (None, tail.offsets):
        problem = f"batch {batch} is planned with other offsets than those it was committed with"
        looked.say("state", spark.location, problem, f"take Spark's offsets to the state: {back}")
