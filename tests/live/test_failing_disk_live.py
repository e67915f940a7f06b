"""The local disk of an executor becomes read-only in a real query: batches commit on the other executor until it
recovers.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.protocol.ownership import discovery
from riffle_spark.spark.engine import inventory
from tests.kit.failing_disks import own_disk
from tests.kit.streams.streaming import PATIENCE_SECONDS, CollectingSink, rest, settings_in

pytestmark = pytest.mark.cluster

MASTER = "local-cluster[2,1,600]"
KEYS = 24


def test_a_member_with_a_read_only_folder_is_set_aside_until_its_repair(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member whose folder becomes read-only is set aside with a warning, and the batch runs again on the other
    executor.

    The member gets slots again when its disk is writable. Every batch has the right totals.
    """
    monkeypatch.setattr(discovery, "_ASIDE_SECONDS", 1.0)  # private: sooner
    settings = settings_in(tmp_path)
    assert len(inventory.await_executors(spark, settings, expected=2)) == 2
    sink, batches = CollectingSink(), 0
    job = Stateful("totals", "k", aggregate(rows=count(), total=sum_("v")), settings=settings).into(sink)

    def feed() -> None:
        nonlocal batches
        job(spark.range(KEYS).selectExpr("id k", "id v"), batches)
        batches += 1
        assert sink.latest("k") == {k: {"rows": batches, "total": batches * k} for k in range(KEYS)}
        rest(job)

    deadline = time.monotonic() + PATIENCE_SECONDS
    while batches < 2 or len(job.reports[-1].owners) < 2:
        assert time.monotonic() < deadline, "both executors take part"
        feed()
    member = job.members()[0]
    folder = next(tmp_path.glob(f"local/*/{member.id}"))
    with own_disk(folder, "read-only") as disk:
        feed()
        assert job.reports[-1].runs == 1
        disk.fail()
        feed()
        report = job.reports[-1]
        assert (report.runs, member.executor in report.owners) == (2, False)
        assert any(f"executor {member.executor} is set aside" in text for text in report.warnings), report.warnings
        feed()
        assert job.reports[-1].runs == 1
        disk.recover()
        while member.executor not in job.reports[-1].owners:
            assert time.monotonic() < deadline + PATIENCE_SECONDS, job.reports[-1].warnings
            feed()
        assert {report.runs for report in list(job.reports)[-3:]} == {1}
    assert member.id in {m.id for m in job.members()}
