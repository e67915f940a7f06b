"""The nightly run goes through all its parts and reports each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.nightly import Part, main, read_counts, run_parts

RUN = """#!/usr/bin/env bash
case $* in
    check) echo "All checks passed!" ;;
    *) echo "== 1 failed, 2 passed, 3 errors in 0.10s (0:00:00) =="; exit 3 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder whose ``run`` passes ``check`` and fails everything else."""
    script = tmp_path / "run"
    script.write_text(RUN)
    script.chmod(0o755)
    return tmp_path


def test_a_failed_part_is_reported_and_the_next_one_runs(checkout: Path) -> None:
    """Every part has its exit code, its numbers of tests and its log."""
    parts = list(run_parts(["test --all", "check"], checkout / "logs", checkout))
    assert [(part.command, part.exit_code, part.counts) for part in parts] == [
        ("test --all", 3, {"failed": 1, "passed": 2, "error": 3}),
        ("check", 0, {}),
    ]
    assert "All checks passed!" in Path(parts[1].log).read_text()


def test_the_report_lists_all_parts_and_one_failure_fails_the_run(checkout: Path) -> None:
    """The exit code is 1 if a part failed, and the report holds what was printed."""
    assert main([str(checkout / "logs"), "check", "test --all"], checkout) == 1
    report = [Part(**part) for part in json.loads((checkout / "logs" / "report.json").read_text())]
    assert [(part.command, part.exit_code) for part in report] == [("check", 0), ("test --all", 3)]
    assert main([str(checkout / "logs"), "check"], checkout) == 0


def test_the_last_summary_counts() -> None:
    """A part without pytest's summary line has no numbers."""
    summaries = "== 5 passed in 1.00s ==\n=== 6 passed, 1 skipped in 61.20s (0:01:01) ===\n"
    assert read_counts(summaries) == {"passed": 6, "skipped": 1}
    assert read_counts("=== slowest 10 durations ===\n") == {}
