"""Which of Spark's aggregate functions are known, and what is said of the others."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.merge_registry import _MERGES, COLLECTED, HASHED, MergeOptions, merge_function
from riffle_spark.process.merging.merged_lists import MergedText
from riffle_spark.process.merging.merged_sums import MergedSum

SOME = {
    "Sum": [pa.int64()],
    "MaxBy": [pa.string(), pa.int64()],
    "Kurtosis": [pa.float64()] * 5,
    "ListAgg": [pa.string()],
    "HyperLogLogPlusPlus": [pa.int64()],
}


@pytest.mark.parametrize("name", SOME)
def test_a_known_function_is_a_plain_object(name: str) -> None:
    """What merges a function's buffers comes back from a pickle as it was."""
    merge = merge_function(name, SOME[name])
    assert pickle.loads(pickle.dumps(merge)) == merge


def test_a_plan_says_what_else_matters() -> None:
    """Spark's mode of overflow, and the delimiter reach the function."""
    options = MergeOptions(overflow="ANSI", delimiter="; ")
    assert merge_function("Sum", [pa.int64()], options) == MergedSum("ANSI")
    assert merge_function("ListAgg", [pa.string()], options) == MergedText(10_000, "; ")


def test_functions_of_values_and_hashes_are_known() -> None:
    """The functions that take values or hashes for buffers are among those that are known."""
    assert _MERGES.keys() >= COLLECTED | HASHED


@pytest.mark.parametrize(("name", "way_out"), [("Mode", "Count by key and value"), ("MyOwn", "Use another function")])
def test_an_unknown_function_is_refused_by_name(name: str, way_out: str) -> None:
    """A function that is not known is refused with Spark's name and what to do instead."""
    with pytest.raises(ConfigError, match=name) as refused:
        merge_function(name, [pa.int64()])
    assert way_out in refused.value.remedy


@pytest.mark.parametrize("name", _MERGES)
def test_buffers_of_another_shape_are_refused(name: str) -> None:
    """A known function with buffers that it does not have is refused too."""
    with pytest.raises(ConfigError, match=name):
        merge_function(name, [pa.month_day_nano_interval(), pa.month_day_nano_interval()])
