"""Aggregates of a stream return Spark's results for the same rows.

An aggregate is read from Spark's plan. Rows are projected to one-row buffers, merged in slots, and evaluated by Spark's
expressions below the rest of the plan.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from riffle_spark import top_k, user_aggregate
from riffle_spark.errors import ConfigError
from riffle_spark.process.merging.user_aggregate import TopRows
from riffle_spark.process.plans.cut import Input
from riffle_spark.process.plans.rules import REFUSED
from riffle_spark.process.types.stage_specs import AggregateSpec, Buffer, TimeSpec
from riffle_spark.spark import compat
from riffle_spark.spark.plans.aggregate_plan import read_aggregate
from riffle_spark.spark.plans.plan_nodes import Catalyst
from tests.kit.process.user_aggregates import Latest, WeightedMean
from tests.kit.stream_plans import answer, cut_of, merge_in_slots, stream_of, with_rows

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

Query = Callable[[DataFrame], DataFrame]
COLUMNS = (
    "timestamp_seconds(1700000000 + id) as at", "concat('p', id % 3) as page", "if(id % 7 = 0, null, id) as n",
    "cast(id as decimal(10, 2)) as price", "id % 3 = 0 as ok", "cast(id % 11 as double) / 3 as d",
    "if(id % 4 = 0, null, named_struct('a', id % 2, 'b', named_struct('c', if(id % 5 = 0, null, 'x')))) as s",
)  # fmt: skip


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows with NULL, structs and decimals, in one partition, so that their order is fixed."""
    return spark.range(0, 120, 1, 1).selectExpr(*COLUMNS).localCheckpoint()


@pytest.fixture(scope="module")
def events(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A wrapped stream with the columns of these rows."""
    return stream_of(rows, str(tmp_path_factory.mktemp("events")))


def in_windows(frame: DataFrame) -> DataFrame:
    """An aggregate by window and key, with a condition on the result and a projection."""
    windows = frame.withWatermark("at", "10 seconds").groupBy(F.window("at", "20 seconds"), "page")
    counted = windows.agg(F.count("*").alias("c"), F.sum("n").alias("t"), F.count("n"))
    return counted.where("c > 6 and t > 0").select("window.start", "window", "page", (F.col("t") * 2).alias("tt"))


def of_all_kinds(frame: DataFrame) -> DataFrame:
    """Functions with filters, in expressions, that Spark rewrites, and over decimals, strings and structs."""
    return frame.groupBy("page").agg(
        F.count("n").alias("c"), F.expr("sum(n) filter (where ok) + 1").alias("sf"), F.avg("n").alias("a"),
        F.expr("count_if(ok)").alias("ci"), F.sum(F.col("price") * 2).alias("s"), F.avg("price"),
        F.stddev("d").alias("sd"), (F.sum("n") / F.count("n")).alias("ratio"), F.max_by("price", "n").alias("mb"),
        F.min("s"), F.max("page"), F.bool_and("ok"), F.expr("try_sum(n)"), F.expr("bit_or(n)"), F.first("n"),
        F.expr("last(n, true)"), F.expr("any_value(d)"),
    )  # fmt: skip


SHAPES: dict[str, tuple[Query, list[str]]] = {
    "window": (in_windows, ["aggregate.window-page"]),
    "functions": (of_all_kinds, ["aggregate.page"]),
    "sliding": (lambda e: e.groupBy(F.window("at", "20 seconds", "10 seconds")).count(), ["aggregate.window"]),
    "struct key": (lambda e: e.groupBy("s", "s.b").agg(F.max("n")), ["aggregate.s-b"]),
    "no key": (lambda e: e.groupBy().agg(F.max("n"), F.count("*").alias("c")).where("c > 1"), ["aggregate.all"]),
    "computed key": (
        lambda e: e.groupBy((F.length("page") + F.col("n") % 3).alias("k")).agg((F.sum("n") + 1).alias("x")),
        ["aggregate.k"],
    ),
    "cube": (lambda e: e.cube("page", "ok").count(), ["aggregate.page-ok-spark_grouping_id"]),
    "collected": (
        lambda e: e.groupBy("page").agg(F.collect_list("n").alias("l"), F.expr("collect_list(d) filter (where ok)")),
        ["aggregate.page"],
    ),
    "window of windows": (
        lambda e: e.withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds"), "page").count()
        .groupBy(F.window(F.window_time("window"), "30 seconds")).agg(F.sum("count").alias("s")),
        ["aggregate.window-page", "aggregate.window"],
    ),
    "no function": (lambda e: e.select("page", "ok").groupBy("page", "ok").agg(F.lit(1)), ["aggregate.page-ok"]),
    "same key twice": (
        lambda e: e.groupBy("page", "ok").count().groupBy("page", "ok").agg(F.max("count").alias("m")),
        ["aggregate.page-ok", "aggregate.page-ok-2"],
    ),
    "in Spark's order": (lambda e: e.groupBy("page").count().orderBy(F.desc("page")).limit(2), ["aggregate.page"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.sample(step=4)
def test_an_aggregate_of_one_batch_returns_sparks_rows(name: str, rows: DataFrame, events: DataFrame) -> None:
    """An aggregate of one batch returns Spark's rows and column order. Stores are named after their keys."""
    query, stores = SHAPES[name]
    results, specs = answer(query(events), rows)
    expected = query(rows)
    assert [spec.store for spec in specs] == stores
    assert not results or list(results[0].asDict()) == expected.columns
    assert _in_order(results) == _in_order(expected.collect())


def test_the_feeding_query_reads_only_needed_columns(rows: DataFrame, tmp_path: Path) -> None:
    """The query that feeds ``foreachBatch`` reads only the needed columns, and Spark moves its watermark."""
    rows.write.parquet(str(tmp_path / "in"))
    spark, cut = Catalyst(rows.sparkSession), cut_of(in_windows(stream_of(rows, str(tmp_path / "in"))))
    plan, results = read_aggregate(cut.reader, cut.stages[0].node), list[Row]()

    def take(batch: DataFrame, number: int) -> None:
        assert number == 0
        results.extend(spark.frame(cut.top.fill({0: merge_in_slots(plan, batch)})).collect())

    writer = spark.frame(plan.map_side.fill({0: cut.reader.build(cut.values.inputs[0].plan)})).writeStream.foreachBatch(
        take
    )
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert _in_order(results) == _in_order(in_windows(rows).collect())
    (read,) = re.findall(r"ReadSchema: (.*)", str(query._jsq.explainInternal(False)))
    progress = query.lastProgress
    assert progress is not None
    assert progress["eventTime"]["max"] == "2023-11-14T22:15:19.000Z"
    assert read == "struct<at:timestamp,page:string,n:bigint>"


def test_results_and_later_stages_have_the_time_of_their_batch(rows: DataFrame, events: DataFrame) -> None:
    """Every function of the current time returns the batch's time, before and after the merge, so a repeated batch is
    equal.
    """
    query = (
        events.groupBy("page").agg(F.now().alias("t"), F.count("n").alias("c"))
        .groupBy("t").agg(F.max(F.unix_millis(F.current_timestamp())).alias("m"), F.current_date().alias("d"))
    )  # fmt: skip
    (row,), _ = answer(query, rows, 1_700_000_000_123)
    assert (row["m"], str(row["d"]), row["t"].microsecond) == (1_700_000_000_123, "2023-11-14", 123_000)


def test_floating_point_keys_have_one_zero_and_one_nan(spark: SparkSession, tmp_path: Path) -> None:
    """Floating-point keys are normalised as in Spark: there is one zero and one NaN."""
    text = "case id % 4 when 0 then 0.0D when 2 then double('NaN') when 1 then -0.0D else -double('NaN') end as z"
    rows = spark.range(0, 8, 1, 1).selectExpr(text, "named_struct('f', cast(0 as float) * if(id > 3, -1, 1)) as f")
    cut = cut_of(stream_of(rows, str(tmp_path)).groupBy("z", "f").count())
    plan, catalyst = read_aggregate(cut.reader, cut.stages[0].node), Catalyst(spark)
    sent = catalyst.frame(
        plan.map_side.fill({0: with_rows(catalyst, cut.reader.build(cut.values.inputs[0].plan), rows)})
    )
    keys = {struct.pack(">dd", row["z"], row["f_f"]) for row in sent.collect()}
    assert keys == {struct.pack(">dd", 0.0, 0.0), struct.pack(">dd", float("nan"), 0.0)}


def test_the_specification_has_keys_types_literals_and_event_time(events: DataFrame) -> None:
    """The specification has keys, types, literals and the event time. The end of a window is compared with the
    watermark.

    A literal is part of the specification and not sent with each row.
    """
    spec = spec_of(
        events.withWatermark("at", "10 seconds").groupBy(F.window("at", "20 seconds"), "page")
        .agg(F.count("*").alias("orders"), F.avg("n").alias("mean"), F.sum("price") + 1,
             F.max("d").alias("d"), F.max(F.unix_date(F.current_date())).alias("today"))
    )  # fmt: skip
    stamp = pa.timestamp("us", "UTC")
    assert [*zip(spec.keys.names, spec.keys.types, strict=True)] == [
        ("window_start", stamp), ("window_end", stamp), ("page", pa.string()),
    ]  # fmt: skip
    assert spec.time == TimeSpec("window_end", 10_000, "time", "window_start")
    counted, mean, total, greatest, newest = spec.functions
    assert [(buffer.name, buffer.literal, buffer.meaning) for buffer in counted.buffers] == [
        ("orders", 1, "count(1): count")
    ]
    assert [(buffer.name, buffer.type) for buffer in mean.buffers] == [
        ("mean_sum", pa.float64()), ("mean_count", pa.int64()),
    ]  # fmt: skip
    assert [buffer.name for buffer in total.buffers] == ["sum(price)", "sum(price)_isEmpty"]
    assert [function.function for function in spec.functions] == ["Count", "Average", "Sum", "Max", "Max"]
    assert dict(total.options)["evalMode"] in ("ANSI", "LEGACY")
    assert spec.rows.names == [
        *spec.keys.names,
        "mean_sum",
        "mean_count",
        "sum(price)",
        "sum(price)_isEmpty",
        "d",
        "today",
    ]
    assert newest.buffers[0].literal is None
    assert greatest.buffers[0].type == pa.float64()


def test_a_constant_struct_is_sent_with_each_row(events: DataFrame) -> None:
    """A constant of a nested type is sent with each row, because only numbers and booleans are literals."""
    spec = spec_of(events.groupBy("page").agg(F.expr("max(struct(1, 'a'))").alias("pair")))
    assert spec.rows.names == ["page", "pair"]
    assert spec.functions[0].buffers[0].literal is None


@pytest.mark.long
def test_store_and_column_names_contain_no_ids_of_spark(events: DataFrame) -> None:
    """Names of stores and columns contain no ids of Spark. The metadata of a key can name its store."""
    query = lambda: events.groupBy((F.col("n") % 3).alias("k", metadata={"riffle.store": "visits"})).agg(  # noqa: E731
        F.sum("n") + F.max("n"), F.sum("d").alias("K")
    )
    assert spec_of(query()) == spec_of(query())
    assert (spec_of(query()).store, spec_of(query()).rows.names) == ("visits", ["k", "sum(n)", "max(n)", "K_2"])
    twice = spec_of(events.groupBy("page").agg(F.max("n").alias("most"), F.max("n").alias("greatest")))
    assert [buffer.name for function in twice.functions for buffer in function.buffers] == ["most"]
    events.createOrReplaceTempView("seen")
    text = "select {0}.n % 3, sum({0}.d) / max(n) AS m from seen AS {0} group by {0}.n % 3, upper({0}.page)"
    called = lambda name: spec_of(events.sparkSession.sql(text.format(name)))  # noqa: E731
    assert called("some") == called("others")
    assert called("some").functions[0].buffers[0].meaning == "sum(d): sum"
    with pytest.raises(ConfigError, match="RIFFLE-0410"):
        spec_of(events.groupBy(F.col("page").alias("p", metadata={"riffle.store": "a b"})).count())


@pytest.mark.parametrize(
    "query",
    [
        lambda e: e.rollup(F.to_date("at"), "page").agg(F.count("*").alias("c")),
        lambda e: e.groupBy("page").agg(F.count("*").alias("c"), F.max("n").alias("m")).where("m > 0").select("page"),
        lambda e: having(e, "SELECT page, count(*) AS c FROM {} GROUP BY page HAVING max(n) > 0 AND avg(n) > 1"),
        lambda e: having(e, "SELECT page, count(*) AS c FROM {} GROUP BY page ORDER BY sum(n) DESC"),
        lambda e: having(e, "SELECT page, n % 2, count(*) FROM {} GROUP BY CUBE(page, n % 2)"),
    ],
)
@pytest.mark.sample(step=2)
def test_a_query_that_is_built_again_has_the_same_store_and_columns(
    query: Query, events: DataFrame, rows: DataFrame, tmp_path: Path
) -> None:
    """A query over a new stream has the same store, columns and meanings, although Spark's column ids differ."""
    assert stored(query(events)) == stored(query(stream_of(rows, str(tmp_path))))


def having(frame: DataFrame, statement: str) -> DataFrame:
    """Return the frame of an SQL statement over a view of the frame."""
    frame.createOrReplaceTempView("events_of_statement")
    return frame.sparkSession.sql(statement.format("events_of_statement"))


def test_a_time_key_without_window_is_compared_with_the_watermark_itself(events: DataFrame) -> None:
    """Without a window, the first key with a watermark is the event time, as in Spark. Without a watermark no
    key ends.
    """
    late = events.withWatermark("at", "3 seconds").groupBy("page", "at").count()
    assert spec_of(late).time == TimeSpec("at", 3000)
    assert spec_of(events.groupBy("page", "at").count()).time is None


def in_sessions(frame: DataFrame) -> DataFrame:
    """An aggregate of sessions with two gaps."""
    gap = F.when(F.col("n") % 5 == 0, "2 seconds").otherwise("3 seconds")
    return frame.groupBy(F.session_window("at", gap), "page").agg(F.count("*").alias("c"), F.sum("n").alias("t"))


def test_sessions_are_merged_as_in_spark(rows: DataFrame, events: DataFrame) -> None:
    """Slots merge sessions as Spark does."""
    results, _ = answer(in_sessions(events), rows)
    assert _in_order(results) == _in_order(in_sessions(rows).collect())


def estimated(frame: DataFrame) -> DataFrame:
    """Approximate distinct counts with several errors, over structs, with a filter, and in expressions."""
    return frame.groupBy("ok").agg(
        F.approx_count_distinct("n").alias("u"), (F.approx_count_distinct("d", 0.01) * 2).alias("v"),
        F.expr("approx_count_distinct(s) filter (where page = 'p1')"), F.approx_count_distinct("price"), F.count("*"),
        F.expr("hll_sketch_estimate(hll_sketch_agg(n)) AS w"), F.expr("hll_sketch_estimate(hll_sketch_agg(page, 8))"),
    )  # fmt: skip


def exact(frame: DataFrame) -> DataFrame:
    """Distinct aggregates beside others, of several columns, of structs, with filters and with NULL."""
    return frame.groupBy("ok").agg(
        F.count_distinct("n").alias("n"), (F.sum_distinct("n") + F.max("n")).alias("s"), F.expr("avg(distinct d)"),
        F.count_distinct("s", "d"), F.expr("count(distinct page) filter (where n > 90)").alias("p"), F.count("*"),
        F.expr("max(distinct n)"), F.expr("sum(distinct price)"),
        F.expr("sort_array(collect_set(distinct page)) as pages"),
    )  # fmt: skip


def of_users(frame: DataFrame) -> DataFrame:
    """Users' aggregate functions of one and of several columns, in an expression and in SQL."""
    mean, latest = user_aggregate(WeightedMean()), user_aggregate(Latest(3))
    frame.sparkSession.udf.register("latest", latest)
    return frame.groupBy("ok").agg(
        mean("d", "n").alias("m"), (mean(F.col("n") + 1, F.lit(2)) / 2).alias("h"), latest("n").alias("l"),
        F.expr("size(latest(length(page)))"),
    )  # fmt: skip


def estimated_in_sessions(frame: DataFrame) -> DataFrame:
    """Approximate counts and percentiles of sessions that merge."""
    gap = F.when(F.col("n") % 5 == 0, "2 seconds").otherwise("3 seconds")
    sessions = frame.groupBy(F.session_window("at", gap), "page")
    sketched = F.hll_sketch_estimate(F.hll_sketch_agg("n"))
    return sessions.agg(F.approx_count_distinct("n"), F.percentile_approx("n", [0.2, 0.5]), F.count("*"), sketched)


def of_users_in_sessions(frame: DataFrame) -> DataFrame:
    """Users' aggregate functions of sessions that merge."""
    sessions = frame.groupBy(F.session_window("at", "2 seconds"), "ok")
    return sessions.agg(user_aggregate(WeightedMean())("d", "n"), user_aggregate(Latest(3))("n"))


@pytest.mark.parametrize("query", [estimated, exact, of_users, estimated_in_sessions, of_users_in_sessions])
@pytest.mark.sample("of_users")
def test_functions_that_keep_values_return_sparks_results(query: Query, rows: DataFrame, events: DataFrame) -> None:
    """Functions that keep values return Spark's results after their values were merged over two batches."""
    results, _ = answer(query(events), rows, batches=2)
    assert _in_order(results) == _in_order(query(rows).collect())


def test_a_row_is_sent_once_more_per_distinct_aggregate(rows: DataFrame, events: DataFrame) -> None:
    """A row is sent once for its group, and once more for each distinct aggregate that counts its value."""
    counts = [F.expr("count(distinct n) filter (where ok)"), F.count_distinct("s", "d"), F.count("*")]
    spark, cut = Catalyst(rows.sparkSession), cut_of(events.groupBy("page").agg(*counts))
    plan, (below,) = read_aggregate(cut.reader, cut.stages[0].node), cut.stages[0].below
    assert isinstance(below, Input)
    sent = compat.to_arrow(spark.frame(plan.map_side.fill({0: with_rows(spark, cut.reader.build(below.plan), rows)})))
    row_counts = sorted(Counter(sent["distinct_for"].to_pylist()).values())
    assert row_counts == sorted([rows.where("ok and n is not null").count(), rows.where("s is not null").count(), 120])


def test_the_specification_names_distinct_and_approximate_aggregates(events: DataFrame) -> None:
    """The specification has the error of an approximate count. A distinct aggregate is named, and so are its value
    columns in the store's name.
    """
    first, second, *_ = spec_of(estimated(events)).functions
    assert first.buffers[0].meaning == "approx_count_distinct(n), relativeSD 0.05, of bigint"
    assert second.buffers[0].meaning == "approx_count_distinct(d), relativeSD 0.01, of double"
    spec = spec_of(events.groupBy("page").agg(F.count_distinct("n").alias("page_2"), F.count("*").alias("c")))
    assert (spec.store, spec.elements.names) == ("exact.page-n", ["distinct_for", "n"])
    assert [function.distinct for function in spec.functions] == ["count(DISTINCT n)", None]
    assert (spec.routing_key.names, spec.stored_key.names) == (["page"], ["page", "distinct_for", "n"])


@pytest.mark.parametrize(
    ("function", "meanings"), [("approx_count_distinct(n)", 3), ("hll_sketch_agg(n)", 2)], ids=["HLL++", "HLL"]
)
def test_a_type_that_changes_hashes_is_part_of_the_meaning(function: str, meanings: int, events: DataFrame) -> None:
    """The type of a hashed column is part of the meaning, because another type would count stored values again.
    Sketches hash integers of both sizes alike.
    """
    typed = [events.withColumn("n", F.col("n").cast(kind)) for kind in ("int", "bigint", "string")]
    specs = [spec_of(each.groupBy("page").agg(F.expr(function).alias("c"))) for each in typed]
    assert len({spec.functions[0].inputs[0].meaning for spec in specs}) == meanings


def test_distinct_aggregates_of_sessions_are_refused(events: DataFrame) -> None:
    """Distinct aggregates of sessions are refused, and so is a session without another key, as in Spark."""
    with pytest.raises(ConfigError, match="RIFFLE-0316"):
        spec_of(events.groupBy(F.session_window("at", "5 seconds")).count())
    with pytest.raises(ConfigError, match=REFUSED["distinct"].id):
        spec_of(events.groupBy(F.session_window("at", "5 seconds"), "page").agg(F.count_distinct("n")))


def test_the_specification_has_the_end_time_of_a_session(events: DataFrame) -> None:
    """A session's time is its end, with the watermark delay or None. Rows are routed by the other keys only."""
    spec, timed = spec_of(in_sessions(events)), spec_of(in_sessions(events.withWatermark("at", "3 seconds")))
    ends = "session_window_end", "session_window_start"
    assert spec.time == TimeSpec(ends[0], None, "session", ends[1])
    assert timed.time == TimeSpec(ends[0], 3000, "session", ends[1])
    assert spec.routing_key.names == timed.routing_key.names == ["page"]


def test_an_aggregate_without_keys_is_marked_as_keyless(events: DataFrame) -> None:
    """An aggregate without keys is marked as keyless. An aggregate by the literal 0 is not."""
    spec = spec_of(events.groupBy().count())
    assert (spec.keyless, spec.keys.names) == (True, ["all_rows"])
    assert not spec_of(events.groupBy(F.lit(0).alias("all_rows")).count()).keyless


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("percentile(d, 0.5)", "own_buffer"),
        ("mode(n)", "own_buffer"),
        pytest.param(
            "listagg(page, ',') within group (order by page)",
            "ordered_texts",
            marks=pytest.mark.needs_spark4("listagg"),
        ),
        ("collect_list(distinct n)", "distinct"),
        pytest.param("listagg(distinct page)", "distinct", marks=pytest.mark.needs_spark4("listagg")),
        pytest.param("listagg(cast(page as binary))", "ordered_texts", marks=pytest.mark.needs_spark4("listagg")),
    ],
)
def test_an_unsupported_function_is_refused_by_name(events: DataFrame, text: str, term: str) -> None:
    """An unsupported function is refused with its name in the query and with what to use instead."""
    with pytest.raises(ConfigError, match=REFUSED[term].id) as refused:
        spec_of(events.groupBy("page").agg(F.expr(text)))
    assert refused.value.remedy
    assert refused.value.where.startswith(text.partition("(")[0])


def test_a_pivot_is_refused_with_a_remedy(events: DataFrame) -> None:
    """A pivot is refused, because only Spark's operators can merge its second buffer."""
    timed = events.withWatermark("at", "10 seconds").groupBy(F.window("at", "10 seconds"))
    cut = cut_of(timed.pivot("page", ["p0", "p1"]).sum("n"))
    first, second = cut.stages
    with pytest.raises(ConfigError, match=REFUSED["own_buffer"].id):
        read_aggregate(cut.reader, second.node, (read_aggregate(cut.reader, first.node).spec.store,))


def test_the_specification_has_a_users_function_and_its_argument(events: DataFrame) -> None:
    """The specification has a user's function with its argument. Its buffer has the name of the result."""
    latest = user_aggregate(Latest(3))
    spec = spec_of(events.groupBy("page").agg(F.count("*").alias("c"), latest("n").alias("l")))
    (_, function) = spec.functions
    assert (function.user_function, function.argument) == (
        Latest(3),
        Buffer("l", pa.struct([("0", pa.int64())]), "Latest(n)"),
    )
    assert spec.output.field("l").type == pa.list_(pa.int64())


def test_top_k_keeps_the_rows_that_its_call_names(events: DataFrame) -> None:
    """``top_k`` returns a list of rows with the declared columns, whatever the names of its arguments are."""
    spec = spec_of(events.groupBy("page").agg(top_k(2, "score double, name string")("d", "page").alias("best")))
    (function,) = spec.functions
    row = pa.struct([("score", pa.float64()), ("name", pa.string())])
    assert spec.output.field("best").type == pa.list_(row)
    assert function.user_function == TopRows(2, "score double, name string")


def test_an_expression_that_spark_computes_once_is_part_of_the_meaning(events: DataFrame) -> None:
    """Spark computes the condition of ``count_if`` once, under a number that differs in each start. The meaning of the
    result has the condition instead, as on Spark 3.5, so that state continues after a change of Spark's version.
    """
    (function,) = spec_of(events.groupBy("page").agg(F.expr("count_if(page LIKE 'a%')").alias("x"))).functions
    condition = "page LIKE 'a%'"
    printed = f"(IF(({condition} = false), CAST(NULL AS BOOLEAN), {condition}))"
    assert function.buffers[0].meaning.startswith(f"count({printed})")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("last(n, true)", {"ignoreNulls": "True"}),
        ("first(n)", {"ignoreNulls": "False"}),
        ("hll_union_agg(cast(page as binary), true)", {"allowDifferentLgConfigK": "True"}),
        pytest.param("listagg(page, '; ')", {"delimiter": "; "}, marks=pytest.mark.needs_spark4("listagg")),
        pytest.param("listagg(page, ';' || ' ')", {"delimiter": "; "}, marks=pytest.mark.needs_spark4("listagg")),
    ],
)
def test_the_specification_has_the_options_of_a_function(text: str, options: dict[str, str], events: DataFrame) -> None:
    """The specification has the arguments of a function that are not columns, because slots merge by them."""
    (function,) = spec_of(events.groupBy("ok").agg(F.expr(text).alias("x"))).functions
    assert dict(function.options) == options


@pytest.mark.needs_spark4("collations")
def test_buffers_of_collated_text_are_plain_text(events: DataFrame) -> None:
    """Slots keep collated text as plain text, and count its approximate number by its collation key."""
    collated = events.selectExpr("ok", "n", "page collate UTF8_LCASE AS v")
    spec = spec_of(collated.groupBy("ok").agg(F.max_by("v", "n").alias("m"), F.approx_count_distinct("v").alias("u")))
    first, _ = spec.functions
    assert first.buffers[0].type == pa.string()


@pytest.mark.parametrize("wrong", [Latest, max, "Latest"])
def test_user_aggregate_refuses_other_objects(wrong: object) -> None:
    """``user_aggregate`` refuses an object that is not a user's function."""
    with pytest.raises(ConfigError, match="RIFFLE-0317"):
        user_aggregate(wrong)  # type: ignore[arg-type]


def test_an_aggregate_function_of_pandas_is_refused(events: DataFrame) -> None:
    """An aggregate function of pandas is refused, because it needs all rows of a group at once."""

    @F.pandas_udf("long")  # type: ignore[call-overload, untyped-decorator]
    def longest(texts: pd.Series) -> int:
        return int(texts.str.len().max())

    with pytest.raises(ConfigError, match=REFUSED["user_function"].id):
        spec_of(events.groupBy("page").agg(longest("page")))


def test_a_key_that_depends_on_a_random_column_is_refused(events: DataFrame) -> None:
    """A key that depends on a random column is refused. A random column that is not a key is allowed."""
    drawn = events.withColumn("drawn", F.rand()).where("n > 1").withColumnRenamed("drawn", "r")
    for key in (F.col("r"), F.floor(F.col("r") * 3)):
        with pytest.raises(ConfigError, match=REFUSED["random_key"].id):
            spec_of(drawn.groupBy("page", key).count())
    assert spec_of(drawn.groupBy("page", F.expr("n % 2 AS odd")).agg(F.max("r"))).keys.names == ["page", "odd"]


def spec_of(query: DataFrame) -> AggregateSpec:
    """Return the specification of a query's first stage."""
    return stored(query)[0]


def stored(query: DataFrame) -> tuple[AggregateSpec, Mapping[str, str]]:
    """Return the specification of a query's first stage, and the meanings of its keys."""
    cut = cut_of(query)
    plan = read_aggregate(cut.reader, cut.stages[0].node)
    return plan.spec, plan.keys


def _in_order(rows: list[Row]) -> list[list[object]]:
    """Return the rows sorted, with floating-point numbers rounded to nine digits."""
    rounded = [[float(f"{value:.9g}") if isinstance(value, float) else value for value in row] for row in rows]
    return sorted(rounded, key=repr)
