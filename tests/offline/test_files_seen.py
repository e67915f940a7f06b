"""Rollbacks and checks of checkpoints whose file sources keep a log of the files that they have read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from riffle_spark.offline.checkpoint import describe_missing_entries
from riffle_spark.offline.recovery import adopt, rollback
from riffle_spark.offline.verify import verify
from tests.kit.printed_commands import printed
from tests.kit.simulated.world import World, one_row

BATCHES, BACKED_UP, LATER = 12, 7, "v1\n{}\n"
KAFKA = '{"events":{"0":%d}}'


class Query:
    """A query with one source, the checkpoint that Spark would write, and an older copy of the checkpoint."""

    def __init__(self, folder: Path, offset: str, *, keeps_files: bool) -> None:
        self.world = World(folder / "local", root=f"file://{folder}/my state", retained_versions=100)
        self.folder, self.checkpoint, self.offset = folder, folder / "check point", offset
        for name in ("offsets", "commits", "sources/0"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
        if not keeps_files:
            (self.checkpoint / "sources" / "0" / "0").write_text("where it began")
        for version in range(BATCHES):
            if keeps_files:
                whole = ".compact" if version % 10 == 9 else ""
                (self.checkpoint / "sources" / "0" / f"{version}{whole}").write_text("v1\nfiles")
            self.run(version)
            if version == BACKED_UP:
                shutil.copytree(self.checkpoint, folder / "backup")

    def run(self, version: int) -> str:
        """Run a batch and write the checkpoint files that Spark writes."""
        offsets = LATER + self.offset % version
        (self.checkpoint / "offsets" / str(version)).write_text(offsets)
        decision = self.world.batch(version, one_row(version), offsets=offsets).decision
        (self.checkpoint / "commits" / str(version)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        return decision

    def restore(self) -> None:
        """Replace the checkpoint by the older copy."""
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.folder / "backup", self.checkpoint)


def riffle(*arguments: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def files(tmp_path: Path) -> Query:
    """Return a query with a file source and a copy of its checkpoint after batch 7."""
    return Query(tmp_path, '{"logOffset":%d}', keeps_files=True)


def test_the_rollback_printed_for_a_restored_checkpoint_works(files: Query) -> None:
    """After a checkpoint was restored from a backup, the printed rollback command works and the query continues."""
    files.restore()
    (finding,) = verify(files.world.home.root, str(files.checkpoint)).findings
    (arguments,) = printed(finding.remedy)
    assert arguments[arguments.index("--to") + 1] == str(BACKED_UP)
    assert riffle(*arguments).exit_code == 0
    assert verify(files.world.home.root, str(files.checkpoint)).is_whole
    files.world.start()
    assert files.run(BACKED_UP + 1) == "run"


@pytest.mark.parametrize(("to", "execute"), [(BATCHES - 1, False), (f"record:{BATCHES}", True)])
def test_a_rollback_to_files_that_the_checkpoint_lacks_is_refused(files: Query, to: int | str, execute: bool) -> None:
    """A rollback to a batch whose files the checkpoint does not list is refused before it changes anything."""
    files.restore()
    with pytest.raises(ConfigError, match="RIFFLE-0141") as caught:
        rollback(files.world.home.root, to, str(files.checkpoint), execute=execute)
    assert sorted(path.name for path in (files.checkpoint / "offsets").iterdir()) == [
        str(batch) for batch in range(BACKED_UP + 1)
    ]
    ((command, *_),) = printed(caught.value.remedy)
    assert command == "verify"


def test_a_rollback_of_a_rollback_can_return_to_later_batches(files: Query) -> None:
    """A rollback keeps the log of files, so that a rollback of the rollback can return to later batches."""
    root, checkpoint = files.world.home.root, str(files.checkpoint)
    rollback(root, 3, checkpoint, execute=True)
    rollback(root, f"record:{BATCHES}", checkpoint, execute=True)
    assert verify(root, checkpoint).is_whole
    files.world.start()
    assert files.run(BATCHES) == "run"


def test_a_source_that_stores_only_offsets_can_be_rolled_forward(tmp_path: Path) -> None:
    """A source that stores only offsets, such as Kafka, can be rolled forward with an older checkpoint."""
    kafka = Query(tmp_path, KAFKA, keeps_files=False)
    kafka.restore()
    rollback(kafka.world.home.root, BATCHES - 1, str(kafka.checkpoint), execute=True)
    assert verify(kafka.world.home.root, str(kafka.checkpoint)).is_whole
    kafka.world.start()
    assert kafka.run(BATCHES) == "run"


def test_adopt_warns_of_sources_that_start_elsewhere(tmp_path: Path) -> None:
    """`riffle adopt` warns if a source of the new checkpoint starts elsewhere, because rows would be missed or counted
    twice.
    """
    for name, offset in (("files", '{"logOffset":%d}'), ("rate", "%d"), ("kafka", KAFKA)):
        query = Query(tmp_path / name, offset, keeps_files=name == "files")
        new = tmp_path / name / "new"
        (new / "sources" / "0").mkdir(parents=True)
        (new / "metadata").write_text('{"id": "another"}')
        for begins in (0, BATCHES - 1):
            (new / "sources" / "0" / "0").write_text("\0v1\n" + offset % begins)
            warned = [step for step in adopt(query.world.home.root, str(new)).steps if step.startswith("warning: ")]
            assert len(warned) == (name != "kafka" or begins == 0)
            assert all(("missed" if name == "kafka" else "count all its rows again") in step for step in warned)


def test_adopt_with_an_older_checkpoint_warns_of_its_offsets(files: Query) -> None:
    """`riffle adopt` with an older copy of the checkpoint warns about the offsets at which the query would continue."""
    (files.checkpoint / "metadata").write_text('{"id": "another"}')
    assert len(adopt(files.world.home.root, str(files.checkpoint)).steps) == 1
    files.restore()
    (files.checkpoint / "metadata").write_text('{"id": "another"}')
    (warned,) = adopt(files.world.home.root, str(files.checkpoint)).steps[1:]
    assert '{"logOffset":7}, but the state is at {"logOffset":11}' in warned


@pytest.mark.parametrize(
    ("offsets", "seen", "is_short"),
    [
        (['{"logOffset":7}'], {0: 7}, False),
        (['{"logOffset":7}'], {0: 6}, True),
        (['{"logOffset":7}'], {}, False),
        (['{"logOffset":-1}'], {}, False),
        ([KAFKA % 9, '{"logOffset":7}'], {0: 0, 1: 7}, False),
        ([KAFKA % 9, '{"logOffset":7}'], {0: 0, 1: 6}, True),
        (['{"logOffset":7}', '{"logOffset":3}'], {0: 7, 1: 2}, True),
        (['{"logOffset":7}', '{"logOffset":7}'], {0: 7}, False),
        (['{"logOffset":7}', "3"], {0: 6}, True),
        (["-", "7"], {0: 0}, False),
        (['{"logOffset":3}', '{"logOffset":9}'], {1: 9}, True),
        (['{"logOffset":3}', '{"logOffset":9}'], {0: 3}, True),
        (["7", '{"logOffset":9}'], {1: 9}, False),
        (['{"logOffset":7}', '{"logOffset":7}', '{"logOffset":3}'], {0: 7, 1: 3}, False),
        (['{"logOffset":7}', '{"logOffset":7}', '{"logOffset":9}'], {0: 7, 1: 3}, True),
    ],
)
def test_only_file_sources_need_log_entries(offsets: list[str], seen: dict[int, int], is_short: bool) -> None:
    """Only file sources need log entries. A source that is read twice has two offsets, and one in memory no entry."""
    assert bool(describe_missing_entries(LATER + "\n".join(offsets), seen)) == is_short
