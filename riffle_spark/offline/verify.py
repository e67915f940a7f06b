"""What is wrong with a root, and with the checkpoint that belongs to it: every object that a retained record lists is
read and checked. Knows what records, parts and checkpoints have to be. Changes nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, RiffleError, command
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.finding import Finding, Level, Verified
from riffle_spark.offline.recovery import apart_from
from riffle_spark.protocol.batch.enter import stale_rows
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.state.copies.part_files import runs_of
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import beginning
from riffle_spark.state.log.manifest import Address, Link, Snapshot
from riffle_spark.state.log.record import Record, decode, digest, joined
from riffle_spark.state.log.record_commits import RECORD_BYTES_MAX
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.objects.open import StoreOptions, masked, open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader, missing
from riffle_spark.state.restore.reader import runs_of as bounded_runs
from riffle_spark.state.schemas.store_schema import StoreSchema, schema_of_text
from riffle_spark.worker.member_folders import keys_in

__all__ = ["Finding", "Verified", "verify"]

_RESTORE = "restore it from a backup, or roll back to a version that does not need it (riffle rollback)"
_GAP_MOST = 100
"""So many records are looked for one by one, or told, where numbers are missing."""


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
    unread: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    checked_bytes: int = 0

    def say(self, level: Level, where: str, problem: str, remedy: str) -> None:
        self.findings.append(Finding(level, where, problem, remedy))

    def say_error(self, level: Level, error: RiffleError, where: str = "") -> None:
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
    objects, spark = open_store(root, options), None if checkpoint is None else Checkpoint(checkpoint, options)
    if spark is not None:
        spark.found_id()  # before the state is read, which may take long: what cannot be named tells nothing of that
    looked = _Looked(objects, objects.list(""), keys_in(encryption_keys, options.s3_region))
    _read_log(looked, root)
    tail = looked.records[max(looked.records)] if looked.records else None
    if tail is not None:
        _check_line(looked, tail)
        _check_parts(looked, tail)
        for store, last in tail.stale_stores.items():
            problem = f"store {store!r} {stale_rows(last)}, the query is at batch {tail.version}"
            remedy = f"do nothing while the query runs without the store; to use it again, set accept = {store!r}"
            looked.say("note", store, problem, remedy)
    for (problem, kind, remedy), count in looked.unread.items():
        looked.say("unread", root, f"{problem}: {count} {kind} were not looked at", remedy)
    way_back = _way_back(looked, root, checkpoint)
    if spark is not None:
        apart = apart_from(spark, root, tail, looked.records)
        if apart is not None:
            looked.say("state", spark.shown, *apart)
    counted = len(looked.names), looked.checked_bytes, None if tail is None else tail.version
    return Verified(len(looked.digests), *counted, tuple(looked.findings), way_back)


def _read_log(looked: _Looked, root: str) -> None:
    sequences = sorted(s for s in map(paths.record_sequence, looked.names) if s is not None)
    strange = [n for n in looked.names if paths.parse(n) is None and paths.record_sequence(n) is None]
    if strange and len(strange) == len(looked.names):
        looked.say("state", root, "this is not a riffle root: nothing there is riffle's", "name what `root` is set to")
        return
    for name in strange:
        level: Level = "state" if name.startswith(paths.LOG) or not sequences else "note"
        looked.say(level, name, "this is no object of riffle's", "move it elsewhere: one root is one query's alone")
    if not sequences:
        empty = command("adopt", "--empty", "--execute", root=root, checkpoint="CHECKPOINT")
        away = "move what is left elsewhere and " if looked.names else ""  # adopt takes no root that holds anything
        remedy = f"restore the root from a backup, or {away}start with no state on purpose: {empty}"
        looked.say("state", root, "there is no log: the root is empty, or it was lost", remedy)
        return
    wrong = {sequence: error for sequence in sequences if (error := _read_record(looked, sequence))}
    for gap in (range(a + 1, b) for a, b in pairwise(sequences)):
        if gap.stop - gap.start >= paths.FAR and gap.stop in wrong:
            wrong[gap.stop] = paths.far_beyond(gap.stop)
            looked.digests.pop(gap.stop)
            continue
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
        looked.records[sequence] = decode(data, name)
    except CorruptStateError as error:
        return error
    return None


def _lost_below(looked: _Looked, begin: int, tail: Record | None) -> set[int]:
    """Return the records below the log's beginning that the newest one promises, or that those need which are there."""
    if tail is None:
        return set()
    needed = {tail.full, *(one.full for one in looked.records.values() if one.sequence >= tail.promised)}
    return {sequence for sequence in needed.union(range(tail.promised, begin)[-_GAP_MOST:]) if sequence < begin}


def _beginning(looked: _Looked, tail: Record | None) -> int:
    """Return where the log begins: nothing that a rollback may need is below."""
    if tail is None:
        return 0
    promised = looked.records.get(tail.promised, tail)
    return beginning(looked.objects, looked.digests, min(tail.full, tail.promised, promised.full))


def _level_of(looked: _Looked, sequence: int, tail: Record | None) -> Level:
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
        read_requests(tail.orders)
    except CorruptStateError as error:
        looked.say_error("state", error, paths.record(tail.sequence))


def _check_parts(looked: _Looked, tail: Record) -> None:
    schemas = dict(_schemas(looked, tail))
    levels: dict[_Part, Level] = {}
    for sequence in sorted(looked.records, reverse=True):
        record = looked.records[sequence]
        if sequence == tail.sequence or sequence >= tail.promised:
            level: Level = "state" if record is tail else "rollback"
            for part in _parts_of(looked, record, level):
                levels.setdefault(part, level)
    listed: set[str] = set()
    reader = Reader(looked.objects, None)
    links: dict[Link, list[_Part]] = {}
    for part in levels:
        if isinstance(part.part, Link):
            links.setdefault(part.part, []).append(part)
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


def _parts_of(looked: _Looked, record: Record, level: Level) -> Iterator[_Part]:
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
    looked: _Looked, reader: Reader, run: list[Link], links: Mapping[Link, Sequence[_Part]],
    levels: Mapping[_Part, Level], schemas: Mapping[str, StoreSchema],
) -> None:  # fmt: skip
    try:
        fetched = reader.fetched(run)
    except CorruptStateError as error:
        looked.say_error(_worst(levels[part] for link in run for part in links[link]), error)
        return
    for link, data in fetched.items():
        where = f"{link.object}[{link.start}:{link.start + link.length}]"
        if isinstance(data, CorruptStateError) or len(data) != link.length:
            looked.say_error(_worst(levels[part] for part in links[link]), part_codec.altered(where))
            continue
        looked.checked_bytes += link.length
        for part in links[link]:  # an altered record may list one part for several key-groups; at most one is right
            schema = None if part.key_group is None else schemas.get(part.store)
            if part.key_group is None:
                place = paths.output_place(part.store, *link.head)
            else:
                place = paths.delta_place(part.store, part.key_group, *link.head)
            _check_rows(looked, levels[part], data, link.rows, where, place, schema)


def _worst(levels: Iterable[Level]) -> Level:
    return "state" if "state" in levels else "rollback"


def _check_snapshot(
    looked: _Looked, address: Address, snapshot: Snapshot, level: Level, schemas: Mapping[str, StoreSchema]
) -> str:
    name = paths.snapshot(*address, snapshot.id)
    data = looked.objects.get(name, 0, snapshot.length + 1)
    if data is None:
        looked.say_error(level, missing(name))
    elif part_codec.checksum(data) != snapshot.checksum or len(data) != snapshot.length:
        looked.say_error(level, part_codec.altered(name))
    else:
        place = paths.snapshot_place(*address, snapshot.id)
        _check_rows(looked, level, data, snapshot.rows, name, place, schemas.get(address[0]))
    looked.checked_bytes += len(data or b"")
    return name


def _check_rows(
    looked: _Looked, level: Level, data: part_codec.Data, rows: int, where: str, place: Place,
    schema: StoreSchema | None,
) -> None:  # fmt: skip
    try:
        table = part_codec.opened(looked.keys.opened(data, place, where) if looked.keys else data, where)
        if table.num_rows != rows:
            looked.say(level, where, f"it has {table.num_rows} rows, the log says {rows}", _RESTORE)
        elif schema is not None and not schema.history.changes:
            runs_of(table, schema)
    except RefusedError as error:  # a key that is missing, of some parts or of all: without any keys there is no use
        if looked.keys is None:
            raise
        kind = "parts of deltas" if "[" in where else "snapshots"
        whose = "that the state needs" if level == "state" else "that only a rollback needs"
        looked.unread[error.problem, f"{kind} {whose}", error.remedy] += 1
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


def _is_refused_for_one_before(looked: _Looked, newest: int) -> bool:
    """Tell whether a start is refused for a record that only the log's line needs: a rollback writes a full one."""
    told = {paths.record_sequence(finding.where) for finding in looked.findings if finding.level == "state"}
    return any(sequence is not None and sequence < newest for sequence in told)


def _way_back(looked: _Looked, root: str, checkpoint: str | None) -> str | None:
    """Return the newest batch whose state is whole, and the command that leads there, where damage keeps a query from
    the newest one's.
    """
    wrong = {finding.where for finding in looked.findings if finding.level in ("state", "rollback")}
    if not looked.records or looked.unread or all(finding.level != "state" for finding in looked.findings):
        return None
    at = max(looked.records)
    promised = looked.records[at].promised
    passed: set[int] = set()
    for sequence, record in sorted(looked.records.items(), reverse=True):
        if not promised <= sequence <= at:
            continue
        if _is_whole(looked, record, wrong):
            to = f"record:{sequence}" if record.version in passed else record.version
            given = masked(checkpoint) if checkpoint else "CHECKPOINT"
            back = command("rollback", "--execute", root=root, checkpoint=given, to=to)
            is_needed = sequence < max(looked.digests) or _is_refused_for_one_before(looked, sequence)
            return f"{record.version}: {back}" if is_needed else None
        passed.add(record.version)
        at = sequence if record.target is None else record.target
    return None


def _is_whole(looked: _Looked, record: Record, wrong: Set[str]) -> bool:
    """Tell whether no finding is of a record, or of what it needs."""
    if {paths.record(record.sequence), paths.record(record.full)} & wrong or record.full not in looked.records:
        return False
    needed: set[str] = set()
    for store, key_group, part in _parts_of(looked, record, "rollback"):
        if isinstance(part, Link):
            needed |= {part.object, f"{part.object}[{part.start}:{part.start + part.length}]"}
        elif key_group is not None:
            needed.add(paths.snapshot(store, key_group, part.id))
    return needed.isdisjoint(wrong)
