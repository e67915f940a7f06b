"""Sketches of distinct counts and quantiles merge to those of all values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Groups
from riffle_spark.process.merging.merged_sketches import MergedDistinct, MergedQuantiles
from tests.kit.process.merge_ways import SIZE, DrawnRows, merged_ways, rows_of_groups

HASHES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([2**31, 2**32, 2**54, 2**55])
)


def words(hashes: list[int], bits: int) -> tuple[int, ...]:
    """Return the words of Spark's HyperLogLog++ buffer after adding these hashes."""
    registers = [0] * (2**bits // 10 + 1) * 10
    for hashed in hashes:
        unsigned = hashed % 2**64
        place, rest = unsigned >> (64 - bits), (unsigned << bits | 1 << (bits - 1)) % 2**64
        registers[place] = max(registers[place], 64 - rest.bit_length() + 1)
    return tuple(
        sum(rank << (6 * i) for i, rank in enumerate(registers[start : start + 10]))
        for start in range(0, len(registers), 10)
    )


@pytest.mark.parametrize(("relative_error", "bits"), [(0.05, 9), (0.2, 5)])
@given(rows=rows_of_groups(HASHES))
def test_sketch_words_equal_those_of_spark(relative_error: float, bits: int, rows: DrawnRows[int | None]) -> None:
    """Property: the words of a group are those of Spark for its hashes, and zeros without hashes."""
    for way in merged_ways(MergedDistinct(relative_error), [pa.int64()], rows, lambda hashed: (hashed,)):
        for group in range(SIZE):
            hashes = [hashed for hashed in rows.of(group) if hashed is not None]
            assert tuple(way[group][0].values()) == words(hashes, bits)


def test_the_state_grows_by_one_number_per_distinct_hash() -> None:
    """The state grows by one number per distinct hash. More registers need a wider type."""
    rows = DrawnRows([0, 0, 1], [5, 5, 7], [1, 3])
    merge = MergedDistinct(0.05)
    assert len(list(merged_ways(merge, [pa.int64()], rows, lambda hashed: (hashed,)))) == 4
    assert merge.state_types([pa.int64()]) == [pa.list_(pa.int16())]
    assert MergedDistinct(0.01).state_types([pa.int64()]) == [pa.list_(pa.int32())]


PERCENTAGES = (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)


@given(rows=rows_of_groups(st.none() | st.integers(-9, 9)))
def test_percentiles_of_few_values_are_exact(rows: DrawnRows[int | None]) -> None:
    """Property: with few values each percentile is exact. A group without values has null."""
    for way in merged_ways(MergedQuantiles(100, PERCENTAGES), [pa.int64()], rows, lambda value: (value,)):
        for group in range(SIZE):
            values = sorted(value for value in rows.of(group) if value is not None)
            ranks = [max(int(np.ceil(percentage * len(values))), 1) - 1 for percentage in PERCENTAGES]
            assert way[group] == ([values[rank] for rank in ranks] if values else None,)
    (nothing, *_) = merged_ways(MergedQuantiles(100, ()), [pa.int64()], rows, lambda value: (value,))
    assert nothing == [(None,)] * SIZE
    (median, *_) = merged_ways(MergedQuantiles(100, 0.5), [pa.int64()], rows, lambda value: (value,))
    assert median == [((row[0] or [None] * 6)[3],) for row in way]


ORDERS: dict[str, Callable[[int], IndexArray]] = {
    "ascending": np.arange,
    "descending": lambda size: np.arange(size)[::-1],
    "any": lambda size: np.random.default_rng(3).permutation(size),
    "from both ends": lambda size: np.concatenate([np.arange(size)[::2], np.arange(size)[1::2][::-1]]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_of_many_values_are_within_the_accuracy(order: str) -> None:
    """With many values in any order the ranks stay within the accuracy, and the state stays small."""
    accuracy, size, batches = 50, 60_000, 40
    percentages = tuple(np.linspace(0, 1, 101))
    merge = MergedQuantiles(accuracy, percentages)
    (kind,) = merge.state_types([pa.int64()])
    state = [pa.nulls(2, kind)]
    for batch in np.array_split(ORDERS[order](size), batches):
        rows = pa.array(np.append(batch, 7), pa.int64())
        state = merge.fold([rows], state, Groups(np.append(np.zeros(len(batch), dtype=np.int64), 1), 2))
    (many_values, few_values), lengths = merge.finish(state)[0].to_pylist(), state[0].value_lengths().to_pylist()
    assert (
        max(abs(value - rank * size) for value, rank in zip(many_values, percentages, strict=True)) <= size / accuracy
    )
    assert lengths[0] < 3 * 4 * accuracy
    assert lengths[1] == batches
    assert set(few_values) == {7}
    weights = 2 ** np.array([item["level"] for item in state[0][0].as_py()])
    assert weights.sum() == size


def test_sketches_of_several_groups_merge_into_one() -> None:
    """Sketches of several groups merge into one, as in sessions, with ranks among all values."""
    merge = MergedQuantiles(50, (0.25, 0.5))
    (kind,) = merge.state_types([pa.float64()])
    values = np.random.default_rng(5).permutation(20_000) / 20_000
    codes = np.arange(len(values)) % 5
    state = merge.fold([pa.array(values)], [pa.nulls(5, kind)], Groups(codes, 5))
    united = merge.merge(state, Groups(np.array([0, 0, 2, 0, 0]), 3))
    (first, none, last) = merge.finish(united)[0].to_pylist()
    assert first == pytest.approx([0.25, 0.5], abs=1 / 50)
    assert last == pytest.approx([0.25, 0.5], abs=1 / 50)
    assert none is None
