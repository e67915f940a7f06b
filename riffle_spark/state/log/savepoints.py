"""Savepoints: records of the log that are kept, with all objects that they list, until they are deleted.

Theory of operation.

1. A savepoint is an object ``savepoints/<id>`` with the bytes of one whole record: its entries do not refer to a full
   record. So the records around it in the log can be deleted.
2. The object alone keeps nothing. The savepoint exists once a record of the log lists its id. That record is appended
   by the query's driver, or by a command under a higher epoch. So the order of the log's records decides whether it
   exists.
3. Only a record that the newest record promises becomes a savepoint. Until then a driver deletes only objects that no
   promised record lists, and afterwards it skips all objects that a savepoint of its newest record lists. So nothing of
   a savepoint is ever deleted before the savepoint.
4. Records with savepoints have a format that versions without savepoints refuse. They would delete the objects.
5. An object ``savepoints/<id>`` that no record lists is left by a crash, or by a deleted savepoint. A driver of a
   higher epoch deletes it. The epoch in its name is that of the record that lists it, so it is not deleted before.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from riffle_spark.errors import ConfigError, CorruptStateError, UnavailableError
from riffle_spark.printable import escape_unprintable
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Record, encode
from riffle_spark.state.log.record_commits import fetch_record
from riffle_spark.state.log.recorded_savepoints import SAVEPOINTS_MAX, RecordedSavepoint, check_savepoint_name
from riffle_spark.state.objects.store import ObjectStore

_USER_MAX = 100
_STEPS_BACK_MAX = 64
"""The number of records that are searched for the previous batch. Claims and operator requests may be in between."""


@dataclass(frozen=True, slots=True)
class NewSavepoint:
    """A savepoint to be created: its name, a random id of 32 hexadecimal digits, the time (ms) and the user."""

    name: str
    random_id: str
    created_ms: int
    user: str


def check_addition(savepoints: Collection[RecordedSavepoint], name: str) -> None:
    """Raise ``ConfigError`` if no savepoint with this name can be added to ``savepoints``."""
    check_savepoint_name(name)
    existing = next((savepoint for savepoint in savepoints if savepoint.name == name), None)
    if existing is not None:
        raise ConfigError(
            f"The query already has a savepoint {name!r}, of batch {existing.version}.",
            remedy="Use another name, or delete that savepoint first (riffle savepoint delete).",
            where=name,
            id="RIFFLE-1572",
        )
    if len(savepoints) >= SAVEPOINTS_MAX:
        raise ConfigError(
            f"The query already has {SAVEPOINTS_MAX} savepoints.",
            remedy="Delete one first (riffle savepoint delete), or copy one to another root (riffle fork).",
            where=name,
            id="RIFFLE-1573",
        )


def put_savepoint(objects: ObjectStore, log: Log, record: Record, new: NewSavepoint, epoch: int) -> RecordedSavepoint:
    """Put the object of a savepoint of ``record``, and return the savepoint. It exists once a record lists it.

    ``log`` is open, and its newest record is the one that the listing record will follow. ``epoch`` is the epoch of the
    listing record. Raises ``ConfigError`` if the newest record does not promise ``record``, ``UnavailableError`` if the
    store does not answer or the last append is unclear.
    """
    tail = log.tail
    assert tail is not None
    if log.is_unclear:
        # Cause: The store did not confirm the newest record, which may promise less than the record before it.
        raise UnavailableError(
            "It is unknown whether the newest record of the log was written.",
            remedy="Create the savepoint again once the query has committed its next record.",
            where=new.name,
            id="RIFFLE-1574",
        )
    if not tail.promised <= record.sequence <= tail.sequence:
        # Cause: Retention released the record, and may have deleted some of its objects.
        raise ConfigError(
            f"Record {record.sequence} of batch {record.version} is no longer retained. Retained are records "
            f"{tail.promised} to {tail.sequence}.",
            remedy="Choose a newer batch. riffle log ROOT shows those that are retained.",
            where=new.name,
            id="RIFFLE-1575",
        )
    history = tuple(_iterate_back(log, record))
    whole_record = replace(
        record,
        full=record.sequence,
        between=(),
        entries=(log.manifest if record is tail else log.manifest_of(record)).entries,
        orders={},
        moves=(),
        savepoints=(),
        previous_offsets=_offsets_before(history),
    )
    savepoint_id = paths.snapshot_id(record.version, f"{epoch}-{new.random_id}")
    name = paths.savepoint_name(savepoint_id)
    data = encode(whole_record)
    if not objects.put_if_absent(name, data) and objects.get(name) != data:
        raise UnavailableError(
            "The object of the savepoint was not written.",
            remedy="Run the command again.",
            where=name,
            id="RIFFLE-1576",
        )
    user = escape_unprintable(new.user)[:_USER_MAX]
    return RecordedSavepoint(
        new.name, savepoint_id, record.sequence, record.version, _committed_ms(history), new.created_ms, user
    )


def _committed_ms(history: Sequence[Record]) -> int:
    """Return when the batch of the first record was committed. ``history`` is as of ``_iterate_back``.

    The record of the batch may be deleted, for example after a rollback to a savepoint. Then the result is the batch's
    own time, and without a batch the time of the first record.
    """
    record = history[0]
    for earlier in history:
        if earlier.kind == "batch" and earlier.version == record.version:
            return earlier.written_ms
    return record.written_ms if record.version < 0 or record.time_ms is None else record.time_ms


def without_savepoint(
    savepoints: tuple[RecordedSavepoint, ...], deleted: RecordedSavepoint
) -> tuple[RecordedSavepoint, ...]:
    """Return the savepoints without ``deleted``."""
    return tuple(savepoint for savepoint in savepoints if savepoint is not deleted)


def _offsets_before(history: Sequence[Record]) -> str | None:
    """Return Spark's offset-log entry of the batch before that of the first record, ``None`` if it is unknown.

    ``history`` is as of ``_iterate_back``.
    """
    version = history[0].version
    for record in history:
        if record.version < version:
            return record.offsets if record.version == version - 1 else None
        if record.previous_offsets is not None:
            return record.previous_offsets
    return None


def _iterate_back(log: Log, record: Record) -> Iterator[Record]:
    """Yield ``record`` and the records before it in its history, the newest first, up to the first of another batch.

    Reads them one after the other, at most ``_STEPS_BACK_MAX``. A missing or damaged record ends the search.
    """
    yield record
    current = record
    for _ in range(_STEPS_BACK_MAX):
        if current.version < record.version:
            return
        sequence = current.sequence - 1 if current.target is None else min(current.target, current.sequence - 1)
        before = None
        if sequence >= log.first:
            with suppress(CorruptStateError):
                before = log.find(sequence)
        if before is None:
            return
        yield before
        current = before


def read_savepoint(objects: ObjectStore, savepoint: RecordedSavepoint) -> Record:
    """Return the record that a savepoint keeps. It is a full record.

    Raises ``CorruptStateError`` if its object is missing, damaged, or of another record.
    """
    name = paths.savepoint_name(savepoint.id)
    fetched = fetch_record(objects, name)
    if fetched is None:
        # Cause: A person or a lifecycle rule deleted the object.
        raise CorruptStateError(
            f"The object of savepoint {savepoint.name!r} is missing.",
            remedy="Restore it from a backup, or delete the savepoint (riffle savepoint delete). Until then the query "
            "deletes no objects.",
            where=name,
            id="RIFFLE-1577",
        )
    record = fetched.record
    if (record.sequence, record.full, record.version) != (savepoint.sequence, savepoint.sequence, savepoint.version):
        # Cause: The object was replaced by that of another savepoint.
        raise CorruptStateError(
            f"The object of savepoint {savepoint.name!r} contains record {record.sequence} instead of "
            f"{savepoint.sequence}.",
            remedy="Restore it from a backup, or delete the savepoint (riffle savepoint delete). Until then the query "
            "deletes no objects.",
            where=name,
            id="RIFFLE-1578",
        )
    return record


def savepoint_objects(record: Record) -> set[str]:
    """Return the names of all objects that a whole record lists, also those with sealed output rows."""
    return Manifest(record.entries).object_names() | {link.object for _, link in record.outputs}
