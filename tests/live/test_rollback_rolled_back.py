"""A rollback is undone by a rollback to a later record, and Spark's checkpoint moves forward by several batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, rollback, sum_
from tests.kit.streams.streaming import CollectingSink, Feed, records, run_to_end, settings_in

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("sealed", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.long
def test_spark_continues_after_a_rollback_is_rolled_back(sealed: bool, spark: SparkSession, tmp_path: Path) -> None:
    """Spark continues from the restored batch, although the offsets and commits of the batches in between are gone.

    With ``deliver_after_commit`` the restored batch is delivered once more, with the same rows.
    """
    feed, sink, checkpoint = Feed(tmp_path / "in", "k long, v long"), CollectingSink(), tmp_path / "checkpoint"
    root, job_settings = f"file://{tmp_path}/state", settings_in(tmp_path, key_groups=2, deliver_after_commit=sealed)

    def job() -> StatefulJob:
        compute = aggregate(rows=count(), total=sum_("v"))
        return Stateful("totals", "k", compute, settings=job_settings).into(sink)

    for number in range(4):
        feed.add([{"k": 1, "v": 10**number}])
    run_to_end(feed.stream(spark), job(), checkpoint)
    last = records(root)[-1].sequence
    rollback(root, 0, str(checkpoint), execute=True)
    assert sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")) == ([] if sealed else ["0"])
    plan = rollback(root, f"record:{last}", str(checkpoint), execute=True)
    assert plan.version == 3
    feed.add([{"k": 1, "v": 10**4}])
    run_to_end(feed.stream(spark), job(), checkpoint)
    assert sink.latest("k") == {1: {"rows": 5, "total": 11_111}}
    assert [call for call, _ in sink.calls] == [0, 1, 2, 3, *([3] if sealed else []), 4]
