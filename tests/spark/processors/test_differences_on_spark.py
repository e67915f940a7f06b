"""What docs/processors.md says of Spark's side of each difference is so, on the Spark at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import __version__ as spark_version
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from tests.kit.processors.both_forms import sparks_own
from tests.kit.processors.odd_inputs import NoRows, NullInNotNull, Redeclares, Tells
from tests.kit.streams import sparks_operator as native
from tests.kit.streams.streaming import Feed

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.long]

CONF = native.CONF
OLD = spark_version.startswith("4.0.")
FORMS = ["pandas"] if OLD else ["rows", "pandas"]
ROW = {"id": "a", "s": {"x": 1}, "l": [1], "m": {"k": 1}, "v": 1, "at": "2024-01-01T00:00:00Z"}
SCHEMA = "id string, s struct<x: int>, l array<int>, m map<string, int>, v int, at timestamp"
LATER = {**ROW, "at": "2024-01-01T01:00:00Z"}
HOUR_MS = 1_704_067_200_000


def stream(spark: SparkSession, folder: Path, batches: int = 1) -> DataFrame:
    """Return two rows of a key, and one of an hour later in each batch after it."""
    feed = Feed(folder / "in", SCHEMA)
    feed.add([ROW, ROW])
    for _ in range(1, batches):
        feed.add([LATER])
    return feed.stream(spark)


def natively(
    frame: DataFrame, key: str, processor: StatefulProcessor, form: str, folder: Path, mode: str = "None"
) -> list[str]:
    """Return what Spark's own operator makes of it."""
    found: list[str] = []
    result = sparks_own(frame.groupBy(key), form)(processor, "told string", "update", mode)
    writer = result.writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda frame, _: found.extend(row[0] for row in frame.collect()))
    query = writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(native.END_SECONDS)
    return sorted(found)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["s", "l", "m"])
def test_structs_alone_are_taken_as_grouping_keys(spark: SparkSession, form: str, key: str, tmp_path: Path) -> None:
    """Structs are taken; arrays and maps fail, but for maps on 4.0."""
    frame = stream(spark, tmp_path)
    if key == "s" or (key == "m" and OLD):
        assert natively(frame, key, Tells(), form, tmp_path) == [f"({ROW[key]},) 2 -1"]
    else:
        with pytest.raises(StreamingQueryException, match=r"Error setting implicit key|KeyError: '(element|key)Type'"):
            natively(frame, key, Tells(), form, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_zeros_and_nans_in_a_grouping_key(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """One zero; one NaN on 4.0, and a call a row on 4.3."""
    numbers = "explode(array(cast(0 as double), -cast(0 as double), double('NaN'), -double('NaN'))) as k"
    found = natively(stream(spark, tmp_path).selectExpr(numbers), "k", Tells(), form, tmp_path)
    if OLD:
        assert found == ["(np.float64(0.0),) 4 -1", "(np.float64(nan),) 4 -1"]
    else:
        assert found == ["(0.0,) 4 -1", *["(nan,) 1 -1"] * 4]


@pytest.mark.parametrize("form", FORMS)
def test_null_is_a_zero_where_there_can_be_none(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """In a number that is not null."""
    assert natively(stream(spark, tmp_path), "id", NullInNotNull(), form, tmp_path) == ["(0,)"]


def test_frames_without_rows_fail_where_a_type_has_to_change(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing where they have no columns either; else the batch fails where a type has to be changed."""
    frame = stream(spark, tmp_path)
    assert natively(frame, "id", NoRows(columns=False), "pandas", tmp_path) == ["end"]
    with pytest.raises(StreamingQueryException, match="ChunkedArray"):
        natively(frame, "id", NoRows(columns=True), "pandas", tmp_path / "failing")


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_init_deleted_cannot_be_declared_again(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """The query ends."""
    with pytest.raises(StreamingQueryException, match="driver worker exited unexpectedly"):
        natively(stream(spark, tmp_path), "id", Redeclares(), form, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_watermark_whose_column_is_dropped_goes_on(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """And one that never was is 0."""
    dropped = stream(spark, tmp_path, 3).withWatermark("at", "0 seconds").select("id")
    told = natively(dropped, "id", Tells(), form, tmp_path, "EventTime")
    assert told == sorted(["('a',) 2 0", f"('a',) 1 {HOUR_MS}", f"('a',) 1 {HOUR_MS + 3_600_000}"])
    without = natively(stream(spark, tmp_path / "b", 2), "id", Tells(), form, tmp_path / "without", "EventTime")
    assert without == ["('a',) 1 0", "('a',) 2 0"]


@pytest.mark.parametrize("form", FORMS)
def test_columns_that_differ_in_case_alone_are_ambiguous(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """Even where nobody names them."""
    frame = stream(spark, tmp_path).selectExpr("id", "v", "v + 1 as V")
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE"):
        natively(frame, "id", Tells(), form, tmp_path)
