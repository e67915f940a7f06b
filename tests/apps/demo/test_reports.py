"""The demo reads the job's batch reports while they are written."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from apps.demo.live import LiveView
from apps.demo.reports import ReportFile
from riffle_spark.protocol.batch.batch_report import BatchReport


def report(version: int, rows: int, decision: str = "run") -> str:
    """Make the line of one batch that took half a second and starts a second after the one before. Two key-groups have
    moved before it.
    """
    return BatchReport(
        version=version,
        query_id="q",
        decision=decision,
        started_ms=1000 * version,
        epoch=1,
        seconds={"run": 0.4, "total": 0.5},
        rows=rows,
        slots=3,
        owners={"0": 64, "1": 64},
        standbys={"0": 60, "1": 60},
        warmups={"1": 8},
        probes_run=1,
        moves=tuple({"key_group": group, "role": "owner", "reason": "levels"} for group in range(2)),
        requests={"head": 1, "put": 4},
    ).to_json()


def test_reports_are_read_as_they_come(tmp_path: Path) -> None:
    """Each read adds what was appended, a line that is still being written waits for its end."""
    file = tmp_path / "reports.jsonl"
    reports = ReportFile(file)
    assert reports.read().rows == 0
    line = report(1, 200) + "\n"
    file.write_text(report(0, 100) + "\n" + line[:30])
    assert reports.read().rows == 100
    file.write_text(report(0, 100) + "\n" + line)
    assert reports.read().rows == 300


def test_a_repeated_batch_counts_once(tmp_path: Path) -> None:
    """A batch that was skipped because it was committed before adds no rows."""
    file = tmp_path / "reports.jsonl"
    file.write_text("\n".join([report(0, 100), report(0, 100, "repeat"), ""]))
    assert ReportFile(file).read().rows == 100


def test_figures_leave_empty_batches_out(tmp_path: Path) -> None:
    """Rate and requests are those of the batches that had rows, first start to last end."""
    file = tmp_path / "reports.jsonl"
    file.write_text("\n".join([report(0, 0), report(1, 100), report(2, 200), report(3, 0), ""]))
    run = ReportFile(file).read()
    assert run.rows_per_second == 300 / 1.5
    assert run.requests_per_batch == 5


def test_the_view_prints_a_line_a_batch_without_a_terminal(tmp_path: Path) -> None:
    """Each batch is printed once, with lag, copies, probes and owners, and the moves before it with their reason."""
    file = tmp_path / "reports.jsonl"
    reports, screen = ReportFile(file), io.StringIO()
    with LiveView(Console(file=screen), events=400) as view:
        for text in (report(0, 100) + "\n", report(1, 200) + "\n"):
            with file.open("a") as target:
                target.write(text)
            view.show(reports.read())
            view.show(reports.read())
    first, moved, second, _ = screen.getvalue().splitlines()
    assert "lag 300" in first
    assert moved == "before batch 0: 2 key-groups, owner: levels"
    assert "lag 100" in second
    assert "standbys 120, warm-ups 8, probes 1, moves 2" in second
    assert "owners 0 64  1 64" in second
    assert "rows/s 400" in second


def test_the_view_draws_a_table_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the last state of the table shows every batch."""
    file, screen = tmp_path / "reports.jsonl", io.StringIO()
    file.write_text(report(0, 100) + "\n" + report(1, 200) + "\n")
    with LiveView(Console(file=screen, force_terminal=True, width=120), events=400) as view:
        view.show(ReportFile(file).read())
    assert "300 of 400 events" in screen.getvalue()
