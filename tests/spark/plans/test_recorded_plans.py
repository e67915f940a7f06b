"""The recorded plans equal the plans that this version of Spark makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.kit.planned_queries import Frames
from tests.kit.record_plans import queries, record
from tests.kit.recorded_plans import file_of

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark, pytest.mark.smoke]


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frames]:
    """The frames of the planned queries. Their view is dropped at the end."""
    yield Frames(spark, tmp_path_factory.mktemp("events"))
    spark.catalog.dropTempView("events")


def test_recording_again_gives_the_same_plans(frames: Frames, tmp_path: Path) -> None:
    """Recording the plans again gives the same plans. If it fails after a change, run ``python -m
    tests.kit.record_plans``.
    """
    if not file_of(pyspark.__version__, "").parent.exists():
        pytest.skip(f"no plans of Spark {pyspark.__version__} are recorded")
    differ = [
        name
        for name, frame in queries(frames).items()
        if json.loads(file_of(pyspark.__version__, name).read_text()) != record(frame)
    ]
    assert differ == []
