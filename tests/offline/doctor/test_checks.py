"""The checks of `riffle doctor` on given facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.offline.doctor import checks
from riffle_spark.offline.doctor.facts import (
    DiskFacts,
    JavaFacts,
    KafkaFacts,
    Level,
    PythonFacts,
    Result,
    StoreFacts,
    exit_code,
)
from riffle_spark.spark_installation import SparkInstallation

PACKAGES = {"pandas": "2.3.3", "pyarrow": "18.0.0", "numpy": "1.26.4", "xxhash": "3.4", "riffle-spark": "0.1.0"}
DRIVER = PythonFacts("/venv/bin/python", (3, 11, 7), PACKAGES)
JARS = ("hadoop-client-api-3.4.1.jar", "spark-core_2.13-4.0.5.jar")
SPARK = SparkInstallation("4.0.5", Path("/spark"), JARS, {"pandas": "2.0.0", "pyarrow": "11.0.0", "numpy": "1.21"})
SPARK35 = SparkInstallation("3.5.9", Path("/spark"), ("hadoop-client-api-3.3.4.jar", "spark-core_2.12-3.5.9.jar"))
TRIED = ("put", "conditional put", "read", "list", "delete")


def assert_level(result: Result, level: Level, *texts: str) -> None:
    """Check the level of a result and the texts that it shows, and that every level except ``ok`` has a remedy."""
    assert result.level == level, result
    assert bool(result.remedy) == (level != "ok")
    shown = str(result)
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize(
    ("version", "spark", "level"),
    [
        ((3, 9, 1), SPARK, "error"),
        ((3, 10, 0), SPARK, "ok"),
        ((3, 13, 0), SPARK, "ok"),
        ((3, 14, 0), SPARK, "error"),
        ((3, 11, 0), SPARK35, "ok"),
        ((3, 12, 0), SPARK35, "error"),
        ((3, 13, 0), SPARK35, "error"),
        ((3, 13, 0), None, "ok"),
    ],
)
def test_each_spark_line_supports_python_up_to_its_newest_version(
    version: tuple[int, ...], spark: SparkInstallation | None, level: Level
) -> None:
    """Each line of Spark supports Python up to its own newest version."""
    assert_level(checks.check_python(replace(DRIVER, version=version), spark), level)


def test_spark_3_5_runs_on_python_3_12_with_setuptools() -> None:
    """Spark 3.5 runs on Python 3.12 only with setuptools, which provides distutils there."""
    python = replace(DRIVER, version=(3, 12, 1), packages={**PACKAGES, "setuptools": "80.0"})
    assert_level(checks.check_python(python, SPARK35), "ok")


def test_workers_with_another_python_or_without_a_package_are_an_error() -> None:
    """Workers with another minor version of Python or without a package are an error, and other package versions a
    warning.
    """
    assert_level(checks.check_workers(DRIVER, DRIVER), "ok")
    assert_level(checks.check_workers(DRIVER, replace(DRIVER, version=(3, 11, 2))), "ok")
    assert_level(checks.check_workers(DRIVER, replace(DRIVER, version=(3, 12, 1))), "error", "PYSPARK_PYTHON")
    missing_python = PythonFacts("python3", problem="there is no such program")
    assert_level(
        checks.check_workers(DRIVER, missing_python), "error", "no such program", "PYSPARK_PYTHON=/venv/bin/python"
    )
    bare = replace(DRIVER, packages={"numpy": "1.26.4"})
    assert_level(
        checks.check_workers(DRIVER, bare), "error", "pyarrow, xxhash", "PYSPARK_PYTHON=/venv/bin/python", "'xxhash"
    )
    zipped = replace(DRIVER, packages={k: v for k, v in PACKAGES.items() if k != "riffle-spark"})
    assert_level(checks.check_workers(DRIVER, zipped), "warning", "--py-files")
    other = replace(DRIVER, packages={**PACKAGES, "pandas": "2.2.0"})
    assert_level(checks.check_workers(DRIVER, other), "warning", "pandas 2.2.0 instead of 2.3.3")


@pytest.mark.parametrize(
    ("major", "spark", "level"),
    [(17, SPARK, "ok"), (21, None, "ok"), (11, SPARK, "error"), (25, SPARK, "warning"), (8, SPARK35, "ok")],
)
def test_the_java_version_is_checked_against_spark(major: int, spark: SparkInstallation | None, level: Level) -> None:
    """Spark 4 needs Java 17, and a version that Spark is not tested on is a warning."""
    assert_level(checks.check_java(JavaFacts("java", major), spark), level)


def test_missing_java_has_a_remedy() -> None:
    """The remedy for a missing Java names the packages to install."""
    assert_level(checks.check_java(JavaFacts("java", problem="no such program"), SPARK), "error", "openjdk-17")


def test_jars_of_another_spark_version_are_an_error() -> None:
    """Jars of another Spark in ``SPARK_HOME`` are an error, and a vendor suffix in their version is allowed."""
    assert_level(checks.check_spark(SPARK), "ok", "4.0.5", "2.13", "3.4.1")
    assert_level(checks.check_spark(None), "error", "extra `spark`")
    assert_level(
        checks.check_spark(replace(SPARK, jars=("spark-core_2.12-3.5.1.jar",))), "error", "SPARK_HOME", "3.5.1"
    )
    assert_level(checks.check_spark(replace(SPARK, jars=("spark-core_2.13-4.0.5-amzn-0.jar",))), "ok")
    assert_level(checks.check_spark(replace(SPARK, jars=())), "warning", "Spark Connect")
    assert_level(checks.check_spark(replace(SPARK, pyspark_version="3.4.1", jars=())), "error", "4.3")


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [
        ("pandas", "2.3.3", "ok"),
        ("pandas", "1.5.3", "error"),
        ("pandas", "3.0.0", "error"),
        ("pandas", None, "error"),
        ("pyarrow", "18.0.0", "ok"),
        ("pyarrow", "14.0.1", "error"),
        ("pyarrow", "9.0.0", "error"),
        ("numpy", "1.25.0", "error"),
    ],
)
def test_package_versions_satisfy_the_stricter_requirement(name: str, version: str | None, level: Level) -> None:
    """Package versions must satisfy the stricter of riffle's and PySpark's requirements, which are read from its
    source.
    """
    packages = {**PACKAGES, name: version} if version else {k: v for k, v in PACKAGES.items() if k != name}
    results = checks.check_packages(PythonFacts("python", (3, 11, 7), packages), SPARK)
    (result,) = [result for result in results if result.check == name]
    assert_level(result, level, *(["pip install", name] if level == "error" else []))
    assert all(result.level == "ok" for result in results if result.check != name)


def test_missing_connectors_are_named_with_matching_versions() -> None:
    """Connectors that are needed but neither installed nor configured are named with the matching versions."""
    kafka, s3a = checks.check_connectors(SPARK, {}, kafka=True, s3a=True)
    assert_level(kafka, "warning", "spark-sql-kafka-0-10_2.13:4.0.0", "kafka=True")
    assert_level(s3a, "warning", "hadoop-aws:3.4.1", "for s3a:// paths, not for the root")
    assert checks.check_connectors(SPARK, {}, kafka=False, s3a=False) == []
    conf = {"spark.jars.packages": kafka.remedy}
    assert [result.level for result in checks.check_connectors(SPARK, conf, kafka=True, s3a=False)] == ["ok"]
    installed = replace(SPARK, jars=(*JARS, "hadoop-aws-3.4.1.jar"))
    assert [result.level for result in checks.check_connectors(installed, {}, kafka=False, s3a=True)] == ["ok"]


def test_results_for_refused_overwriting_and_unreachable_stores_differ() -> None:
    """A refused step, a second put that succeeds, and a store that does not answer are different results."""
    root = "s3://bucket/x"
    assert_level(checks.check_store(StoreFacts(TRIED), root), "ok", "conditional put")
    refused = StoreFacts(TRIED[:3], "list", "Access denied.", "Grant s3:ListBucket.", left_over="delta/1")
    assert_level(checks.check_store(refused, root), "error", "list below s3://bucket/x", "s3:ListBucket", "delta/1")
    assert_level(checks.check_store(StoreFacts(TRIED, overwrites=True), root), "error", "If-None-Match")
    away = StoreFacts((), "put", "No answer.", "Make it reachable.", is_reachable=False)
    assert_level(checks.check_store(away, root), "unreachable", "No answer")


@pytest.mark.parametrize(
    ("ahead", "level"), [(0.0, "ok"), (-5.0, "ok"), (120.0, "warning"), (-1000.0, "error"), (None, "skipped")]
)
def test_a_clock_difference_over_a_minute_is_a_warning(ahead: float | None, level: Level) -> None:
    """A clock difference over a minute is a warning, and over a quarter of an hour an error, because S3 refuses
    requests then.
    """
    assert_level(checks.check_clock(StoreFacts(TRIED, clock_ahead_seconds=ahead)), level)


def test_the_result_says_whether_the_clock_is_behind_or_ahead() -> None:
    """The result says whether this machine's clock is behind or ahead of the store's."""
    assert "120 s behind" in checks.check_clock(StoreFacts(TRIED, clock_ahead_seconds=120.0)).fact
    assert "120 s ahead of" in checks.check_clock(StoreFacts(TRIED, clock_ahead_seconds=-120.0)).fact


def test_a_disk_with_little_free_space_is_a_warning() -> None:
    """A disk above ``local_disk_limit`` or with little free space is a warning."""
    disk = DiskFacts("/mnt/x", 0.5, 50_000_000_000)
    assert_level(checks.check_disk(disk, 0.8), "ok")
    assert_level(checks.check_disk(disk, 0.4), "warning", "local_dir")
    assert_level(checks.check_disk(replace(disk, free_bytes=1_000_000), 0.8), "warning")
    assert_level(checks.check_disk(DiskFacts("/x", problem="Read-only.", remedy="Mount it."), 0.8), "error", "Mount it")


@pytest.mark.parametrize(
    ("conf", "slots"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local[*, 2]"}, 8),
        ({"spark.executor.instances": "4", "spark.executor.cores": "4", "spark.task.cpus": "2"}, 8),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 4),
        ({"spark.executor.instances": "4"}, None),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "10",
                "spark.executor.instances": "2",
                "spark.executor.cores": "4",
            },
            40,
        ),
        ({}, None),
    ],
)
def test_the_number_of_slots_is_derived_from_the_configuration(conf: dict[str, str], slots: int | None) -> None:
    """The number of slots is the largest that the configuration allows."""
    assert checks.slots_of(conf, cpus=8) == slots


def test_fewer_than_four_key_groups_per_slot_are_a_warning() -> None:
    """Fewer than four key-groups per slot are a warning."""
    assert_level(checks.check_slots(32, 128), "ok")
    assert_level(checks.check_slots(33, 128), "warning", "132")
    assert_level(checks.check_slots(None, 128), "skipped", "--conf spark.executor.instances")


@pytest.mark.parametrize(
    ("conf", "level", "text"),
    [
        ({}, "ok", "384m"),
        ({"spark.executor.memory": "4g", "spark.executor.cores": "4"}, "warning", "memoryOverhead"),
        ({"spark.executor.memory": "4g", "spark.executor.cores": "4", "spark.executor.memoryOverhead": "2g"}, "ok", ""),
        ({"spark.executor.cores": "4", "spark.executor.pyspark.memory": "2g"}, "warning", "at least 4g"),
        ({"spark.executor.cores": "4", "spark.executor.pyspark.memory": "8g"}, "ok", "2048m"),
        ({"spark.executor.memory": "4g", "spark.executor.cores": "4", "spark.master": "k8s://x"}, "ok", "1638m"),
        ({"spark.master": "local[2]", "spark.driver.memory": "8g"}, "warning", "spark.driver.memory"),
        ({"spark.master": "local[2]"}, "ok", ""),
    ],
)
def test_memory_of_python_workers_is_checked_against_the_executors(
    conf: dict[str, str], level: Level, text: str
) -> None:
    """Memory of Python workers must fit beside the executor's heap, or within ``spark.executor.pyspark.memory``."""
    result = checks.check_memory(conf, checks.slots_of(conf, 2), machine_bytes=4 << 30)
    assert_level(result, level, text)


@pytest.mark.parametrize(("text", "size"), [("4g", 4 << 30), ("512m", 512 << 20), ("100", 100 << 20), ("x", None)])
def test_a_size_without_a_unit_has_the_unit_of_its_setting(text: str, size: int | None) -> None:
    """A size without a unit is in the unit of its setting, as in Spark."""
    assert checks.memory_bytes(text, 1 << 20) == size


def test_results_for_unreachable_kafka_servers_and_brokers_differ() -> None:
    """An unreachable bootstrap server, an unreachable advertised broker and a failed request are different results."""
    good = KafkaFacts(("a:9092",), (), ("a:9092",))
    assert_level(checks.check_kafka(good), "ok")
    assert_level(checks.check_kafka(KafkaFacts((), ("a:9092",))), "unreachable", "a:9092")
    assert_level(checks.check_kafka(replace(good, refused=("b:9092",))), "warning", "b:9092")
    assert_level(checks.check_kafka(replace(good, unreachable_brokers=("k1:9",))), "error", "advertised.listeners")
    assert_level(checks.check_kafka(replace(good, problem="time-out")), "warning", "SASL")


def test_the_exit_code_reflects_the_worst_result() -> None:
    """The exit code is 1 for a failed check, 3 if only a service did not answer, and 0 for warnings."""
    results = {level: Result("x", level, "fact", "remedy") for level in ("ok", "skipped", "warning")}
    assert exit_code(results.values()) == 0
    away = Result("store", "unreachable", "fact", "remedy")
    assert exit_code([*results.values(), away]) == 3
    assert exit_code([away, Result("java", "error", "fact", "remedy")]) == 1
