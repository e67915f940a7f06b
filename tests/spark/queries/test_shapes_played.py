"""Wrapped queries have the results of Spark's own queries, step by step, in every mode, over restarts and broken
batches.
"""

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
"""The shapes that every test run plays: one of each kind of stage. ``--all`` plays all others."""
OTHER_FIGURES = {
    "outer": frozenset({"numRowsRemoved"}),
    "groups_forgetful": frozenset({"numRowsRemoved"}),
    "semi": frozenset({"numRowsTotal", "numRowsRemoved"}),
    "processor_lists_and_maps": frozenset({"numRowsTotal", "numRowsUpdated"}),
}
"""The figures of state operators that differ from Spark's, by kind or name of a shape (see docs/operations.md)."""
LIVE = ("tumbling_append",)


def of(names: tuple[str, ...]) -> list[object]:
    """Return all shapes as test arguments. Those that are not in ``names`` are marked as long."""
    return [pytest.param(shape, id=name, marks=_marks(shape, names)) for name, shape in SHAPES.items()]


def _marks(shape: Shape, names: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    marks = [] if shape.name in names else [pytest.mark.long]
    if shape.kind == "processor":
        return [*marks, pytest.mark.needs_spark4("transformWithState")]
    return marks if is_recorded(shape) else [*marks, pytest.mark.skip(reason="not recorded on this version of Spark")]


@pytest.mark.parametrize("shape", of(OFTEN))
@pytest.mark.sample("outer_full", "dedup_by_time", "session_meeting")
def test_a_wrapped_query_has_sparks_recorded_results(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """A wrapped query has Spark's recorded results and figures.

    A shape that is marked as missing or different must still differ.
    """
    why = shape.owed or shape.differs
    if why:
        assert _owed(spark, shape, tmp_path), f"{shape.name} has Spark's results: remove its reason ({why})"
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
    """Return the difference of riffle's results from Spark's, or an empty text."""
    try:
        return difference(play_ours(spark, shape, folder), recorded(shape))
    except Exception as error:  # noqa: BLE001 - whatever says that it does not run
        return str(error)


def _comparable(shape: Shape, changes: operator_figures.Changes) -> operator_figures.Changes:
    """Return the figures. They are added up if a batch may have files of one stream or of both."""
    return operator_figures.added_up(changes) if len(shape.schemas) > 1 else changes


@pytest.mark.parametrize("shape", of(LIVE))
@pytest.mark.long
def test_sparks_own_query_still_has_the_recorded_results(spark: SparkSession, shape: Shape, tmp_path: Path) -> None:
    """Spark's own query still has the recorded results."""
    with operator_figures.listening(spark) as received:
        assert difference(play(spark, shape, tmp_path), recorded(shape)) == ""
        changes = operator_figures.changes_of(received())
    recorded_changes = operator_figures.recorded_changes(shape)
    assert recorded_changes is None or _comparable(shape, recorded_changes) == _comparable(shape, changes)
