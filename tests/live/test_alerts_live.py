"""Prometheus scrapes a running query, and each alert fires while its fault lasts and resolves afterwards."""

from __future__ import annotations

import fcntl
import json
import random
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from apps.demo.jars import connector_jars
from apps.demo.servers import KafkaBroker
from riffle_spark import Settings, Stateful, StatefulJob, aggregate, count
from riffle_spark.observe.readings import readings
from tests.kit.failing_disks import unmount_below
from tests.kit.folders import CHECKOUT
from tests.kit.servers.prometheus import Prometheus, promtool
from tests.kit.shared_session import SharedSession, end_jvm
from tests.kit.streams.streaming import running, wait_for

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="riffle-spark[otel] is not installed")

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONF_FILES = CHECKOUT / "conf" / "prometheus"
ALERTS = {
    "RiffleNoCommit",
    "RiffleLagGrows",
    "RiffleStandbyBehind",
    "RiffleLocalDiskFull",
    "RiffleMemberQuarantined",
    "RiffleSnapshotsFailing",
}
QUICKER = (
    (r"for: \d+m", "for: 1s"),
    (r"\[10m:30s\]", "[8s:1s]"),
    (r"\[15m\]", "[15s]"),
    (r"> 600\b", "> 8"),
    (r"> 10000\b", "> 200"),
)
"""Replacements that shorten durations and lower thresholds, so that a fault of a few seconds fires an alert."""
TOPIC = "events"
KEYS = 400
DISK_BYTES = 48 << 20
INTERVAL = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"


def quicker_rules() -> str:
    """Return the alerts with shorter durations. Each kind of duration is replaced at least once."""
    rules = (CONF_FILES / "alerts.yml").read_text()
    for pattern, replacement in QUICKER:
        rules, times = re.subn(pattern, replacement, rules)
        assert times, pattern
    return rules


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    """promtool accepts the rules, the shortened rules of these tests and the configuration, and the rules' unit tests
    pass.
    """
    assert "6 rules found" in promtool("check", "rules", "alerts.yml", folder=CONF_FILES)
    promtool("check", "config", "prometheus.yml", folder=CONF_FILES)
    (tmp_path / "alerts.yml").write_text(quicker_rules())
    promtool("check", "rules", "alerts.yml", folder=tmp_path)
    promtool("test", "rules", "alerts_test.yml", folder=CHECKOUT / "tests" / "data" / "prometheus")


class Traffic:
    """A thread that sends records to the topic every tenth of a second until it is stopped."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.rate = 2
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the producer."""
        self._stopped.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        chance = random.Random(7)
        while not self._stopped.wait(0.1):
            for _ in range(self.rate):
                key = f"k{chance.randrange(KEYS)}".encode()
                self._producer.send(TOPIC, key=key, value=b"v", partition=chance.randrange(2))


class Sink:
    """A sink that reads the rows, and then waits for as long as a test sets."""

    def __init__(self) -> None:
        self.pause = 0.0
        self.open = threading.Event()
        self.open.set()

    def __call__(self, rows: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - Spark passes both
        """Read a batch and wait."""
        rows.count()
        time.sleep(self.pause)
        self.open.wait()


@pytest.fixture(scope="module")
def session(shared_session: SharedSession) -> Iterator[SparkSession]:
    """A session with two executors, the Kafka connector and Spark's Prometheus servlet."""
    shared_session.stop()
    end_jvm()  # a running JVM would not load the connector's jars
    spark = (
        SparkSession.builder.master("local-cluster[2,2,900]")
        .config("spark.jars", ",".join(str(jar) for jar in connector_jars()))
        .config("spark.executor.memory", "600m")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.port", "0")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config(
            "spark.metrics.conf.driver.sink.prometheusServlet.class", "org.apache.spark.metrics.sink.PrometheusServlet"
        )
        .config("spark.metrics.conf.driver.sink.prometheusServlet.path", "/metrics/prometheus")
        .getOrCreate()
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """Export metrics every second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        patch.setenv("NO_PROXY", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, environment: None) -> Iterator[Prometheus]:
    """A Prometheus server that receives OTLP and evaluates the alerts."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "alerts.yml").write_text(quicker_rules())
    with Prometheus(f"{INTERVAL}rule_files: [{folder}/alerts.yml]\n", folder) as server:
        yield server


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small file system that holds the local copies."""
    folder = tmp_path_factory.mktemp("disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "riffle-test", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield folder
    unmount_below(folder)


class Query:
    """The running query with its traffic, sink and folders."""

    def __init__(self, job: StatefulJob, sink: Sink, traffic: Traffic, root: Path, local: Path) -> None:
        self.job = job
        self.sink = sink
        self.traffic = traffic
        self.root = root
        self.local = local


@pytest.fixture(scope="module")
def query(
    session: SparkSession,
    prometheus: Prometheus,
    kafka_broker: KafkaBroker,
    disk: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Query]:
    """A query that reads Kafka, has a standby per key-group and exports its metrics to Prometheus."""
    folder = tmp_path_factory.mktemp("query")
    kafka_broker.create_topic(TOPIC, partitions=2)
    settings = Settings(
        root=f"file://{folder}/state",
        local_dir=str(disk),
        key_groups=4,
        num_standbys=1,
        acceptable_recovery_lag=200,
        snapshot_chain_links=4,
        expected_executors=2,
        otlp_endpoint=prometheus.otlp_endpoint,
        otlp_signals="metrics",
    )
    sink = Sink()
    job = Stateful("totals", "key", aggregate(rows=count()), settings=settings).into(sink)
    stream = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka_broker.bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load()
        .selectExpr("cast(key as string) key")
    )
    traffic = Traffic(kafka_broker)
    writer = stream.writeStream.queryName("clicks").foreachBatch(job)
    running_query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    try:
        wait_for(lambda: len(job.reports) > 3 or not running_query.isActive, "batches")
        assert running_query.isActive, running_query.exception()
        wait_for(lambda: prometheus.query("riffle_batch_version"), "metrics in Prometheus")
        yield Query(job, sink, traffic, folder / "state", disk)
    finally:
        traffic.stop()
        sink.open.set()
        running_query.stop()


def check_alert(prometheus: Prometheus, name: str, fault: Callable[[], None], repair: Callable[[], None]) -> None:
    """Check that an alert is silent, fires after the fault, and resolves after the repair."""
    assert name in ALERTS
    wait_for(lambda: name not in prometheus.firing(), f"{name} is silent", 0.3)
    try:
        fault()
        wait_for(lambda: name in prometheus.firing(), f"{name} fires", 0.3)
    finally:
        repair()
    wait_for(lambda: name not in prometheus.firing(), f"{name} resolves", 0.3)


def test_prometheus_has_the_values_of_the_readings(query: Query, prometheus: Prometheus) -> None:
    """Every reading is a series with the same name and labels, and rows are counted as they are read."""
    driver = running(query.job).driver

    def series() -> dict[tuple[tuple[str, str], ...], float]:
        values = prometheus.query('{__name__=~"riffle_.*"}')
        names = {"job", "instance", "query"}
        return {tuple(pair for pair in labels if pair[0] not in names): value for labels, value in values.items()}

    expected = {
        tuple(sorted([("__name__", each.metric.name), *zip(each.metric.labels, each.labels, strict=True)])): each.value
        for each in readings(query.job.reports[-1], driver.facts())
    }
    wait_for(lambda: expected.keys() <= series().keys(), f"the series {expected.keys() - series().keys()}")
    rows = (("__name__", "riffle_rows_total"), ("store", "totals"))
    seen = driver.facts().counters["rows/totals"]
    wait_for(lambda: series()[rows] >= seen, "the rows of later batches")
    assert series()[rows] <= driver.facts().counters["rows/totals"]
    labels = next(iter(prometheus.query("riffle_batch_version")))
    assert dict(labels)["query"] == "clicks"
    assert dict(labels)["job"] == "riffle-spark"


def test_every_query_of_the_dashboard_is_valid(query: Query, prometheus: Prometheus) -> None:
    """Prometheus accepts every expression of the dashboard, and most of them have values for a healthy query."""
    text = (CHECKOUT / "conf" / "grafana" / "riffle.json").read_text()
    expressions = [json.loads(f'"{each}"') for each in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text)]
    assert len(expressions) > 15
    results = [
        prometheus.query(each.replace("$query", ".*").replace("$__rate_interval", "20s")) for each in expressions
    ]
    assert sum(bool(values) for values in results) > len(results) * 2 // 3


def test_the_no_commit_alert_fires_while_the_sink_hangs(query: Query, prometheus: Prometheus) -> None:
    """RiffleNoCommit fires while the sink hangs, and its summary names the query."""
    texts: list[str] = []

    def repair() -> None:
        texts.extend(alert["annotations"]["summary"] for alert in prometheus.alerts())
        query.sink.open.set()

    check_alert(prometheus, "RiffleNoCommit", query.sink.open.clear, repair)
    assert any("Query clicks has committed nothing for" in text for text in texts)


def test_the_lag_alert_fires_while_the_source_lag_grows(query: Query, prometheus: Prometheus) -> None:
    """RiffleLagGrows fires while more records arrive than the slow batches read."""

    def fault() -> None:
        query.sink.pause = 1.0
        query.traffic.rate = 80

    def repair() -> None:
        query.sink.pause = 0.0
        query.traffic.rate = 2

    check_alert(prometheus, "RiffleLagGrows", fault, repair)


def test_the_standby_alert_fires_while_upkeep_hangs(query: Query, prometheus: Prometheus) -> None:
    """RiffleStandbyBehind fires while upkeep hangs on every member."""
    with ExitStack() as stack:

        def fault() -> None:
            query.traffic.rate = 30
            for lock in query.local.glob("*/*/upkeep"):
                fcntl.flock(stack.enter_context(lock.open("a")), fcntl.LOCK_EX)

        def repair() -> None:
            query.traffic.rate = 2
            stack.close()

        check_alert(prometheus, "RiffleStandbyBehind", fault, repair)


@pytest.mark.parametrize("name", ["RiffleLocalDiskFull", "RiffleMemberQuarantined"])
def test_the_disk_alerts_fire_while_a_disk_is_full(query: Query, prometheus: Prometheus, name: str) -> None:
    """The alerts for a full disk and for quarantined members fire while a disk is fuller than its limit."""
    ballast = query.local / "ballast"

    def fault() -> None:
        with ballast.open("wb") as file:
            file.write(bytes(DISK_BYTES * 84 // 100))

    check_alert(prometheus, name, fault, ballast.unlink)


@contextmanager
def refused_snapshots(root: Path) -> Iterator[None]:
    """Make every put of a snapshot fail in the block: a file replaces the folder of snapshots."""
    folders = [path for path in root.rglob("snapshot") if path.is_dir()]
    assert folders
    for folder in folders:
        folder.rename(folder.with_name("away"))
        folder.write_bytes(b"")
    try:
        yield
    finally:
        for folder in folders:
            folder.unlink()
            folder.with_name("away").rename(folder)


def test_the_snapshot_alert_fires_while_snapshots_fail(query: Query, prometheus: Prometheus) -> None:
    """RiffleSnapshotsFailing fires while executors cannot write snapshots. Batches continue."""
    query.traffic.rate = 20
    wait_for(lambda: any(path.is_dir() for path in query.root.rglob("snapshot")), "a first snapshot")
    with ExitStack() as stack:
        check_alert(
            prometheus,
            "RiffleSnapshotsFailing",
            lambda: stack.enter_context(refused_snapshots(query.root)),
            stack.close,
        )


def test_prometheus_reads_the_totals_from_sparks_servlet(session: SparkSession, query: Query, tmp_path: Path) -> None:
    """The relabelling rules of the example turn the servlet's metrics into the names that OTLP has, with a
    query label.
    """
    port = str(session.sparkContext.uiWebUrl).rpartition(":")[2]
    example = (CONF_FILES / "prometheus.yml").read_text()
    config = INTERVAL + "scrape_configs:" + example.partition("scrape_configs:")[2]
    with Prometheus(config.replace("DRIVER:4040", f"127.0.0.1:{port}"), tmp_path) as server:
        wait_for(lambda: server.query("riffle_batch_version"), "totals in Prometheus", 0.3)
        labels = dict(next(iter(server.query("riffle_batch_version"))))
        assert labels["query"] == "clicks"
        members = server.query('riffle_members{query="clicks"}')
        assert {dict(labels)["state"]: value for labels, value in members.items()}["active"] == 2
        served = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/prometheus", timeout=30).read().decode()
        assert "_riffle_rows_total_Value" in served
        rows = query.job.reports[-1].version
        wait_for(lambda: next(iter(server.query("riffle_batch_version").values())) >= rows, "the newest batch", 0.3)
        assert not server.query('{__name__=~"metrics_.*riffle.*"}')
