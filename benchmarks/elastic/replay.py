"""Measure the cost of standbys: one executor owns all key-groups, and another one has all standbys.

It also runs on other revisions, in its own process, so it imports only public names of riffle_spark.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from apps.demo.servers.guard import descendants
from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.query import KEY_GROUPS, Query
from benchmarks.elastic.signs import has_standbys, is_calm, owning
from benchmarks.elastic.stage import Stage
from benchmarks.kit.side import answer, product
from riffle_spark.assign.model import Assignment, AssignSettings, View

__all__ = ["one_owner", "python_ticks", "replay"]

EXECUTORS = 2
STEADY = 24
THROUGH_SECONDS = 3.0
"""The seconds that upkeep gets to finish the work of the last batch."""
ROWS = 100_000


def one_owner(view: View, settings: AssignSettings) -> Assignment:  # noqa: ARG001 - an assignor is given them
    """Return an assignment in which one member owns all tasks and another one has all standbys."""
    members = sorted(member.id for member in view.members)
    owner = next((owner for owner in view.owners.values() if owner in members), members[0])
    standbys = tuple(member for member in members if member != owner)[:1]
    owners = {task.id: owner for task in view.tasks}
    return Assignment(owners, standbys=dict.fromkeys(owners, standbys), target=owners)


def replay(size: Size, folder: Path) -> dict[str, object]:
    """Return the CPU time of the Python workers of an executor with only standbys, while batches run."""
    with Stage(folder, workers=EXECUTORS) as stage:
        query = Query(
            stage,
            Feed(folder / "feed", size),
            num_standbys=1,
            standby_mode="replay",
            expected_executors=EXECUTORS,
            assignor="benchmarks.elastic.replay.one_owner",
        )
        query.start(EXECUTORS)
        _check_executors(stage)
        query.fill()
        query.play_until(lambda reports: has_standbys(reports, KEY_GROUPS) and is_calm(reports))
        (follower,) = query.reports[-1].standbys
        pid, _ = stage.executors()[follower]
        started = _python_seconds(pid)
        played = query.play(STEADY)
        seconds = _python_seconds(pid) - started
        changed = sum(report.keys for report in played.reports)
        return {
            "standby_cpu_s": seconds * ROWS / changed,
            "standby_changed_rows": changed,
            "standby_folds": sum(report.upkeep_folds for report in played.reports),
            "standby_owning": owning(query.reports[-1]),
            "standby_wrong_keys": query.difference.wrong_keys,
        }


def _check_executors(stage: Stage) -> None:
    """Raise ``RuntimeError`` unless the executors have the driver's product. They find it by their own path."""
    slices = stage.session().sparkContext.range(EXECUTORS, numSlices=EXECUTORS)
    products = set(slices.map(lambda _: product()).collect())
    if products != {product()}:
        raise RuntimeError(f"executors run {products}, not {product()}")


def _python_seconds(executor: int) -> float:
    """Return the CPU seconds of an executor's Python workers so far, including ended ones."""
    time.sleep(THROUGH_SECONDS)
    ticks = 0
    for pid in descendants(executor):
        with suppress(OSError):
            if b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes():
                ticks += python_ticks(Path(f"/proc/{pid}/stat").read_text())
    return ticks / os.sysconf("SC_CLK_TCK")


def python_ticks(stat: str) -> int:
    """Return the clock ticks of a process and of its reaped children, from the text of ``/proc/PID/stat``."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def main() -> None:
    """Run the case that the command line specifies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", required=True, type=json.loads)
    spec = parser.parse_args().side
    folder = Path(spec["folder"]) / "case"
    folder.mkdir()
    answer(replay(Size(**spec["size"]), folder))


if __name__ == "__main__":
    main()
