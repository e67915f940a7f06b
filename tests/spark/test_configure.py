"""The configuration that ``configure`` adds to a session's builder."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from riffle_spark.spark.configure import configure, packages


def options(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the options of a builder, without starting a session."""
    options: dict[str, str] = builder._options
    return options


@pytest.fixture(autouse=True)
def no_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a program that starts Spark itself."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_connectors_that_are_asked_for_are_added_in_the_installed_versions() -> None:
    """Kafka's by default."""
    kafka, s3a = packages(kafka=True, s3a=True).split(",")
    assert options(configure(SparkSession.builder))["spark.jars.packages"] == kafka
    assert options(configure(SparkSession.builder, kafka=False, s3a=True))["spark.jars.packages"] == s3a
    assert "spark.jars.packages" not in options(configure(SparkSession.builder, kafka=False))


def test_packages_that_are_set_are_kept() -> None:
    """A connector of another version is not doubled."""
    builder = SparkSession.builder.config("spark.jars.packages", "org.apache.hadoop:hadoop-aws:3.3.6,a:b:1")
    added = options(configure(builder, s3a=True))["spark.jars.packages"]
    assert added == f"org.apache.hadoop:hadoop-aws:3.3.6,a:b:1,{packages()}"
    by_file = SparkSession.builder.config("spark.jars", "/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar")
    assert "spark.jars.packages" not in options(configure(by_file))
