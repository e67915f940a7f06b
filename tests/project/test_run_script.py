"""The script ``./run`` explains its subcommands and reports progress."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT

RUN = CHECKOUT / "run"
SUBCOMMANDS = ("help", "setup", "demo", "test", "nightly", "dst", "planted", "chaos", "fuzz", "check", "bench", "clean")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script from another folder, which must not matter."""
    return subprocess.run([str(RUN), *arguments], capture_output=True, text=True, timeout=30, cwd="/", check=False)


def test_help_names_every_subcommand() -> None:
    """The help names every subcommand, also if the script is called without arguments."""
    for arguments in (["help"], ["--help"], []):
        answer = run(*arguments)
        assert answer.returncode == 0
        for name in SUBCOMMANDS:
            assert f"./run {name} " in answer.stdout


def test_an_unknown_subcommand_or_option_is_refused() -> None:
    """An unknown subcommand, benchmark or option is an error."""
    assert "./run setup" in run("no-such-thing").stderr
    for arguments in (["no-such-thing"], ["bench", "no-such-bench"], ["setup", "--sprak"], ["nightly", "--now"]):
        assert run(*arguments).returncode == 1


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_setup_of_a_fresh_machine_reports_progress(tmp_path: Path) -> None:
    """On a fresh machine, `./run setup` prints its first line within two seconds, and then one every ten seconds."""
    fresh = tmp_path / "fresh"
    caches = tmp_path / "caches"
    shutil.copytree(RUN.parent, fresh, ignore=shutil.ignore_patterns(".*cache*", ".venv*", ".git", "*.egg-info"))
    environment = {**os.environ, "RIFFLE_CACHE": str(caches / "riffle"), "PIP_CACHE_DIR": str(caches / "pip")}
    with subprocess.Popen(
        [str(fresh / "run"), "setup"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as setup:
        assert setup.stdout is not None
        started = time.monotonic()
        times = [started]
        lines = []
        for line in setup.stdout:
            times.append(time.monotonic())
            lines.append(line)
    silences = sorted(
        ((later - earlier, line) for earlier, later, line in zip(times, times[1:], lines, strict=False)), reverse=True
    )
    print(f"{times[-1] - started:.0f} s; the longest silences: {silences[:3]}")
    assert setup.returncode == 0, lines[-20:]
    assert times[1] - started < 2
    assert silences[0][0] < 10, silences[:3]
