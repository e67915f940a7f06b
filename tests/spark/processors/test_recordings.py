"""Spark's own operator still returns what is recorded, and recordings are of the current cases."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from tests.kit.processors.catalogue import CASES
from tests.kit.processors.record_cases import ABOUT, digest, recorded
from tests.kit.streams import sparks_operator as native

pytestmark = pytest.mark.newer_spark

CONF = native.CONF
FORM = "pandas" if spark_version.startswith("4.0.") else "rows"
"""The form that is recorded of this Spark version. Spark 4.0 has only pandas."""


@pytest.mark.parametrize("name", CASES)
def test_each_recording_has_the_current_batches_of_its_case(name: str) -> None:
    """A recording is of the current batches of its case, in both forms. After a change run ``python -m
    tests.kit.processors.record_cases``.
    """
    assert recorded(CASES[name])["input"] == digest(CASES[name])
    assert sorted(recorded(CASES[name])["spark"]) == ["pandas", "rows"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.needs_spark4("transformWithState")
def test_sparks_own_operator_still_has_the_recorded_results(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """Spark's own operator has the recorded output and state."""
    known = recorded(CASES[name])
    found = native.run_native(spark, CASES[name], FORM, tmp_path)
    assert found == {at: known[at] for at in known if at not in ABOUT}
