"""Find the record that a rollback returns to.

A record is *promised* if no object that it lists has been deleted: it is at or after ``tail.promised``. Records that an
earlier rollback discarded are not part of the present history. A savepoint keeps its record and its objects, however
old they are.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.observe.units import show_time
from riffle_spark.offline.periods import parse_time
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.record_manifests import RecordManifests
from riffle_spark.state.log.recorded_savepoints import check_savepoint_name, find_savepoint
from riffle_spark.state.log.savepoints import read_savepoint
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

_READ_AHEAD_MAX = 32
"""Records read and held at once: a full record of many key-groups has megabytes."""
_TARGET = re.compile(r"(record:)?([0-9]{1,18})|(-[0-9]{1,18})", re.ASCII)
_SAVEPOINT = "savepoint:"
_TIME = "time:"


class RollbackTarget(NamedTuple):
    """What a rollback returns to: a batch or record by its ``number``, a time (ms since the epoch) as ``number``, or a
    savepoint by its ``name``.
    """

    kind: Literal["batch", "record", "savepoint", "time"]
    number: int = 0
    name: str = ""


def find_target(log: Log, tail: Record, target: int | str, objects: ObjectStore | None = None) -> Record:
    """Return the record that ``target`` names, as ``parse_target`` reads it.

    A batch is one of the present history. A time names the newest record of the present history that was written at or
    before it. ``objects`` is needed for savepoints: it is the store that has the log. Raises ``ConfigError`` with the
    available range if that record is not promised or not intact, ``CorruptStateError`` for a damaged savepoint.
    """
    parsed = parse_target(target)
    if parsed.kind == "savepoint":
        savepoint = find_savepoint(tail.savepoints, parsed.name)
        assert objects is not None, "a savepoint is an object of its own"
        return read_savepoint(objects, savepoint)
    if parsed.kind == "time":
        return _find_record_at(log, tail, parsed.number)
    find = _find_record if parsed.kind == "record" else _find_batch_record
    return find(log, tail, parsed.number)


def parse_target(target: int | str) -> RollbackTarget:
    """Return the target in a number or text: ``4711``, ``record:17``, ``savepoint:NAME`` or ``time:TIME``.

    Raises ``ConfigError`` for other text, and for a time without a zone.
    """
    text = str(target)
    if text.startswith(_SAVEPOINT):
        return RollbackTarget("savepoint", name=check_savepoint_name(text.removeprefix(_SAVEPOINT)))
    if text.startswith(_TIME):
        return RollbackTarget("time", _parse_time(text.removeprefix(_TIME)))
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{text[:80]!r} is neither a batch nor a record, a savepoint or a time.",
            remedy="Give a batch (4711), a record (record:17), a savepoint (savepoint:NAME) or a time "
            "(time:2026-11-26T14:00Z).",
            where="--to",
            id="RIFFLE-0130",
        )
    return RollbackTarget("record" if match[1] else "batch", int(match[2] or match[3]))


def _parse_time(text: str) -> int:
    """Return a time in milliseconds since the epoch. Raises ``ConfigError`` for other text, or without a zone."""
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text[:80]!r} is not a time with a zone.",
            remedy="Give an ISO time with its zone, such as 2026-11-26T14:00:00Z or 2026-11-26T15:00+01:00, or a "
            "duration before now, such as 15m.",
            where="--to-time",
            id="RIFFLE-1580",
        ) from None


def _find_record_at(log: Log, tail: Record, time_ms: int) -> Record:
    """Return the newest record of the present history that was written at ``time_ms`` or before.

    Raises ``ConfigError`` if it is not retained, or if the time is in the future.
    """
    if time_ms > time.time_ns() // 1_000_000:
        raise ConfigError(
            f"{show_time(time_ms)} is in the future.",
            remedy="Give a time in the past, and check its zone.",
            where="--to-time",
            id="RIFFLE-1581",
        )
    oldest: Record | None = None
    for record in current_history(log, tail):
        if record.sequence < tail.promised:
            break
        if record.written_ms <= time_ms:
            return record
        oldest = record
    since = "none" if oldest is None else f"since {show_time(oldest.written_ms)} (batch {oldest.version})"
    earlier = [savepoint for savepoint in tail.savepoints if savepoint.committed_ms <= time_ms]
    remedy = "Choose a later time. Raise retained_for to keep more in future."
    if earlier:
        newest = max(earlier, key=lambda savepoint: savepoint.committed_ms)
        remedy += f" Or return to savepoint {newest.name}, of {show_time(newest.committed_ms)} (--to-savepoint)."
    # Cause: Retention deleted the records of that time, or the query had not started.
    raise ConfigError(
        f"Cannot roll back to {show_time(time_ms)}: no record of that time is retained. Retained records: {since}.",
        remedy=remedy,
        where="--to-time",
        id="RIFFLE-1582",
    )


def offsets_before(log: Log, target: Record) -> str | None:
    """Return Spark's offset-log entry of the batch before ``target``'s, ``None`` if the log does not have it."""
    if target.previous_offsets is not None:
        return target.previous_offsets
    for record in current_history(log, target):
        if record.version < target.version:
            return record.offsets if record.version == target.version - 1 else None
    return None


def _find_record(log: Log, tail: Record, sequence: int) -> Record:
    """Return the record with this number. Raises ``ConfigError`` if a rollback may not return to it."""
    if not tail.promised <= sequence <= tail.sequence:
        # Cause: Retention deleted the older records.
        raise ConfigError(
            f"Record {sequence} is not retained. Retained records: {tail.promised} to {tail.sequence}.",
            remedy="Choose one of these records. Raise retained_versions to keep more in future.",
            where=f"record {sequence}",
            id="RIFFLE-0131",
        )
    return log.read(sequence)


def _find_batch_record(log: Log, tail: Record, version: int) -> Record:
    """Return the newest record of batch ``version`` that a rollback may return to.

    Raises ``ConfigError`` if there is none.
    """
    versions: set[int] = set()
    for record in current_history(log, tail):
        if record.sequence < tail.promised:
            break
        if record.version == version:
            return record
        versions.add(record.version)
    oldest = min(versions, default=0)
    newest = max(versions, default=0)
    retained = f"between {oldest} and {newest}" if versions else "none"
    remedy = "Choose a retained batch."
    if not versions or version < oldest:
        remedy += " Raise retained_versions to keep more in future."
    savepoint = next((savepoint.name for savepoint in tail.savepoints if savepoint.version == version), None)
    if savepoint is not None:
        remedy += f" Or return to savepoint {savepoint}, which keeps this batch (--to-savepoint)."
    # Cause: Retention deleted the records of this batch, or they are damaged.
    raise ConfigError(
        f"No intact record of batch {version} is retained. Retained batches: {retained}.",
        remedy=remedy,
        where=f"batch {version}",
        id="RIFFLE-0132",
    )


def current_history(log: Log, tail: Record) -> Iterator[Record]:
    """Yield the intact records from ``tail`` back, without records that an earlier rollback discarded.

    Reads records by number, because a LIST that lags might omit a rollback. Reads ahead in growing blocks.
    """
    sequence = tail.sequence
    ahead = 1
    while sequence >= log.first:
        block = range(sequence, max(sequence - ahead, log.first - 1), -1)
        sequence = block[-1] - 1
        ahead = min(2 * ahead, _READ_AHEAD_MAX)
        for record_sequence, record in _fitting_records(log, block):
            yield record
            if record.target is not None:
                sequence = min(record.target, record_sequence - 1)
                break


def _fitting_records(log: Log, sequences: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """Yield (number, record) of those records that are intact and whose bases are intact and fit."""
    records = read_intact(log, sequences)
    bases = records | read_intact(log, sorted({base for r in records.values() for base in r.bases} - {*sequences}))
    manifests = RecordManifests(lambda numbers: [bases[number] for number in numbers])
    for sequence in sequences:
        record = records.get(sequence)
        if record is not None and _fits(manifests, record):
            yield sequence, record


def _fits(manifests: RecordManifests, record: Record) -> bool:
    """Return whether the changes of a record fit its bases, and all of them are intact."""
    try:
        manifests.of(record)
    except (KeyError, CorruptStateError):
        return False
    return True


def read_intact(log: Log, sequences: Sequence[int]) -> dict[int, Record]:
    """Return those of the records with these numbers that exist and can be decoded, by number.

    A record that arrives damaged is read again: skipping a rollback would follow the history that it discarded.
    """

    def read(sequence: int) -> Record | None:
        for _ in range(2):
            with suppress(CorruptStateError):
                return log.find(sequence)
        return None

    records = zip(sequences, in_parallel(read, sequences), strict=True)
    return {sequence: record for sequence, record in records if record is not None}
