"""Random batches, with late rows and equal times, have the same results in wrapped queries as in Spark's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import difference, play, play_ours
from tests.kit.queries.query_shape import beside

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.long]

DRAWN = (
    "tumbling_append", "tumbling_update", "sliding_append", "session_count", "dedup_by_time_over_restart",
    "within_by_key", "outer_left", "outer_full", "semi_within", "groups_until_quiet", "chain_of_windows",
    "chain_joined_then_counted", "chain_joined_after_then_counted", "chain_joined_ever_then_counted",
    "chain_outer_joined_then_counted", "chain_counted_then_joined", "chain_united_then_counted",
)  # fmt: skip
EXAMPLES = 3
PHASES = (Phase.explicit, Phase.generate)
"""Examples take seconds, so a failing example is printed without being shrunk."""

WORDS = st.builds(
    "{}{}{}".format, st.integers(0, 60) | st.sampled_from((9, 10, 20)), st.sampled_from("ab"), st.integers(1, 3)
)
"""Rows at the edges of windows and anywhere, with few keys and numbers, so that many rows are equal."""
FILES = st.lists(WORDS, max_size=5).map(" ".join)
BATCHES = st.lists(st.tuples(FILES, FILES), min_size=2, max_size=4)


@pytest.mark.parametrize("name", DRAWN)
@settings(max_examples=EXAMPLES, phases=PHASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=BATCHES)
def test_random_batches_have_sparks_results(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, name: str, drawn: list[tuple[str, str]]
) -> None:
    """Wrapped queries return Spark's results for random batches."""
    shape = SHAPES[name]
    if shape.owed:
        pytest.skip(shape.owed)
    streams = shape.schemas
    # The last rows are later than all others, and close open windows.
    batches = [
        {at: table for at, table in batch.items() if at in streams} for batch in beside(*drawn, ("99z1", "99y1"))
    ]
    fed = replace(shape, batches=batches)
    theirs = play(spark, fed, tmp_path_factory.mktemp("theirs"))
    assert difference(play_ours(spark, fed, tmp_path_factory.mktemp("ours")), theirs) == "", drawn
