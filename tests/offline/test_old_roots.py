"""What an earlier version left behind is opened, continued and rolled back, with its member's folder and without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from riffle_spark.offline.recovery import rollback
from tests.kit.roots.old_root import ARCHIVES, OldRoot


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldRoot:
    """A root of each earlier version."""
    return OldRoot(request.param, tmp_path)


def test_there_is_a_root_of_the_first_format() -> None:
    """Nobody took it away."""
    assert "0.1-format1" in [path.name for path in ARCHIVES]


def test_it_holds_what_it_held(old: OldRoot) -> None:
    """Read from the objects alone, by today's code."""
    tail = old.tail()
    assert (tail.version, tail.epoch, tail.rollbacks) == (22, 4, 1)
    assert old.held() == old.oracle(22).state


@pytest.mark.parametrize("copies", ["there", "gone"])
def test_an_old_root_goes_on(old: OldRoot, copies: str) -> None:
    """What is committed equals plain Python's; copies that an earlier version kept are restored, and go."""
    if copies == "gone":
        shutil.rmtree(old.local)
    old.start()
    oracle = old.oracle(22)
    restores = [old.batch(oracle).restores for _ in range(4)]
    assert old.held() == oracle.state
    assert (restores[0] > 0, sum(restores[1:])) == (True, 0)
    assert list(old.local.glob("*/copies")) == []
    assert len(list(old.local.glob("*/owner"))) == 1


@pytest.mark.parametrize(("to", "batches"), [(11, 0), (18, 2), (20, 0)])
def test_it_is_rolled_back(old: OldRoot, to: int, batches: int) -> None:
    """To batches before the upgrade, before and after this version has written, and goes on from there."""
    old.start()
    ahead = old.oracle(22)
    for _ in range(batches):
        old.batch(ahead)
    rollback(old.root, to, old.checkpoint, execute=True)
    oracle = old.oracle(to)
    assert old.held() == oracle.state
    old.start()
    for _ in range(2):
        old.batch(oracle)
    assert old.held() == oracle.state
    assert old.tail().rollbacks == 2
