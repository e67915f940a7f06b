"""Which of Spark's aggregate functions are supported, and with which buffers."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merge_registry import _MERGES, COLLECTED, HASHED, make_merge_function
from riffle_spark.process.merging.merged_lists import MergedText
from riffle_spark.process.merging.merged_sketches import MergedQuantiles
from riffle_spark.process.merging.merged_sums import MergedSum


def test_options_of_a_plan_reach_the_function() -> None:
    """By Spark's names."""
    options = [("evalMode", "ANSI"), ("delimiter", "; "), ("percentages", "[0.25, 0.5]"), ("accuracy", "50")]
    merge = make_merge_function("Sum", [pa.int64()], options)
    assert merge == MergedSum("ANSI") == pickle.loads(pickle.dumps(merge))
    assert make_merge_function("ListAgg", [pa.string()], options) == MergedText(10_000, "; ")
    assert make_merge_function("ApproximatePercentile", [pa.int64()], options) == MergedQuantiles(50, (0.25, 0.5))
    assert _MERGES.keys() >= COLLECTED | HASHED


def test_unknown_functions_and_other_buffers_are_refused() -> None:
    """The error names the function."""
    with pytest.raises(ConfigError, match=r"RIFFLE-0179.*Mode"):
        make_merge_function("Mode", [pa.int64()])
    for name in _MERGES:
        with pytest.raises(ConfigError, match=rf"RIFFLE-0180.*{name}"):
            make_merge_function(name, [pa.month_day_nano_interval(), pa.month_day_nano_interval()])
