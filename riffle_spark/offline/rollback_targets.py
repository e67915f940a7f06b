"""Find the record that a rollback returns to.

A record is *promised* if no object that it lists has been deleted: it is at or after ``tail.promised``. Records that an
earlier rollback gave up are not part of the present history.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, manifest_of_record
from riffle_spark.state.restore.reader import in_parallel

__all__ = ["current_history", "find_target", "offsets_before", "parse_target", "read_intact"]

_READ_AHEAD_MAX = 32
"""Records read and held at once: a full record of many key-groups has megabytes."""
_TARGET = re.compile(r"record:([0-9]{1,18})|(-?[0-9]{1,18})", re.ASCII)


def find_target(log: Log, tail: Record, target: int | str) -> Record:
    """Return the record that ``target`` names: a batch of the present history, or ``record:<number>`` of any history.

    Raises ``ConfigError`` with the available range if that record is not promised or not intact.
    """
    is_record, number = parse_target(target)
    return _find_record(log, tail, number) if is_record else _find_batch_record(log, tail, number)


def parse_target(target: int | str) -> tuple[bool, int]:
    """Return whether ``target`` names a record, and the number of the record or batch.

    Raises ``ConfigError`` for other text.
    """
    match = _TARGET.fullmatch(str(target))
    if match is None:
        raise ConfigError(
            f"{str(target)[:80]!r} is neither a batch nor a record.",
            remedy="Give a batch (4711) or a record (record:17).",
            where="--to",
            id="RIFFLE-0130",
        )
    return match[1] is not None, int(match[1] or match[2])


def offsets_before(log: Log, target: Record) -> str | None:
    """Return Spark's offset-log entry of the batch before ``target``'s, ``None`` if the log does not have it."""
    for record in current_history(log, target):
        if record.version < target.version:
            return record.offsets if record.version == target.version - 1 else None
    return None


def _find_record(log: Log, tail: Record, sequence: int) -> Record:
    """Return the record with this number. Raises ``ConfigError`` if a rollback may not return to it."""
    if not tail.promised <= sequence <= tail.sequence:
        # Cause: Retention deleted the older records.
        raise ConfigError(
            f"Cannot roll back to record {sequence}: only records {tail.promised} to {tail.sequence} are retained.",
            remedy="Choose one of these records. Raise retained_versions to keep more in future.",
            where="--to",
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
    # Cause: Retention deleted the records of this batch, or they are damaged.
    raise ConfigError(
        f"Cannot roll back to batch {version}: no intact record of it is retained. Retained batches: {retained}.",
        remedy="Choose a retained batch. Raise retained_versions to keep more in future.",
        where="--to",
        id="RIFFLE-0132",
    )


def current_history(log: Log, tail: Record) -> Iterator[Record]:
    """Yield the intact records from ``tail`` back, without records that an earlier rollback gave up.

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
    """Yield (number, record) of those records that are intact and whose full record is intact and fits."""
    records = read_intact(log, sequences)
    fulls = records | read_intact(log, sorted({record.full for record in records.values()} - {*sequences}))
    for sequence in sequences:
        record = records.get(sequence)
        if record is None:
            continue
        full = record if record.full == record.sequence else fulls.get(record.full)
        if full is not None and (full is record or _fits(record, full)):
            yield sequence, record


def _fits(record: Record, full: Record) -> bool:
    """Return whether the changes of a record fit the full record that it refers to."""
    try:
        manifest_of_record(record, full.entries)
    except CorruptStateError:
        return False
    return True


def read_intact(log: Log, sequences: Sequence[int]) -> dict[int, Record]:
    """Return those of the records with these numbers that exist and can be decoded, by number.

    A record that arrives damaged is read again: skipping a rollback would follow the history that it gave up.
    """

    def read(sequence: int) -> Record | None:
        for _ in range(2):
            with suppress(CorruptStateError):
                return log.find(sequence)
        return None

    records = zip(sequences, in_parallel(read, sequences), strict=True)
    return {sequence: record for sequence, record in records if record is not None}
