"""Executors return with their folders: one after some batches, then all in a new application."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.elastic.audit import Audit, missing_bytes
from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.query import KEY_GROUPS, Query
from benchmarks.elastic.signs import CALM, has_standbys, is_calm, is_shared
from benchmarks.elastic.stage import Stage

__all__ = ["returning"]

EXECUTORS = 3
GONE = 1
FEW_ROWS = 200


def returning(size: Size, folder: Path) -> dict[str, object]:
    """Return the figures of one run with one standby per key-group."""
    with Stage(folder, workers=EXECUTORS) as stage:
        query = Query(stage, Feed(folder / "feed", size), num_standbys=1)
        query.start(EXECUTORS)
        query.fill()
        query.play_until(lambda reports: has_standbys(reports, KEY_GROUPS) and is_calm(reports))
        stopped_executor = _one_is_gone(stage, query)
        query.play(CALM)
        query.rest(FEW_ROWS)
        query.stop()
        stage.end_session()
        rejoined = _come_back(query, _folders(stage), lambda: query.start(EXECUTORS))
        return {
            "return_state_bytes": size.state_bytes,
            **{f"return_one_{name}_bytes": value for name, value in stopped_executor.items()},
            **{f"return_all_{name}_bytes": value for name, value in rejoined.items()},
            "return_fetched_over_missed": (stopped_executor["fetched"] + rejoined["fetched"])
            / (stopped_executor["missed"] + rejoined["missed"]),
            "return_wrong_keys": query.difference.wrong_keys,
        }


def _one_is_gone(stage: Stage, query: Query) -> dict[str, int]:
    executor = stage.executor_on(GONE)
    stage.cluster.kill_worker(GONE)
    stage.await_executors(EXECUTORS - 1)
    query.play(CALM)
    query.rest(FEW_ROWS)

    def come_back() -> None:
        stage.cluster.return_worker(GONE)
        stage.await_executors(EXECUTORS)

    return _come_back(query, _folders(stage, executor), come_back)


def _come_back(query: Query, folders: Sequence[Path], come_back: Callable[[], object]) -> dict[str, int]:
    """Let executors return, and run small batches until all own key-groups again and nothing moves.

    Return the number of fetched bytes, of fetched snapshot bytes, and of missed bytes. The latter are the bytes that
    the copies in ``folders`` lacked before, and those that batches have sealed since.
    """
    missed = missing_bytes(folders, Audit(query).look().manifest)
    first = query.done
    come_back()
    query.play_until(lambda reports: is_shared(reports, EXECUTORS) and is_calm(reports), FEW_ROWS)
    since = query.played_from(first).reports
    return {
        "fetched": sum(report.fetched_bytes + report.upkeep_fetched_bytes for report in since),
        "snapshot": sum(report.fetched_snapshot_bytes + report.upkeep_snapshot_bytes for report in since),
        "missed": missed + sum(report.sealed_bytes for report in since),
    }


def _folders(stage: Stage, executor: str | None = None) -> list[Path]:
    """Return the members' folders, or only the last folder of an executor."""
    owners = sorted((stage.folder / "copies").glob("*/m*/owner"))
    return [owner.parent for owner in owners if executor in (None, owner.read_text().rpartition("/")[2])]
