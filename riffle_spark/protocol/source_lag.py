"""Measure how far the committed batches are behind the newest offsets of their sources, without a request.

Theory of operation.

1. Spark asks a source for its newest offsets before it makes a batch, and keeps the answer. The driver reads that
   answer.
2. Offsets of Kafka, and of sources like it, are JSON: topic, partition, number of the next record. Other sources have
   no offsets per partition and are left out.
3. The lag in records is the newest offset minus the offset at which the last committed batch ended.
4. Spark does not know when a record was written. So the driver remembers when it first saw each newest offset. The lag
   in seconds is the time since it first saw an offset beyond the committed one: a lower bound for the age of the oldest
   unread record. It starts at zero when the driver starts.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from riffle_spark.protocol.facts import PartitionLag

_Partition: TypeAlias = tuple[str, int]
_SIGHTINGS_MAX: Final = 128
_HEADER_LINES: Final = 2
"""The lines of an entry of Spark's offset log before the sources: the format's version and the batch's times."""


def offsets_of_entry(entry: str) -> list[str]:
    """Return the offsets of each source in an entry of Spark's offset log, as text. A source may have none (``-``)."""
    return entry.split("\n")[_HEADER_LINES:]


def _parse_offsets(texts: Iterable[str]) -> dict[_Partition, int]:
    """Return the offset of each (topic, partition) of sources with such offsets.

    If two sources read the same partition, the smaller offset counts, because the query has read up to there.
    """
    offsets: dict[_Partition, int] = {}
    for text in texts:
        for partition, offset in _offsets_of_source(text):
            offsets[partition] = min(offset, offsets.get(partition, offset))
    return offsets


def _offsets_of_source(text: str) -> list[tuple[_Partition, int]]:
    """Return ((topic, partition), offset) of a source's offsets, nothing if they have another form."""
    try:
        topics = json.loads(text)
        return [
            ((str(topic), int(partition)), int(offset))
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        ]
    except (ValueError, TypeError, AttributeError):
        return []


class SourceLag:
    """The newest and the committed offset of each partition, and when newer offsets were first seen."""

    def __init__(self) -> None:
        """Create the lag of a query that has read nothing."""
        self._committed: Mapping[_Partition, int] = {}
        self._newest: Mapping[_Partition, int] = {}
        self._sightings: dict[_Partition, deque[tuple[float, int]]] = {}

    def record(self, committed: Iterable[str], newest: Iterable[str], now: float) -> None:
        """Record offsets as texts of each source, at time ``now`` (seconds of the driver's clock).

        ``committed`` are those at which the last committed batch ends, ``newest`` the newest that Spark has seen.
        """
        self._committed = _parse_offsets(committed)
        self._newest = _parse_offsets(newest)
        self._sightings = {partition: self._sightings.get(partition, deque()) for partition in self._newest}
        for partition, offset in self._newest.items():
            sightings = self._sightings[partition]
            read_to = self._committed.get(partition, 0)
            while sightings and sightings[0][1] <= read_to:
                sightings.popleft()
            if offset > read_to and (not sightings or sightings[-1][1] < offset):
                if len(sightings) == _SIGHTINGS_MAX:  # without every second one, the lag is a little too low
                    thinned_sightings = list(sightings)[::2]
                    sightings.clear()
                    sightings.extend(thinned_sightings)
                sightings.append((now, offset))

    def lags(self, now: float) -> tuple[PartitionLag, ...]:
        """Return the lag of each partition at time ``now``, by topic and partition.

        Partitions that no batch has read are left out.
        """
        return tuple(
            PartitionLag(*partition, max(0, newest - self._committed[partition]), self._seconds(partition, now))
            for partition, newest in sorted(self._newest.items())
            if partition in self._committed
        )

    def _seconds(self, partition: _Partition, now: float) -> float:
        sightings = self._sightings[partition]
        return now - sightings[0][0] if sightings else 0.0
