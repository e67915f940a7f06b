"""The records that a rollback may go back to: those of a line, from the newest back. Knows which the newest record
promises. Does not know Spark's checkpoint.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, joined
from riffle_spark.state.restore.reader import in_parallel

__all__ = ["check_target", "intact", "line", "offsets_before", "target_of"]

_READ_AHEAD_MOST = 32
"""So many records of a line are read at once at most, and held: a full one of many key-groups has megabytes."""
_TARGET = re.compile(r"record:([0-9]{1,18})|(-?[0-9]{1,18})", re.ASCII)


def target_of(log: Log, tail: Record, to: int | str) -> Record:
    """Return the record that ``to`` names: a batch on the present line, or ``record:<sequence>`` on any.

    Raises ``ConfigError`` with the range there is if that is not retained or not promised.
    """
    is_record, number = check_target(to)
    return _record_at(log, tail, number) if is_record else _record_of(log, tail, number)


def check_target(to: int | str) -> tuple[bool, int]:
    """Return whether ``to`` names a record, and its number or that of a batch. Raises ``ConfigError`` if neither."""
    found = _TARGET.fullmatch(str(to))
    if found is None:
        raise ConfigError(
            f"{str(to)[:80]!r} is not a batch or a record",
            remedy="give a batch, as 4711, or a record, as record:17",
            where="--to",
            id="RIFFLE-0130",
        )
    return found[1] is not None, int(found[1] or found[2])


def offsets_before(log: Log, target: Record) -> str | None:
    """Return Spark's offset-log entry of the batch before that of ``target``, on its line, if that is known."""
    for record in line(log, target):
        if record.version < target.version:
            return record.offsets if record.version == target.version - 1 else None
    return None


def _record_at(log: Log, tail: Record, sequence: int) -> Record:
    if not tail.promised <= sequence <= tail.sequence:
        raise ConfigError(
            f"cannot roll back to record {sequence}: records {tail.promised} to {tail.sequence} are kept for it"
            + ("; objects of older records may be deleted at any time" if sequence < tail.promised else ""),
            remedy="choose one of these, or raise retained_versions for the future",
            where="--to",
            id="RIFFLE-0131",
        )
    return log.read(sequence)


def _record_of(log: Log, tail: Record, version: int) -> Record:
    """Return the newest record of ``version`` on the present line: a rollback leads on to where it went back to."""
    seen: list[int] = []
    old: Record | None = None
    for record in line(log, tail):
        if record.sequence < tail.promised:
            old = record if record.version == version else old
        elif record.version == version:
            return record
        else:
            seen.append(record.version)
    known = _runs(seen) or "none"
    raise ConfigError(
        f"no intact record of batch {version} is retained; there are: {known}"
        if old is None
        else f"a rollback is promised to batches {known}: what batch {version} (record {old.sequence}) needs may be "
        f"deleted at any moment, as record {tail.sequence} promises {tail.promised} and later only",
        remedy="choose one of these, or raise retained_versions for the future",
        where="--to",
        id="RIFFLE-0132",
    )


def _runs(numbers: Iterable[int]) -> str:
    """Return whole numbers as runs of such that follow each other: 3 to 5, 7."""
    there = set(numbers)
    begins, ends = (sorted(at for at in there if at + step not in there) for step in (-1, 1))
    return ", ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in zip(begins, ends, strict=True))


def line(log: Log, tail: Record) -> Iterator[Record]:
    """Yield the intact records from the newest back, by their numbers, without those that a rollback left behind: a
    LIST that lags might not show the rollback. Who goes on has more and more of them read at once.
    """
    sequence, ahead = tail.sequence, 1
    while sequence >= log.first:
        block = range(sequence, max(sequence - ahead, log.first - 1), -1)
        sequence, ahead = block[-1] - 1, min(2 * ahead, _READ_AHEAD_MOST)
        for at, record in _fitting(log, block):
            yield record
            if record.target is not None:
                sequence = min(record.target, at - 1)
                break


def _fitting(log: Log, sequences: Sequence[int]) -> Iterator[tuple[int, Record]]:
    """Yield those of some records, with their numbers, that are whole and fit the full ones that they change."""
    found = intact(log, sequences)
    fulls = found | intact(log, sorted({record.full for record in found.values()} - {*sequences}))
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


def intact(log: Log, sequences: Sequence[int]) -> dict[int, Record]:
    """Return those of some records that are there and whole, by their numbers.

    What comes damaged is read once more: who passes over a rollback that was damaged on its way follows what that has
    given up.
    """

    def read(sequence: int) -> Record | None:
        for _ in range(2):
            with suppress(CorruptStateError):
                return log.find(sequence)
        return None

    found = zip(sequences, in_parallel(read, sequences), strict=True)
    return {sequence: record for sequence, record in found if record is not None}
