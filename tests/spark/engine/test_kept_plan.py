"""The plan of slots is made once, and gives every batch what a plan of its own would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from riffle_spark import Stateful, StatefulJob, aggregate, count, sum_
from riffle_spark.spark.engine import kept_plan
from tests.kit.streams.streaming import Kept, settings_in

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

ADAPTIVE = "spark.sql.adaptive.enabled"
SCHEMA = "k long, v long"


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """The batches whose answers came by a plan that was kept."""
    batches: list[DataFrame] = []
    planned = kept_plan._KeptPlan.planned

    def planning(plan: kept_plan._KeptPlan, batch: DataFrame, *given: object) -> kept_plan.PlanFrame:
        made = planned(plan, batch, *given)  # type: ignore[arg-type]
        batches.append(batch)
        return made

    monkeypatch.setattr(kept_plan._KeptPlan, "planned", planning)
    return batches


def rows_of(spark: SparkSession, number: int, columns: str = SCHEMA) -> DataFrame:
    """Return a batch as a query hands it over: rows that are there."""
    return spark.createDataFrame([(k, number) for k in range(5 + number)], columns)


def job_in(folder: Path, sink: Kept, **given: object) -> StatefulJob:
    """Return running totals of each key."""
    compute = aggregate(rows=count(), total=sum_("v"))
    return Stateful("totals", "k", compute, settings=settings_in(folder, **given)).into(sink)


@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_batches_after_the_first_are_planned_no_more(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], adaptive: str
) -> None:
    """Each gets its own rows, function and counts, whether Spark plans anew while it runs or not."""
    rows = Kept()
    job = job_in(tmp_path, rows)
    spark.conf.set(ADAPTIVE, adaptive)
    for number in range(4):
        job(rows_of(spark, number), number)
    assert len(reused) == 3
    assert [report.rows for report in job.reports] == [5, 6, 7, 8]
    assert rows.latest("k")[0] == {"rows": 4, "total": 6}
    assert rows.latest("k")[7] == {"rows": 1, "total": 3}


OTHERS: dict[str, Callable[[DataFrame, int], DataFrame]] = {
    "what is left of a batch": lambda batch, number: batch.where(f"k > {number}"),
    "other columns": lambda batch, number: batch.sparkSession.createDataFrame(
        batch.selectExpr(*(["k", "v"] if number % 2 else ["v", "k"])).collect()
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_plan_is_kept_for_no_other_batch(
    spark: SparkSession, tmp_path: Path, reused: list[DataFrame], other: str
) -> None:
    """What somebody made of a batch, differently each time, and batches of other columns have plans of their own."""
    rows = Kept()
    job, expected = job_in(tmp_path, rows), dict[object, int]()
    for number in range(3):
        batch = OTHERS[other](rows_of(spark, number), number)
        job(batch, number)
        for row in batch.collect():
            expected[row.k] = expected.get(row.k, 0) + row.v
    assert not reused
    assert {k: values["total"] for k, values in rows.latest("k").items()} == expected


def test_another_layout_is_not_planned_anew(spark: SparkSession, tmp_path: Path, reused: list[DataFrame]) -> None:
    """One slot less an executor is another exchange: rows go where their slots are, and each is counted."""
    rows = Kept()
    job = job_in(tmp_path, rows)
    for number in range(5):
        if number == 2:
            job.remove_worker()
        if number == 4:
            job.add_worker()
        job(rows_of(spark, number), number)
    assert len(reused) == 4
    assert [report.rows for report in job.reports] == [5, 6, 7, 8, 9]
    assert rows.latest("k")[0] == {"rows": 5, "total": 10}
