"""State and checkpoint that are at the same batch number of different histories."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow.fs import FileSystem

from riffle_spark.errors import ConflictError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.verify import verify
from tests.kit.printed_commands import printed
from tests.kit.roots.spark_checkpoint import commit_batch, written_checkpoint
from tests.kit.simulated.world import World, one_row

BATCHES = 4


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query that has run some batches, with its root in memory."""
    world = World(tmp_path, retained_versions=50)
    for version in range(BATCHES):
        world.batch(version, one_row(version))
    return world


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return the checkpoint of the query."""
    return written_checkpoint(tmp_path / "checkpoint", BATCHES)


def taken_another_way(world: World, checkpoint: Path) -> None:
    """Roll the query back by two batches and run two batches with other rows."""
    rollback(world.home.root, BATCHES - 3, str(checkpoint), execute=True)
    world.start()
    for version in range(BATCHES - 2, BATCHES):
        world.batch(version, one_row(100 + version), offsets=f"others-{version}")
        commit_batch(checkpoint, version, f"others-{version}")


def newest(world: World) -> int:
    """Return the number of the newest record."""
    tail = world.log().tail
    assert tail is not None
    return tail.sequence


def ended_at(checkpoint: Path) -> str:
    """Return the newest offsets of the checkpoint, which a starting query reports."""
    return (checkpoint / "offsets" / str(BATCHES - 1)).read_text()


def test_a_root_restored_from_before_a_rollback_is_refused_with_a_remedy(world: World, checkpoint: Path) -> None:
    """A root restored from before a rollback is refused, and the named rollback makes state and checkpoint agree."""
    backup = {name: world.memory.get(name) or b"" for name in world.memory.list("")}
    taken_another_way(world, checkpoint)
    assert not verify(world.home.root, str(checkpoint)).findings
    world.memory.delete(world.memory.list(""))
    for name, data in backup.items():
        world.memory.put_if_absent(name, data)
    (finding,) = verify(world.home.root, str(checkpoint)).findings
    assert (finding.level, finding.where) == ("state", str(checkpoint))
    world.start()
    with pytest.raises(ConflictError, match="RIFFLE-0211") as refused:
        world.batch(BATCHES, one_row(1000), offsets_before=ended_at(checkpoint))
    led = [command[-2] for command in printed(finding.remedy) + printed(refused.value.remedy)]
    assert led == ["3", "3"]
    rollback(world.home.root, 3, str(checkpoint), execute=True)
    assert not verify(world.home.root, str(checkpoint)).findings
    world.start()
    world.batch(BATCHES, one_row(1000), offsets_before=ended_at(checkpoint))
    assert world.state("totals") == {"a": (5, 0 + 1 + 2 + 3 + 1000)}


@pytest.mark.parametrize("target", ["discarded record", "restored root"])
def test_a_rollback_to_another_history_replaces_its_watermark(world: World, checkpoint: Path, target: str) -> None:
    """A rollback to another history writes its offsets and its watermark. Otherwise Spark drops rows as too late."""
    last = BATCHES - 1
    entry = 'v1\n{"batchWatermarkMs":5}\n'
    world.batch(BATCHES, one_row(1), offsets=f"{entry}{BATCHES}")
    discarded = newest(world)
    backup = {name: world.memory.get(name) or b"" for name in world.memory.list("")}
    taken_another_way(world, checkpoint)
    world.batch(BATCHES, one_row(1), offsets=f"{entry}others")
    commit_batch(checkpoint, BATCHES, f"{entry}others", watermark_ms=9_000)
    to = f"record:{discarded}" if target == "discarded record" else BATCHES
    if target == "restored root":
        world.memory.delete(world.memory.list(""))
        for name, data in backup.items():
            world.memory.put_if_absent(name, data)
    rollback(world.home.root, to, str(checkpoint), execute=True)
    assert (checkpoint / "offsets" / str(BATCHES)).read_text() == f"{entry}{BATCHES}"
    assert (checkpoint / "commits" / str(BATCHES)).read_text() == 'v1\n{"nextBatchWatermarkMs":5}'
    assert (checkpoint / "offsets" / str(last)).read_text() == f"offsets-{last}"


def test_concurrent_rollbacks_end_in_one_history_or_are_refused(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two concurrent rollbacks leave state and checkpoint in different histories, the query is refused until another
    rollback.
    """
    given_up = newest(world)
    taken_another_way(world, checkpoint)
    present, restore = newest(world), Checkpoint.restore

    def last(self: Checkpoint, *arguments: object, **options: object) -> list[str]:
        monkeypatch.setattr(Checkpoint, "restore", restore)
        rollback(world.home.root, f"record:{present}", str(checkpoint), execute=True)
        return restore(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoint, "restore", last)
    rollback(world.home.root, f"record:{given_up}", str(checkpoint), execute=True)
    assert [finding.level for finding in verify(world.home.root, str(checkpoint)).findings] == ["state"]
    world.start()
    with pytest.raises(ConflictError, match="RIFFLE-0211"):
        world.batch(BATCHES, one_row(1000), offsets_before=ended_at(checkpoint))
    rollback(world.home.root, f"record:{given_up}", str(checkpoint), execute=True)
    world.start()
    world.batch(BATCHES, one_row(1000), offsets_before=ended_at(checkpoint))
    assert world.state("totals") == {"a": (5, 0 + 1 + 2 + 3 + 1000)}


def test_commits_of_batches_without_offsets_are_ignored(world: World, checkpoint: Path) -> None:
    """Commits of batches without offsets are ignored, which a copy of a running query's checkpoint may contain."""
    for version in range(2, BATCHES):
        (checkpoint / "offsets" / str(version)).unlink()
    assert Checkpoint(str(checkpoint)).next_batch() == 1
    (finding,) = verify(world.home.root, str(checkpoint)).findings
    ((*_, to, _),) = printed(finding.remedy)
    rollback(world.home.root, to, str(checkpoint), execute=True)
    assert not verify(world.home.root, str(checkpoint)).findings
    assert Checkpoint(str(checkpoint)).next_batch() == 1
    world.start()
    assert world.batch(1, one_row(50)).decision == "run"
    assert world.state("totals") == {"a": (2, 50)}


def test_without_offsets_spark_starts_at_batch_0(checkpoint: Path) -> None:
    """Without offsets Spark starts at batch 0, whatever is committed."""
    for version in range(BATCHES):
        (checkpoint / "offsets" / str(version)).unlink()
    assert Checkpoint(str(checkpoint)).next_batch() == 0


@pytest.mark.parametrize("removals", range(2 * (BATCHES - 2)))
def test_an_interrupted_rollback_leaves_a_checkpoint_without_gaps(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, removals: int
) -> None:
    """An interrupted rollback leaves a checkpoint without gaps, and the same command completes it."""
    remove, left = Checkpoint._remove, [removals]

    def dies(self: Checkpoint, files: FileSystem, folder: str, batch: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        remove(self, files, folder, batch)

    monkeypatch.setattr(Checkpoint, "_remove", dies)
    with pytest.raises(KeyboardInterrupt):
        rollback(world.home.root, 1, str(checkpoint), execute=True)
    monkeypatch.undo()
    planned, committed = (sorted(int(path.name) for path in (checkpoint / n).iterdir()) for n in ("offsets", "commits"))
    assert (planned, committed) == ([*range(len(planned))], [*range(len(committed))])
    assert len(committed) <= len(planned)
    rollback(world.home.root, 1, str(checkpoint), execute=True)
    assert not verify(world.home.root, str(checkpoint)).findings
