"""Joins of two streams are read from Spark's plan: keys, which rows may have a partner, what is compared, and when rows
of each side leave.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.stage_specs import JoinSide
from riffle_spark.spark.plans.join_plan import JoinPlan, read_join
from riffle_spark.spark.plans.plan_nodes import Catalyst
from tests.kit.stream_plans import cut_of, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

WITHIN = "k = j AND bt BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 10 SECONDS"


class Read(NamedTuple):
    """What is to be read of a join: keys, what is compared, and for each side what is kept and when it leaves."""

    how: str
    condition: str
    keys: list[str]
    compared: list[str]
    left: tuple[list[str], tuple[str | None, int]]
    right: tuple[list[str], tuple[str | None, int]]
    passes: bool = False


BOUNDS = ["compared less_equal bt", "compared_2 greater_equal bt"]
LEFT = (["at", "n", "compared", "compared_2"], ("event_time", 10_001))
RIGHT = (["bt", "m"], ("event_time", 5_001))
FORMS = {
    "within": Read("inner", WITHIN, ["k"], BOUNDS, LEFT, RIGHT),
    "before": Read("left_semi", "k = j AND bt > at - INTERVAL 20 SECONDS AND bt < at", ["k"],
                   ["compared less compared_2", "at greater compared_2"],
                   (["at", "n", "compared"], ("event_time", 0)), (["compared_2"], ("event_time", 20_000))),
    "number beside": Read("left_outer", f"{WITHIN} AND n > 3", ["k"], BOUNDS, LEFT, RIGHT, passes=True),
    "both numbers": Read("full_outer", f"{WITHIN} AND n < m", ["k"], [*BOUNDS, "n less m"], LEFT, RIGHT),
    "same time": Read("inner", "k = j AND at = bt", ["k", "at"], [], (["n"], ("at", 0)), (["m"], ("at", 0))),
    "for ever": Read("inner", "k = j", ["k"], [], (["at", "n"], (None, 0)), (["bt", "m"], (None, 0))),
}  # fmt: skip


@pytest.fixture(scope="module")
def sides(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    """Two wrapped streams."""
    left = spark.createDataFrame([], "at timestamp, k string, n long")
    right = spark.createDataFrame([], "bt timestamp, j string, m long")
    one, other = (stream_of(rows, str(tmp_path_factory.mktemp("rows"))) for rows in (left, right))
    return one.withWatermark("at", "10 seconds"), other.withWatermark("bt", "5 seconds")


def read(query: DataFrame) -> JoinPlan:
    """Return what is read of a query's one stage."""
    (stage,) = cut_of(query).stages
    return read_join(Catalyst(query.sparkSession), stage.node)


def leaves(side: JoinSide) -> tuple[list[str], tuple[str | None, int]]:
    """Return what is kept of a side, and when it leaves."""
    return side.kept.names, (side.due, side.later_ms)


@pytest.mark.parametrize("name", FORMS)
def test_keys_conditions_and_bounds_are_those_of_spark(name: str, sides: tuple[DataFrame, DataFrame]) -> None:
    """Bounds are those of its helper, asked with event times alone: a number is no time."""
    form = FORMS[name]
    spec = read(sides[0].join(sides[1], F.expr(form.condition), form.how)).spec
    compared = [f"{one.left} {one.function} {one.right}" for one in spec.compared]
    assert (spec.keys.names, sorted(compared)) == (form.keys, sorted(form.compared))
    assert (leaves(spec.left), leaves(spec.right)) == (form.left, form.right)
    assert (spec.left.passes is not None, spec.late) == (form.passes, "event_time")


@pytest.mark.parametrize("how", ["left_outer", "full_outer", "left_semi"])
def test_a_condition_that_only_spark_has_is_refused_where_partners_count(
    how: str, sides: tuple[DataFrame, DataFrame]
) -> None:
    """An inner join leaves it to Spark, behind the pairs."""
    condition = F.expr(f"{WITHIN} AND n + m > 3")
    with pytest.raises(ConfigError, match=r"no comparison is refused.*a\.n > 3 - b\.m|no comparison is refused"):
        read(sides[0].join(sides[1], condition, how))
    assert read(sides[0].join(sides[1], condition)).spec.compared != ()
