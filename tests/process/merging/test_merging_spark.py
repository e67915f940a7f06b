"""Aggregates of wrapped streams have Spark's results for every supported function and type."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import datasketches
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import __version__ as spark_version
from pyspark.errors import ArithmeticException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.merging.merge_registry import _MERGES, HASHED
from riffle_spark.spark.plans.aggregate_plan import read_aggregate
from tests.kit.arrow_frames import frame_of_table
from tests.kit.stream_plans import answer, cut_of, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]

UTC = timezone.utc
ROWS, KEYS, BATCHES = 300, 40, 5
ANSI = "spark.sql.ansi.enabled"
FLOATS = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.1, 0.7, -1.5, 3e30]
TEXTS = ["", "a", "B", "é", "zz", "\U0001f600", "￮"]

VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "byte": (pa.int8(), lambda chance: chance.randint(-128, 127)),
    "int": (pa.int32(), lambda chance: chance.randint(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), lambda chance: chance.randint(-(2**59), 2**59)),
    "small": (pa.int64(), lambda chance: chance.randint(0, 4)),
    "huge": (pa.int64(), lambda chance: chance.choice([0, 1, 2**62])),
    "float": (pa.float32(), lambda chance: chance.choice(FLOATS)),
    "double": (pa.float64(), lambda chance: chance.choice(FLOATS)),
    "even": (pa.float64(), lambda chance: 1e6 + chance.gauss(0, 3)),
    "other": (pa.float64(), lambda chance: chance.uniform(-5, 5)),
    "money": (pa.decimal128(10, 2), lambda chance: Decimal(chance.randint(-(10**9), 10**9)).scaleb(-2)),
    "edge": (pa.decimal128(38, 0), lambda chance: Decimal(chance.choice([0, 1, 7, 10**38 - 1]))),
    "text": (pa.string(), lambda chance: chance.choice(TEXTS)),
    "octets": (pa.binary(), lambda chance: chance.choice([b"", b"\x00", b"\xff", b"a"])),
    "truth": (pa.bool_(), lambda chance: chance.random() < 0.5),
    "day": (pa.date32(), lambda chance: date(chance.randint(1900, 2100), 1, 1)),
    "at": (pa.timestamp("us", tz="UTC"), lambda chance: datetime(chance.randint(1900, 2100), 1, 1, tzinfo=UTC)),
    "span": (pa.duration("us"), lambda chance: timedelta(seconds=chance.randint(-9, 9))),
    "far": (pa.duration("us"), lambda chance: timedelta(microseconds=chance.choice([0, 1, 2**62]))),
    "pair": (
        pa.struct([("x", pa.float64()), ("y", pa.string())]),
        lambda chance: {"x": chance.choice([None, *FLOATS]), "y": chance.choice([None, *TEXTS])},
    ),
    "list": (pa.list_(pa.int64()), lambda chance: chance.choices([None, 1, -2, 2**62], k=chance.randint(0, 3))),
}  # fmt: skip

QUERIES: dict[str, Sequence[str]] = {
    "counts": ["count(*)", "count(long)", "count_if(truth)", "count(text, even)", "regr_count(even, other)"],
    "sums": ["sum(byte)", "sum(int)", "sum(long)", "sum(small) filter (where truth)", "sum(double)", "sum(float)",
             "sum(span)", "sum(money)", "sum(edge)", "sum(huge)", "sum(small) / count(small)", "try_sum(small)",
             "try_sum(double)", "try_sum(money)", "try_sum(edge)", "try_sum(huge)", "try_sum(span)", "try_sum(far)"],
    "averages": ["avg(int)", "avg(long)", "avg(float)", "avg(double)", "avg(money)", "avg(span)", "try_avg(small)",
                 "try_avg(money)", "avg(edge)", "try_avg(edge)", "avg(small) filter (where truth)",
                 "regr_avgx(other, even)", "try_avg(span)", "try_avg(far)"],
    "products": ["product(other)", "product(double)", "bit_and(byte)", "bit_or(int)", "bit_xor(long)",
                 "bit_xor(long) filter (where truth)"],
    "least": [f"min({name})" for name in VALUES] + ["bool_and(truth)", "every(truth)"],
    "greatest": [f"max({name})" for name in VALUES] + ["bool_or(truth)", "some(truth)"],
    "extremes by": [f"{name}({column}, {by})" for name in ("max_by", "min_by")
                    for column, by in (("number", "small"), ("text", "pair"), ("list", "double"), ("pair", "text"),
                                       ("number", "money"), ("octets", "truth"), ("long", "at"))]
                   + ["max_by(number, small) filter (where truth)"],
    "picks": [f"{name}({column}{ignored}){clause}" for name in ("first", "last", "any_value")
              for column in ("long", "text", "pair", "list", "money") for ignored in ("", ", true")
              for clause in ("", " filter (where truth)")],
    "moments": [f"{name}({column})" for column in ("even", "small")
                for name in ("stddev_pop", "stddev_samp", "var_pop", "var_samp", "skewness", "kurtosis")]
               + ["stddev(other) filter (where truth)", "variance(double)", "skewness(double)"],
    "pairs": [f"{name}(even, other)" for name in ("corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept",
                                                  "regr_r2", "regr_sxx", "regr_sxy", "regr_syy")]
             + ["corr(small, small)", "regr_slope(small, small)"],
    "constants": ["corr(number - number, even)", "regr_slope(even, 3)", "stddev(0.1)", "regr_r2(3, even)",
                  "regr_r2(even, 3)"],
    "lists": ["collect_list(long)", "array_agg(text)", "collect_list(pair)", "collect_list(list)", "listagg(text)",
              "listagg(text, ', ')", "collect_list(small) filter (where truth)"],
    "sets": [f"collect_set({name})" for name in ("small", "text", "octets", "money", "day", "double", "pair", "list")]
            + ["collect_set(small) filter (where truth)"],
    "quantiles": [f"percentile_approx({name}, 0.5)" for name in ("byte", "int", "even", "day", "at", "span")]
                 + ["approx_percentile(money, array(0.0, 0.1, 0.25, 0.9, 1.0))", "percentile_approx(number, 0.34, 50)",
                    "percentile_approx(float(small), 0.75)",
                    "percentile_approx(number, array(0.66)) filter (where truth)"],
    "sketches": [f"hll_sketch_estimate({call})" for call in (
        "hll_sketch_agg(int)", "hll_sketch_agg(long, 9)", "hll_sketch_agg(text)", "hll_sketch_agg(octets)",
        "hll_sketch_agg(text collate UTF8_LCASE)", "hll_sketch_agg(number) filter (where truth)",
        "hll_union_agg(sketch)", "hll_union_agg(uneven, true)",
        "hll_union(hll_sketch_agg(number), hll_union_agg(sketch))",
    )],
}  # fmt: skip
"""Every function of the registry, by kind. ``number`` is the number of the row."""

if spark_version.startswith("3.5."):
    QUERIES = {
        name: [text for text in texts if not text.startswith("listagg") and " collate " not in text]
        for name, texts in QUERIES.items()
    }
ONLY_SPARK4 = {"ListAgg"} if spark_version.startswith("3.5.") else set()
"""Functions of the registry that the installed Spark does not have."""

ESTIMATES = [f"approx_count_distinct({name})" for name in VALUES] + [
    "approx_count_distinct(number, 0.01)", "approx_count_distinct(number) filter (where truth)",
]  # fmt: skip
"""Spark aggregates them in a separate, imperative way, so they are a separate query."""

OVERFLOWS = (ArithmeticException, Py4JJavaError)
"""Exceptions of an overflow. Spark 3.5 raises the second one if it collects a frame as Arrow."""
OVERFLOWING = {
    "true": ("sum(huge)", "sum(edge)", "avg(edge)", "sum(far)", "avg(far)"),
    "false": ("sum(far)", "avg(far)"),
}
"""Aggregates that overflow, by the value of Spark's ANSI setting."""


def drawn() -> pa.Table:
    """Return rows of all types. A third of the values is null, and one key has only nulls."""
    chance = random.Random(13)
    keys = [chance.randrange(KEYS) for _ in range(ROWS)]
    columns = {
        name: pa.array([draw(chance) if key and chance.random() > 0.3 else None for key in keys], type)
        for name, (type, draw) in VALUES.items()
    }
    sketches = {
        name: [_sketch(chance, bits) for _ in range(ROWS)] for name, bits in (("sketch", [12]), ("uneven", [9, 11]))
    }
    return pa.table({"k": pa.array(keys, pa.int64()), "number": range(ROWS), **columns, **sketches})


def _sketch(chance: random.Random, bits: list[int]) -> bytes | None:
    """Return a sketch of random values, as another program may write it, or none."""
    sketch = datasketches.hll_sketch(chance.choice(bits), datasketches.tgt_hll_type.HLL_4)
    for value in chance.sample(range(50), chance.randint(0, 12)):
        sketch.update(value)
    forms = sketch.serialize_updatable, sketch.serialize_compact
    return None if chance.random() < 0.3 else bytes(chance.choice(forms)())


def comparable(value: Any) -> Any:
    """Return a value that compares equal if Spark's value is the same. Floats are compared approximately."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else pytest.approx(value, rel=1e-9, abs=1e-9)
    if isinstance(value, dict):
        return {name: comparable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def as_set(values: list[Any]) -> list[str]:
    """Return the distinct values of a set in one order, with -0.0 as 0.0. Versions of Spark differ in both."""
    return sorted({repr(value).replace("-0.0", "0.0") for value in values})


def by_key(rows: Iterable[Row]) -> dict[int, dict[str, Any]]:
    """Return rows by their keys."""
    return {
        row["k"]: {
            name: (as_set if name.startswith("collect_set") else comparable)(value)
            for name, value in row.asDict(recursive=True).items()
        }
        for row in rows
    }


def column(text: str) -> Column:
    """Return the aggregate of a SQL text. `product` is a function of Python only."""
    expression = F.product(text[8:-1]) if text.startswith("product(") else F.expr(text)
    return expression.alias(text)


CASES = [*((name, "false") for name in QUERIES), ("sums", "true"), ("averages", "true")]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Return the rows as a frame of one partition, so that their order is fixed."""
    return frame_of_table(spark, drawn()).localCheckpoint()


@pytest.fixture(scope="module")
def stream(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a wrapped stream of the schema of these rows."""
    return stream_of(rows, str(tmp_path_factory.mktemp("rows")))


def aggregated(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    """Return aggregates by key."""
    return frame.groupBy("k").agg(*map(column, texts))


@pytest.mark.parametrize(
    ("name", "ansi"),
    [pytest.param(*case, marks=[pytest.mark.long] if number % 2 else []) for number, case in enumerate(CASES)],
)
@pytest.mark.sample("counts-false", "moments-false")
def test_results_of_merged_buffers_equal_sparks_aggregates(
    spark: SparkSession, rows: DataFrame, stream: DataFrame, name: str, ansi: str
) -> None:
    """For every supported function, Spark's result from merged buffers is that of its own aggregate.

    Rows in one batch and rows in several batches give the same result.
    """
    spark.conf.set(ANSI, ansi)
    texts = [text for text in QUERIES[name] if text not in OVERFLOWING[ansi]]
    theirs = by_key(aggregated(rows, texts).collect())
    for batches in (1, BATCHES):
        merged, _ = answer(aggregated(stream, texts), rows, batches=batches)
        ours = by_key(merged)
        assert ours.keys() == theirs.keys()
        pairs = [(ours[key], row) for key, row in theirs.items()]
        assert not {text: (own[text], row[text]) for own, row in pairs for text in texts if own[text] != row[text]}


def test_estimates_of_merged_registers_equal_sparks(rows: DataFrame, stream: DataFrame) -> None:
    """For every type that Spark hashes, the estimates from merged registers are those of Spark."""
    rows, stream = (frame.withColumn("k", F.col("k") % 3) for frame in (rows, stream))
    merged, (spec,) = answer(aggregated(stream, ESTIMATES), rows, batches=BATCHES)
    assert {function.function for function in spec.functions} == HASHED
    assert by_key(merged) == by_key(aggregated(rows, ESTIMATES).collect())


@pytest.mark.parametrize(("ansi", "text"), [(ansi, text) for ansi, texts in OVERFLOWING.items() for text in texts])
@pytest.mark.sample("true-sum(huge)", "true-avg(edge)")
def test_sums_overflow_with_sparks_error_in_sparks_modes(
    spark: SparkSession, rows: DataFrame, stream: DataFrame, ansi: str, text: str
) -> None:
    """In ANSI mode, sums of integers and decimals overflow with Spark's error. Sums of intervals do in both modes."""
    spark.conf.set(ANSI, ansi)
    with pytest.raises(OVERFLOWS, match=r"ARITHMETIC_OVERFLOW"):
        aggregated(rows, [text]).collect()
    with pytest.raises((*OVERFLOWS, UserFunctionError), match=r"ARITHMETIC_OVERFLOW"):
        answer(aggregated(stream, [text]), rows, batches=BATCHES)


@pytest.mark.long
def test_the_queries_contain_every_function_of_the_registry(spark: SparkSession, stream: DataFrame) -> None:
    """The queries contain every function of the registry."""
    spark.conf.set(ANSI, "false")
    cuts = [cut_of(aggregated(stream, texts)) for texts in QUERIES.values()]
    specs = [read_aggregate(cut.reader, stage.node).spec for cut in cuts for stage in cut.stages]
    names = {function.function for spec in specs for function in spec.functions}
    assert names == _MERGES.keys() - HASHED - ONLY_SPARK4
