"""What stacks lack is fetched into files: in ranges, several at a time, and all of it or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError, UnavailableError
from riffle_spark.state.restore import fetch
from riffle_spark.state.restore.reader import next_range
from riffle_spark.testing.faulty_store import Fault
from tests.kit.state.members import Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A member without copies of six key-groups: large and small snapshots, chains after them, chains alone.

    Ranges are so small that there are several of each.
    """
    monkeypatch.setattr(fetch, "RANGE_BYTES", 2_000)
    place = Place(tmp_path / "member")
    large = {f"{n * n:x}": n * 2_654_435_761 % 2**62 for n in range(1_500)}
    place.seal(0, {1: dict(large), 2: {"a": 1}, 3: dict(large), 4: {"b": 1}, 5: dict(large)})
    for key_group in (1, 2, 3):
        place.snapshot(key_group)
    place.seal(1, {kg: {"later": kg} for kg in (1, 2, 4, 6)})
    place.store.calls.clear()
    return place


def test_a_cold_member_gets_large_snapshots_in_ranges(place: Place) -> None:
    """Every byte once, whatever the order of answers; the copies hold what was committed."""
    brought = place.bring()
    assert (brought.restores, place.strays()) == (6, [])
    lengths = [entry.snapshot.length for entry in place.entries.values() if entry.snapshot]
    assert place.reader.totals.snapshot_bytes == sum(lengths)
    assert place.reader.totals.fetched_snapshots == 3
    ranged = [name for _, name in place.store.calls if name.startswith("totals/key_group=0001")]
    assert len(ranged) > max(lengths) // 3_000


@pytest.mark.parametrize("kind", ["truncated", "flipped", "missing", "unavailable"])
@pytest.mark.parametrize("skip", [0, 1, 5])
def test_a_range_that_fails_fails_the_restore_and_leaves_nothing(place: Place, kind: str, skip: int) -> None:
    """Named as ever; what came goes, and the next try works."""
    place.store.script(Fault(kind, "get", name="totals/key_group=0003", skip=skip))  # type: ignore[arg-type]
    with pytest.raises((CorruptStateError, UnavailableError)) as caught:
        place.bring()
    assert caught.value.where.startswith("totals/key_group=0003")
    assert place.strays() == []
    assert place.bring().restores == 6


@given(st.integers(1, 100_000), st.integers(1_000, 9_000))
@settings(deadline=None)
def test_ranges_cover_a_snapshot_without_a_short_rest(length: int, range_bytes: int) -> None:
    """None is longer than one and a half ranges, none but the only one shorter than half of one."""
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(next_range(length - sum(sizes), range_bytes))
    assert sum(sizes) == length
    assert all(2 * size <= 3 * range_bytes for size in sizes)
    assert len(sizes) == 1 or all(2 * size >= range_bytes for size in sizes)
