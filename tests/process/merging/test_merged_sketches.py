"""Registers of hashes merge as those of all hashes at once."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.merging.merged_sketches import MergedDistinct
from tests.kit.process.merge_ways import FEW, SIZE, DrawnRows, merged_ways, rows_of_groups

HASHES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.sampled_from([2**31, 2**32, 2**54, 2**55])
)


def words(hashes: list[int], bits: int) -> tuple[int, ...]:
    """Return Spark's words of hashes, one by one as it adds them to its buffer."""
    registers = [0] * (2**bits // 10 + 1) * 10
    for hashed in hashes:
        unsigned = hashed % 2**64
        place, rest = unsigned >> (64 - bits), (unsigned << bits | 1 << (bits - 1)) % 2**64
        registers[place] = max(registers[place], 64 - rest.bit_length() + 1)
    return tuple(
        sum(rank << (6 * i) for i, rank in enumerate(registers[at : at + 10])) for at in range(0, len(registers), 10)
    )


@pytest.mark.parametrize(("relative_error", "bits"), [(0.05, 9), (0.2, 5), (0.01, 14)])
@FEW
@given(rows=rows_of_groups(HASHES))
def test_words_are_those_of_all_hashes(relative_error: float, bits: int, rows: DrawnRows[int | None]) -> None:
    """A group's words are those that Spark makes of its hashes, and zeros for a group without any."""
    for way in merged_ways(MergedDistinct(relative_error), [pa.int64()], rows, lambda hashed: (hashed,)):
        for group in range(SIZE):
            hashes = [hashed for hashed in rows.of(group) if hashed is not None]
            assert tuple(way[group][0].values()) == words(hashes, bits)


def test_what_is_kept_grows_with_the_values() -> None:
    """One value takes one number, and the same value again takes no other."""
    rows = DrawnRows([0, 0, 1], [5, 5, 7], [1, 3])
    merge = MergedDistinct(0.05)
    assert len(list(merged_ways(merge, [pa.int64()], rows, lambda hashed: (hashed,)))) == 4
    assert merge.state([pa.int64()]) == [pa.list_(pa.int16())]
    assert MergedDistinct(0.01).state([pa.int64()]) == [pa.list_(pa.int32())]
