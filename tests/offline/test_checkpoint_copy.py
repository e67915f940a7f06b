"""`riffle import` copies from Spark's checkpoint only what the query needs to continue."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from riffle_spark.errors import UnavailableError
from riffle_spark.offline.checkpoint import Checkpoint, with_added_sources


def entry(batch: int) -> str:
    """Return an offset-log entry of a file source."""
    return f'v1\n{{"batchWatermarkMs":{batch}}}\n{{"logOffset":{batch}}}'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a checkpoint with batches 0 to 4 committed and batch 5 planned, a source's log, and Spark's state."""
    folder = tmp_path / "checkpoint"
    for name in ("offsets", "commits", "sources/0", "state/0/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": "query"}))
    for batch in range(6):
        (folder / "offsets" / str(batch)).write_text(entry(batch))
        (folder / "sources/0" / str(batch)).write_text(f"v1\nfile {batch}")
        if batch < 5:
            (folder / "commits" / str(batch)).write_text(f'v1\n{{"nextBatchWatermarkMs":{batch}}}')
    (folder / "state/0/0/1.delta").write_text("state")
    return folder


def files_in(folder: Path) -> dict[str, str]:
    """Return the texts of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_what_the_next_batch_needs(source: Path, tmp_path: Path) -> None:
    """A copy has the last committed and the planned batch, with an added source, and the original stays unchanged."""
    before = files_in(source)
    original, copy = Checkpoint(str(source)), Checkpoint(str(tmp_path / "new/copy"))
    assert (original.last_committed_batch(), copy.is_empty()) == (4, True)
    original.copy_to(copy, 4, added_sources=1)
    files = files_in(tmp_path / "new/copy")
    assert {name for name in files if not name.startswith("sources")} == {
        "metadata", "offsets/3", "offsets/4", "offsets/5", "commits/4",
    }  # fmt: skip
    assert files["offsets/4"] == f"{entry(4)}\n-"
    assert (files["commits/4"], files["metadata"]) == (before["commits/4"], before["metadata"])
    assert {name: text for name, text in before.items() if name.startswith("sources")} == {
        name: text for name, text in files.items() if name.startswith("sources")
    }
    assert (copy.next_batch(), copy.last_committed_batch(), copy.query_id(), copy.is_empty()) == (5, 4, "query", False)
    assert files_in(source) == before


def test_a_source_without_a_log_is_copied_without_one(source: Path, tmp_path: Path) -> None:
    """A checkpoint without a source's log, as with a custom source, is copied without one."""
    shutil.rmtree(source / "sources")
    copy = Checkpoint(str(tmp_path / "copy"))
    Checkpoint(str(source)).copy_to(copy, 4)
    assert (copy.query_id(), copy.next_batch(), copy.newest_source_entries()) == ("query", 5, {})


def test_an_interrupted_copy_is_not_a_checkpoint(source: Path, tmp_path: Path) -> None:
    """An interrupted copy has no query id, which is written last, so no query continues from it."""
    copy = Checkpoint(str(tmp_path / "copy"))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/sources").write_text("in the way")
    with pytest.raises(UnavailableError):
        Checkpoint(str(source)).copy_to(copy, 4)
    assert copy.find_query_id() is None


def test_added_sources_have_no_offset() -> None:
    """Added sources have no offset, so Spark starts them at their beginning."""
    assert with_added_sources("v1\n{}\n1\n", 2) == "v1\n{}\n1\n-\n-"


def test_a_checkpoint_without_a_commit_has_no_batch(tmp_path: Path) -> None:
    """A checkpoint with only a planned batch has no committed batch."""
    (tmp_path / "c/offsets").mkdir(parents=True)
    (tmp_path / "c/offsets/0").write_text(entry(0))
    assert Checkpoint(str(tmp_path / "c")).last_committed_batch() == -1
