"""What earlier drivers left behind: records grown old, objects that nothing lists. Knows log and names. Does not know
when it is looked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from riffle_spark.protocol.retention import orphans
from riffle_spark.state import paths
from riffle_spark.state.log import Log
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.record import Record

__all__ = ["Scanned", "scan"]

_OLD_AT_ONCE = 1_000
"""So many records one scan reads at most only to find that they are too old to be kept."""


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan that a driver of ``epoch`` began at ``at_ms`` found: the ``oldest`` retained record, and from which
    one on it needs the log; those before are deleted. ``whole``: to the end, so that orphans are deleted too.
    """

    epoch: int
    at_ms: int
    oldest: int
    kept_from: int
    whole: bool


def scan(objects: ObjectStore, tail: Record, versions: int, for_ms: int) -> Scanned:
    """Delete what nothing retained needs and no living driver may still list; ``tail`` is its driver's last record.

    Retained are the newest ``versions`` records and, before them, all since the first that is not ``for_ms`` older
    than ``tail``. Reads the retained records and those that have grown old since the last scan.
    """
    names = [name for name in objects.list("") if not name.startswith(paths.LOG)]
    log, present = Log(objects, ""), _sequences(objects)
    oldest, whole = _oldest_retained(log, present, versions, tail.written_ms - for_ms)
    old = [paths.record(sequence) for sequence in present if sequence < oldest.full]
    if old:
        objects.delete(old)
    if whole:
        objects.delete(orphans(names, log.listed_since(oldest.sequence), tail.epoch, tail.version))
    return Scanned(tail.epoch, tail.written_ms, oldest.sequence, oldest.full, whole)


def _sequences(objects: ObjectStore) -> list[int]:
    return sorted(s for s in map(paths.record_sequence, objects.list(paths.LOG)) if s is not None)


def _oldest_retained(log: Log, present: list[int], versions: int, since_ms: int) -> tuple[Record, bool]:
    """Return the first record that is young enough or one of the newest, and whether it was looked for to the end."""
    maybe_old = present[:-versions][:_OLD_AT_ONCE]
    for sequence in maybe_old:
        record = log.read(sequence)
        if record.written_ms >= since_ms:
            return record, True
    return log.read(present[len(maybe_old)]), len(present) - len(maybe_old) <= versions
