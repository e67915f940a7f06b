"""There are enough shapes of every kind, and what is recorded of Spark belongs to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import Played, difference
from tests.kit.queries.query_shape import Frames, Shape
from tests.kit.queries.record_shapes import FOLDER, VERSIONS, digest_of, recorded

pytestmark = pytest.mark.newer_spark

LEAST, LEAST_OF_A_KIND = 80, 8
KINDS = (
    "aggregate", "key", "complete", "tumbling", "sliding", "session", "dedup", "within", "exact", "inner", "outer",
    "semi", "groups", "processor", "sql", "form", "chain",
)  # fmt: skip
BY_VERSION: dict[str, str] = {}
"""Shapes whose answers differ between versions of Spark, and why."""
LATER: dict[str, tuple[str, ...]] = {}
"""Shapes that are still to be recorded on a version."""


def test_there_are_at_least_eight_queries_of_each_kind() -> None:
    """Whoever runs over a restart, or all at once, what runs already has not thought of another query."""
    builds: dict[str, set[object]] = defaultdict(set)
    for shape in SHAPES.values():
        builds[shape.kind].add(_said(shape.build))
    assert set(builds) == set(KINDS)
    few = {kind: len(found) for kind, found in builds.items() if len(found) < LEAST_OF_A_KIND}
    assert few == {}
    assert sum(map(len, builds.values())) >= LEAST


def _said(build: Callable[[Frames], DataFrame]) -> tuple[object, ...]:
    """Return what a query's function says: two that say the same are one query."""
    code = build.__code__
    given = tuple(repr(cell.cell_contents) for cell in build.__closure__ or ())
    return (code.co_code, code.co_names, tuple(map(str, code.co_consts)), given)


def test_a_query_that_is_written_twice_is_one() -> None:
    """Functions that say the same count once, and those that are given other things count each."""
    assert _said(SHAPES["session_count"].build) == _said(SHAPES["session_together"].build)
    assert _said(SHAPES["inner_within"].build) == _said(SHAPES["inner_now"].build)
    assert _said(SHAPES["inner_within"].build) != _said(SHAPES["inner_after"].build)


def test_every_kind_is_played_in_several_ways() -> None:
    """Over restarts, with a sink that breaks, with all files at once or under AvailableNow, some of each kind."""
    ways: dict[str, set[str]] = defaultdict(set)
    for shape in SHAPES.values():
        if shape.restart_after is not None:
            ways[shape.kind].add("restart")
        ways[shape.kind] |= {shape.play, "break"} if shape.breaks_in is not None else {shape.play}
    assert {kind for kind, found in ways.items() if "restart" not in found and "break" not in found} == set()
    assert set.union(*ways.values()) == {"restart", "break", "each", "together", "now"}


def test_every_recording_is_of_a_shape() -> None:
    """A shape that goes, or gets another name, takes its recordings along; one that is owed a recording gets it."""
    expected = {f"{shape.name}.{version}.json" for version in VERSIONS for shape in _recorded_on(version)}
    assert {path.name for path in FOLDER.iterdir()} == expected


def _recorded_on(version: str) -> list[Shape]:
    later = LATER.get(version, ())
    return [shape for shape in SHAPES.values() if shape.name not in later]


@pytest.mark.parametrize("version", VERSIONS)
def test_recordings_are_of_what_shapes_are_fed_now(version: str) -> None:
    """A shape that was changed is recorded anew: ``python -m tests.kit.queries.record_shapes --only NAME``."""
    assert [shape.name for shape in _recorded_on(version) if digest_of(shape, version) != shape.digest] == []


def test_versions_of_spark_do_the_same() -> None:
    """What 4.0.5 and 4.3.0 gave differs in what is listed, and nothing else."""
    one, other = VERSIONS
    found = {shape.name: difference(recorded(shape, other), recorded(shape, one)) for shape in _recorded_on(other)}
    assert {name: said for name, said in found.items() if said and name not in BY_VERSION} == {}
    assert [name for name in BY_VERSION if not found[name]] == []


def test_most_recordings_say_something() -> None:
    """A query that never answers would be played right by anything."""
    assert [shape.name for shape in SHAPES.values() if not any(recorded(shape, VERSIONS[0]).steps)] == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([["a", 1, 0.1 + 0.2]], ""),
        ([["a", 1, 0.3001]], "step 0: too much ['[\"a\", 1, 0.3001]'], missing ['[\"a\", 1, 0.3]']"),
        ([["a", 1.0, 0.3]], "step 0: too much ['[\"a\", 1.0, 0.3]'], missing ['[\"a\", 1, 0.3]']"),
        ([], "step 0: too much [], missing ['[\"a\", 1, 0.3]']"),
    ],
)
def test_what_differs_is_told(rows: list[list[object]], said: str) -> None:
    """Rows are compared one by one, numbers with fractions to nine digits, types exactly."""
    assert difference(Played("k", [rows], [""]), Played("k", [[["a", 1, 0.3]]], [""])) == said


def test_steps_columns_and_watermarks_count() -> None:
    """A step more or less, another column or another watermark is a difference; one of the step before is none."""
    wanted = Played("k", [[], []], ["2024", "2026"])
    assert "steps" in difference(Played("k", [[]], ["2024"]), wanted)
    assert "columns" in difference(Played("j", [[], []], ["2024", "2026"]), wanted)
    assert difference(Played("k", [[], []], ["", "2024"]), wanted) == ""
    assert "watermarks" in difference(Played("k", [[], []], ["2024", "2023"]), wanted)
    assert "watermarks" in difference(Played("k", [[], []], ["2025", "2026"]), wanted)
