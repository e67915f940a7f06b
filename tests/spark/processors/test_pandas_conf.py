"""Spark's configuration for pandas: its settings, units and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from riffle_spark import transform_with_state
from riffle_spark.errors import ConfigError
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.spark.processors.pandas_conf import SETTINGS, pandas_options
from riffle_spark.spark.processors.pandas_form import PandasForm, PandasOptions
from tests.kit.processors.visit_processors import Visits

pytestmark = pytest.mark.newer_spark

CONF: dict[str, str] = {}
BYTES = SETTINGS["bytes_max"]


@pytest.mark.parametrize(
    ("text", "number"), [("64", 64), ("64b", 64), ("2k", 2048), ("1 MB", 1 << 20), ("3gib", 3 << 30), ("1T", 1 << 40)]
)
def test_sizes_in_bytes_are_parsed_with_sparks_units(text: str, number: int) -> None:
    """Sizes in bytes are parsed with Spark's units."""
    assert pandas_options({BYTES: text}, "4.3.0")["bytes_max"] == number


def test_a_size_that_spark_cannot_read_is_refused() -> None:
    """A text that is not a size in bytes raises an error with the text."""
    with pytest.raises(ValueError, match="'64 pages' is not a number of bytes"):
        pandas_options({BYTES: "64 pages"}, "4.3.0")


def test_a_setting_is_read_only_on_spark_versions_that_have_it() -> None:
    """A setting is read only on Spark versions that have it. Spark 3.5 and 4.0 limit frames by rows only."""
    zone = {SETTINGS["timezone"]: "Asia/Tokyo"}
    assert [pandas_options(zone, version)["timezone"] for version in ("3.5.0", "4.3.0")] == ["Asia/Tokyo"] * 2
    conf = {BYTES: "64b", SETTINGS["rows_max"]: "7", SETTINGS["int_to_decimal"]: "true", SETTINGS["safe"]: "TRUE"}
    assert pandas_options(conf, "4.0.5") == pandas_options(conf, "3.5.9") == {"safe": True, "rows_max": 7}
    assert pandas_options(conf, "4.1.0") == pandas_options(conf, "4.3.0")
    assert pandas_options(conf, "4.3.0") == {"safe": True, "rows_max": 7, "bytes_max": 64, "int_to_decimal": True}


@pytest.mark.spark
def test_the_defaults_are_those_of_the_running_spark(spark: SparkSession) -> None:
    """riffle's defaults are those of the running Spark, except for the time zone."""
    sparks_defaults: dict[str, str] = {}
    for name, setting in SETTINGS.items():
        # With a default as argument, spark.conf.get would return that instead of Spark's own.
        with suppress(PySparkException, Py4JError):
            sparks_defaults |= {} if name == "timezone" else {setting: str(spark.conf.get(setting))}
    assert {SETTINGS[name] for name in ("safe", "rows_max", "by_name")} <= {*sparks_defaults}
    assert PandasOptions(**pandas_options(sparks_defaults)) == PandasOptions(**pandas_options({}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "defaults"),
    [
        ("4.0.5", {"safe": False}),
        ("4.1.0", {"safe": True, "bytes_max": 64 << 20}),
        ("4.2.0", {"safe": True, "bytes_max": 64 << 20}),
        ("4.10.1.dev0", {"safe": True, "bytes_max": 64 << 20}),
    ],
)
def test_the_defaults_of_each_version_are_those_in_sparks_source(version: str, defaults: dict[str, object]) -> None:
    """The defaults of each version are those in the source of Spark 4.0.5, 4.1.0, 4.2.0 and 4.3.0."""
    assert pandas_options({}, version) == defaults


def test_frames_are_limited_in_bytes() -> None:
    """Frames are limited in bytes by the average size of a row. They have at least one row, and rows of one
    key only.
    """
    rows = pa.table({"n": pa.array(range(10), pa.int64())})
    sizes = {}
    for bytes_max in (1, 16, 24, 2**31 - 1):
        form = PandasForm(schema_of_ddl("n long"), PandasOptions(bytes_max=bytes_max))
        keys: Iterator[Iterator[Any]] = form.rows(rows, [0, 3, 3, 10])
        sizes[bytes_max] = [[frame.n.tolist() for frame in of_key] for of_key in keys]
    assert sizes[1] == [[[0], [1], [2]], [], [[n] for n in range(3, 10)]]
    assert sizes[16] == [[[0, 1], [2]], [], [[3, 4], [5, 6], [7, 8], [9]]]
    assert sizes[24] == [[[0, 1, 2]], [], [[3, 4, 5], [6, 7, 8], [9]]]
    assert sizes[2**31 - 1] == [[[0, 1, 2]], [], [[3, 4, 5, 6, 7, 8, 9]]]


def test_frames_that_are_limited_in_bytes_are_converted_separately() -> None:
    """If frames are limited in bytes, each is converted separately, so a NULL changes the types of its own
    frame only.
    """
    rows = pa.table({"n": pa.array([1, 2, None, 4], pa.int64())})
    kinds = {}
    for bytes_max in (40, 24, 2**31 - 1):
        form = PandasForm(schema_of_ddl("n long"), PandasOptions(bytes_max=bytes_max))
        keys: Iterator[Iterator[Any]] = form.rows(rows, [0, 2, 4])
        kinds[bytes_max] = [[frame.n.dtype.kind for frame in of_key] for of_key in keys]
    assert kinds == {40: [["i"], ["f"]], 24: [["i"], ["f"]], 2**31 - 1: [["f"], ["f"]]}


@pytest.mark.parametrize("processor", [object(), None, Visits], ids=["object", "none", "class"])
def test_an_object_that_is_not_a_processor_is_refused_in_the_call(processor: object) -> None:
    """An object that is not a processor is refused in the call, not in the first batch."""
    with pytest.raises(ConfigError, match="RIFFLE-0382"):
        transform_with_state(processor, key="k", output="k string")  # type: ignore[arg-type]
