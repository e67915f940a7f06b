"""The configuration that ``configure`` adds to a session's builder."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.spark.configure import configure, packages


def options(builder: SparkSession.Builder) -> dict[str, str]:
    """Return the options of a builder. No session is started."""
    options: dict[str, str] = builder._options
    return options


@pytest.fixture(autouse=True)
def no_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a program that starts Spark itself, without spark-submit."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def test_selected_connectors_are_added_in_the_installed_versions() -> None:
    """The connectors that the caller selects are added in the versions of the installed packages. The default
    is Kafka.
    """
    kafka, s3a = packages(kafka=True, s3a=True).split(",")
    assert options(configure(SparkSession.builder))["spark.jars.packages"] == kafka
    assert options(configure(SparkSession.builder, kafka=False, s3a=True))["spark.jars.packages"] == s3a
    assert "spark.jars.packages" not in options(configure(SparkSession.builder, kafka=False))


def test_packages_that_are_set_are_kept() -> None:
    """Packages that are already set stay, and their connectors are not added again."""
    builder = SparkSession.builder.config("spark.jars.packages", "org.apache.hadoop:hadoop-aws:3.3.6,a:b:1")
    added = options(configure(builder, s3a=True))["spark.jars.packages"]
    assert added == f"org.apache.hadoop:hadoop-aws:3.3.6,a:b:1,{packages()}"
    by_file = SparkSession.builder.config("spark.jars", "/jars/spark-sql-kafka-0-10_2.13-4.0.0.jar")
    assert "spark.jars.packages" not in options(configure(by_file))


MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL = "FileSystemBasedCheckpointFileManager"


@pytest.fixture
def no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run without Hadoop's configuration files, which may set another default file system."""
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)


@pytest.mark.usefixtures("no_hadoop")
@pytest.mark.parametrize(
    "conf", [{}, {"spark.sql.streaming.checkpointLocation": "/tmp/c"}, {"spark.hadoop.fs.defaultFS": "file:///"}]
)
def test_checkpoints_on_a_local_disk_use_the_faster_class(conf: dict[str, str]) -> None:
    """Checkpoints use the faster class for local disks unless the configuration names another file system."""
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    assert options(configure(builder))[MANAGER].endswith(f".{LOCAL}")


@pytest.mark.usefixtures("no_hadoop")
@pytest.mark.parametrize(
    "conf",
    [
        {"spark.sql.streaming.checkpointLocation": "s3a://bucket/c"},
        {"spark.sql.streaming.checkpointLocation": "hdfs://host/c"},
        {"spark.hadoop.fs.defaultFS": "S3A://bucket"},
        {"spark.hadoop.fs.default.name": "hdfs://host"},
    ],
)
def test_checkpoints_on_other_file_systems_use_sparks_default_class(conf: dict[str, str]) -> None:
    """Checkpoints on other file systems use Spark's default class, because the other one needs an atomic rename."""
    builder = SparkSession.builder
    for name, value in conf.items():
        builder = builder.config(name, value)
    assert MANAGER not in options(configure(builder))


@pytest.mark.usefixtures("no_hadoop")
def test_checkpoints_in_s3a_or_of_hadoops_files_use_sparks_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints use Spark's default class if the session has s3a, or if Hadoop's configuration files may set a file
    system.
    """
    assert MANAGER not in options(configure(SparkSession.builder, s3a=True))
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert MANAGER not in options(configure(SparkSession.builder))


@pytest.mark.usefixtures("no_hadoop")
def test_a_checkpoint_class_of_the_user_is_kept() -> None:
    """A checkpoint class that the user sets stays."""
    assert options(configure(SparkSession.builder.config(MANAGER, "mine")))[MANAGER] == "mine"


def test_a_value_that_hinders_placement_is_kept_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A value of the user stays. A warning names it, unless it is the value that placement needs."""
    builder = SparkSession.builder.config("spark.scheduler.mode", "FAIR").config("spark.locality.wait", "0")
    configured = options(configure(builder, kafka=False))
    assert (configured["spark.scheduler.mode"], configured["spark.locality.wait"]) == ("FAIR", "0")
    (warned,) = [record.getMessage() for record in caplog.records]
    assert "RIFFLE-0271] spark.locality.wait = 0" in warned


def test_under_spark_submit_a_warning_names_the_packages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Under spark-submit the JVM runs already, so a warning names the packages for its command line."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.jars.packages" not in options(configure(SparkSession.builder))
    (warned,) = [record.getMessage() for record in caplog.records if "RIFFLE-0272" in record.getMessage()]
    assert f"--packages {packages()}" in warned


def test_a_python_that_spark_does_not_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of Python that Spark does not support is refused with the versions that it supports."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 9, 20, "final", 0))
        with pytest.raises(ConfigError, match="RIFFLE-1160") as refused:
            configure(SparkSession.builder)
    assert "Use Python 3.10 to 3.13" in refused.value.remedy
