"""Two executors, then four, then three: measure moves, batches and requests."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.audit import Audit
from benchmarks.elastic.data import Feed, Size
from benchmarks.elastic.query import Played, Query
from benchmarks.elastic.signs import CALM, is_calm, is_shared, is_warming, owner_moves, owning
from benchmarks.elastic.stage import Stage

__all__ = ["scale"]

STEADY = 12


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of the run in order, and the bytes that were rewritten in the store after the first phase."""

    two: Played
    growing: Played
    growing_s: float
    four: Played
    shrinking: Played
    three: Played
    rewritten_bytes: int

    @property
    def all_phases(self) -> tuple[Played, ...]:
        """All phases in order."""
        return self.two, self.growing, self.four, self.shrinking, self.three


def scale(size: Size, folder: Path) -> dict[str, object]:
    """Return the figures of one run."""
    with Stage(folder, workers=2) as stage:
        query = Query(stage, Feed(folder / "feed", size))
        query.start(2)
        query.fill()
        phases = _play(stage, query)
        difference = query.difference
        return {
            "state_bytes": size.state_bytes,
            "batches": query.done,
            "lost": difference.lost,
            "doubled": difference.doubled,
            "wrong_keys": difference.wrong_keys,
            "rewritten_bytes": phases.rewritten_bytes,
            **_move_effects(phases),
        }


def _play(stage: Stage, query: Query) -> Phases:
    two = query.play(STEADY)
    audit = Audit(query)
    start = audit.look()
    for _ in range(2):
        stage.cluster.add_worker()
    stage.await_executors(4)
    began = time.monotonic()
    growing = query.play_until(lambda reports: is_shared(reports, 4) and is_calm(reports))
    growing_s = time.monotonic() - began
    four = query.play(STEADY)
    query.job.drain(stage.executor_on(3))
    shrinking = query.play_until(lambda reports: is_shared(reports, 3) and is_calm(reports))
    stage.cluster.stop_worker(3)
    stage.await_executors(3)
    three = query.play(STEADY)
    end = audit.look()
    query.play(CALM)
    sealed = sum(report.sealed_bytes for played in (growing, four, shrinking, three) for report in played.reports)
    rewritten = audit.rewritten_bytes(start, end, audit.look(), sealed)
    return Phases(two, growing, growing_s, four, shrinking, three, rewritten)


def _move_effects(phases: Phases) -> dict[str, object]:
    """Return the effect of moves on the batches, and the time of the moves.

    A batch is compared with the median of the batches without moves or warm-ups on the same number of owners, because
    four slots on two cores cost more than two.
    """
    steady = {2: phases.two.median_s(), 4: phases.four.median_s(), 3: phases.three.median_s()}
    moving = [*phases.growing, *phases.shrinking]
    ratios = [(report, seconds / steady[owning(report)]) for report, seconds in moving if owning(report) in steady]
    warming = [ratio for report, ratio in ratios if is_warming(report)]
    moved = [ratio for report, ratio in ratios if owner_moves(report) and not report.restores]
    return {
        **{f"steady_batch_{executors}_executors_s": seconds for executors, seconds in steady.items()},
        "warm_move_ratio": _median(moved),
        "warm_move_ratio_worst": max(moved, default=math.nan),
        "warm_move_batches": len(moved),
        "cold_moves": sum(report.restores for played in phases.all_phases for report in played.reports),
        "upkeep_ratio": _median(warming),
        "upkeep_batches": len(warming),
        "owners": sorted(phases.four.reports[-1].owners.values()),
        "scale_out_s": phases.growing_s,
        "scale_out_batches": len(phases.growing.reports),
        "scale_out_fetched_bytes": sum(report.upkeep_fetched_bytes for report in phases.growing.reports),
        "scale_in_batches": len(phases.shrinking.reports),
        "repetitions": {"warm_move_ratio": len(moved), "upkeep_ratio": len(warming)},
    }


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else math.nan
