"""What lies in a root once all is quiet is bounded, and each kind of object by what may be there of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.state.log import paths
from tests.dst.lines import LinesHistory
from tests.kit.simulated.world import World, one, totals

VERSIONS = 3


def quiet(tmp_path: Path) -> LinesHistory:
    """Return what was seen of a query of two key-groups and one store."""
    world = World(tmp_path, operators=[totals()], key_groups=2)
    for version in range(VERSIONS):
        world.batch(version, one(1))
    world.background.run()
    history, log = LinesHistory(world), world.log()
    assert log.tail is not None
    for sequence in range(log.tail.sequence + 1):
        record = history.records[sequence] = log.read(sequence)
        history.manifests[sequence] = log.manifest_of(record)
    history.check_bounded()
    return history


def put(history: LinesHistory, kind: str, version: int, count: int) -> None:
    """Put objects that no record lists, of the driver that has the log."""
    epoch = history.records[max(history.records)].epoch
    for attempt in (f"{epoch}-{version:016x}{n:016x}" for n in range(count)):
        snapshot = paths.snapshot("totals", 0, paths.snapshot_id(version, attempt))
        name = paths.delta(version, attempt) if kind == "delta" else snapshot
        history.world.memory.put_if_absent(name, b"x")


def test_attempts_in_vain_of_the_last_batch_are_no_snapshots_that_pile_up(tmp_path: Path) -> None:
    """However often its slots ran: what they sealed goes with the next scan."""
    history = quiet(tmp_path)
    put(history, "delta", VERSIONS - 1, 9)
    history.check_bounded()


@pytest.mark.parametrize(("kind", "version", "count"), [("snapshot", VERSIONS - 1, 3), ("delta", VERSIONS - 3, 1)])
def test_what_is_left_lying_fails_a_history(tmp_path: Path, kind: str, version: int, count: int) -> None:
    """More snapshots than there are key-groups, and what was sealed for a batch long ago."""
    history = quiet(tmp_path)
    put(history, kind, version, count)
    with pytest.raises(AssertionError, match="pile up" if kind == "snapshot" else "objects stay"):
        history.check_bounded()
