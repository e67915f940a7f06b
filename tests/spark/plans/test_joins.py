"""Joins of two streams are read from Spark's plan: keys, comparisons, buffered columns, and when rows of each side
expire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.process.types.stage_specs import JoinSide
from riffle_spark.spark.plans.join_plan import JoinPlan, read_join
from tests.kit.stream_plans import cut_of, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

BOUNDS_ALONE = "bt BETWEEN at - INTERVAL 5 SECONDS AND at + INTERVAL 10 SECONDS"
WITHIN = f"k = j AND {BOUNDS_ALONE}"


class Read(NamedTuple):
    """A join, and its expected keys and comparisons. Each side has its buffered columns, due column and delay."""

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
                   ["compared less bt", "at greater bt"],
                   (["at", "n", "compared"], ("event_time", 0)), (["bt"], ("event_time", 20_000))),
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
    """Return the plan of the query's first stage."""
    cut = cut_of(query)
    return read_join(cut.reader, cut.stages[0].node, (), cut.stages[0].used_columns)


def leaves(side: JoinSide) -> tuple[list[str], tuple[str | None, int]]:
    """Return a side's buffered columns, and its due column and delay."""
    return side.buffered.names, (side.due, side.eviction_delay_ms)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.sample(step=2)
def test_keys_conditions_and_bounds_are_those_of_spark(name: str, sides: tuple[DataFrame, DataFrame]) -> None:
    """Keys, comparisons and expiry are those of Spark. Only comparisons of event times limit how long rows are kept."""
    form = FORMS[name]
    spec = read(sides[0].join(sides[1], F.expr(form.condition), form.how)).spec
    compared = [f"{one.left} {one.function} {one.right}" for one in spec.comparisons]
    assert (spec.keys.names, sorted(compared)) == (form.keys, sorted(form.compared))
    assert (leaves(spec.left), leaves(spec.right)) == (form.left, form.right)
    assert (spec.left.filter_column is not None, spec.event_time) == (form.passes, "event_time")


@pytest.mark.parametrize("how", ["left_outer", "full_outer", "left_semi"])
def test_a_spark_only_condition_is_refused_in_outer_and_semi_joins(
    how: str, sides: tuple[DataFrame, DataFrame]
) -> None:
    """A condition that only Spark can evaluate is refused for outer and semi joins. Spark evaluates it after an inner
    join.
    """
    condition = F.expr(f"{WITHIN} AND n + m > 3")
    with pytest.raises(ConfigError, match=REFUSED["join_condition"].id):
        read(sides[0].join(sides[1], condition, how))
    assert read(sides[0].join(sides[1], condition)).spec.comparisons != ()


STRUCTS = "if(n > 3, named_struct('a', k), null) = named_struct('a', j)"


@pytest.mark.parametrize(
    ("condition", "rule"),
    [(BOUNDS_ALONE, "join_keys"), ("k = j AND false", "join_keys"), (STRUCTS, "join_structs")],
    ids=["no equal keys", "a condition that is never true", "structs of which one may be NULL"],
)
def test_a_join_whose_keys_cannot_be_compared_in_slots_is_refused(
    condition: str, rule: str, sides: tuple[DataFrame, DataFrame]
) -> None:
    """A join is refused without a column that is equal on both sides, and with structs of which only one may be
    NULL.
    """
    with pytest.raises(ConfigError, match=REFUSED[rule].id) as refused:
        read(sides[0].join(sides[1], F.expr(condition)))
    assert refused.value.remedy


def by_function(*columns: str) -> Column:
    """Return a condition that calls a Python function with these columns."""
    return F.udf(lambda *values: None not in values, "boolean")(*columns)


OUTSIDE: dict[str, Callable[[], Column]] = {
    "a function of both sides": lambda: by_function("n", "m"),
    "a function of one side": lambda: by_function("n"),
    "a function in a key": lambda: F.udf(lambda k: k, "string")("k") == F.col("j"),
    "the current time": lambda: F.expr("at <= now()"),
    "IN": lambda: F.expr("n IN (SELECT id FROM range(3))"),
    "EXISTS": lambda: F.expr("EXISTS (SELECT 1 FROM range(3) WHERE id = m)"),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("how", ["inner", "left_outer"])
@pytest.mark.sample(step=5)
def test_a_condition_that_spark_evaluates_outside_of_the_join_is_refused(
    how: str, name: str, sides: tuple[DataFrame, DataFrame]
) -> None:
    """A condition that Spark's optimiser moves out of the join, or replaces by a constant, is refused."""
    if name == "a function of both sides" and how != "inner":
        pytest.skip("Spark's optimiser refuses it, too")
    with pytest.raises(ConfigError, match=REFUSED["join_outside"].id):
        read(sides[0].join(sides[1], F.expr(WITHIN) & OUTSIDE[name](), how))


def test_a_struct_of_one_field_is_returned_as_a_struct(sides: tuple[DataFrame, DataFrame]) -> None:
    """A join by structs of one field compares the field, and returns the structs."""
    left, right = sides[0].selectExpr("struct(k) AS s", "n"), sides[1].selectExpr("named_struct('k', j) AS t", "m")
    spec = read(left.join(right, F.expr("s = t"))).spec
    assert spec.keys.names == ["s_k"]
    assert [str(spec.output.field(name).type) for name in ("s", "t")] == ["struct<k: string>"] * 2


def test_rows_of_a_side_without_event_time_stay_for_ever(sides: tuple[DataFrame, DataFrame]) -> None:
    """A condition on the event time of one side does not let rows of a side without an event time expire."""
    since = F.expr("k = j AND at > timestamp'2024-01-01 00:00:00'")
    spec = read(sides[0].join(sides[1].select("j", "m"), since, "left_outer")).spec
    assert leaves(spec.right)[1] == (None, 0)


READERS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str], list[str], list[str]]] = {
    "a projection": (lambda rows: rows.select("m"), ["m"], ["compared", "compared_2"], ["m", "bt"]),
    "a condition": (
        lambda rows: rows.where("n > 1").select("k"), ["k_2", "n"], ["n", "compared", "compared_2"], ["bt"],
    ),
    "an aggregate": (lambda rows: rows.groupBy("n").count(), ["n"], ["n", "compared", "compared_2"], ["bt"]),
    "nothing": (lambda rows: rows.select(F.lit(1)), ["at"], ["at", "compared", "compared_2"], ["bt"]),
    "a map": (
        lambda rows: rows.mapInArrow(lambda tables: tables, rows.schema).select("n"),
        ["at", "k_2", "n", "bt", "j", "m"], ["at", "n", "compared", "compared_2"], ["bt", "m"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_join_buffers_and_returns_only_used_columns(name: str, sides: tuple[DataFrame, DataFrame]) -> None:
    """A join buffers and returns only the columns that the rest of the query and its condition use."""
    behind, output, left, right = READERS[name]
    spec = read(behind(sides[0].join(sides[1], F.expr(WITHIN)))).spec
    assert (spec.output.names, spec.left.buffered.names, spec.right.buffered.names) == (output, left, right)


def test_an_unused_event_time_makes_no_row_late(sides: tuple[DataFrame, DataFrame]) -> None:
    """Without a use of the event time, no row of the join is late, because Spark removes the column below the join."""
    joined = sides[0].join(sides[1], F.expr("k = j"))
    assert (read(joined.select("n", "m")).spec.event_time, read(joined.select("n", "at")).spec.event_time) == (
        None,
        "event_time",
    )
