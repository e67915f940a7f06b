"""Queries through ``riffle_spark.on`` do what Spark's own do: step by step, in every mode, over restarts and breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.kit.queries import operator_figures
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import difference, play, play_ours
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import is_recorded, recorded

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

OFTEN = (
    "count_by_key",
    "complete_top",
    "tumbling_append",
    "session_meeting",
    "dedup_by_time",
    "outer_full",
    "processor_quiet",
    "approximate_distinct",
)
"""Shapes that every run of the tests plays: one of each kind of stage. `--all` plays all others."""
OTHER_FIGURES = {
    "outer": frozenset({"numRowsRemoved"}),
    "groups_forgetful": frozenset({"numRowsRemoved"}),
    "semi": frozenset({"numRowsTotal", "numRowsRemoved"}),
    "processor_lists_and_maps": frozenset({"numRowsTotal", "numRowsUpdated"}),
}
"""By kind or name of a shape, the figures of state operators that differ from Spark's, see docs/operations.md."""
LIVE = ("tumbling_append",)


def of(names: tuple[str, ...]) -> list[object]:
    """Return all shapes as arguments of a test; those that are not named take long."""
    return [pytest.param(shape, id=name, marks=_marks(shape, names)) for name, shape in SHAPES.items()]


def _marks(shape: Shape, names: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    marks = [] if shape.name in names else [pytest.mark.long]
    if shape.kind == "processor":
        return [*marks, pytest.mark.needs_spark4("transformWithState")]
    return marks if is_recorded(shape) else [*marks, pytest.mark.skip(reason="not recorded on this version of Spark")]


@pytest.mark.parametrize("shape", of(OFTEN))
@pytest.mark.sample("outer_full", "dedup_by_time", "session_meeting")
def test_a_wrapped_query_answers_what_sparks_own_did(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """Against what is recorded of Spark; a query that is owed, or differs, and does the same, is neither any more."""
    why = shape.owed or shape.differs
    if why:
        assert _owed(spark, shape, tmp_path), f"{shape.name} does what Spark does: take away what it says ({why})"
        pytest.skip(why)
    with operator_figures.listening(spark) as received:
        assert difference(play_ours(spark, shape, tmp_path), recorded(shape)) == ""
        ours = _comparable(shape, operator_figures.changes_of(received()))
    recorded_changes = operator_figures.recorded_changes(shape)
    if recorded_changes is not None:
        theirs = _comparable(shape, recorded_changes)
        left_out = OTHER_FIGURES.get(shape.name) or OTHER_FIGURES.get(shape.kind) or frozenset()
        assert operator_figures.difference(ours, theirs, left_out) == ""


def _owed(spark: SparkSession, shape: Shape, folder: Path) -> str:
    """Return what is wrong with our answer, or that there is none."""
    try:
        return difference(play_ours(spark, shape, folder), recorded(shape))
    except Exception as error:  # noqa: BLE001 - whatever says that it does not run
        return str(error)


def _comparable(shape: Shape, changes: operator_figures.Changes) -> operator_figures.Changes:
    """Return figures, added up if a batch may have the files of both streams or of one."""
    return operator_figures.added_up(changes) if len(shape.schemas) > 1 else changes


@pytest.mark.parametrize("shape", of(LIVE))
@pytest.mark.long
def test_spark_does_again_what_is_recorded(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """What is compared with is what Spark does now, on this machine."""
    with operator_figures.listening(spark) as received:
        assert difference(play(spark, shape, tmp_path), recorded(shape)) == ""
        changes = operator_figures.changes_of(received())
    recorded_changes = operator_figures.recorded_changes(shape)
    assert recorded_changes is None or _comparable(shape, recorded_changes) == _comparable(shape, changes)
