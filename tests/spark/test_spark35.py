"""What Spark 3.5 gets in place of what it lacks. It also works on Spark 4, so it is tested on each line."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from riffle_spark import Settings, register_state_source
from riffle_spark.errors import ConfigError
from riffle_spark.spark.compat import error_of_class, spark35, stateful_processor
from riffle_spark.spark.imports.command import run_import

SLOT = pa.schema([("place", pa.int32()), ("slot", pa.int32()), ("value", pa.string())])
COUNTED = StructType([StructField("rows", LongType())])


def count_rows(_key: object, _none: object, rows: pa.Table) -> pa.Table:
    """Return the number of a slot's rows, as a slot's function."""
    return pa.table({"rows": [rows.num_rows]})


def rows_in(*batches: list[tuple[int, int | None, str | None]]) -> list[dict[str, object]]:
    """Return the slot and the rows that a slot's function gets from a partition, one dictionary per row."""
    function = spark35.slot_udf(lambda key, _, rows: rows.append_column("key", pa.array([key[0].as_py()] * len(rows))))
    partition = [pa.record_batch([*zip(*batch, strict=True)], schema=SLOT) for batch in batches]
    return [row for batch in function(iter(partition)) for row in batch.to_pylist()]


def test_a_slot_gets_the_rows_of_all_record_batches_once() -> None:
    """Its function is called once, with the rows of the partition and the number of the slot."""
    rows = rows_in([(3, 3, "a"), (3, 3, None)], [(3, 3, "b")])
    assert rows == [{"slot": 3, "value": value, "key": 3} for value in ("a", None, "b")]


def test_a_slot_without_rows_gets_none() -> None:
    """The row that the join leaves of such a slot has only its number."""
    assert rows_in([(3, None, None)]) == []


def test_a_slot_gets_its_only_row() -> None:
    """It is not taken for the row of a slot without rows, also if its value is null."""
    assert rows_in([(3, 3, None)]) == [{"slot": 3, "value": None, "key": 3}]


def test_a_processor_gets_the_time_and_the_watermark() -> None:
    """Each is that of the batch."""
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
    """On Spark 4 the messages are PySpark's own; those of Spark 3.5 are equal."""
    error = spark35.error_of_class(PySparkTypeError, name, parameters)
    assert str(error) == str(error_of_class(PySparkTypeError, name, parameters))
    assert text in str(error)


@pytest.mark.spark
@pytest.mark.newer_spark
def test_what_spark_35_cannot_do_is_refused(spark: SparkSession) -> None:
    """A heartbeat of another interval than a second, and a session without a JVM."""
    with pytest.raises(ConfigError, match="5000 ms") as refused:
        spark35.beats(spark, "k long", 5000)
    assert refused.value.id == "RIFFLE-1000"
    with pytest.raises(ConfigError, match="Spark Connect") as refused:
        spark35.conf_of(spark)
    assert refused.value.id == "RIFFLE-1001"


@pytest.mark.spark
@pytest.mark.newer_spark
def test_spark_infers_no_filters_for_the_rows_of_a_slot(spark: SparkSession) -> None:
    """It would list all constraints of the rows first. Their number can grow exponentially with the columns."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")  # as a slot has a partition of its own
    slots = spark.range(1).withColumnRenamed("id", "slot")
    rows = spark.range(9).selectExpr("id % 1 AS slot", "id AS n")
    result = spark35.cogrouped(slots, rows, "slot", spark35.slot_udf(count_rows), COUNTED)
    plan: Any = result._jdf.queryExecution()
    assert "Filter" not in plan.optimizedPlan().toString()
    assert [row.rows for row in result.collect()] == [9]


def test_the_import_of_a_checkpoint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is a newer PySpark, which also reads checkpoints of 3.5. No session is started."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    settings = Settings(root="file:///no/state")
    with pytest.raises(ConfigError, match=r"PySpark 3\.5\.9") as refused:
        run_import("file:///no/state", "/no/checkpoint", str, new_checkpoint=None, settings=settings, execute=False)
    assert (refused.value.id, "PySpark 4.0" in refused.value.remedy) == ("RIFFLE-1624", True)


def test_the_data_source_of_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy is the function, which Spark 3.5 has too."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)  # as on Spark 3.5
    monkeypatch.delitem(sys.modules, "riffle_spark.spark.state_source", raising=False)
    no_session: Any = None
    with pytest.raises(ConfigError, match="no data sources in Python") as refused:
        register_state_source(no_session)
    assert (refused.value.id, "state_frame" in refused.value.remedy) == ("RIFFLE-1566", True)
