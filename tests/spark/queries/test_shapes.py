"""There are enough shapes of every kind, and what is recorded of Spark belongs to them."""

from __future__ import annotations

import pytest

from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import Played, difference
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import FOLDER, VERSIONS, digest_of, recorded

pytestmark = pytest.mark.newer_spark

BY_VERSION: dict[str, str] = {}
"""Shapes whose answers differ between versions of Spark, and why."""
NEEDS_SPARK4 = ("texts", "session_no_gap", "inner_after", "semi_after")
"""Shapes that Spark 3.5 does not run, beside processors: ``listagg``, a gap of sessions by ``if``, and two joins.

After a restart it refuses the state of these joins (``StateSchemaNotCompatible``).
"""


def test_every_recording_is_of_a_shape() -> None:
    """A shape that goes, or gets another name, takes its recordings along; one that is owed a recording gets it."""
    expected = {f"{shape.name}.{version}.json" for version in VERSIONS for shape in _recorded_on(version)}
    assert {path.name for path in FOLDER.iterdir()} == expected


def _recorded_on(version: str) -> list[Shape]:
    shapes = list(SHAPES.values())
    if not version.startswith("3."):
        return shapes
    return [shape for shape in shapes if shape.kind != "processor" and shape.name not in NEEDS_SPARK4]


@pytest.mark.parametrize("version", VERSIONS)
def test_recordings_are_of_what_shapes_are_fed_now(version: str) -> None:
    """A shape that was changed is recorded anew: ``python -m tests.kit.queries.record_shapes --only NAME``."""
    assert [shape.name for shape in _recorded_on(version) if digest_of(shape, version) != shape.digest] == []


def test_versions_of_spark_do_the_same() -> None:
    """What they gave differs from what 4.0.5 gave in what is listed, and nothing else."""
    found = dict[str, str]()
    for version in VERSIONS:
        for shape in _recorded_on(version):
            found[shape.name] = found.get(shape.name) or difference(recorded(shape, version), recorded(shape, "4.0.5"))
    assert {name: said for name, said in found.items() if said and name not in BY_VERSION} == {}
    assert [name for name in BY_VERSION if not found[name]] == []


def test_steps_columns_and_watermarks_count() -> None:
    """Another number of steps, value, column or watermark is a difference. Last digits of fractions are not."""
    assert difference(Played("k", [[["a", 1, 0.1 + 0.2]]], [""]), Played("k", [[["a", 1, 0.3]]], [""])) == ""
    assert "missing" in difference(Played("k", [[["a", 1.0, 0.3]]], [""]), Played("k", [[["a", 1, 0.3]]], [""]))
    wanted = Played("k", [[], []], ["2024", "2026"])
    assert "steps" in difference(Played("k", [[]], ["2024"]), wanted)
    assert "columns" in difference(Played("j", [[], []], ["2024", "2026"]), wanted)
    assert difference(Played("k", [[], []], ["", "2024"]), wanted) == ""
    assert "watermarks" in difference(Played("k", [[], []], ["2024", "2023"]), wanted)
    assert "watermarks" in difference(Played("k", [[], []], ["2025", "2026"]), wanted)
