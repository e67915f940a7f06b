"""The script that everything starts from explains itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "run"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Call it from elsewhere, which must not matter."""
    return subprocess.run([str(RUN), *arguments], capture_output=True, text=True, timeout=30, cwd="/", check=False)


def test_help_names_every_subcommand() -> None:
    """Help is printed on request and without arguments."""
    for arguments in (["help"], ["--help"], []):
        answer = run(*arguments)
        assert answer.returncode == 0
        for name in ("help", "setup", "demo", "test", "check", "bench", "clean"):
            assert f"./run {name} " in answer.stdout


def test_what_it_does_not_know_is_an_error() -> None:
    """An unknown subcommand, benchmark or option exits non-zero and says what is known."""
    assert "./run setup" in run("no-such-thing").stderr
    for arguments in (["no-such-thing"], ["bench", "no-such-bench"], ["setup", "--sprak"]):
        assert run(*arguments).returncode == 1
