"""The number of folder listings does not grow with the number of copies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from riffle_spark.messages.upkeep_orders import CensusOrder
from riffle_spark.state.copies.part_files import scrub_stacks
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.log.manifest import EMPTY, Head
from riffle_spark.testing import home_of
from riffle_spark.worker.census import take_census
from riffle_spark.worker.member_folders import folder_of
from tests.kit.worker.upkeep_member import STORE, UpkeepMember

FEW, MANY = 5, 2_000


class Listings:
    """Counts calls that list folders."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in ("listdir", "scandir"):
            monkeypatch.setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, listing):  # type: ignore[no-untyped-def]
        def counted(*where):  # type: ignore[no-untyped-def]
            self.count += 1
            return listing(*where)

        return counted

    def count_listings(self) -> int:
        """Return the number of calls since the last call of this method."""
        count, self.count = self.count, 0
        return count


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    """Return a counter of folder listings."""
    return Listings(monkeypatch)


def test_a_census_lists_folders_as_often_for_many_copies_as_for_few(tmp_path: Path, listings: Listings) -> None:
    """A census and a scrub of many copies list folders as often as those of a few."""
    home, counts = home_of("memory://listed", tmp_path), []
    stacks = folder_of(home, "1").stacks("totals")
    for number in range(MANY):
        assert stacks.replace(number, None, Stack(Head(3, "1-aa")))
        if number + 1 in (FEW, MANY):
            listings.count_listings()
            assert len(take_census(CensusOrder(home), "1").copies) == number + 1
            assert scrub_stacks(folder_of(home, "1")) == []
            counts.append(listings.count_listings())
    assert counts[0] == counts[1] <= 16


def pieces(upkept: UpkeepMember, count: int, listings: Listings) -> list[int]:
    """Run each kind of upkeep for ``count`` key-groups. Return the number of listings of each run."""
    place = upkept.place
    for version in range(2):
        place.seal(version, {kg: {"k": version} for kg in range(count)})
    listings.count_listings()
    assert upkept.run().restores == count
    counts = [listings.count_listings() - count // 64]
    place.seal(2, {0: {"k": 2}})
    place.seal(3, {kg: {"k": 3} for kg in range(count)})
    nothing = {count + kg: EMPTY for kg in range(count)}
    drops = tuple(upkept.drop(kg) for kg in range(2 * count))
    for order in (
        {"follows": upkept.follows()},
        {"follows": upkept.follows()},
        {"follows": upkept.follows(nothing)},
        {"follows": (), "snapshots": tuple(upkept.snapshot(kg) for kg in range(count))},
        {"follows": (), "drops": drops},
    ):
        listings.count_listings()
        receipt = upkept.run(**order)
        counts.append(listings.count_listings())
        assert len((*receipt.copies, *receipt.missing, *receipt.snapshots)) >= count
        assert receipt.restores == 0
    assert upkept.folder().key_groups(STORE) == set()
    return counts


@pytest.mark.long
def test_upkeep_lists_folders_as_often_for_many_copies_as_for_few(tmp_path: Path, listings: Listings) -> None:
    """Upkeep that creates copies (64 at a time), follows the log, takes snapshots or drops copies lists folders as
    often for many copies as for a few.
    """
    few, many = (pieces(UpkeepMember(tmp_path / str(count)), count, listings) for count in (FEW, MANY // 4))
    assert few == many
    assert max(many) <= 16
