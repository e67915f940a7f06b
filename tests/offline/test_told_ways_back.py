"""What a rollback tells of where the state was, and of what leads back there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, RefusedError, UnavailableError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.recovery import Plan, rollback
from riffle_spark.state.log import paths
from tests.kit.roots.damaged_root import written_checkpoint
from tests.kit.simulated.world import World, one

BATCHES = 8


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query of eight batches."""
    world = World(tmp_path / "local", retained_versions=100)
    for version in range(BATCHES):
        world.batch(version, one(version))
    return world


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Its checkpoint."""
    return written_checkpoint(tmp_path / "checkpoint", BATCHES)


def damage(world: World, sequence: int) -> None:
    """Put something else in a record's place."""
    world.memory.delete([paths.record(sequence)])
    world.memory.put_if_absent(paths.record(sequence), b"rotten")


def batch_at(world: World, record: str, checkpoint: Path) -> int:
    """Return the batch that a record leads back to."""
    return rollback(world.home.root, record, str(checkpoint)).version


def test_a_record_that_is_damaged_leads_nowhere(world: World, checkpoint: Path) -> None:
    """The newest one is passed over, and the plan does not say that it leads back."""
    newest = len(world.memory.list(paths.LOG)) - 1
    damage(world, newest)
    for execute in (False, True):
        step = rollback(world.home.root, BATCHES - 2, str(checkpoint), execute=execute).steps[0]
        assert f"record {newest}, the newest, is damaged and is passed over: nothing leads back to it" in step
        assert "record:" not in step
    step = rollback(world.home.root, BATCHES - 3, str(checkpoint)).steps[0]
    assert f"--to record:{newest + 1} leads back" in step, "the rollback's own record"


def test_batches_that_there_are_are_told_as_runs(world: World, checkpoint: Path) -> None:
    """The range that is offered does not hold the batch that is refused."""
    damage(world, int(re.findall(r"record (\d+)\)", rollback(world.home.root, 5, str(checkpoint)).steps[0])[-1]))
    with pytest.raises(ConfigError, match="RIFFLE-0132"):
        rollback(world.home.root, 5, str(checkpoint))


def test_a_rollback_that_ends_half_way_tells_what_leads_back(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the one that is then run again, whose own first try is the newest record: where that led is not where
    the state was.
    """

    def raises(error: Exception) -> None:
        raise error

    with monkeypatch.context() as patched:
        for error in (OSError("read-only"), RefusedError("no rights")):
            patched.setattr(Checkpoint, "_remove_after", lambda *_, error=error: raises(error))
            with pytest.raises((RefusedError, UnavailableError), match="log has gone back to batch 3") as caught:
                rollback(world.home.root, 3, str(checkpoint), execute=True)
            assert BATCHES - 1 in {batch_at(world, at, checkpoint) for at in led_by(caught.value.problem)}
    plan: Plan = rollback(world.home.root, 3, str(checkpoint), execute=True)
    assert BATCHES - 1 in {batch_at(world, at, checkpoint) for at in led_by(plan.steps[0])}
    world.start()
    world.batch(4, one(100))
    plan = rollback(world.home.root, 3, str(checkpoint))
    assert len(led_by(plan.steps[0])) == 1, "where it has gone on, there is one way back"


def led_by(text: str) -> list[str]:
    """Return the records that a text says lead somewhere."""
    return re.findall(r"record:\d+", text)
