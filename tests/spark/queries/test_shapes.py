"""Each shape has a recording of Spark that fits it, and each recording has a shape."""

from __future__ import annotations

import pytest

from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import Played, difference
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import FOLDER, VERSIONS, digest_of, is_recorded

pytestmark = pytest.mark.newer_spark

NEEDS_SPARK4 = ("texts", "session_no_gap", "inner_after", "semi_after")
"""Shapes that Spark 3.5 cannot run, besides processors: ``listagg``, a session gap by ``if``, and two joins.

After a restart Spark 3.5 refuses the state of these joins (``StateSchemaNotCompatible``).
"""


def test_every_recording_belongs_to_a_shape() -> None:
    """Every recording belongs to a shape, so a removed shape's recording must be deleted."""
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in SHAPES}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shape_is_recorded_on_each_version_that_runs_it(version: str) -> None:
    """Each shape is recorded for every version of Spark that can run it."""
    assert [name for name, shape in SHAPES.items() if is_recorded(shape, version) != _runs_on(version, shape)] == []


def _runs_on(version: str, shape: Shape) -> bool:
    return not version.startswith("3.") or (shape.kind != "processor" and shape.name not in NEEDS_SPARK4)


def test_recordings_have_the_current_input_of_their_shapes() -> None:
    """Recordings are of the shapes' current input. After a change run ``python -m tests.kit.queries.record_shapes
    --only NAME``.
    """
    assert [name for name, shape in SHAPES.items() if digest_of(shape) != shape.digest] == []


def test_different_steps_columns_and_watermarks_are_differences() -> None:
    """Steps, values, columns and watermarks that differ are differences. The last digits of floating-point numbers are
    not.
    """
    assert difference(Played("k", [[["a", 1, 0.1 + 0.2]]], [""]), Played("k", [[["a", 1, 0.3]]], [""])) == ""
    assert "missing" in difference(Played("k", [[["a", 1.0, 0.3]]], [""]), Played("k", [[["a", 1, 0.3]]], [""]))
    expected = Played("k", [[], []], ["2024", "2026"])
    assert "steps" in difference(Played("k", [[]], ["2024"]), expected)
    assert "columns" in difference(Played("j", [[], []], ["2024", "2026"]), expected)
    assert difference(Played("k", [[], []], ["", "2024"]), expected) == ""
    assert "watermarks" in difference(Played("k", [[], []], ["2024", "2023"]), expected)
    assert "watermarks" in difference(Played("k", [[], []], ["2025", "2026"]), expected)
