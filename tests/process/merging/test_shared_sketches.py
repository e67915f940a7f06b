"""Sketches of hashes and unions of sketches have the estimates of the `datasketches` library for all values."""

from __future__ import annotations

import sys

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.merging.merge_function import Groups
from riffle_spark.process.merging.shared_sketches import HashSketch, SketchUnion, import_sketches_library
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

WORDS = pa.list_(pa.int64())
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2) | st.sampled_from([2**26, 2**27, 2**62])


def coupon(first: int, second: int) -> int:
    """Return the coupon that a sketch stores for a hash of two words."""
    zeros = 64 - (second % 2**64).bit_length()
    return (min(zeros, 62) + 1) << 26 | first % 2**26


def estimate(sketch: bytes) -> float:
    """Return the library's estimate of a sketch."""
    return float(datasketches.hll_sketch.deserialize(sketch).get_estimate())


@pytest.mark.parametrize("bits", [8, 21])
@given(rows=rows_of_groups(st.none() | st.tuples(LONGS, LONGS)))
def test_few_hashes_are_counted_exactly(bits: int, rows: DrawnRows[tuple[int, int] | None]) -> None:
    """Property: few hashes are counted exactly. A group without values has an empty sketch."""
    for way in merged_ways(HashSketch(bits), [WORDS], rows, lambda words: (words,)):
        for group in range(SIZE):
            coupons = {coupon(*words) for words in rows.of(group) if words is not None}
            assert round(estimate(way[group][0])) == len(coupons)
            assert datasketches.hll_sketch.deserialize(way[group][0]).lg_config_k == bits


@pytest.mark.parametrize("bits", [7, 12])
def test_estimates_of_many_hashes_have_the_error_of_the_library(bits: int) -> None:
    """The estimate of many hashes has the error of the library, in one batch or in several. The size is bounded."""
    size, batches, merge = 30_000, 30, HashSketch(bits)
    words = np.random.default_rng(bits).integers(-(2**63), 2**63, (size, 2))
    rows, codes = pa.array(list(words), WORDS), np.arange(size) % 2
    once = merge.fold([rows], [pa.nulls(2, pa.binary())], Groups(codes, 2))
    state = [pa.nulls(2, pa.binary())]
    for places in np.array_split(np.arange(size), batches):
        state = merge.fold([rows.take(pa.array(places))], state, Groups(codes[places], 2))
    (whole,) = merge.merge(state, Groups(np.zeros(2, dtype=np.int64), 1))
    for result, expected in ((once[0][0], size / 2), (state[0][1], size / 2), (whole[0], size)):
        assert estimate(result.as_py()) == pytest.approx(expected, rel=4 * 1.04 / 2 ** (bits / 2))
        assert len(result.as_py()) == 40 + 2**bits


def sketch_of(values: range, bits: int = 12) -> bytes:
    """Return a sketch as another program may write it."""
    sketch = datasketches.hll_sketch(bits)
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize_updatable())


SKETCHES = [sketch_of(range(start, start + count)) for start, count in ((0, 0), (0, 1), (0, 20), (10, 20), (0, 90))]


@given(rows=rows_of_groups(st.none() | st.sampled_from(SKETCHES)))
def test_a_union_has_the_values_of_all_its_sketches(rows: DrawnRows[bytes | None]) -> None:
    """Property: the union of a group has the values of all its sketches. Without sketches it is empty."""
    of = {
        sketch: set(range(start, end))
        for sketch, start, end in zip(SKETCHES, (0, 0, 0, 10, 0), (0, 1, 20, 30, 90), strict=True)
    }
    for way in merged_ways(SketchUnion(), [pa.binary()], rows, lambda sketch: (sketch,)):
        for group in range(SIZE):
            values = set[int]().union(*(of[sketch] for sketch in rows.of(group) if sketch is not None))
            assert round(estimate(way[group][0])) == len(values)


def test_sketches_of_different_sizes_are_united_only_if_allowed() -> None:
    """A union of different sizes is refused unless it is allowed. The result then has the smallest size."""
    rows, nothing = pa.array([sketch_of(range(900), 11), sketch_of(range(900), 9)]), [pa.nulls(1, pa.binary())]
    groups = Groups(np.zeros(2, dtype=np.int64), 1)
    (result,) = SketchUnion(may_differ=True).fold([rows], nothing, groups)
    assert datasketches.hll_sketch.deserialize(result[0].as_py()).lg_config_k == 9
    with pytest.raises(UserFunctionError, match="RIFFLE-0185"):
        SketchUnion().fold([rows], nothing, groups)
    with pytest.raises(UserFunctionError, match="RIFFLE-0184"):
        SketchUnion().fold([pa.array([b"none", b""])], nothing, groups)


def test_a_missing_datasketches_library_is_refused_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the `datasketches` library the query is refused, and the remedy has the command that installs it."""
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ConfigError, match="RIFFLE-0183") as refused:
        import_sketches_library()
    assert "pip install 'datasketches>=5.0'" in refused.value.remedy
