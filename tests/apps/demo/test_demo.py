"""The demo as a whole: it counts every event once and leaves no process behind, also if it is interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT

pytestmark = pytest.mark.cluster

FIGURES = ["events", "keys", "lost", "doubled", "batches", "rows_per_s", "requests_per_batch"]
FIGURES += ["first_batch_s", "seconds"]


@pytest.mark.timeout(600)
def test_a_killed_worker_loses_no_event(tmp_path: Path) -> None:
    """A small run that gains a worker and loses another counts every event once, and prints its figures as one JSON
    object.
    """
    demo = _start(tmp_path, "--events", "5000", "--keys", "1000", "--json")
    printed, _ = demo.communicate(timeout=580)
    assert demo.returncode == 0, _log(tmp_path)
    figures = json.loads(printed)
    assert list(figures) == FIGURES
    assert (figures["events"], figures["keys"], figures["lost"], figures["doubled"]) == (5_000, 1_000, 0, 0)
    assert "A worker joins" in _log(tmp_path)
    assert "SIGKILL to the worker" in _log(tmp_path)
    assert "standby: keeps a spare copy" in _log(tmp_path)
    assert not _processes_of(tmp_path)


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, sent: signal.Signals) -> None:
    """The demo leaves no process behind if it is interrupted or killed while the job starts."""
    demo = _start(tmp_path, "--events", "100000")
    _wait_for(lambda: "The job runs on" in _log(tmp_path), 120)
    demo.send_signal(sent)
    demo.communicate(timeout=60)
    _wait_for(lambda: not _processes_of(tmp_path), 30)
    assert demo.returncode == (-signal.SIGKILL if sent == signal.SIGKILL else 130)


def _start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    with (folder / "demo.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "apps.demo.main", *options],
            cwd=CHECKOUT,
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE if "--json" in options else log,
            stderr=log,
        )


def _log(folder: Path) -> str:
    return (folder / "demo.log").read_text()


def _wait_for(condition: Callable[[], bool], seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it took too long"
        time.sleep(0.1)


def _processes_of(folder: Path) -> list[int]:
    """Return the processes whose environment names the folder. These are the demo and all its descendants."""
    marker = f"TMPDIR={folder}".encode()
    return [int(process.name) for process in Path("/proc").iterdir() if marker in _environment_of(process)]


def _environment_of(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes() if process.name.isdigit() else b""
    except OSError:
        return b""
