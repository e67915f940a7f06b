"""The installed Spark is read from its files, and gets connectors with fitting versions."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from riffle_spark.spark_installation import SparkInstallation, find_spark, python_problem, read_spark


def installed(folder: Path, version: str, *jars: str) -> SparkInstallation:
    """Create a PySpark folder with these jars and read it."""
    (folder / "jars").mkdir(parents=True)
    for jar in jars:
        (folder / "jars" / f"{jar}.jar").write_text("")
    (folder / "version.py").write_text(f'__version__: str = "{version}"\n')
    return read_spark(folder)


@pytest.mark.parametrize(
    ("version", "core", "hadoop", "kafka", "s3a"),
    [
        ("3.5.0", "2.12-3.5.0", "3.3.4", "2.12:3.5.0", "3.3.4"),
        ("3.5.9", "2.12-3.5.9", "3.3.4", "2.12:3.5.9", "3.3.4"),
        ("3.5.4", "2.13-3.5.4", "3.3.4", "2.13:3.5.4", "3.3.4"),
        ("3.5.2", "2.12-3.5.2-amzn-1", "3.4.0-amzn-1", "2.12:3.5.2", "3.4.0"),
        ("4.0.5", "2.13-4.0.5", "3.4.1", "2.13:4.0.0", "3.4.1"),
        ("4.1.1", "2.13-4.1.1", "3.4.2", "2.13:4.1.1", "3.4.2"),
        ("4.2.0", "2.13-4.2.0", "3.5.0", "2.13:4.2.0", "3.5.0"),
        ("4.3.0", "2.13-4.3.0", "3.5.0", "2.13:4.3.0", "3.5.0"),
        ("4.1.0.dev2", "2.13-4.1.0-preview2", "3.4.2", "2.13:4.1.0", "3.4.2"),
    ],
)
def test_connectors_have_the_versions_of_the_jars(
    tmp_path: Path, version: str, core: str, hadoop: str, kafka: str, s3a: str
) -> None:
    """Connectors have the versions of Spark, Scala and Hadoop in the jars, without a vendor's suffix."""
    spark = installed(tmp_path, version, f"spark-core_{core}", f"hadoop-client-api-{hadoop}", "scala-library-2.13.16")
    assert spark.kafka_connector == f"org.apache.spark:spark-sql-kafka-0-10_{kafka}"
    assert spark.hadoop_aws == f"org.apache.hadoop:hadoop-aws:{s3a}"


def test_jars_below_spark_home_override_those_of_pyspark(tmp_path: Path) -> None:
    """The jars below SPARK_HOME override those of PySpark, because PySpark starts them."""
    installed(tmp_path / "pyspark", "4.0.5", "spark-core_2.13-4.0.5")
    installed(tmp_path / "home", "3.5.1", "spark-core_2.12-3.5.1", "spark-sql-kafka-0-10_2.12-3.5.1")
    spark = read_spark(tmp_path / "pyspark", str(tmp_path / "home"))
    assert (spark.pyspark_version, spark.version, spark.line, spark.scala) == ("4.0.5", "3.5.1", (3, 5), "2.12")
    assert spark.has_jar("spark-sql-kafka-0-10")


@pytest.mark.parametrize("package", ["streaming", "streaming.checkpointing"])
def test_the_class_that_renames_checkpoint_files_is_found_in_sparks_jar(tmp_path: Path, package: str) -> None:
    """The class that renames checkpoint files is found in Spark's jar, also in its new package since Spark 4.1."""
    name = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
    spark = installed(tmp_path, "4.0.5", "spark-sql-api_2.13-4.0.5", "spark-sql_2.13-4.0.5")
    with zipfile.ZipFile(tmp_path / "jars" / "spark-sql_2.13-4.0.5.jar", "w") as jar:
        jar.writestr("org/apache/spark/sql/Dataset.class", b"")
        jar.writestr(f"{name.replace('.', '/')}$.class", b"")
        jar.writestr(f"{name.replace('.', '/')}.class", b"")
    assert spark.renaming_checkpoint_manager == name


def test_a_damaged_jar_or_one_without_the_class_uses_sparks_default(tmp_path: Path) -> None:
    """Without the class, or with a damaged jar, there is no such class, and Spark uses its default."""
    assert not installed(tmp_path / "damaged", "4.0.5", "spark-sql_2.13-4.0.5").renaming_checkpoint_manager
    assert not installed(tmp_path / "without", "4.0.5").renaming_checkpoint_manager
    spark = installed(tmp_path / "lacking", "4.0.5", "spark-sql_2.13-4.0.5")
    with zipfile.ZipFile(tmp_path / "lacking" / "jars" / "spark-sql_2.13-4.0.5.jar", "w") as jar:
        jar.writestr("org/apache/spark/sql/Dataset.class", b"")
    assert not spark.renaming_checkpoint_manager


@pytest.mark.parametrize(("version", "scala"), [("3.5.4", "2.12"), ("4.1.0", "2.13")])
def test_the_version_without_jars_is_that_of_pyspark(tmp_path: Path, version: str, scala: str) -> None:
    """Without jars, as with Spark Connect, the version is that of PySpark, and the version of Hadoop is unknown."""
    spark = installed(tmp_path, version)
    assert (spark.version, spark.scala, spark.hadoop, spark.hadoop_aws) == (version, scala, "", "")


@pytest.mark.parametrize(
    ("line", "python", "has_setuptools", "is_refused"),
    [
        ((3, 5), (3, 9), True, True),
        ((3, 5), (3, 10), False, False),
        ((3, 5), (3, 11, 7), False, False),
        ((3, 5), (3, 12), True, False),
        ((3, 5), (3, 12), False, True),
        ((3, 5), (3, 13), True, True),
        ((4, 0), (3, 9), True, True),
        ((4, 0), (3, 13), False, False),
        ((4, 2), (3, 10), False, False),
        ((4, 3), (3, 10), False, True),
        ((4, 3), (3, 11), False, False),
        ((4, 3), (3, 14), True, True),
    ],
)
def test_unsupported_pairs_of_spark_and_python_are_refused(
    line: tuple[int, int], python: tuple[int, ...], has_setuptools: bool, is_refused: bool
) -> None:
    """A pair that Spark does not support is refused with the Python version. Spark 3.5 on 3.12 needs setuptools."""
    problem = python_problem(line, python, has_setuptools=has_setuptools)
    assert bool(problem) == is_refused
    assert not problem or f"{python[0]}.{python[1]}" in problem


def test_a_broken_installation_has_the_version_zero(tmp_path: Path) -> None:
    """A broken installation has the version (0, 0), which the check of the version refuses."""
    assert read_spark(tmp_path).line == (0, 0)


def test_the_installed_pyspark_is_found() -> None:
    """The installed PySpark is found, and its minimum versions of packages are read from its source."""
    import pyspark

    spark = find_spark({})
    assert spark is not None
    assert spark.version == pyspark.__version__
    assert spark.minimums is not None
    assert set(spark.minimums) == {"pandas", "pyarrow", "numpy"} or spark.line == (3, 5)


def test_without_pyspark_no_spark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PySpark no Spark is found, also if SPARK_HOME is set."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert find_spark({"SPARK_HOME": "/opt/spark"}) is None
