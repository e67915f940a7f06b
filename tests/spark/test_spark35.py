"""What riffle uses on Spark 3.5 instead of features that it lacks. It also works on Spark 4, and is tested on all
versions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import StorageLevel
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from riffle_spark import Settings, register_state_source
from riffle_spark.errors import ConfigError
from riffle_spark.spark.compat import error_of_class, spark35, stateful_processor
from riffle_spark.spark.imports.command import run_import

SLOT = pa.schema([("place", pa.int32()), ("slot", pa.int32()), ("value", pa.string())])
COUNTED = StructType([StructField("rows", LongType())])


def count_rows(_key: object, _none: object, rows: pa.Table) -> pa.Table:
    """Return the number of rows, as the function of a slot."""
    return pa.table({"rows": [rows.num_rows]})


def rows_in(*batches: list[tuple[int, int | None, str | None]]) -> list[dict[str, object]]:
    """Return the rows that a slot's function gets from a partition, with its slot."""
    function = spark35.slot_udf(lambda key, _, rows: rows.append_column("key", pa.array([key[0].as_py()] * len(rows))))
    partition = [pa.record_batch([*zip(*batch, strict=True)], schema=SLOT) for batch in batches]
    return [row for batch in function(iter(partition)) for row in batch.to_pylist()]


def test_a_slot_gets_the_rows_of_all_record_batches_once() -> None:
    """A slot's function is called once with all rows of the partition."""
    rows = rows_in([(3, 3, "a"), (3, 3, None)], [(3, 3, "b")])
    assert rows == [{"slot": 3, "value": value, "key": 3} for value in ("a", None, "b")]


def test_a_slot_without_rows_gets_none() -> None:
    """A slot without rows gets none: the join's row for it has only the slot."""
    assert rows_in([(3, None, None)]) == []


def test_a_slot_gets_its_only_row() -> None:
    """The only row of a slot is passed to the function, also if its value is NULL."""
    assert rows_in([(3, 3, None)]) == [{"slot": 3, "value": None, "key": 3}]


def test_a_processor_gets_the_time_and_the_watermark() -> None:
    """``TimerValues`` has the time and the watermark of the batch."""
    values = stateful_processor.TimerValues(5_000, 3_000)
    assert (values.getCurrentProcessingTimeInMs(), values.getCurrentWatermarkInMs()) == (5_000, 3_000)


@pytest.mark.parametrize(
    ("name", "parameters", "text"),
    [
        (
            "FIELD_NOT_NULLABLE_WITH_NAME",
            {"field_name": "field n"},
            "field n: This field is not nullable, but got None.",
        ),
        ("UDF_RETURN_TYPE", {"expected": "int", "actual": "str"}, "should be int, but is str."),
        ("RESULT_COLUMN_SCHEMA_MISMATCH", {"expected": "2", "actual": "1"}, "Expected: 2 Actual: 1"),
    ],
)
def test_errors_have_the_messages_of_spark_4(name: str, parameters: dict[str, str], text: str) -> None:
    """Errors on Spark 3.5 have the messages of PySpark 4."""
    error = spark35.error_of_class(PySparkTypeError, name, parameters)
    assert str(error) == str(error_of_class(PySparkTypeError, name, parameters))
    assert text in str(error)


@pytest.mark.spark
@pytest.mark.newer_spark
def test_other_heartbeats_and_sessions_without_a_jvm_are_refused(spark: SparkSession) -> None:
    """A heartbeat with an interval other than one second is refused, and so is a session without a JVM."""
    with pytest.raises(ConfigError, match="5000 ms") as refused:
        spark35.beats(spark, "k long", 5000)
    assert refused.value.id == "RIFFLE-1000"
    with pytest.raises(ConfigError, match="Spark Connect") as refused:
        spark35.conf_of(spark)
    assert refused.value.id == "RIFFLE-1001"


@pytest.mark.spark
@pytest.mark.newer_spark
def test_spark_infers_no_filters_for_the_rows_of_a_slot(spark: SparkSession) -> None:
    """Spark's optimiser infers no filters for the rows of a slot.

    To infer them it would list all constraints, whose number can grow exponentially with the columns.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # a slot has one partition
    slots = spark.range(1).withColumnRenamed("id", "slot")
    rows = spark.range(9).selectExpr("id % 1 AS slot", "id AS n")
    result = spark35.cogrouped(slots, rows, "slot", spark35.slot_udf(count_rows), COUNTED)
    plan: Any = result._jdf.queryExecution()
    assert "Filter" not in plan.optimizedPlan().toString()
    assert [row.rows for row in result.collect()] == [9]


@pytest.mark.spark
@pytest.mark.newer_spark
def test_a_stored_result_is_computed_once_and_joins_with_itself(spark: SparkSession) -> None:
    """A stored result keeps its rows on the executors, at another storage level too, and can be joined with itself."""
    computed = spark.sparkContext.accumulator(0)

    def counted(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        computed.add(1)
        yield from rows

    frame = spark.range(0, 4, 1, 1).mapInArrow(counted, "id long")
    for level in (StorageLevel.MEMORY_AND_DISK, StorageLevel.DISK_ONLY):
        before = computed.value
        stored = spark35.local_checkpoint(frame, level, eager=True)
        assert stored.join(stored.withColumnRenamed("id", "other"), F.expr("id = other")).count() == 4
        assert computed.value == before + 1


@pytest.mark.spark
@pytest.mark.newer_spark
def test_rows_tables_and_heartbeats_are_read_as_on_spark_4(spark: SparkSession, tmp_path: Path) -> None:
    """Rows become an Arrow table, the location of a table is its folder, and a heartbeat is a stream without rows."""
    assert spark35.to_arrow(spark.range(3)).to_pylist() == [{"id": 0}, {"id": 1}, {"id": 2}]
    place = tmp_path / "a b"
    spark.range(1).write.option("path", str(place)).saveAsTable("with_a_space")
    try:
        assert spark35.table_location(spark, "with_a_space", "") == f"file:{place}"
    finally:
        spark.sql("drop table with_a_space")
    beats = spark35.beats(spark, "k long, s string", 1000)
    assert (beats.isStreaming, beats.dtypes) == (True, [("k", "bigint"), ("s", "string")])


def test_the_import_of_a_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of a checkpoint is refused. The remedy is a newer PySpark, which also reads checkpoints of
    Spark 3.5.
    """
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    settings = Settings(root="file:///no/state")
    with pytest.raises(ConfigError, match=r"PySpark 3\.5\.9") as refused:
        run_import("file:///no/state", "/no/checkpoint", str, new_checkpoint=None, settings=settings, execute=False)
    assert (refused.value.id, "PySpark 4.0" in refused.value.remedy) == ("RIFFLE-1624", True)


def test_the_data_source_of_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data source of state is refused. The remedy is the function ``state_frame``, which works on Spark 3.5 too."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)  # as on Spark 3.5
    monkeypatch.delitem(sys.modules, "riffle_spark.spark.state_source", raising=False)
    no_session: Any = None
    with pytest.raises(ConfigError, match="no data sources in Python") as refused:
        register_state_source(no_session)
    assert (refused.value.id, "state_frame" in refused.value.remedy) == ("RIFFLE-1566", True)
