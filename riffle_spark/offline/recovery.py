"""The remedies: take state under a new checkpoint, or take query and state back. Knows the log's lines, what its newest
record promises, and Spark's checkpoint.
"""

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError, CorruptStateError, UnavailableError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.fenced import clocks, stopped
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.batch.will import without_key_groups
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, joined
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

__all__ = ["Plan", "adopt", "offsets_before", "rollback", "target_of"]

_DEFAULT_KEY_GROUPS = 128
_READ_AHEAD_MOST = 32
"""So many records of a line are read at once at most, and held: a full one of many key-groups has megabytes."""
_TARGET = re.compile(r"record:([0-9]{1,18})|(-?[0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a remedy will do, or did (``executed``): one sentence a step. ``offsets`` is Spark's offset-log entry of
    the state.
    """

    steps: tuple[str, ...]
    executed: bool
    version: int
    offsets: str | None


def adopt(
    root: str, checkpoint: str, *, options: StoreOptions | None = None, empty: bool = False,
    key_groups: int = _DEFAULT_KEY_GROUPS, dispatch: str = "key_group", delivered: bool | str = False,
    execute: bool = False,
) -> Plan:  # fmt: skip
    """Bind the state below ``root`` to the query of ``checkpoint``, whose next batch will then be run on it.

    ``empty`` allows a root without any state (``key_groups`` and ``dispatch`` are then fixed by this call). Does
    nothing unless ``execute``. The plan tells the offsets the state is at: the new query must start reading there, or
    rows are missed or counted twice. The newest batch's output may be sealed and not delivered yet
    (``deliver_after_commit``), and a query with another checkpoint cannot ask for it: ``delivered`` is the checkpoint
    of the query that had the state, which tells that it was, or ``True`` if you do. Raises ``ConfigError`` if
    nothing tells, for an empty root without ``empty`` and for a checkpoint that is none; ``FencedError`` if the query
    went on meanwhile.
    """
    begun = Settings(key_groups=key_groups, dispatch=dispatch)  # refuses what there cannot be, before a record says it
    objects = open_store(root, options or StoreOptions())
    log, spark = Log(objects, root, clocks), Checkpoint(checkpoint, options)
    tail = log.open()
    query_id, version = spark.query_id(), spark.next_batch() - 1
    if tail is None and not empty:
        raise ConfigError(f"{root} holds no state", remedy="say that this is wanted: --empty", where=root)
    if empty and log.manifest.entries:
        raise ConfigError(
            f"{root} holds state", remedy="take it over without --empty, or name an empty root", where=root
        )
    if tail is not None:
        if tail.delivers_after_commit and tail.version >= 0:
            told_by = Checkpoint(delivered if isinstance(delivered, str) else checkpoint, options)
            _check_delivered(tail, query_id, told_by, root, said=delivered is True)
        _check_not_run(log, tail, query_id, version, root)
    stamp = _stamp()
    base = tail or first_record(query_id, begun.key_groups, begun.dispatch, stamp)
    draft = replace(
        base, kind="adopt", commit_id=stamp.commit_id, written_ms=stamp.written_ms, epoch=base.epoch + 1,
        query_id=query_id, version=version, offsets=None, input_digest=None, target=None, outputs=(), watermark_ms=None,
        late_watermark_ms=None, event_times={}, delivers_as=None, delivers_after_commit=False,
    )  # fmt: skip
    steps = [f"bind the state of batch {base.version} in {root} to query {query_id}, whose next batch is {version + 1}"]
    if execute:
        with stopped(log, f"bind the state to query {query_id}"):
            log.append(draft, log.manifest)
    return Plan(tuple(steps), execute, version, base.offsets)


def _check_not_run(log: Log, tail: Record, query_id: str, version: int, root: str) -> None:
    """Raise ``ConfigError`` if this query has run batches on this state that its checkpoint does not know: it would
    have other rows delivered under their ids.
    """
    for record in [tail] if tail.query_id == query_id else _line(log, tail):
        if record.query_id == query_id and record.rollbacks == tail.rollbacks and record.version > version:
            raise ConfigError(
                f"query {query_id} itself has run batch {record.version} on this state, and its checkpoint is at batch "
                f"{version}: rows would be counted twice, and delivery ids come again with other rows",
                remedy=f"riffle rollback --to {version}, or --to record:{record.sequence}, with this checkpoint",
                where=root,
            )


def _check_delivered(tail: Record, query_id: str, spark: Checkpoint, root: str, *, said: bool) -> None:
    """Raise ``ConfigError`` if sealed output may not have come to its sink, as far as its query's checkpoint tells."""
    following = spark.next_batch() if spark.query_id() == tail.query_id else -1
    if following == tail.version and tail.query_id == query_id:
        raise ConfigError(
            f"batch {tail.version} of this very query comes once more, to be delivered: the state holds it already",
            remedy="start the query; adopt takes state over for another checkpoint",
            where=root,
        )
    if said or following > tail.version or not any(link.rows for _, link in tail.outputs):
        return
    raise ConfigError(
        f"the output of batch {tail.version} is sealed and may not have been delivered: only query {tail.query_id} can "
        "ask for it",
        remedy="start that query once more if it has not got it, and show by its checkpoint that it has: --previous "
        f"CHECKPOINT; or see whether the sink has delivery {tail.query_id}/{tail.line}/{tail.version}, and say "
        "--delivered",
        where=root,
    )


def rollback(
    root: str, to: int | str, checkpoint: str, *, options: StoreOptions | None = None, execute: bool = False
) -> Plan:
    """Take the state below ``root`` and Spark's ``checkpoint`` back (or the checkpoint forward) to committed batch
    ``to``.

    -1 is the state before the first batch. ``record:17`` names a record of the log instead, also one of a line that
    a rollback has given up. A batch with sealed output may not have been delivered yet: it stays planned in the
    checkpoint, so that it comes once more, and is. Does nothing unless ``execute``. Raises ``ConfigError`` if no
    retained record is of that batch, or the newest one does not promise it any more (``Record.promised``), or the
    checkpoint is of a query that has this state neither now nor had it then; ``CorruptStateError`` if objects
    that it needs are gone, ``FencedError`` if the query went on meanwhile.
    """
    objects = open_store(root, options or StoreOptions())
    log, spark = Log(objects, root, clocks), Checkpoint(checkpoint, options)
    tail = log.open(broken=True)
    if tail is None:
        raise ConfigError(f"{root} holds no state", remedy="nothing to roll back; see riffle adopt --empty", where=root)
    query_id = spark.query_id()
    with stopped(log, f"take the state back to {to}"):
        target = target_of(log, tail, to)
        _check_has_state(query_id, spark, tail, target)
        offsets = _offsets(spark, target)
        manifest = log.manifest_of(target)
        sealed = target.delivers_after_commit and target.version >= 0
        needed = manifest.objects() | ({link.object for _, link in target.outputs} if sealed else set())
        _check_present(objects, needed)
        if execute:
            before, is_promised = offsets_before(log, target), _is_there(log, tail)
            log.append(_draft(target, tail, query_id, sealed=sealed), manifest)
    steps = [
        f"append a rollback of {root} from batch {tail.version} (record {tail.sequence}) to batch {target.version} "
        f"(record {target.sequence}); --to record:{tail.sequence} leads back as long as that is retained"
    ]
    if execute:
        with _half_done(target):
            _check_present(objects, () if is_promised else needed)
            steps += spark.restore(target.version, offsets, before, comes_again=sealed)
    else:
        steps.append(
            f"make batch {target.version} the last one of the checkpoint {spark.shown}"
            + (", as one that comes again: its sealed output may not have been delivered" if sealed else "")
        )
    return Plan(tuple(steps), execute, target.version, target.offsets)


def _draft(target: Record, tail: Record, query_id: str, *, sealed: bool) -> Record:
    """Return the record that follows ``tail`` and says what ``target`` said."""
    stamp, is_same = _stamp(), (target.dispatch, target.total) == (tail.dispatch, tail.total)
    return replace(
        target, kind="rollback", commit_id=stamp.commit_id, written_ms=stamp.written_ms, epoch=tail.epoch + 1,
        query_id=query_id, rollbacks=tail.rollbacks + 1, target=target.sequence,
        promised=tail.promised, members=tail.members, delivers_as=target.line if sealed else None,
        orders=tail.orders if is_same else without_key_groups(tail.orders),
    )  # fmt: skip


def _is_there(log: Log, tail: Record) -> bool:
    """Tell whether ``tail`` is the log's newest record itself: then what it promises stays. Where that is damaged and
    ``tail`` an older one, the damaged one may have let go of it: one has to look again once nobody goes on.
    """
    return any(record.commit_id == tail.commit_id for record in _read(log, [tail.sequence]).values())


@contextmanager
def _half_done(target: Record) -> Iterator[None]:
    """Tell an operator what was done where a rollback does not come to its end."""
    done = f"the log has gone back to batch {target.version}, the checkpoint has not, or in part"
    try:
        yield
    except UnavailableError as error:
        remedy = f"{error.remedy}: the same one, before the query is started, which is refused until then"
        raise UnavailableError(f"{error.problem}; {done}", remedy=remedy, where=error.where) from error
    except CorruptStateError as error:
        raise CorruptStateError(f"{error.problem}; {done}", remedy=error.remedy, where=error.where) from error


def _check_has_state(query_id: str, spark: Checkpoint, tail: Record, target: Record) -> None:
    """Raise ``ConfigError`` if a checkpoint is of a query that has the state neither now nor had it then."""
    if query_id not in {tail.query_id, target.query_id}:
        raise ConfigError(
            f"{spark.shown} is of query {query_id}, and this state is of query {tail.query_id}: a rollback would "
            "delete what the checkpoint says of that query's batches",
            remedy="name the checkpoint of the query that has the state; see riffle adopt to give it to another one",
            where="--checkpoint",
        )


def _offsets(spark: Checkpoint, target: Record) -> str | None:
    """Return Spark's offset-log entry of a record's batch; what the log does not know of it the checkpoint may. Raises
    ``ConfigError`` if nobody does: the checkpoint could not be led there.
    """
    found = target.offsets if target.offsets is not None or target.version < 0 else spark.offsets(target.version)
    if found is None and target.version >= 0:
        raise ConfigError(
            f"the log does not know Spark's offsets of batch {target.version} (the state was taken over then), and "
            f"{spark.shown} has none of it",
            remedy="name a newer checkpoint of this query, or go back to another batch",
            where="--checkpoint",
        )
    return found


def _stamp() -> Stamp:
    return Stamp(uuid.uuid4().hex, time.time_ns() // 1_000_000)


def _check_present(objects: ObjectStore, needed: Iterable[str]) -> None:
    names = sorted(needed)
    gone = [name for name, is_there in zip(names, in_parallel(objects.exists, names), strict=True) if not is_there]
    if gone:
        raise CorruptStateError(
            f"{len(gone)} objects that this batch's state needs are gone",
            remedy="choose a newer batch",
            where=gone[0],
        )


def target_of(log: Log, tail: Record, to: int | str) -> Record:
    """Return the record that ``to`` names: a batch on the present line, or ``record:<sequence>`` on any.

    Raises ``ConfigError`` with the range there is if that is not retained or not promised.
    """
    found = _TARGET.fullmatch(str(to))
    if found is None:
        raise ConfigError(
            f"{str(to)[:80]!r} names no batch and no record",
            remedy="give a batch, as 4711, or a record, as record:17",
            where="--to",
        )
    record, version = found.groups()
    return _record_of(log, tail, int(version)) if record is None else _record_at(log, tail, int(record))


def offsets_before(log: Log, target: Record) -> str | None:
    """Return Spark's offset-log entry of the batch before that of ``target``, on its line, if that is known."""
    for record in _line(log, target):
        if record.version < target.version:
            return record.offsets if record.version == target.version - 1 else None
    return None


def _record_at(log: Log, tail: Record, sequence: int) -> Record:
    if not tail.promised <= sequence <= tail.sequence:
        raise ConfigError(
            f"record {sequence} is not one that a rollback is promised to: those are {tail.promised} to {tail.sequence}"
            + (", as what older ones need may be deleted at any moment" if sequence < tail.promised else ""),
            remedy="choose one of these, or raise retained_versions for the future",
            where="--to",
        )
    return log.read(sequence)


def _record_of(log: Log, tail: Record, version: int) -> Record:
    """Return the newest record of ``version`` on the present line: a rollback leads on to where it went back to."""
    seen: list[int] = []
    old: Record | None = None
    for record in _line(log, tail):
        if record.sequence < tail.promised:
            old = record if record.version == version else old
        elif record.version == version:
            return record
        else:
            seen.append(record.version)
    known = f"{min(seen)} to {max(seen)}" if seen else "none"
    raise ConfigError(
        f"no intact record of batch {version} is retained; there are: {known}"
        if old is None
        else f"a rollback is promised to batches {known}: what batch {version} (record {old.sequence}) needs may be "
        f"deleted at any moment, as record {tail.sequence} promises {tail.promised} and later only",
        remedy="choose one of these, or raise retained_versions for the future",
        where="--to",
    )


def _line(log: Log, tail: Record) -> Iterator[Record]:
    """Yield the intact records from the newest back, by their numbers, without those that a rollback left behind: a
    LIST that lags might not show the rollback. Who goes on has more and more of them read at once.
    """
    sequence, ahead = tail.sequence, 1
    while sequence >= log.first:
        block = range(sequence, max(sequence - ahead, log.first - 1), -1)
        sequence, ahead = block[-1] - 1, min(2 * ahead, _READ_AHEAD_MOST)
        for at, record in _intact(log, block):
            yield record
            if record.target is not None:
                sequence = min(record.target, at - 1)
                break


def _intact(log: Log, sequences: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """Yield those of some records, with their numbers, that are whole and fit the full ones that they change."""
    found = _read(log, sequences)
    fulls = found | _read(log, sorted({record.full for record in found.values()} - {*sequences}))
    for at in (sequence for sequence in sequences if sequence in found):
        record = found[at]
        full = record if record.full == record.sequence else fulls.get(record.full)
        if full is not None and (full is record or _fits(record, full)):
            yield at, record


def _fits(record: Record, full: Record) -> bool:
    try:
        joined(record, full.entries)
    except CorruptStateError:
        return False
    return True


def _read(log: Log, sequences: Sequence[int]) -> dict[int, Record]:
    """Return those of some records that are there and whole, by their numbers."""

    def read(sequence: int) -> Record | None:
        try:
            return log.find(sequence)
        except CorruptStateError:
            return None

    found = zip(sequences, in_parallel(read, sequences), strict=True)
    return {sequence: record for sequence, record in found if record is not None}
