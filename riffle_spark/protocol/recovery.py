"""The remedies: take state under a new checkpoint, or take query and state back. Knows the log and Spark's
checkpoint.

Both append a record with a higher epoch, which fences a driver that still runs. Rollback appends its record first and
then restores Spark's checkpoint; a crash in between is seen at Enter as a gap, and running it again mends it.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.protocol.checkpoint import Checkpoint
from riffle_spark.protocol.drafts import Stamp, first_record
from riffle_spark.protocol.targets import offsets_before, target_of
from riffle_spark.state.log import Log
from riffle_spark.state.manifest import Manifest
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.root import StoreOptions, open_store

__all__ = ["Plan", "adopt", "rollback"]

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
    key_groups: int = _DEFAULT_KEY_GROUPS, dispatch: str = "key_group", execute: bool = False,
) -> Plan:  # fmt: skip
    """Bind the state below ``root`` to the query of ``checkpoint``, whose next batch will then be run on it.

    ``empty`` allows a root without any state (``key_groups`` and ``dispatch`` are then fixed by this call). Does
    nothing unless ``execute``. The plan tells the offsets the state is at: the new query must start reading there, or
    rows are missed or counted twice. Raises ``ConfigError`` for an empty root without ``empty`` and for a checkpoint
    that is none.
    """
    objects = open_store(root, options or StoreOptions())
    log, spark = Log(objects, root), Checkpoint(checkpoint)
    tail = log.open()
    query_id, version = spark.query_id(), spark.next_batch() - 1
    if tail is None and not empty:
        raise ConfigError(f"{root} holds no state", remedy="say that this is wanted: --empty", where=root)
    stamp = _stamp()
    base = tail or first_record(query_id, key_groups, dispatch, stamp)
    draft = replace(
        base, kind="adopt", commit_id=stamp.commit_id, written_ms=stamp.written_ms, epoch=base.epoch + 1,
        query_id=query_id, version=version, offsets=None, input_digest=None, target=None, outputs=(), watermark_ms=None,
        late_watermark_ms=None, event_times={},
    )  # fmt: skip
    steps = [f"bind the state of batch {base.version} in {root} to query {query_id}, whose next batch is {version + 1}"]
    if execute:
        log.append(draft, log.manifest)
    return Plan(tuple(steps), execute, version, base.offsets)


def rollback(
    root: str, to: int | str, checkpoint: str, *, options: StoreOptions | None = None, execute: bool = False
) -> Plan:
    """Take the state below ``root`` and Spark's ``checkpoint`` back (or the checkpoint forward) to committed batch
    ``to``.

    -1 is the state before the first batch. ``record:17`` names a record of the log instead, also one of a line that
    a rollback has given up. Does nothing unless ``execute``. Raises ``ConfigError`` if no retained record is of that
    batch, or the newest one does not promise it any more (``Record.promised``), ``CorruptStateError`` if objects that
    it needs are gone.
    """
    objects = open_store(root, options or StoreOptions())
    log, spark = Log(objects, root), Checkpoint(checkpoint)
    tail = log.open(broken=True)
    if tail is None:
        raise ConfigError(f"{root} holds no state", remedy="nothing to roll back; see riffle adopt --empty", where=root)
    query_id = spark.query_id()
    target = target_of(log, tail, to)
    manifest = log.manifest_of(target)
    _check_present(objects, manifest)
    stamp = _stamp()
    draft = replace(
        target, kind="rollback", commit_id=stamp.commit_id, written_ms=stamp.written_ms, epoch=tail.epoch + 1,
        query_id=query_id, rollbacks=tail.rollbacks + 1, target=target.sequence,
        promised=tail.promised, members=tail.members, orders=tail.orders,
    )  # fmt: skip
    steps = [
        f"append a rollback of {root} from batch {tail.version} (record {tail.sequence}) to batch {target.version} "
        f"(record {target.sequence}); --to record:{tail.sequence} leads back as long as that is retained"
    ]
    if execute:
        before = offsets_before(log, target)
        log.append(draft, manifest)
        _check_present(objects, manifest)
        steps += spark.restore(target.version, target.offsets, before)
    else:
        steps.append(f"make batch {target.version} the last one of the checkpoint {checkpoint}")
    return Plan(tuple(steps), execute, target.version, target.offsets)


def _stamp() -> Stamp:
    return Stamp(uuid.uuid4().hex, time.time_ns() // 1_000_000)


def _check_present(objects: ObjectStore, manifest: Manifest) -> None:
    gone = [name for name in sorted(manifest.objects()) if not objects.exists(name)]
    if gone:
        raise CorruptStateError(
            f"{len(gone)} objects that this batch's state needs are gone",
            remedy="choose a newer batch",
            where=gone[0],
        )
