"""An executor without a standby dies, several times."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.audit import Audit
from benchmarks.elastic.data import Feed, Size, last_call_time
from benchmarks.elastic.gets import Span, plain_gets
from benchmarks.elastic.query import STORE, Query
from benchmarks.elastic.signs import is_calm, is_shared
from benchmarks.elastic.stage import Stage
from riffle_spark import BatchReport
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Manifest

__all__ = ["cold_restore"]

TIMES = 5
WARM = 6
EXECUTORS = 3
VICTIM = 1


@dataclass(frozen=True, slots=True)
class ColdRestore:
    """One cold restore.

    ``size`` is the number of bytes that the log lists, and ``fetched`` the number that the batch fetched. It may be
    less, because a surviving executor may have sealed some of these bytes itself. ``plain_bytes_per_s`` is the rate of
    plain GETs of all listed ranges.
    """

    size: int
    fetched: int
    seconds: float
    batch_extra_s: float
    plain_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """The rate of the fetched bytes."""
        return self.fetched / self.seconds

    @property
    def ratio(self) -> float:
        """The rate relative to plain GETs."""
        return self.bytes_per_s / self.plain_bytes_per_s


def cold_restore(size: Size, folder: Path) -> dict[str, object]:
    """Kill one of three workers several times, without standbys, and return the figures of the restores.

    The worker dies between two batches, and the next batch restores its key-groups. Then the worker returns.

    The time of a restore is the time from the start of its batch to the last call of the user's function, minus the
    same time in later batches with the same layout. So it includes all work between the store and the function. Copies
    that are not needed after the worker's return are removed at once, so that the next restore is cold too.
    """
    marks = folder / "marks"
    marks.mkdir()
    with Stage(folder, workers=EXECUTORS) as stage:
        query = Query(stage, Feed(folder / "feed", size), marks=marks, state_cleanup_delay=0.0)
        query.start(EXECUTORS)
        query.fill()
        restores = [_restored(stage, query, marks) for _ in range(TIMES)]
        ratios = [restore.ratio for restore in restores]
        return {
            "cold_state_bytes": size.state_bytes,
            "cold_restored_bytes": statistics.median(restore.fetched for restore in restores),
            "cold_fetched_over_listed": min(restore.fetched / restore.size for restore in restores),
            "cold_restore_s": statistics.median(restore.seconds for restore in restores),
            "cold_batch_extra_s": statistics.median(restore.batch_extra_s for restore in restores),
            "cold_restore_mb_per_s": statistics.median(restore.bytes_per_s / 1e6 for restore in restores),
            "plain_gets_mb_per_s": statistics.median(restore.plain_bytes_per_s / 1e6 for restore in restores),
            "cold_restore_ratio": statistics.median(ratios),
            "cold_restore_ratio_least": min(ratios),
            "cold_wrong_keys": query.difference.wrong_keys,
            "repetitions": {"cold_restore_ratio": TIMES},
        }


def _restored(stage: Stage, query: Query, marks: Path) -> ColdRestore:
    query.play_until(lambda reports: is_shared(reports, EXECUTORS) and is_calm(reports))
    audit = Audit(query)
    listed_before = audit.look()
    stage.cluster.kill_worker(VICTIM)
    stage.await_executors(EXECUTORS - 1)
    (cold, cold_s), *warm = query.play(1 + WARM)
    moved = {int(move["key_group"]) for move in cold.moves if move["role"] == "owner"}
    spans = list(_spans(listed_before.manifest, moved, audit.prefix))
    restored = ColdRestore(
        sum(span.end - span.start for span in spans),
        cold.fetched_bytes,
        _seconds_to_last_call(marks, cold)
        - statistics.median(_seconds_to_last_call(marks, report) for report, _ in warm),
        cold_s - statistics.median(seconds for _, seconds in warm),
        plain_gets(stage.store, spans, processes=EXECUTORS - 1),
    )
    stage.cluster.return_worker(VICTIM)
    stage.await_executors(EXECUTORS)
    return restored


def _seconds_to_last_call(marks: Path, report: BatchReport) -> float:
    """Return the seconds from a batch's start to the last call of the function."""
    return last_call_time(marks, report.version) - report.started_ms / 1000


def _spans(manifest: Manifest, key_groups: Collection[int], prefix: str) -> Iterator[Span]:
    """Yield the byte ranges that a manifest lists for some key-groups."""
    for key_group in key_groups:
        entry = manifest.entry(STORE, key_group)
        if entry.snapshot is not None:
            yield Span(prefix + paths.snapshot_name(STORE, key_group, entry.snapshot.id), 0, entry.snapshot.length)
        for link in entry.chain:
            yield Span(prefix + link.object, *link.byte_range)
