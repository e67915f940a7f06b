"""The remedies: take state under a new checkpoint, or take query and state back. Knows the log's lines, what its newest
record promises, and Spark's checkpoint.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, UnavailableError, command
from riffle_spark.offline.checkpoint import Checkpoint, lacking
from riffle_spark.offline.fenced import clocks, stopped
from riffle_spark.offline.record_line import intact, line, offsets_before, target_of
from riffle_spark.protocol.batch.enter import has_same_offsets, take_over_steps
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.protocol.batch.stored_requests import without_key_groups
from riffle_spark.settings import Settings
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

__all__ = ["Plan", "adopt", "apart_from", "rollback"]

_DEFAULT_KEY_GROUPS = 128


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
        raise ConfigError(
            f"{root} holds no state",
            remedy="correct --root, or say that this is wanted: --empty",
            where=root,
            id="RIFFLE-0133",
        )
    if empty and log.manifest.entries:
        raise ConfigError(
            f"{root} holds state",
            remedy="take it over without --empty, or name an empty root",
            where=root,
            id="RIFFLE-0134",
        )
    if tail is not None:
        if tail.delivers_after_commit and tail.version >= 0:
            told_by = Checkpoint(delivered if isinstance(delivered, str) else checkpoint, options)
            _check_delivered(tail, query_id, told_by, root, said=delivered is True)
        _check_not_run(log, tail, spark, version, root)
    stamp = _stamp()
    base = tail or first_record(query_id, begun.key_groups, begun.dispatch, stamp)
    base = _dealt_by(base, begun) if empty else base
    draft = replace(
        base, kind="adopt", commit_id=stamp.commit_id, written_ms=stamp.written_ms, epoch=base.epoch + 1,
        query_id=query_id, version=version, offsets=None, input_digest=None, target=None, outputs=(), watermark_ms=None,
        late_watermark_ms=None, event_times={}, delivers_as=None, delivers_after_commit=False,
        # The new query numbers its batches anew, so its stale stores lack rows from before its first batch.
        stale_stores={} if empty else dict.fromkeys(base.stale_stores, -1),
    )  # fmt: skip
    steps = [f"bind the state of batch {base.version} in {root} to query {query_id}, whose next batch is {version + 1}"]
    steps += [f"fix dispatch {base.dispatch} and {base.total} key-groups"] if empty else []
    steps += [f"warning: {elsewhere}" for elsewhere in spark.starts_elsewhere(version, base.offsets)]
    if execute:
        with stopped(log, f"bind the state to query {query_id}"):
            log.append(draft, log.manifest)
    return Plan(tuple(steps), execute, version, base.offsets)


def _dealt_by(base: Record, begun: Settings) -> Record:
    """Return a record without state as these settings deal keys: what stood for numbers of key-groups goes."""
    if (base.total, base.dispatch) == (begun.key_groups, begun.dispatch):
        return base
    orders = without_key_groups(base.orders)
    return replace(
        base, total=begun.key_groups, dispatch=begun.dispatch, shards=(), owners={}, standbys={}, orders=orders
    )


def _check_not_run(log: Log, tail: Record, spark: Checkpoint, version: int, root: str) -> None:
    """Raise ``ConfigError`` if this query has run batches on this state that its checkpoint does not know: it would
    have other rows delivered under their ids. Or if it is the one that has the state, whose event time would be gone.
    """
    query_id = spark.query_id()
    if tail.query_id == query_id and tail.kind != "adopt" and version >= tail.version:
        raise ConfigError(
            f"query {query_id} has this state already, at batch {tail.version}; its checkpoint is at batch {version}",
            remedy="start the query; adopt takes state over for another checkpoint"
            if version == tail.version
            else f"{_rollback(root, spark, tail.version)}, or restore state that is at that batch",
            where=root,
            id="RIFFLE-0135",
        )
    for record in [tail] if tail.query_id == query_id else line(log, tail):
        if record.query_id == query_id and record.rollbacks == tail.rollbacks and record.version > version:
            raise ConfigError(
                f"query {query_id} itself has run batch {record.version} on this state, and its checkpoint is at batch "
                f"{version}: rows would be counted twice, and delivery ids come again with other rows",
                remedy=f"{_rollback(root, spark, version)}, or there --to record:{record.sequence}",
                where=root,
                id="RIFFLE-0136",
            )


def _check_delivered(tail: Record, query_id: str, spark: Checkpoint, root: str, *, said: bool) -> None:
    """Raise ``ConfigError`` if sealed output may not have come to its sink, as far as its query's checkpoint tells."""
    following = spark.next_batch() if spark.query_id() == tail.query_id else -1
    if following == tail.version and tail.query_id == query_id:
        raise ConfigError(
            f"batch {tail.version} of this very query comes once more, to be delivered: the state holds it already",
            remedy="start the query; adopt takes state over for another checkpoint",
            where=root,
            id="RIFFLE-0137",
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
        id="RIFFLE-0138",
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
        raise ConfigError(
            f"{root} holds no state",
            remedy="correct --root: there is nothing to roll back",
            where=root,
            id="RIFFLE-0139",
        )
    query_id = spark.query_id()
    with stopped(log, f"take the state back to {to}"):
        target = target_of(log, tail, to)
        _check_has_state(query_id, spark, tail, target)
        _check_sources(log, spark, tail, target, root, is_by_number=str(to).startswith("record:"))
        offsets = _offsets(spark, target)
        manifest = log.manifest_of(target)
        sealed = target.delivers_after_commit and target.version >= 0
        needed = manifest.objects() | ({link.object for _, link in target.outputs} if sealed else set())
        _check_present(objects, needed)
        is_promised = _is_there(log, tail)
        now, back = _told(log, tail, is_promised)
        step = f"append a rollback of {root} from {now} to batch {target.version} (record {target.sequence}); {back}"
        if execute:
            before = offsets_before(log, target)
            log.append(_draft(target, tail, query_id, sealed=sealed), manifest)
    steps = [step]
    if execute:
        with _half_done(target, back):
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
    return any(record.commit_id == tail.commit_id for record in intact(log, [tail.sequence]).values())


def _told(log: Log, tail: Record, is_there: bool) -> tuple[str, str]:
    """Return in words where the state is now, and which record leads back there. A rollback that was not run on may be
    the first try of this one, whose second part failed: it tells of the state before it, too.
    """
    now, leads = f"batch {tail.version} (record {tail.sequence})", "leads back as long as that is retained"
    if not is_there:
        problem = f"record {tail.sequence}, the newest, is damaged and is passed over: nothing leads back to it"
        return f"batch {tail.version}", problem
    former = tail
    while former.kind == "rollback" and former.sequence > max(log.first, tail.promised):
        found = intact(log, [former.sequence - 1]).get(former.sequence - 1)
        if found is None:
            break
        former = found
    back = f"--to record:{tail.sequence} {leads}"
    if former is not tail:
        back += (
            f"; that is where an earlier rollback led, which nothing was run on: record:{former.sequence} is batch "
            f"{former.version} from before it"
        )
    return now, back


@contextmanager
def _half_done(target: Record, back: str) -> Iterator[None]:
    """Tell an operator what was done where a rollback does not come to its end, and what leads back."""
    done = f"the log has gone back to batch {target.version}, the checkpoint has not, or in part; {back}"
    try:
        yield
    except (CorruptStateError, RefusedError, UnavailableError) as error:
        again = "; it has to be the same command, run before the query is started, which is refused until then"
        remedy = error.remedy + ("" if isinstance(error, CorruptStateError) else again)
        raise type(error)(f"{error.problem}; {done}", remedy=remedy, where=error.where) from error


def _check_has_state(query_id: str, spark: Checkpoint, tail: Record, target: Record) -> None:
    """Raise ``ConfigError`` if a checkpoint is of a query that has the state neither now nor had it then."""
    if query_id not in {tail.query_id, target.query_id}:
        raise ConfigError(
            f"{spark.shown} is of query {query_id}, and this state is of query {tail.query_id}: a rollback would "
            "delete what the checkpoint says of that query's batches",
            remedy="name the checkpoint of the query that has the state; see riffle adopt to give it to another one",
            where="--checkpoint",
            id="RIFFLE-0140",
        )


def _check_sources(log: Log, spark: Checkpoint, tail: Record, target: Record, root: str, *, is_by_number: bool) -> None:
    """Raise ``ConfigError`` if the checkpoint was restored from before the target: a source of files keeps a log there
    of what it has seen, and that cannot be taken forward.
    """
    seen = spark.seen_by_source()
    problem = lacking(target.offsets, seen)
    if not problem:
        return
    fitting = (r for r in line(log, target) if r.sequence >= tail.promised and not lacking(r.offsets, seen))
    found = next(fitting, None)
    remedy = "restore the newer checkpoint"
    if found is not None:
        named = f"record:{found.sequence}" if is_by_number else found.version
        remedy += f", or take both back to batch {found.version}: {_rollback(root, spark, named)}"
    raise ConfigError(
        f"{spark.shown} cannot go to batch {target.version} (record {target.sequence}): {problem}",
        remedy=remedy,
        where="--checkpoint",
        id="RIFFLE-0141",
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
            id="RIFFLE-0142",
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
            id="RIFFLE-0143",
        )


def apart_from(
    spark: Checkpoint, root: str, tail: Record | None, records: Mapping[int, Record]
) -> tuple[str, str] | None:
    """Return what keeps a query from going on with this checkpoint after the newest record ``tail``, and the remedy;
    ``None`` if nothing does. ``records`` are those of the root that are whole, by their numbers.
    """
    query_id = spark.found_id()
    if query_id is None:
        remedy = (
            f"name the folder that is set as checkpointLocation; if it is lost, restore it, or {take_over_steps(root)}"
        )
        return f"{spark.shown} is not a checkpoint of a streaming query", remedy
    if tail is None:
        return None
    if query_id != tail.query_id:
        problem = f"the checkpoint is of query {query_id}, the state of {tail.query_id}"
        return problem, f"name the checkpoint that belongs to it, or {take_over_steps(root, spark.shown)}"
    return _batches_apart(spark, root, tail, records)


def _batches_apart(spark: Checkpoint, root: str, tail: Record, records: Mapping[int, Record]) -> tuple[str, str] | None:
    batch, seen, newer = spark.next_batch(), spark.seen_by_source(), "restore the newer of both from a backup"
    forward = f"take Spark's offsets to the state: {_rollback(root, spark, tail.version)}"
    problem, lacks = f"Spark's next batch is {batch}, the state is at {tail.version}", lacking(tail.offsets, seen)
    if batch == tail.version and tail.offsets is not None and spark.offsets(batch) not in (None, tail.offsets):
        return f"batch {batch} is planned with other offsets than those it was committed with", forward
    if batch == tail.version + 1 and not has_same_offsets(tail.offsets, spark.offsets(tail.version)):
        said = f"batch {tail.version} has other offsets in the checkpoint than those it was committed with"
        return said, f"restore the other one of both from a backup, or {forward}"
    if batch > tail.version + 1:
        return problem, f"{newer}, or {forward}"
    if batch >= tail.version and not lacks:
        return None
    newest = {records[at].version: records[at] for at in sorted(records) if at >= tail.promised}
    fitting = [v for v, r in newest.items() if v <= min(batch - 1, tail.version) and not lacking(r.offsets, seen)]
    if batch - 1 not in fitting and not lacks:
        return problem, f"{newer}, or {forward}"
    back = f"take the state back to the checkpoint: {_rollback(root, spark, max(fitting))}" if fitting else ""
    return lacks or problem, f"{newer}, or {back}" if back else f"{newer}: no batch that is promised goes with this one"


def _rollback(root: str, spark: Checkpoint, to: object) -> str:
    return command("rollback", "--execute", root=root, checkpoint=spark.shown, to=to)
