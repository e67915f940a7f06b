"""An executor with a standby dies."""

from __future__ import annotations

from pathlib import Path

from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.query import KEY_GROUPS, Query
from benchmarks.elastic.signs import CALM, has_standbys, is_calm
from benchmarks.elastic.stage import Stage

__all__ = ["standby_kill"]

STEADY = 12
EXECUTORS = 3
VICTIM = 1
TRIES = 50
NOTICED_SECONDS = 4.0
"""The seconds that Spark may take to detect a death and to run the dead executor's tasks on another executor."""


def standby_kill(size: Size, folder: Path) -> dict[str, object]:
    """Kill one of three workers while its executor runs a slot, with one standby per key-group. Return the figures."""
    with Stage(folder, workers=EXECUTORS) as stage:
        query = Query(stage, Feed(folder / "feed", size), num_standbys=1)
        query.start(EXECUTORS)
        query.fill()
        query.play_until(lambda reports: has_standbys(reports, KEY_GROUPS) and is_calm(reports))
        steady = query.play(STEADY).median_s()
        hit = _kill_in_a_batch(stage, query)
        query.play(CALM)
        (killed, seconds), (following, next_seconds), *_ = query.played_from(hit)
        return {
            "standby_state_bytes": size.state_bytes,
            "standby_steady_batch_s": steady,
            "standby_kill_extra_s": seconds - steady,
            "standby_kill_allowed_s": steady + NOTICED_SECONDS,
            "standby_kill_next_ratio": next_seconds / steady,
            "standby_kill_snapshot_bytes": killed.fetched_snapshot_bytes + following.fetched_snapshot_bytes,
            "standby_kill_misplaced_runs": killed.misplaced_runs,
            "standby_kill_wrong_keys": query.difference.wrong_keys,
        }


def _kill_in_a_batch(stage: Stage, query: Query) -> int:
    """Kill a worker while the slots of a batch run, and return the batch's number."""
    for _ in range(TRIES):
        number = query.feed.steady()
        if stage.sees_tasks(query.run_id, EXECUTORS, lambda target=number: query.done > target):  # type: ignore[misc]
            stage.cluster.kill_worker(VICTIM)
            return number
    raise TimeoutError(f"in {TRIES} batches no slot was seen to run")
