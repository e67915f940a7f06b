"""A query in Spark continues the checkpoint, root and local folder of an earlier version of riffle."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Settings, StatefulJob, rollback, together
from tests.kit.roots.diary_query import DDL, as_json, operators
from tests.kit.roots.old_root import ARCHIVES, OldRoot
from tests.kit.streams.streaming import Feed, rest

pytestmark = pytest.mark.spark


def run(spark: SparkSession, old: OldRoot, files: int) -> StatefulJob:
    """Run the query over the batches that Spark has already planned and then ``files`` new files, one per batch."""
    settings = Settings(root=old.root, local_dir=str(old.folder / "local"), key_groups=8, snapshot_chain_links=4)
    jobs = [operator.into(lambda frame, _: frame.collect()) for operator in operators()]
    job, feed = together(*jobs, settings=settings), Feed(old.folder / "in", DDL)
    writer = feed.stream(spark).writeStream.foreachBatch(job).option("checkpointLocation", old.checkpoint)
    for _ in range(files):
        feed.add(as_json(old.next_file))
        old.next_file += 1
    query = writer.start()
    query.processAllAvailable()
    rest(job)
    query.stop()
    return job


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
@pytest.mark.long
def test_a_query_continues_after_an_upgrade_and_is_rolled_back_before_it(
    spark: SparkSession, tmp_path: Path, archive: Path
) -> None:
    """The query runs two batches, and is then rolled back to a batch from before the upgrade. Spark reads all files
    since then in one batch.
    """
    old = OldRoot(archive, tmp_path)
    first, oracle = old.next_file, old.oracle(22)
    job = run(spark, old, 2)
    for number in range(first, old.next_file):
        oracle.feed([number])
    assert [report.decision for report in job.reports] == ["run", "run"]
    assert old.committed_state() == oracle.state
    rollback(old.root, 20, old.checkpoint, execute=True)
    back, later_files = old.oracle(20), [*old.expected["batches"][21], *old.expected["batches"][22]]
    run(spark, old, 0)
    back.feed([*later_files, *range(first, old.next_file)])
    assert old.committed_state() == back.state
