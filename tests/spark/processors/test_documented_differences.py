"""riffle's side of each difference from Spark is as docs/processors.md states it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.types import StringType, StructType

from riffle_spark import (
    StatefulProcessor,
    StatefulProcessorHandle,
    transform_with_state,
    transform_with_state_in_pandas,
)
from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine.routing import watermark_in
from riffle_spark.spark.processors.spark_processor import declare
from riffle_spark.testing import Harness
from tests.kit.processors.columns import Columns
from tests.kit.processors.visit_processors import Visits
from tests.kit.streams.processor_runs import ScriptedProcessor

pytestmark = pytest.mark.newer_spark


def test_a_name_that_init_deleted_cannot_be_declared_again() -> None:
    """A variable that ``init`` deleted cannot be declared again, because it would be emptied in every batch."""

    def init(_: Any, handle: Any) -> None:
        handle.getValueState("v", "n int")
        handle.deleteIfExists("v")
        with pytest.raises(PySparkRuntimeError, match="init deletes state v"):
            handle.getValueState("v", "n int")

    declare(ScriptedProcessor(init=init), "None")


@pytest.mark.parametrize("kind", [pa.struct([("x", pa.int64())]), pa.list_(pa.int64())], ids=str)
def test_a_nested_grouping_key_is_refused(kind: pa.DataType) -> None:
    """A nested grouping key is refused."""
    operator = transform_with_state(Columns(), key="k", output="key string, told string")
    with pytest.raises(ConfigError, match="RIFFLE-0119"):
        Harness(operator, pa.schema([("k", kind)]))


class CallRecorder(StatefulProcessor):
    """A processor that outputs the key, the number of rows and the watermark of each call, or NULL."""

    def __init__(self, *, null: bool = False) -> None:
        self._null = null

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Output them in the form of the input."""
        row_list = list(rows)
        number = sum(len(one) if isinstance(one, pd.DataFrame) else 1 for one in row_list)
        text = None if self._null else f"{key!r} {number} {timerValues.getCurrentWatermarkInMs()}"
        yield pd.DataFrame({"told": [text]}) if isinstance(row_list[0], pd.DataFrame) else Row(told=text)


class Keys(StatefulProcessor):
    """A processor that counts the rows of a key, and also returns an empty frame and a frame without columns."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Count the rows."""
        yield pd.DataFrame()
        yield pd.DataFrame({"n": [sum(map(len, rows))], "told": [str(key)]})
        yield pd.DataFrame({"n": [], "told": []})


def test_keys_have_one_zero_and_one_nan_and_empty_frames_are_ignored() -> None:
    """Float keys have one zero and one NaN, and empty output frames are ignored."""
    operator = transform_with_state_in_pandas(Keys(), key="k", output="n long, told string")
    with Harness(operator, pa.schema([("k", pa.float64())])) as query:
        found = query.feed([{"k": key} for key in (-0.0, 0.0, float("nan"), -float("nan"), 1.0)])
    assert {row["told"]: row["n"] for row in found} == {"(0.0,)": 2, "(nan,)": 2, "(1.0,)": 1}


@pytest.mark.parametrize("make", [transform_with_state, transform_with_state_in_pandas])
def test_keys_have_python_types_and_null_passes_in_output(make: Callable[..., Any]) -> None:
    """Keys have Python's own types, and NULL passes in an output column that is declared NOT NULL."""
    rows = pa.schema([("k", pa.float64()), ("n", pa.int32())])
    with Harness(make(CallRecorder(), key=["k", "n"], output="told string not null"), rows) as query:
        assert query.feed([{"k": 1.0, "n": 2}]) == [{"told": "(1.0, 2) 1 -1"}]
    with Harness(make(CallRecorder(null=True), key="k", output="told string not null"), rows) as query:
        assert query.feed([{"k": 1.0, "n": 2}]) == [{"told": None}]


def test_timers_get_the_same_timestamp_key_as_rows() -> None:
    """A timestamp in the key has a time zone in ``handleInputRows`` and in ``handleExpiredTimer``."""

    def rows(processor: Any, key: Any, _rows: Any, timers: Any) -> Iterator[Row]:
        processor.handle.registerTimer(timers.getCurrentProcessingTimeInMs())
        yield Row(told=key[0].isoformat())

    def timer(_processor: Any, key: Any, _timers: Any, _expired: Any) -> Iterator[Row]:
        yield Row(told=f"timer {key[0].isoformat()}")

    processor = ScriptedProcessor(rows=rows, timer=timer)
    operator = transform_with_state(processor, key="k", output="told string", time_mode="ProcessingTime")
    with Harness(operator, pa.schema([("k", pa.timestamp("us", "UTC"))])) as query:
        found = query.feed([{"k": datetime(2026, 1, 1, tzinfo=timezone.utc)}])
    assert [row["told"] for row in found] == ["2026-01-01T00:00:00+00:00", "timer 2026-01-01T00:00:00+00:00"]


def test_an_event_time_column_without_watermark_metadata_is_refused() -> None:
    """An event-time column without the watermark's metadata is refused."""
    with pytest.raises(ConfigError, match="RIFFLE-0286"):
        watermark_in(StructType().add("id", StringType()), "store")


@pytest.mark.parametrize("name", ["__hash", "__state_totals"])
def test_names_of_internal_state_columns_are_refused_as_keys(name: str) -> None:
    """A key with the name of an internal state column is refused."""
    rows = pa.schema([(name, pa.string())])
    visits = transform_with_state(Visits(), key=name, output="user string, visits long, total long")
    with pytest.raises(ConfigError, match="RIFFLE-0194"):
        Harness(visits, rows)


class Zeros(StatefulProcessor):
    """A processor that puts both zeros into a map with the longest time to live, and outputs the number of entries."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare a map with double keys."""
        self.zeros = handle.getMapState("zeros", "d double", "n long", sys.maxsize)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Put both zeros into the map."""
        before = len(list(self.zeros.keys()))
        for zero in (0.0, -0.0):
            self.zeros.updateValue((zero,), (1,))
        yield pd.DataFrame({"before": [before], "after": [len(list(self.zeros.keys()))]})


def test_a_map_has_one_zero_and_a_ttl_of_sys_maxsize_never_expires() -> None:
    """A map has one entry for both zeros, and with a time to live of ``sys.maxsize`` it stays."""
    operator = transform_with_state_in_pandas(
        Zeros(), key="k", output="before long, after long", time_mode="ProcessingTime"
    )
    with Harness(operator, pa.schema([("k", pa.string())])) as query:
        assert query.feed([{"k": "a"}]) == [{"before": 0, "after": 1}]
        assert query.feed([{"k": "a"}]) == [{"before": 1, "after": 1}]
