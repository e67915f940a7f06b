"""Which record a rollback goes back to. Knows the log's lines and what its newest record promises. Does not know what a
rollback does.

Theory of operation. A driver deletes only what a committed record of its own has promised no rollback any more, so
nothing that a record from ``promised`` on lists is in any delete that was ever sent, or will be before a newer record
says otherwise. A rollback is such a newer record: it follows the one whose promise it was checked against, or is not
appended at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.log import Log
from riffle_spark.state.record import Record

__all__ = ["offsets_before", "target_of"]

_RECORD = "record:"


def target_of(log: Log, tail: Record, to: int | str) -> Record:
    """Return the record that ``to`` names: a batch on the present line, or ``record:<sequence>`` on any.

    Raises ``ConfigError`` with the range there is if that is not retained or not promised.
    """
    if isinstance(to, str) and to.startswith(_RECORD) and to.removeprefix(_RECORD).isdecimal():
        return _record_at(log, tail, int(to.removeprefix(_RECORD)))
    try:
        version = int(to)
    except ValueError:
        raise ConfigError(
            f"{to!r} names no batch and no record",
            remedy="give a batch, as 4711, or a record, as record:17",
            where="--to",
        ) from None
    return _record_of(log, tail, version)


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
    LIST that lags might not show the rollback.
    """
    sequence = tail.sequence
    while sequence >= log.first:
        at, sequence = sequence, sequence - 1
        try:
            record = log.read(at)
            log.manifest_of(record)
        except CorruptStateError:
            continue
        yield record
        if record.target is not None:
            sequence = record.target
