"""Rollbacks and adoptions repair damaged logs and mismatched checkpoints, and the next drivers continue."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs
from pyarrow.fs import LocalFileSystem

from riffle_spark.console.main import main
from riffle_spark.errors import (
    ConfigError,
    ConflictError,
    CorruptStateError,
    FencedError,
    RefusedError,
    UnavailableError,
)
from riffle_spark.offline import checkpoint as checkpoint_module
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import encode
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.testing import InlineBackground
from tests.kit.module_time import skip_pauses
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.servers.object_server import BUCKET, ObjectServer
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import World, one_row, totals


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a query with one store."""
    return World(tmp_path, operators=[totals()])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint of the query as Spark writes it, with batches 0 to 4 committed."""
    folder = written_checkpoint(tmp_path / "checkpoint", 5, watermark_ms=7)
    for batch in range(5):
        (folder / "offsets" / f".{batch}.crc").write_text("x")
    return folder


def fill(world: World, batches: int) -> None:
    """Run batches of one row each, whose value is the batch number."""
    for version in range(batches):
        world.batch(version, one_row(version))


def damage(world: World, sequence: int) -> None:
    """Flip one byte of a record."""
    name = paths.record_name(sequence)
    data = bytearray(world.memory.get(name) or b"")
    data[-3] ^= 1
    world.memory.delete([name])
    assert world.memory.put_if_absent(name, bytes(data))


def newest(world: World) -> int:
    """Return the number of the newest record."""
    return len(world.memory.list(paths.LOG)) - 1


@pytest.mark.parametrize("which", ["newest", "its full record"])
def test_a_rollback_repairs_a_log_with_an_unreadable_newest_record(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A damaged newest record, or a lost full one, is refused with a rollback as the remedy, which works."""
    full_record_every(8, monkeypatch)
    batches = 5 if which == "newest" else 8 + 3
    fill(world, batches)
    if which == "newest":
        damage(world, newest(world))
        target = batches - 2
    else:
        world.memory.delete([paths.record_name(8)])
        target = 8 - 2
    world.start()
    with pytest.raises((CorruptStateError, ConflictError), match=r"RIFFLE-0406|RIFFLE-0417"):
        world.batch(batches, one_row(100))
    plan = rollback(world.home.root, target, str(checkpoint), execute=True)
    assert plan.executed
    world.batch(target + 1, one_row(1000))
    assert world.state("totals") == {"a": (target + 2, sum(range(target + 1)) + 1000)}


def test_a_newest_record_with_a_wrong_previous_digest_is_refused(world: World) -> None:
    """A newest record with the wrong digest of the previous one is refused, even if its own checksum is right (I3)."""
    fill(world, 3)
    last = newest(world)
    record = replace(world.log().read(last), previous="0" * 32)
    world.memory.delete([paths.record_name(last)])
    world.memory.put_if_absent(paths.record_name(last), encode(record))
    world.start()
    with pytest.raises(CorruptStateError, match="RIFFLE-0407"):
        world.batch(3, one_row(1))


def test_a_rollback_keeps_the_commit_file_of_the_target_batch(world: World, checkpoint: Path) -> None:
    """A rollback keeps Spark's commit file of the target batch, and removes later batches with their checksum files."""
    fill(world, 5)
    rollback(world.home.root, 2, str(checkpoint), execute=True)
    assert sorted(p.name for p in (checkpoint / "commits").iterdir()) == ["0", "1", "2"]
    assert "7" in (checkpoint / "commits" / "2").read_text()
    assert not (checkpoint / "offsets" / ".3.crc").exists()
    assert Checkpoint(str(checkpoint)).next_batch() == 3


def test_a_rollback_writes_missing_or_torn_checkpoint_entries(world: World, checkpoint: Path) -> None:
    """A rollback writes missing or torn checkpoint entries from the record's offsets."""
    fill(world, 5)
    for name in ("offsets", "commits"):
        (checkpoint / name / "4").unlink()
    (checkpoint / "offsets" / "3").write_text("torn")
    rollback(world.home.root, 3, str(checkpoint), execute=True)
    assert (checkpoint / "offsets" / "3").read_text() == "offsets-3"
    assert not (checkpoint / "offsets" / ".3.crc").exists()


def test_a_rollback_without_execute_changes_nothing(world: World, checkpoint: Path) -> None:
    """Without ``execute`` neither the log nor the checkpoint changes."""
    fill(world, 5)
    other = Path(shutil.copytree(checkpoint, checkpoint.with_name("other")))
    (other / "metadata").write_text('{"id": "another"}')
    before = world.memory.list("")
    assert not rollback(world.home.root, 2, str(checkpoint)).executed
    assert not adopt(world.home.root, str(other)).executed
    assert world.memory.list("") == before
    assert (checkpoint / "offsets" / "4").exists()


@pytest.mark.parametrize("before", [True, False])
def test_a_change_of_deliver_after_commit_loses_no_delivery(tmp_path: Path, before: bool) -> None:
    """A change of ``deliver_after_commit`` between a crash and the restart loses no delivery and empties none."""
    world = World(tmp_path, deliver_after_commit=before)
    world.batch(0, one_row(1))
    world.crash_at = "after record"
    with pytest.raises(BaseException, match="after record"):
        world.batch(1, one_row(2))
    world.settings = replace(world.settings, deliver_after_commit=not before)
    world.start()
    assert world.batch(1, one_row(2)).decision == "repeat"
    world.batch(2, one_row(4))
    assert [row["total"] for row in world.delivered("totals")] == [1, 3, 7]


def test_warm_copies_are_replaced_after_a_root_was_restored(world: World) -> None:
    """After a root was restored from a backup, local copies with newer batches are replaced, because their history is
    abandoned.
    """
    fill(world, 3)
    backup = {name: world.memory.get(name) for name in world.memory.list("")}
    for _ in range(3):
        world.start()
        fill_from = world.log().tail
        assert fill_from is not None
        world.batch(fill_from.version + 1, one_row(50))
    world.memory.delete(world.memory.list(""))
    for name, data in backup.items():
        world.memory.put_if_absent(name, data or b"")
    world.start()
    report = world.batch(3, one_row(1000))
    assert report.runs == 2
    assert world.state("totals") == {"a": (4, 1003)}


def crashed_before_delivery(folder: Path, batches: int) -> World:
    """Return a query whose last batch is committed and sealed but not delivered."""
    world = World(folder, deliver_after_commit=True, retained_versions=20)
    fill(world, batches - 1)
    world.crash_at = "after record"
    with pytest.raises(BaseException, match="after record"):
        world.batch(batches - 1, one_row(batches - 1))
    return world


def goes_on(world: World, checkpoint: Path, batches: int) -> list[str]:
    """Run a new driver from the checkpoint up to batch ``batches``, and return its decisions."""
    world.start()
    first = Checkpoint(str(checkpoint)).next_batch()
    return [world.batch(version, one_row(version)).decision for version in range(first, batches)]


@pytest.mark.parametrize(
    ("first", "then", "ids"),
    [
        (None, 3, {"query/1/4"}),
        (1, "record:4", {"query/1/2", "query/2/4"}),
        (3, 3, {"query/2/4"}),
    ],
)
def test_a_rollback_delivers_the_sealed_output_of_its_target(
    first: int | None, then: int | str, ids: set[str], tmp_path: Path, checkpoint: Path
) -> None:
    """A rollback to a batch whose sealed output was not delivered delivers this output."""
    world = crashed_before_delivery(tmp_path, 4)
    if first is not None:
        rollback(world.home.root, first, str(checkpoint), execute=True)
        goes_on(world, checkpoint, 3 if first < 3 else 0)
    rollback(world.home.root, then, str(checkpoint), execute=True)
    with pytest.raises(ConfigError, match="RIFFLE-0137"):
        adopt(world.home.root, str(checkpoint), execute=True)
    assert goes_on(world, checkpoint, 5) == ["repeat", "run"]
    got = world.sinks["totals"].by_id
    assert got["query/0/3"].to_pylist() == [{"k": "a", "count": 4, "total": 6}]
    assert set(got) == {"query/0/0", "query/0/1", "query/0/2", "query/0/3"} | ids


def test_state_with_undelivered_output_is_not_adopted_unconfirmed(tmp_path: Path, checkpoint: Path) -> None:
    """State whose last output may be undelivered is not adopted until the old checkpoint or the operator confirms."""
    world = crashed_before_delivery(tmp_path, 4)
    root, other = world.home.root, tmp_path / "other"
    other.mkdir()
    (other / "metadata").write_text('{"id": "another"}')
    for name in ("commits/3", "commits/4", "offsets/4"):  # batch 3 has to be repeated
        (checkpoint / name).unlink()
    for delivered in (False, str(checkpoint), str(other)):
        with pytest.raises(ConfigError, match="RIFFLE-0138"):
            adopt(root, str(other), delivered=delivered, execute=True)
    with pytest.raises(ConfigError, match="RIFFLE-0137"):
        adopt(root, str(checkpoint), delivered=True, execute=True)
    assert adopt(root, str(other), delivered=True).version == -1
    assert goes_on(world, checkpoint, 4) == ["repeat"]
    assert world.sinks["totals"].by_id["query/0/3"].to_pylist() == [{"k": "a", "count": 4, "total": 6}]
    (checkpoint / "commits" / "3").write_text('v1\n{"nextBatchWatermarkMs":7}')
    adopt(root, str(other), delivered=str(checkpoint), execute=True)
    world.query_id = "another"
    world.start()
    assert world.batch(0, one_row(10)).decision == "run"
    assert world.state("totals") == {"a": (5, 16)}


def test_state_without_output_rows_is_adopted_without_confirmation(tmp_path: Path, checkpoint: Path) -> None:
    """State whose last batch has no output rows is adopted without a confirmation."""
    world = World(tmp_path, deliver_after_commit=True)
    fill(world, 2)
    world.batch(2, one_row(0).slice(0, 0))
    (checkpoint / "metadata").write_text('{"id": "another"}')
    assert adopt(world.home.root, str(checkpoint), execute=True).executed


def test_a_rollback_with_the_checkpoint_of_another_query_is_refused(world: World, checkpoint: Path) -> None:
    """A rollback with the checkpoint of another query is refused and changes neither the checkpoint nor the log."""
    fill(world, 5)
    (checkpoint / "metadata").write_text('{"id": "another"}')
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    for execute in (False, True):
        with pytest.raises(ConfigError, match="RIFFLE-0140"):
            rollback(world.home.root, 2, str(checkpoint), execute=execute)
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before
    assert world.log().tail == world.driver._log.tail


def test_a_rollback_to_before_an_adoption_returns_the_state(world: World, checkpoint: Path) -> None:
    """A rollback to a record before an adoption returns the state to the earlier query."""
    fill(world, 3)
    had = newest(world)
    (checkpoint / "metadata").write_text('{"id": "another"}')
    adopt(world.home.root, str(checkpoint), execute=True)
    (checkpoint / "metadata").write_text('{"id": "query"}')
    rollback(world.home.root, f"record:{had}", str(checkpoint), execute=True)
    world.start()
    assert world.batch(3, one_row(10)).decision == "run"
    assert world.state("totals") == {"a": (4, 13)}


@pytest.mark.usefixtures("short_cycles")
def test_a_driver_fenced_by_an_adoption_deletes_nothing_i4(world: World, checkpoint: Path) -> None:
    """An adoption fences a running driver, which then deletes nothing (I4)."""
    world.start(InlineBackground(deferred=True))
    fill(world, 12)
    planned = world.background
    (checkpoint / "metadata").write_text('{"id": "another"}')
    adopt(world.home.root, str(checkpoint), execute=True)
    before = {*world.memory.list("")}
    planned.run()
    assert before <= {*world.memory.list("")}
    with pytest.raises(FencedError):
        world.batch(12, one_row(1))


def test_a_query_cannot_adopt_its_state_with_an_older_checkpoint(world: World, checkpoint: Path) -> None:
    """A query cannot adopt its own state with an older checkpoint, because rows would count twice."""
    fill(world, 4)
    newer = checkpoint.with_name("newer")
    shutil.copytree(checkpoint, newer)
    for batch in (2, 3, 4):
        (checkpoint / "commits" / str(batch)).unlink()
        (checkpoint / "offsets" / str(batch)).unlink()
    with pytest.raises(ConfigError, match="RIFFLE-0136"):
        adopt(world.home.root, str(checkpoint))
    (newer / "metadata").write_text('{"id": "another"}')
    adopt(world.home.root, str(newer), execute=True)
    with pytest.raises(ConfigError, match="RIFFLE-0136"):
        adopt(world.home.root, str(checkpoint))
    (newer / "metadata").write_text('{"id": "query"}')
    assert adopt(world.home.root, str(newer), execute=True).executed


@pytest.mark.parametrize("batches", [5, 3])
def test_a_query_cannot_adopt_the_state_that_it_already_has(world: World, checkpoint: Path, batches: int) -> None:
    """A query cannot adopt the state that it already has, because that would lose its event time and offsets."""
    fill(world, batches)
    before = world.memory.list("")
    with pytest.raises(ConfigError, match="RIFFLE-0135"):
        adopt(world.home.root, str(checkpoint), execute=True)
    assert world.memory.list("") == before
    if batches == 3:
        rollback(world.home.root, 2, str(checkpoint), execute=True)
    world.start()
    world.batch(batches, one_row(1000))


def test_a_checkpoint_file_larger_than_any_of_sparks_is_refused(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint file that is larger than any of Spark's is refused with its name."""
    fill(world, 5)
    monkeypatch.setattr(checkpoint_module, "_ENTRY_BYTES_MAX", 100)
    (checkpoint / "offsets" / "4").write_bytes(bytes(101))
    with pytest.raises(ConfigError, match="RIFFLE-0126"):
        rollback(world.home.root, 4, str(checkpoint), execute=True)


def test_adopt_empty_starts_without_state(world: World, checkpoint: Path) -> None:
    """`adopt --empty` starts without state, with the given key-groups and dispatch, and refuses a root with state."""
    root, total = world.home.root, world.settings.key_groups
    world.start()
    with pytest.raises(ConflictError):
        world.batch(5, one_row(1))
    assert adopt(root, str(checkpoint), empty=True, key_groups=64, dispatch="hashed", execute=True).executed
    for _ in range(2):
        plan = adopt(root, str(checkpoint), empty=True, key_groups=total, execute=True)
        assert f"fix dispatch key_group and {total} key-groups" in plan.steps
    assert world.batch(5, one_row(1)).decision == "run"
    (checkpoint / "metadata").write_text('{"id": "another"}')
    with pytest.raises(ConfigError, match="RIFFLE-0134"):
        adopt(root, str(checkpoint), empty=True, execute=True)


def test_a_rollback_works_with_a_checkpoint_on_an_s3_server(
    world: World, checkpoint: Path, object_server: ObjectServer
) -> None:
    """A rollback works with a checkpoint on an S3-compatible server, with the endpoint of the settings."""
    fill(world, 5)
    options = StoreOptions(s3=S3Options(endpoint=object_server.endpoint, region="us-east-1"))
    place = f"{BUCKET}/{checkpoint.parent.name}"
    objects = open_store(f"s3://{place}", options)
    for path in sorted(path for path in checkpoint.rglob("[!.]*") if path.is_file()):
        assert objects.put_if_absent(str(path.relative_to(checkpoint)), path.read_bytes())
    rollback(world.home.root, 2, f"s3a://{place}", options=options, execute=True)
    assert Checkpoint(f"s3://{place}", options).next_batch() == 3
    assert objects.get("offsets/2") == b"offsets-2"
    assert not any("/4" in name or "/3" in name for name in objects.list(""))
    world.start()
    assert world.batch(3, one_row(100)).decision == "run"
    with pytest.raises(ConfigError, match="RIFFLE-0124"):
        Checkpoint(f"s3://{place}-elsewhere", options).query_id()


@pytest.mark.usefixtures("aws_environment")
def test_an_unreachable_checkpoint_or_store_exits_with_code_3(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint or store that does not answer raises UnavailableError, and the command exits with code 3."""
    skip_pauses(monkeypatch)
    strategy = fs.AwsStandardS3RetryStrategy
    monkeypatch.setattr(fs, "AwsStandardS3RetryStrategy", lambda max_attempts: strategy(max_attempts=1))  # noqa: ARG005
    fill(world, 2)
    away = StoreOptions(s3=S3Options(endpoint="http://127.0.0.1:9", region="us-east-1"), max_attempts=1)
    spark = Checkpoint("s3://bucket/checkpoint", away)
    for call in (spark.query_id, spark.next_batch, lambda: spark.offsets(1), lambda: spark.restore(1, "offsets-1")):
        with pytest.raises(UnavailableError, match="RIFFLE-0125") as caught:
            call()
        assert caught.value.where == "s3://bucket/checkpoint"
    config = tmp_path / "riffle.toml"
    config.write_text('s3_endpoint = "http://127.0.0.1:9"\ns3_region = "x"\ns3_patience = 0\n')
    for arguments in (["s3://bucket/root"], [world.home.root, "--checkpoint", "s3://bucket/checkpoint"]):
        done = CliRunner().invoke(main, ["verify", *arguments, "--conf-file", str(config)])
        assert done.exit_code == 3, done.output


@pytest.mark.parametrize(
    ("name", "form"), [("my dir", "{}"), ("a%20b", "file:{}"), ("a#b", "file://{}"), ("a?b", "{}"), ("ä", "file://{}")]
)
def test_a_checkpoint_path_is_used_literally_as_in_spark(checkpoint: Path, name: str, form: str) -> None:
    """A checkpoint path is used literally as in Spark, whatever its characters mean in a URI."""
    folder = checkpoint.rename(checkpoint.with_name(name))
    opened = Checkpoint(form.format(folder))
    assert (opened.query_id(), opened.next_batch()) == ("query", 5)


@pytest.mark.parametrize("to", ["1_0", "٣", "record:-1", "record:" + "9" * 5000, ""])
def test_an_invalid_rollback_target_is_refused(world: World, checkpoint: Path, to: str) -> None:
    """A rollback target that is no plain number or record is refused, because a rollback removes checkpoint entries."""
    fill(world, 2)
    with pytest.raises(ConfigError, match="RIFFLE-0130"):
        rollback(world.home.root, to, str(checkpoint))


def test_a_rollback_to_adopted_state_needs_a_checkpoint_with_the_batch(world: World, checkpoint: Path) -> None:
    """A rollback to an adopted state needs a checkpoint with that batch, because the log does not have its offsets."""
    fill(world, 3)
    root = world.home.root
    (checkpoint / "metadata").write_text('{"id": "another"}')
    adopt(root, str(checkpoint), execute=True)
    world.query_id = "another"
    world.start()
    world.batch(5, one_row(10))
    older, before = checkpoint.with_name("older"), world.log().tail
    shutil.copytree(checkpoint, older)
    (older / "offsets" / "4").unlink()
    (older / "commits" / "4").unlink()
    for execute in (False, True):
        with pytest.raises(ConfigError, match="RIFFLE-0142"):
            rollback(root, 4, str(older), execute=execute)
    assert world.log().tail == before
    (checkpoint / "commits" / "4").unlink()
    rollback(root, 4, str(checkpoint), execute=True)
    assert Checkpoint(str(checkpoint)).next_batch() == 5
    world.start()
    assert world.batch(5, one_row(20)).decision == "run"
    assert world.state("totals") == {"a": (4, 23)}


class InterruptedFiles:
    """A local file system that raises KeyboardInterrupt at one of its deletes."""

    def __init__(self, deletes: int) -> None:
        self._files, self._left = LocalFileSystem(), deletes

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def delete_file(self, name: str) -> None:
        """Delete a file, or raise KeyboardInterrupt."""
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        self._files.delete_file(name)


@pytest.mark.parametrize("deletes", [1, 4])
def test_an_interrupted_rollback_leaves_no_orphaned_checksum_file(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, deletes: int
) -> None:
    """An interrupted rollback leaves no checksum file without its entry, and the same command completes it."""
    fill(world, 5)
    for batch in range(5):
        (checkpoint / "commits" / f".{batch}.crc").write_text("x")
    files_of, files = Checkpoint._files, InterruptedFiles(deletes)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "_files", lambda spark: (files, files_of(spark)[1]))
        with pytest.raises(KeyboardInterrupt):
            rollback(world.home.root, 2, str(checkpoint), execute=True)
    rollback(world.home.root, 2, str(checkpoint), execute=True)
    for folder in ("offsets", "commits"):
        names = {path.name for path in (checkpoint / folder).iterdir()}
        assert names == {"0", "1", "2", ".0.crc", ".1.crc", ".2.crc"}


@pytest.mark.parametrize("error", [OSError("read-only"), RefusedError("no rights")])
def test_a_rollback_that_fails_after_its_record_names_the_way_back(
    world: World, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A rollback that fails after its record names the record that leads back to the state before."""
    fill(world, 5)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "_remove_after", fail)
        with pytest.raises((RefusedError, UnavailableError), match="RIFFLE-0900") as caught:
            rollback(world.home.root, 3, str(checkpoint), execute=True)
    (way_back,) = re.findall(r"record:\d+", caught.value.problem)
    assert rollback(world.home.root, way_back, str(checkpoint)).version == 4
    assert rollback(world.home.root, 3, str(checkpoint), execute=True).executed
