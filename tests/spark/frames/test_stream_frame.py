"""A wrapped frame is a DataFrame: it has all methods, which check as Spark does and return wrapped frames."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, GroupedData, SparkSession

import riffle_spark
from riffle_spark import Settings, StatefulProcessor
from riffle_spark.errors import ConfigError
from riffle_spark.spark.compat import ClassicFrame
from riffle_spark.spark.frames.stream_frame import StreamFrame, StreamGroups
from riffle_spark.spark.plans.plan_nodes import analysed, function_id
from riffle_spark.spark.queries.group_stages import call_of
from riffle_spark.spark.queries.stream_options import options_in
from tests.kit.stream_plans import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]

SCHEMA = "at timestamp, page string, n long"
Made = Callable[[DataFrame], object]


@pytest.fixture(scope="module")
def folder(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with one row to read."""
    path = str(tmp_path_factory.mktemp("events") / "rows")
    spark.createDataFrame([(None, "p", 1)], SCHEMA).write.parquet(path)
    return path


@pytest.fixture(scope="module")
def plain(spark: SparkSession, folder: str) -> DataFrame:
    """Spark's own stream of the folder."""
    return spark.readStream.schema(SCHEMA).parquet(folder)


@pytest.fixture(scope="module")
def events(plain: DataFrame) -> DataFrame:
    """The stream, wrapped."""
    return riffle_spark.on(plain, root=ROOT)


FRAMES: dict[str, Made] = {
    "join": lambda e: e.join(e.sparkSession.range(2).withColumnRenamed("id", "n"), "n"),
    "mapInPandas": lambda e: e.mapInPandas(lambda frames: frames, SCHEMA),
    "na": lambda e: e.na.fill(0),
    "select": lambda e: e.select(e.page, e["n"]),
    "transform": lambda e: e.transform(lambda frame: frame.where("n > 1")),
    "unionByName": lambda e: e.unionByName(e),
    "withWatermark": lambda e: e.withWatermark("at", "1 minute"),
    "a list of columns": lambda e: e[["n"]],
    "a condition": lambda e: e[e.n > 1],
    "agg by names": lambda e: e.groupby("page").agg({"n": "max"}),
    "count": lambda e: e.groupBy("page").count(),
    "pivot": lambda e: e.groupBy("page").pivot("n", [1, 2]).count(),
    "applyInPandas": lambda e: e.groupBy("page").applyInPandas(lambda frame: frame, SCHEMA),
    "sql": lambda e: riffle_spark.on(e.sparkSession.sql("select page, count(*) from {e} group by page", e=e)),
}
GROUPS: dict[str, Made] = {
    "groupBy": lambda e: e.groupBy("page"),
    "groupby": lambda e: e.groupby("page"),
    "rollup": lambda e: e.rollup("page"),
    "cube": lambda e: e.cube("page"),
    "groupingSets": lambda e: e.groupingSets([["page"], []], "page"),
    "pivot": lambda e: e.groupBy("page").pivot("n", [1, 2]),
}


@pytest.mark.parametrize("name", FRAMES)
def test_each_method_returns_a_wrapped_frame(name: str, plain: DataFrame, events: DataFrame) -> None:
    """Each method returns a streaming StreamFrame with the columns of Spark's own frame."""
    frame = FRAMES[name](events)
    assert isinstance(frame, StreamFrame)
    assert isinstance(frame, DataFrame)
    assert frame.isStreaming
    assert options_in(frame).root == ROOT
    if name != "sql":
        expected = FRAMES[name](plain)
        assert isinstance(expected, ClassicFrame)
        assert frame.dtypes == expected.dtypes


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs_spark4("groupingSets")] * (name == "groupingSets"))
        for name in GROUPS
    ],
)
def test_each_grouping_method_returns_wrapped_groups(name: str, events: DataFrame) -> None:
    """Each method that returns groups returns wrapped groups."""
    groups = GROUPS[name](events)
    assert isinstance(groups, StreamGroups)
    assert isinstance(groups._df, StreamFrame)


def test_every_public_method_of_spark_is_overridden() -> None:
    """Every public method of Spark's two classes is overridden."""
    for ours, base in ((StreamFrame, ClassicFrame), (StreamGroups, GroupedData)):
        methods = {name for name in dir(base) if not name.startswith("_") and callable(getattr(base, name))}
        assert not methods - vars(ours).keys()
        assert all(inspect.signature(getattr(ours, name)) for name in methods)


def test_an_unknown_column_raises_sparks_error_in_its_line(events: DataFrame) -> None:
    """An unknown column raises Spark's error in the line that uses it. The plan in its text shows ``riffle_spark.on``
    instead of the text of another error.
    """
    with pytest.raises(AnalysisException, match=r"UNRESOLVED_COLUMN.*pagge") as raised:
        events.groupBy("page").count().where("pagge = 'a'")
    assert "RIFFLE-0600" not in str(raised.value)
    assert "riffle_spark.on\n" in str(raised.value)


def test_lists_of_frames_are_wrapped(events: DataFrame) -> None:
    """The frames in the list of ``randomSplit`` are wrapped."""
    assert [type(part) for part in events.randomSplit([0.5, 0.5], 1)] == [StreamFrame, StreamFrame]


STARTED: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    "SQL over a view": lambda events, _: events.sparkSession.sql("select page, count(*) from seen group by page"),
    "a plain frame united with a wrapped one": lambda events, plain: plain.union(events).groupBy("page").count(),
    "a static frame joined with a wrapped one": lambda events, _: (
        events.sparkSession.range(3).withColumnRenamed("id", "n").join(events, "n").groupBy("page").count()
    ),
}


@pytest.mark.parametrize("name", STARTED)
def test_a_wrapped_frame_in_a_plain_query_fails_with_a_remedy(
    name: str, plain: DataFrame, events: DataFrame, tmp_path: Path
) -> None:
    """If Spark runs a frame that contains a wrapped one, the query fails. The error says to wrap the frame, and that
    works.
    """
    events.createOrReplaceTempView("seen")
    frame = STARTED[name](events, plain)
    assert not isinstance(frame, StreamFrame)
    writer = frame.writeStream.format("noop").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="RIFFLE-0600"):
        query.processAllAvailable()
    assert isinstance(riffle_spark.on(frame), StreamFrame)


def visits(key: object, frames: Iterable[pd.DataFrame], state: object) -> Iterator[pd.DataFrame]:
    """Output nothing."""
    return iter(())


class Visits(StatefulProcessor):
    """A processor that outputs nothing."""

    def init(self, handle: object) -> None:
        """Declare nothing."""

    def handleInputRows(self, key: object, rows: object, timerValues: object) -> Iterator[pd.DataFrame]:  # noqa: ARG002
        """Output nothing."""
        return iter(())

    def close(self) -> None:
        """Do nothing."""


def check_kept(frame: DataFrame, method: str, function: object) -> None:
    """Check that the plan of a frame leads to the call of this method with this function."""
    call = call_of(function_id(analysed(frame)))
    assert call is not None
    assert (call.method, call.positional[0]) == (method, function)


def test_a_function_of_groups_is_found_in_the_plan(events: DataFrame) -> None:
    """A function of ``applyInPandasWithState`` is found from the plan."""
    counted = events.groupBy("page").applyInPandasWithState(visits, "page string", "n long", "append", "NoTimeout")
    check_kept(counted, "applyInPandasWithState", visits)
    assert call_of(None) is None


@pytest.mark.needs_spark4("transformWithState")
def test_a_processor_of_groups_is_found_in_the_plan(events: DataFrame) -> None:
    """A processor of ``transformWithStateInPandas`` is found from the plan, also below a column of event times."""
    groups = events.groupBy("page")
    processed = groups.transformWithStateInPandas(processor := Visits(), "page string", "Append", timeMode="None")
    check_kept(processed, "transformWithStateInPandas", processor)
    timed = events.withWatermark("at", "1 minute").groupBy("page")
    dated = timed.transformWithStateInPandas(
        processor, "page string, at timestamp", "Append", "EventTime", eventTimeColumnName="at"
    )
    check_kept(dated, "transformWithStateInPandas", processor)


@pytest.mark.needs_spark4("transformWithState")
def test_a_processor_that_was_applied_before_the_frame_was_wrapped_is_refused(plain: DataFrame) -> None:
    """A processor that was applied to a plain frame is refused, because Spark's plan does not have its arguments."""
    processed = plain.groupBy("page").transformWithStateInPandas(Visits(), "page string", "Append", timeMode="None")
    with pytest.raises(ConfigError, match="RIFFLE-0322") as refused:
        riffle_spark.on(processed, root=ROOT).explain()
    assert "before groupBy" in refused.value.remedy


@pytest.mark.parametrize("method", ["transformWithState", "transformWithStateInPandas"])
def test_a_method_that_this_spark_lacks_is_refused_by_name(events: DataFrame, method: str) -> None:
    """A method that this Spark version lacks is refused with its name. Spark 3.5 lacks both, Spark 4.0 the
    first one.
    """
    if hasattr(GroupedData, method):
        pytest.skip(f"this Spark has {method}")
    with pytest.raises(ConfigError, match="RIFFLE-1030") as refused:
        getattr(events.groupBy("page"), method)(Visits(), "page string", "Append", "None")
    assert refused.value.where == method


def test_root_and_settings_are_found_through_views_and_unions(events: DataFrame, plain: DataFrame) -> None:
    """The root and settings of a wrapped frame are found through views and unions with plain frames."""
    settings = Settings(root="file:///by/settings")
    frame = riffle_spark.on(plain, settings=settings)
    assert options_in(plain.union(frame)).settings == settings
    assert options_in(plain.union(frame)).root == "file:///by/settings"
    events.createOrReplaceTempView("seen")
    assert options_in(events.sparkSession.table("seen")).root == ROOT


def test_on_refuses_an_initial_state_without_a_store(plain: DataFrame) -> None:
    """Spark's own ``initialState`` is a frame. Here it is a frame per store, which the error says."""
    with pytest.raises(ConfigError, match="RIFFLE-1782"):
        riffle_spark.on(plain, root=ROOT, initial_state=plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "error_id"),
    [
        (lambda plain: plain.groupBy("page"), "RIFFLE-0302"),
        (lambda plain: plain.sparkSession.range(3), "RIFFLE-0304"),
        (lambda plain: riffle_spark.on(plain, root="/other"), "/other"),
        (lambda plain: riffle_spark.on(plain, settings=ROOT), "RIFFLE-0381"),  # type: ignore[arg-type]
    ],
)
def test_on_refuses_frames_that_cannot_be_wrapped(made: Made, error_id: str, plain: DataFrame) -> None:
    """``on`` refuses groups, static frames, a frame that is already wrapped with another root, and wrong settings."""
    with pytest.raises(ConfigError, match=error_id) as refused:
        riffle_spark.on(made(plain), root=ROOT)  # type: ignore[arg-type]
    assert refused.value.remedy
