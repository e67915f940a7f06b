"""The registry has a merge function for each supported aggregate function of Spark."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merge_registry import _MERGES, COLLECTED, HASHED, make_merge_function
from riffle_spark.process.merging.merged_lists import MergedText
from riffle_spark.process.merging.merged_sketches import MergedQuantiles
from riffle_spark.process.merging.merged_sums import MergedSum


def test_options_of_a_plan_configure_the_merge_function() -> None:
    """The options of a plan, by Spark's names, configure the merge function."""
    options = [("evalMode", "ANSI"), ("delimiter", "; "), ("percentages", "[0.25, 0.5]"), ("accuracy", "50")]
    merge = make_merge_function("Sum", [pa.int64()], options)
    assert merge == MergedSum("ANSI") == pickle.loads(pickle.dumps(merge))
    assert make_merge_function("ListAgg", [pa.string()], options) == MergedText(10_000, "; ")
    assert make_merge_function("ApproximatePercentile", [pa.int64()], options) == MergedQuantiles(50, (0.25, 0.5))
    assert _MERGES.keys() >= COLLECTED | HASHED


def test_unknown_functions_and_unknown_buffers_are_refused() -> None:
    """An unknown function, or one with other buffers, is refused. The error names it."""
    with pytest.raises(ConfigError, match=r"RIFFLE-0179.*Mode"):
        make_merge_function("Mode", [pa.int64()])
    for name in _MERGES:
        with pytest.raises(ConfigError, match=rf"RIFFLE-0180.*{name}"):
            make_merge_function(name, [pa.month_day_nano_interval(), pa.month_day_nano_interval()])
