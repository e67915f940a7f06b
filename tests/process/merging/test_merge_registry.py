"""Which of Spark's aggregate functions are supported, and with which buffers."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merge_registry import _MERGES, COLLECTED, HASHED, merge_function_of
from riffle_spark.process.merging.merged_lists import MergedText
from riffle_spark.process.merging.merged_sketches import MergedQuantiles
from riffle_spark.process.merging.merged_sums import MergedSum


def test_options_of_a_plan_reach_the_function() -> None:
    """By Spark's names."""
    options = [("evalMode", "ANSI"), ("delimiter", "; "), ("percentages", "[0.25, 0.5]"), ("accuracy", "50")]
    merge = merge_function_of("Sum", [pa.int64()], options)
    assert merge == MergedSum("ANSI") == pickle.loads(pickle.dumps(merge))
    assert merge_function_of("ListAgg", [pa.string()], options) == MergedText(10_000, "; ")
    assert merge_function_of("ApproximatePercentile", [pa.int64()], options) == MergedQuantiles(50, (0.25, 0.5))
    assert _MERGES.keys() >= COLLECTED | HASHED


def test_unknown_functions_and_other_buffers_are_refused() -> None:
    """The error names the function."""
    with pytest.raises(ConfigError, match=r"RIFFLE-0179.*Mode"):
        merge_function_of("Mode", [pa.int64()])
    for name in _MERGES:
        with pytest.raises(ConfigError, match=rf"RIFFLE-0180.*{name}"):
            merge_function_of(name, [pa.month_day_nano_interval(), pa.month_day_nano_interval()])
