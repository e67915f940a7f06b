"""Checkpoints are compared with the state, and moved to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.checkpoint_comparison import describe_mismatch
from riffle_spark.state.log.record import Record
from tests.kit.printed_commands import printed
from tests.kit.roots.spark_checkpoint import commit_batch, written_checkpoint
from tests.kit.state.drawn_records import PLAIN

ROOT = "s3://bucket/state"


def record(version: int, offsets: str | None = None) -> Record:
    """Return the record of a batch of the query with its number."""
    return replace(PLAIN, sequence=version, version=version, query_id="query", offsets=offsets or f"offsets-{version}")


def of_files(entry: int) -> str:
    """Return an offset-log entry of a file source that has read up to an entry of its own log."""
    return f'v1\n{{}}\n{{"logOffset":{entry}}}'


def compare(checkpoint: Path, tail: Record, records: Mapping[int, Record]) -> tuple[str, str]:
    """Return the problem and the remedy of a checkpoint that does not fit."""
    mismatch = describe_mismatch(Checkpoint(str(checkpoint)), ROOT, tail, records, lambda: ())
    assert mismatch is not None
    return mismatch


def test_a_planned_batch_with_other_offsets_is_a_mismatch(tmp_path: Path) -> None:
    """A planned batch with other offsets than those of its commit would change rows, and the checkpoint is moved."""
    checkpoint = written_checkpoint(tmp_path, 4)
    (checkpoint / "offsets" / "4").write_text("other")
    problem, remedy = compare(checkpoint, record(4), {4: record(4)})
    assert "plans batch 4 with other offsets" in problem
    assert printed(remedy)[0][0] == "rollback"
    assert "--to 4" in remedy


def test_an_older_checkpoint_whose_batch_is_not_retained_is_moved_forward(tmp_path: Path) -> None:
    """A checkpoint before all retained batches cannot be matched by a rollback, so it is moved to the state."""
    checkpoint = written_checkpoint(tmp_path, 2)
    problem, remedy = compare(checkpoint, record(6), {6: record(6)})
    assert problem == "Spark's next batch is 2, but the state is at batch 6."
    assert "move the checkpoint to the state's batch" in remedy
    assert "--to 6" in remedy
    _, back = compare(checkpoint, record(6), {1: record(1), 6: record(6)})
    assert "roll back: " in back
    assert "--to 1" in back


def test_a_checkpoint_without_the_files_of_any_batch_matches_nothing(tmp_path: Path) -> None:
    """If a file source's log ends before every retained batch, no rollback can help."""
    checkpoint = written_checkpoint(tmp_path, 0)
    for batch in range(5):
        commit_batch(checkpoint, batch, of_files(batch))
    (checkpoint / "sources" / "0").mkdir(parents=True)
    (checkpoint / "sources" / "0" / "3").write_text("v1")
    problem, remedy = compare(checkpoint, record(4, of_files(4)), {4: record(4, of_files(4))})
    assert "the state needs entry 4 of a file source's log, which ends with 3" in problem
    assert remedy.endswith("No retained batch matches this checkpoint.")
    _, back = compare(checkpoint, record(4, of_files(4)), {3: record(3, of_files(3)), 4: record(4, of_files(4))})
    assert "--to 3" in back


def test_a_first_batch_that_runs_again_has_no_committed_batch_before_it(tmp_path: Path) -> None:
    """A restored checkpoint in which batch 0 runs again has no commit, and keeps the plan of batch 0."""
    checkpoint = written_checkpoint(tmp_path, 5)
    steps = Checkpoint(str(checkpoint)).restore(0, "offsets-0", runs_again=True)
    assert steps[0] == "removed commits/4"
    assert Checkpoint(str(checkpoint)).next_batch() == 0
    assert list((checkpoint / "commits").glob("[0-9]*")) == []
    assert (checkpoint / "offsets" / "0").read_text() == "offsets-0"


@pytest.mark.parametrize("commit", ["", "v1", 'v1\n{"nextBatchWa'])
def test_a_truncated_commit_is_written_again(tmp_path: Path, commit: str) -> None:
    """A restored checkpoint has a whole commit of its last batch. A truncated one would stop Spark at the start."""
    checkpoint = written_checkpoint(tmp_path, 5)
    whole = (checkpoint / "commits" / "3").read_text()
    (checkpoint / "commits" / "3").write_text(commit)
    offsets = (checkpoint / "offsets" / "3").read_text()
    assert "wrote commits/3" in Checkpoint(str(checkpoint)).restore(3, offsets)
    assert (checkpoint / "commits" / "3").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    (checkpoint / "commits" / "3").write_text(whole)
    assert Checkpoint(str(checkpoint)).restore(3, offsets) == []


def test_a_source_that_would_not_continue_at_the_state_is_named(tmp_path: Path) -> None:
    """A source whose offset differs from the state's is named, but not one that is new or has no offset yet."""
    checkpoint = written_checkpoint(tmp_path, 5)
    (checkpoint / "offsets" / "4").write_text('v1\n{}\n{"events":{"0":5}}')
    state = 'v1\n{}\n{"events":{"0":7}}\n-\n{"clicks":{"0":1}}'
    (gap,) = Checkpoint(str(checkpoint)).describe_start_gaps(4, state)
    assert gap.startswith('Source 0 continues from {"events":{"0":5}}, but the state is at {"events":{"0":7}}.')
    assert Checkpoint(str(checkpoint)).describe_start_gaps(4, 'v1\n{}\n{"events": {"0": 5}}') == []
