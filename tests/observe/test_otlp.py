"""An OpenTelemetry collector gets the readings of the JSON lines as metrics, and one trace per batch."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.observe.export import Exporters
from riffle_spark.observe.json_lines import JsonLines
from riffle_spark.observe.metric_list import METRIC_BY_NAME
from riffle_spark.observe.readings import readings
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.settings import Settings
from riffle_spark.spark.job_exporters import check_exporters
from riffle_spark.testing import ManualClock
from tests.kit.servers.scripted_server import Answer, ScriptedServer, scripted_server
from tests.kit.simulated.world import World, one_row

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="riffle-spark[otel] is not installed")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from riffle_spark.observe.otlp import Otlp


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    """Start an HTTP server that accepts every request."""
    with scripted_server() as server:
        server.answers[:] = [Answer(200)]
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the SDK send without delay and with a short timeout."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "0")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def metric_requests(server: ScriptedServer) -> list[ExportMetricsServiceRequest]:
    """Return the metrics that the server received, one message per request."""
    return [ExportMetricsServiceRequest.FromString(body) for body in _bodies(server, "/v1/metrics")]


def trace_requests(server: ScriptedServer) -> list[ExportTraceServiceRequest]:
    """Return the traces that the server received, one message per request."""
    return [ExportTraceServiceRequest.FromString(body) for body in _bodies(server, "/v1/traces")]


def _bodies(server: ScriptedServer, path: str) -> list[bytes]:
    seen = [request for request in server.seen if request.path == path]
    return [gzip.decompress(r.body) if r.headers.get("Content-Encoding") == "gzip" else r.body for r in seen]


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, str | int | float]:
    """Return the attributes as a dictionary."""
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


def points_of(request: ExportMetricsServiceRequest) -> Iterator[tuple[Metric, NumberDataPoint]]:
    """Yield each point with its metric."""
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in getattr(metric, str(metric.WhichOneof("data"))).data_points:
                    yield metric, point


def samples_of(request: ExportMetricsServiceRequest) -> dict[str, int | float]:
    """Return the values by metric and labels as ``Reading.sample`` writes them, without the label ``query``."""
    samples: dict[str, int | float] = {}
    for metric, point in points_of(request):
        labels = {name: value for name, value in attributes_of(point.attributes).items() if name != "query"}
        text = ",".join(f'{name}="{value}"' for name, value in labels.items())
        name = f"{metric.name}{{{text}}}" if text else metric.name
        samples[name] = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    return samples


def spans_of(requests: Iterable[ExportTraceServiceRequest]) -> list[Span]:
    """Return the spans of all requests."""
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def run_batches(folder: Path, count: int = 2) -> list[tuple[BatchReport, DriverFacts]]:
    """Run batches of a simulated query and return the report and the facts after each."""
    world = World(folder)
    moments = []
    for version in range(count):
        report = world.batch(version, one_row(version + 1))
        facts = replace(world.driver.facts(), query_id="0a1b2c3d-0000", query_name="clicks")
        moments.append((report, facts))
    return moments


def test_values_equal_those_of_the_json_lines(receiver: ScriptedServer, tmp_path: Path) -> None:
    """The points of each batch have the names, labels and values of its JSON line."""
    lines = JsonLines(str(tmp_path / "reports.jsonl"))
    exporter = Otlp(receiver.endpoint, "all", ManualClock().seconds, os.environ)
    for report, facts in run_batches(tmp_path):
        figures = readings(report, facts)
        lines.export(report, facts, figures)
        exporter.export(report, facts, figures)
    written = [json.loads(line)["readings"] for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    sent = [samples_of(request) for request in metric_requests(receiver)]
    assert sent == written
    assert written[1]['riffle_rows_total{store="totals"}'] == 2
    assert len(written[1]) > 50


def test_counters_have_the_same_start_in_every_export(receiver: ScriptedServer, tmp_path: Path) -> None:
    """Every counter has the driver's start as its start time, also if its series appears later."""
    exporter = Otlp(receiver.endpoint, "metrics", ManualClock().seconds, os.environ)
    batches = run_batches(tmp_path, 4)
    for report, facts in batches:
        exporter.export(report, facts, readings(report, facts))
        exporter.export(None, replace(facts, time_ms=facts.time_ms + 60_000), readings(report, facts))
    starts = {
        (metric.WhichOneof("data"), point.start_time_unix_nano)
        for request in metric_requests(receiver)
        for metric, point in points_of(request)
    }
    assert len(metric_requests(receiver)) == 8
    assert starts == {("sum", batches[0][1].time_ms * 1_000_000), ("gauge", 0)}


def test_points_have_kind_unit_and_the_name_of_the_query(receiver: ScriptedServer, tmp_path: Path) -> None:
    """Counters are cumulative and monotonic, units are UCUM units, and each point has the name of its query."""
    exporter = Otlp(receiver.endpoint, "metrics", ManualClock().seconds, os.environ)
    report, facts = run_batches(tmp_path, 1)[0]
    exporter.export(report, facts, readings(report, facts))
    (request,) = metric_requests(receiver)
    for metric, point in points_of(request):
        declared = METRIC_BY_NAME[metric.name]
        assert metric.WhichOneof("data") == ("sum" if declared.kind == "counter" else "gauge")
        assert metric.description == declared.meaning
        assert metric.unit == {"seconds": "s", "bytes": "By", "ratio": "1"}.get(declared.unit, f"{{{declared.unit}}}")
        assert set(attributes_of(point.attributes)) == {*declared.labels, "query"}
        assert attributes_of(point.attributes)["query"] == "clicks"
        assert point.time_unix_nano == facts.time_ms * 1_000_000
        if declared.kind == "counter":
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == 2  # cumulative
    resource = attributes_of(request.resource_metrics[0].resource.attributes)
    assert resource["service.name"] == "riffle-spark"
    assert resource["riffle.query.name"] == "clicks"
    assert resource["service.instance.id"] == "0a1b2c3d-0000"
    assert not trace_requests(receiver), "only metrics are configured"


def test_resource_attributes_of_the_environment_have_precedence(
    receiver: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resource attributes of the environment override those of riffle_spark.

    The endpoint `env` is that of the environment.
    """
    monkeypatch.setenv("OTEL_SERVICE_NAME", "clicks-job")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    exporter = Otlp("env", "all", ManualClock().seconds, os.environ)
    report, facts = run_batches(tmp_path, 1)[0]
    exporter.export(report, facts, readings(report, facts))
    resources = [
        *(request.resource_metrics[0].resource for request in metric_requests(receiver)),
        *(request.resource_spans[0].resource for request in trace_requests(receiver)),
    ]
    assert len(resources) == 2
    for resource in resources:
        attributes = attributes_of(resource.attributes)
        assert attributes["service.name"] == "clicks-job"
        assert attributes["deployment.environment"] == "test"


def test_a_batch_is_a_trace_with_its_phases_and_executors(receiver: ScriptedServer, tmp_path: Path) -> None:
    """The span of a batch contains its phases in sequence, and the span `run` contains the slots of each executor."""
    exporter = Otlp(receiver.endpoint, "traces", ManualClock().seconds, os.environ)
    report, facts = run_batches(tmp_path, 1)[0]
    report = replace(report, seconds={"enter": 0.25, "run": 1.0, "commit": 0.5, "total": 2.0})
    exporter.export(report, facts, ())
    spans = spans_of(trace_requests(receiver))
    by_name = {span.name: span for span in spans}
    batch = by_name["batch"]
    assert batch.start_time_unix_nano == report.started_ms * 1_000_000
    assert batch.end_time_unix_nano - batch.start_time_unix_nano == 2_000_000_000
    assert not batch.parent_span_id
    assert attributes_of(batch.attributes)["riffle.batch"] == report.version
    start = batch.start_time_unix_nano
    for phase, seconds in (("enter", 0.25), ("run", 1.0), ("commit", 0.5)):
        span = by_name[phase]
        assert span.parent_span_id == batch.span_id
        assert span.start_time_unix_nano == start
        assert span.end_time_unix_nano == start + int(seconds * 1e9)
        start = span.end_time_unix_nano
    slots = [span for span in spans if span.name == "slots"]
    assert {span.parent_span_id for span in slots} == {by_name["run"].span_id}
    assert {attributes_of(span.attributes)["riffle.executor"] for span in slots} == set(report.executor_steps)
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)


def test_values_are_sent_once_per_interval_and_at_the_end(
    receiver: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are sent once per interval, so short batches need no request each. The last values are sent at the end."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3000")
    clock = ManualClock()
    exporter = Otlp(receiver.endpoint, "all", clock.seconds, os.environ)
    for report, facts in run_batches(tmp_path, 4):
        exporter.export(report, facts, readings(report, facts))
        clock.advance(2)
    exporter.close()
    assert len(metric_requests(receiver)) == 2
    assert samples_of(metric_requests(receiver)[-1])["riffle_batch_version"] == 3
    batches = [span for span in spans_of(trace_requests(receiver)) if span.name == "batch"]
    assert [attributes_of(span.attributes)["riffle.batch"] for span in batches] == [0, 1, 2, 3]
    assert len(trace_requests(receiver)) < 4


@pytest.mark.parametrize("answer", [Answer(404), Answer(503), Answer(200, silent_seconds=0.6)], ids=str)
def test_a_receiver_that_fails_or_hangs_is_reported_once_and_delays_no_batch(
    receiver: ScriptedServer, tmp_path: Path, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches never wait for a failing receiver. One warning has the reason, and the SDK logs nothing."""
    receiver.answers[:] = [answer]
    moments = run_batches(tmp_path, 3)
    running = Exporters([Otlp(receiver.endpoint, "metrics", ManualClock().seconds, os.environ)], ManualClock().seconds)
    with caplog.at_level("WARNING"):
        for report, facts in moments:
            running.publish(report, facts)
        assert len(receiver.seen) <= 1, "publishing does not wait for the receiver"
        running.close(30)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "RIFFLE-1261" in warnings[0]
    assert "RIFFLE-1290" in warnings[0]
    assert "metrics (" in warnings[0]


def test_values_are_sent_again_after_a_failure(receiver: ScriptedServer, tmp_path: Path) -> None:
    """After a failed request, the next request has the sums of all batches, because counters are cumulative."""
    receiver.answers[:] = [Answer(404), Answer(200)]
    running = Exporters([Otlp(receiver.endpoint, "metrics", ManualClock().seconds, os.environ)], ManualClock().seconds)
    for report, facts in run_batches(tmp_path, 2):
        running.publish(report, facts)
    running.close(30)
    assert samples_of(metric_requests(receiver)[-1])['riffle_rows_total{store="totals"}'] == 2


def test_no_key_or_value_of_user_data_is_sent(receiver: ScriptedServer, tmp_path: Path) -> None:
    """No request contains a key or a value of the user's rows."""
    world = World(tmp_path)
    report = world.batch(0, one_row(987_654_321, "a-secret-key"))
    facts = replace(world.driver.facts(), query_id="0a1b2c3d", query_name="clicks")
    exporter = Otlp(receiver.endpoint, "all", ManualClock().seconds, os.environ)
    exporter.export(report, facts, readings(report, facts))
    exporter.close()
    assert len(receiver.seen) >= 2
    assert not any(b"a-secret-key" in request.body or b"987654321" in request.body for request in receiver.seen)


@pytest.mark.parametrize("endpoint", ["http://ann:secret@127.0.0.1:4318", "https://receiver.example/otlp?token=secret"])
def test_an_endpoint_with_secrets_is_refused_without_showing_them(endpoint: str) -> None:
    """An endpoint with a password or token is refused, and the error does not show the secret."""
    with pytest.raises(ConfigError, match="RIFFLE-0456") as caught:
        check_exporters(Settings(otlp_endpoint=endpoint))
    assert "otlp_endpoint" in caught.value.where
    assert "secret" not in str(caught.value)
