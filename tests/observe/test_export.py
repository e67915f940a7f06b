"""Exporters run beside the batches: none delays a batch, and each failure is reported once."""

from __future__ import annotations

import json
import resource
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from riffle_spark.observe.export import Exporters
from riffle_spark.observe.json_lines import JsonLines
from riffle_spark.observe.readings import Reading, readings
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.testing import ManualClock


def report_of(version: int) -> BatchReport:
    """Return the report of a batch without rows."""
    return BatchReport(version, "query", "run", 0, 1, {"total": 0.5})


def facts_of(version: int) -> DriverFacts:
    """Return facts after a batch."""
    return DriverFacts(time_ms=1_000 * version, version=version, counters={"rows/totals": version + 1})


class KeepingExporter:
    """An exporter that stores its calls."""

    name = "keeping"

    def __init__(self) -> None:
        self.moments: list[tuple[int | None, int, tuple[Reading, ...]]] = []
        self.closed = 0

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:
        """Store the batch, the time and the readings."""
        self.moments.append((report.version if report else None, facts.time_ms, tuple(readings)))

    def close(self) -> None:
        """Count the calls of `close`."""
        self.closed += 1


class HangingExporter(KeepingExporter):
    """An exporter that blocks in each call until it is released."""

    name = "hanging"

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.released = threading.Event()

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:
        """Wait for the release."""
        self.entered.set()
        self.released.wait()
        super().export(report, facts, readings)


class FailingExporter(KeepingExporter):
    """An exporter that raises SystemExit in each call, which would end a thread."""

    name = "failing"

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:
        """Store the call, then fail."""
        super().export(report, facts, readings)
        raise SystemExit("the collector is down")


def test_every_exporter_gets_all_batches_in_order_and_is_closed_once() -> None:
    """All exporters get the same readings. Batches that wait are exported before the end."""
    exporters = [KeepingExporter(), KeepingExporter()]
    running = Exporters(exporters, ManualClock().seconds)
    for version in range(5):
        running.publish(report_of(version), facts_of(version))
    running.close(10)
    running.close(10)
    assert [moment[0] for moment in exporters[0].moments] == [0, 1, 2, 3, 4]
    assert exporters[0].moments == exporters[1].moments
    assert exporters[0].moments[4][2] == readings(report_of(4), facts_of(4))
    assert [exporter.closed for exporter in exporters] == [1, 1]


def test_facts_between_batches_have_the_readings_of_the_last_batch() -> None:
    """Facts of an idle query and facts during a batch are exported with the readings of the last report."""
    exporter = KeepingExporter()
    running = Exporters([exporter], ManualClock().seconds)
    running.publish_again(1, 0.0)
    running.publish(report_of(3), facts_of(3))
    running.publish(None, facts_of(4))
    running.publish_again(9_000, 0.0)
    running.close(10)
    assert [moment[:2] for moment in exporter.moments] == [(3, 3_000), (None, 4_000), (None, 9_000)]
    assert all(any(r.metric.name == "riffle_last_batch_seconds" for r in moment[2]) for moment in exporter.moments)


def test_during_a_batch_the_last_facts_have_its_running_seconds() -> None:
    """During a batch the last facts are exported with its running seconds.

    Before the first batch nothing is exported.
    """
    keeping = KeepingExporter()
    running = Exporters([keeping], ManualClock().seconds)
    running.publish_again(500, 3.0)
    running.publish(report_of(0), facts_of(0))
    running.publish_again(7_500, 42.5)
    running.close(10)
    assert [moment[:2] for moment in keeping.moments] == [(0, 0), (None, 7_500)]
    values = [{r.sample: r.value for r in moment[2]} for moment in keeping.moments]
    assert [each["riffle_running_batch_seconds"] for each in values] == [0.0, 42.5]
    assert values[1]["riffle_last_batch_seconds"] == 0.5


def test_a_hanging_exporter_delays_neither_batches_nor_others(caplog: pytest.LogCaptureFixture) -> None:
    """Batches continue, another exporter gets all of them, and the hanging one is reported once."""
    clock = ManualClock()
    hanging = HangingExporter()
    keeping = KeepingExporter()
    running = Exporters([hanging, keeping], clock.seconds)
    with caplog.at_level("WARNING", logger="riffle_spark"):
        running.publish(report_of(0), facts_of(0))
        assert hanging.entered.wait(10)
        for version in range(1, 300):
            clock.advance(1)
            running.publish(report_of(version), facts_of(version))
    warnings = [record.getMessage() for record in caplog.records]
    assert sum("[RIFFLE-1260] The exporter hanging" in warning for warning in warnings) == 1
    running.close(0)
    hanging.released.set()
    running.close(10)
    assert hanging.moments[0][0] == 0
    assert hanging.moments[-1][0] == 299, "the newest batches wait, the oldest are dropped"
    assert len(hanging.moments) < 100
    assert keeping.moments[-1][0] == 299
    assert hanging.closed == 1


def test_a_slow_exporter_drops_readings_between_batches_first() -> None:
    """If an exporter is too slow, readings between batches are dropped before readings of batches."""
    hanging = HangingExporter()
    running = Exporters([hanging], ManualClock().seconds)
    running.publish(report_of(0), facts_of(0))
    assert hanging.entered.wait(10)
    for version in range(1, 11):
        running.publish(report_of(version), facts_of(version))
        for _ in range(20):
            running.publish_again(version, 0.0)
    hanging.released.set()
    running.close(10)
    assert [version for version, _, _ in hanging.moments if version is not None] == list(range(11))


def test_a_failing_exporter_is_reported_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A failing exporter still gets each batch, even if its error would end a thread. The failure is logged once."""
    failing = FailingExporter()
    running = Exporters([failing], ManualClock().seconds)
    with caplog.at_level("WARNING", logger="riffle_spark"):
        for version in range(3):
            running.publish(report_of(version), facts_of(version))
        running.close(10)
    assert [moment[0] for moment in failing.moments] == [0, 1, 2]
    assert caplog.text.count("RIFFLE-1261") == 1
    assert "SystemExit: the collector is down" in caplog.text
    assert failing.closed == 1


def test_json_lines_have_the_values_of_other_exporters(tmp_path: Path) -> None:
    """Each batch is one JSON line with the fields of the report and the readings that other exporters get."""
    keeping = KeepingExporter()
    running = Exporters([keeping, JsonLines(f"{tmp_path}/reports.jsonl")], ManualClock().seconds)
    for version in range(3):
        running.publish(report_of(version), facts_of(version))
        running.publish(None, facts_of(version))
    running.close(10)
    lines = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    batches = [moment for moment in keeping.moments if moment[0] is not None]
    assert [line["version"] for line in lines] == [0, 1, 2]
    assert [line["readings"] for line in lines] == [{r.sample: r.value for r in moment[2]} for moment in batches]
    without_readings = [{name: value for name, value in line.items() if name != "readings"} for line in lines]
    assert without_readings == [json.loads(report_of(version).to_json()) for version in range(3)]


def test_a_partial_line_of_a_full_disk_does_not_damage_the_next_line(tmp_path: Path) -> None:
    """A partial line, written before the disk was full, does not damage the next line."""
    file = tmp_path / "reports.jsonl"
    lines = JsonLines(str(file))
    lines.export(report_of(0), facts_of(0), ())
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, unlimited[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            lines.export(report_of(1), facts_of(1), ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        signal.signal(signal.SIGXFSZ, handler)
    lines.export(report_of(2), facts_of(2), ())
    lines.export(report_of(3), facts_of(3), ())
    first, cut, *others = file.read_text().splitlines()
    assert len(cut) == 10
    assert [json.loads(line)["version"] for line in (first, *others)] == [0, 2, 3]


def test_a_thread_that_cannot_start_is_reported_once_and_fails_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    """If no thread can start, one warning is logged and batches commit.

    The next thread exports the batches that wait.
    """
    keeping = KeepingExporter()
    running = Exporters([keeping], ManualClock().seconds)
    usual = threading.stack_size(1 << 46)  # a stack size that no system can allocate
    try:
        running.publish(report_of(0), facts_of(0))
        running.publish(report_of(1), facts_of(1))
    finally:
        threading.stack_size(usual)
    assert caplog.text.count("RIFFLE-1261") == 1
    running.publish(report_of(2), facts_of(2))
    running.close(10)
    assert [moment[0] for moment in keeping.moments] == [0, 1, 2]
    assert keeping.closed == 1


def test_figures_after_the_end_are_not_exported() -> None:
    """Figures that arrive after the exporters were closed are dropped."""
    exporter = KeepingExporter()
    running = Exporters([exporter], ManualClock().seconds)
    running.publish(report_of(0), facts_of(0))
    running.close(10)
    running.publish(report_of(1), facts_of(1))
    running.close(10)
    assert ([moment[0] for moment in exporter.moments], exporter.closed) == ([0], 1)
