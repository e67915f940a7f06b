"""An executor dies: with a standby, and without one. Knows the stage and the reports. Does not know how figures are
shown.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.elastic.audit import Audit
from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.gets import plain_gets
from benchmarks.elastic.query import KEY_GROUPS, Query
from benchmarks.elastic.signs import CALM, has_standbys, is_calm
from benchmarks.elastic.stage import Stage

__all__ = ["cold_restore", "standby_kill"]

STEADY = 12
EXECUTORS = 3
VICTIM = 1
TRIES = 50
NOTICED_SECONDS = 4.0
"""How long Spark may take to notice a death and to run the dead executor's tasks elsewhere."""


def standby_kill(size: Size, folder: Path) -> dict[str, object]:
    """Three executors, a standby a key-group; a worker dies while its executor runs a slot."""
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
        if stage.sees_tasks(query.run_id, EXECUTORS, lambda wanted=number: query.done > wanted):  # type: ignore[misc]
            stage.cluster.kill_worker(VICTIM)
            return number
    raise TimeoutError(f"in {TRIES} batches no slot was seen to run")


def cold_restore(size: Size, folder: Path) -> dict[str, object]:
    """Three executors, no standbys; a worker dies between two batches, and the next one restores what it held.

    The time of the restore is what its slots took, on average, to have the state at hand (their step ``fold``): what
    else that batch takes longer than those after it is Spark's, which plans a new layout. The measure is as many
    processes as there are executors left, getting the root's snapshots and deltas from the same server by ranges.
    """
    with Stage(folder, workers=EXECUTORS) as stage:
        query = Query(stage, Feed(folder / "feed", size))
        query.start(EXECUTORS)
        query.fill()
        query.play_until(is_calm)
        stage.cluster.kill_worker(VICTIM)
        stage.await_executors(EXECUTORS - 1)
        (report, seconds), *others = query.play(1 + STEADY)
        after = sorted(each for _, each in others)[len(others) // 2]
        restore_s = report.slot_seconds["fold"] / (EXECUTORS - 1)
        restored = report.fetched_bytes / restore_s
        state = {name: each for name, each in Audit(query).objects().items() if "/log/" not in name}
        plain = plain_gets(stage.store, state, processes=EXECUTORS - 1)
        return {
            "cold_state_bytes": size.state_bytes,
            "cold_restored_bytes": report.fetched_bytes,
            "cold_restore_s": restore_s,
            "cold_batch_extra_s": seconds - after,
            "cold_restore_mb_per_s": restored / 1e6,
            "plain_gets_mb_per_s": plain / 1e6,
            "cold_restore_ratio": restored / plain,
            "cold_wrong_keys": query.difference.wrong_keys,
        }
