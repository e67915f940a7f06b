"""Read records of a log from the newest back, without the entries that their own batches did not change.

A record of many key-groups has megabytes of entries. Decoding them takes most of the time of a command that shows many
records, and such a command does not need them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.record_commits import fetch_record
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import in_parallel

_BLOCK: Final = 16
"""The number of records that are fetched at a time."""


def list_records(objects: ObjectStore) -> list[int]:
    """Return the numbers of the records below a root in ascending order, with one LIST."""
    return [s for s in map(paths.parse_record_name, objects.list(paths.LOG)) if s is not None]


def read_record(objects: ObjectStore, sequence: int) -> Record | None:
    """Return a record with the entries that its own batch changed; ``None`` if it is missing or damaged.

    A record that arrives damaged is read again, because the network may have damaged it.
    """
    name = paths.record_name(sequence)
    with suppress(CorruptStateError):
        response = fetch_record(objects, name, changed_only=True)
        return None if response is None else response.record
    return None


def read_back(objects: ObjectStore, sequences: Sequence[int]) -> Iterator[Record]:
    """Yield the records with these ascending numbers, the newest first. Missing and damaged records are skipped.

    Records are fetched in blocks, several at once, so a caller that stops early reads little more than it needs.
    """
    newest_first = sequences[::-1]
    for start in range(0, len(newest_first), _BLOCK):
        for record in in_parallel(lambda s: read_record(objects, s), newest_first[start : start + _BLOCK]):
            if record is not None:
                yield record
