"""The sources of a job's settings, its reports, and what importing riffle loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from riffle_spark import BatchReport, Settings, Stateful, aggregate, count
from riffle_spark.errors import ConfigError
from riffle_spark.spark.job_wiring import settings_of
from tests.kit.servers.scripted_server import Answer, scripted_server
from tests.kit.streams.streaming import CollectingSink, running, settings_in

pytestmark = pytest.mark.spark


@contextmanager
def conf(spark: SparkSession, values: Mapping[str, object]) -> Iterator[None]:
    """Set configuration of the session in the block."""
    for name, value in values.items():
        spark.conf.set(name, str(value))
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


def test_settings_come_from_the_spark_configuration(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``spark.riffle.*`` configures a job without settings. A setting that is only suitable for tests causes one
    warning.
    """
    kept = CollectingSink()
    job = Stateful("totals", "k", aggregate(rows=count())).into(kept)
    named = {"root": f"file://{tmp_path}/state", "key_groups": 4, "local_dir": tmp_path / "local"}
    named["probing_rebalance_interval"] = "1 s"
    with conf(spark, {f"spark.riffle.{name}": value for name, value in named.items()}):
        job(spark.range(9).selectExpr("id % 3 k"), 0)
    assert kept.latest("k") == {k: {"rows": 3} for k in range(3)}
    assert sum(job.reports[0].owners.values()) == 4
    assert caplog.text.count("probing_rebalance_interval = 1 s is only suitable for tests") == 1


def test_code_overrides_configuration_which_overrides_the_file(spark: SparkSession, tmp_path: Path) -> None:
    """The configuration overrides the TOML file of ``spark.riffle.conf_file``, and settings in code override both."""
    file = tmp_path / "riffle.toml"
    file.write_text('[riffle]\nroot = "file:///from/toml"\nkey_groups = 4\nnum_standbys = 1\nbatch_attempts = 2\n')
    named = {"spark.riffle.conf_file": file, "spark.riffle.num_standbys": 2, "spark.riffle.batch_attempts": 3}
    with conf(spark, named):
        found = settings_of(spark, Settings(batch_attempts=4))
    assert (found.root, found.key_groups, found.num_standbys, found.batch_attempts) == ("file:///from/toml", 4, 2, 4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("key_groups", "0", r"key_groups = '0' is not allowed.*1 to 32768.*spark.riffle.key_groups"),
        ("key_gruops", "8", r"Unknown setting 'key_gruops'.*Did you mean 'key_groups'"),
        ("conf_file", "/nowhere/riffle.toml", r"Cannot read settings.*/nowhere/riffle.toml"),
        ("deliver_after_commit", "perhaps", r"deliver_after_commit = 'perhaps'.*true or false"),
    ],
)
def test_a_wrong_setting_names_itself_and_its_source(spark: SparkSession, name: str, value: str, message: str) -> None:
    """A value out of range, an unknown name and a missing file are refused before a batch runs, with the setting's name
    and source.
    """
    job = Stateful("totals", "k", aggregate(rows=count())).into(CollectingSink())
    with conf(spark, {f"spark.riffle.{name}": value}), pytest.raises(ConfigError, match=f"(?s){message}"):
        job(spark.range(1).selectExpr("id k"), 0)


def test_a_batch_leaves_the_sessions_settings_alone(spark: SparkSession, tmp_path: Path) -> None:
    """A session's configuration is the same after a batch as before."""
    before = dict(spark.conf.getAll)
    Stateful("totals", "k", aggregate(rows=count()), settings=settings_in(tmp_path)).into(CollectingSink())(
        spark.range(3).selectExpr("id k"), 0
    )
    assert dict(spark.conf.getAll) == before


def test_each_report_is_written_as_a_line_of_json(spark: SparkSession, tmp_path: Path) -> None:
    """``report_file`` gets each report with its readings as a line of JSON, and ``on_report`` gets the report."""
    heard: list[BatchReport] = []
    settings = settings_in(tmp_path, report_file=f"{tmp_path}/reports.jsonl")
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    job.on_report = heard.append
    for batch in range(2):
        job(spark.range(3).selectExpr("id k"), batch)
    running(job).stop()
    lines = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    assert [line["readings"]['riffle_rows_total{store="totals"}'] for line in lines] == [3, 6]
    for line in lines:
        del line["readings"]
    assert lines == [json.loads(report.to_json()) for report in heard]
    assert list(job.reports) == heard


def test_settings_without_an_effect_and_reports_are_logged(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With dispatch = hashed a warning names the settings without an effect. Each report is logged at level INFO."""
    settings = settings_in(tmp_path, dispatch="hashed", max_warmup_replicas=5)
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    rows = spark.range(3).selectExpr("id k", "'events' topic", "0 partition")
    with caplog.at_level("INFO", logger="riffle_spark"):
        job(rows, 0)
    (warned,) = [message for message in caplog.messages if "RIFFLE-0312" in message]
    assert "max_warmup_replicas" in warned
    assert [message for message in caplog.messages if message.startswith("batch {")] == [
        f"batch {job.reports[0].to_json()}"
    ]


def test_a_collector_gets_the_metrics_of_a_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``otlp_endpoint`` gets the metrics and traces of a job."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="riffle-spark[otel] is not installed")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with scripted_server() as server:
        server.answers[:] = [Answer(200)]
        settings = settings_in(tmp_path, otlp_endpoint=server.endpoint)
        job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
        job(spark.range(3).selectExpr("id k"), 0)
        running(job).stop()
    assert {"/v1/metrics", "/v1/traces"} <= {request.path for request in server.seen}


def test_a_report_that_cannot_be_delivered_stops_no_query(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A report file that cannot be written and an ``on_report`` that raises are logged, and batches are committed."""

    def explode(_report: object) -> None:
        raise ValueError("no such dashboard")

    settings = settings_in(tmp_path, report_file=f"{tmp_path}/nowhere/reports.jsonl", num_standbys=1)
    job = Stateful("totals", "k", aggregate(rows=count()), settings=settings).into(CollectingSink())
    job.on_report = explode
    with caplog.at_level("WARNING", logger="riffle_spark"):
        for batch in range(2):
            job(spark.range(3).selectExpr("id k"), batch)
        running(job).stop()
    assert [report.version for report in job.reports] == [0, 1]
    assert caplog.text.count("RIFFLE-1261") == 1
    raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error) for error in raised] == ["no such dashboard"] * 2


def test_importing_riffle_imports_no_pyspark() -> None:
    """A process that imports riffle_spark and makes settings loads neither pyspark nor boto3 nor pyarrow."""
    code = (
        "import sys, riffle_spark; riffle_spark.Settings(num_standbys=1); dir(riffle_spark); "
        "loaded = {'pyspark', 'py4j', 'boto3', 'pyarrow'} & set(sys.modules); sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
