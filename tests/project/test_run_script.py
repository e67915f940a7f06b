"""The script that everything starts from explains itself."""

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
    """Call it from elsewhere, which must not matter."""
    return subprocess.run([str(RUN), *arguments], capture_output=True, text=True, timeout=30, cwd="/", check=False)


def test_help_names_every_subcommand() -> None:
    """Help is printed on request and without arguments."""
    for arguments in (["help"], ["--help"], []):
        answer = run(*arguments)
        assert answer.returncode == 0
        for name in SUBCOMMANDS:
            assert f"./run {name} " in answer.stdout


def test_what_it_does_not_know_is_an_error() -> None:
    """An unknown subcommand, benchmark or option exits non-zero and says what is known."""
    assert "./run setup" in run("no-such-thing").stderr
    for arguments in (["no-such-thing"], ["bench", "no-such-bench"], ["setup", "--sprak"], ["nightly", "--now"]):
        assert run(*arguments).returncode == 1


def test_the_help_of_benchmarks_names_them() -> None:
    """A name that looks like an option is an unknown name."""
    answer = run("bench", "--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {"Names:", "throughput", "pairs"} <= set(answer.stdout.split())
    for name in ("-e", "--version", ""):
        answer = run("bench", name)
        assert answer.returncode == 1
        assert answer.stderr.startswith(f"run: unknown benchmark: {name}. Known: ")


@pytest.mark.parametrize(("old", "new"), [("soak", "./run dst --seed 7"), ("house", "./run structure --seed 7")])
def test_a_renamed_subcommand_is_refused_with_its_new_name(old: str, new: str) -> None:
    """The message is the command to run instead, with the options that were passed."""
    answer = run(old, "--seed", "7")
    assert answer.returncode == 1
    assert new in answer.stderr


# Runs until its progress was told three times, which it sees in what is told; bounded.
UNTIL_TOLD = """
step=0
until [ "$(grep -c "Doing it, [0-9]* s: step" "$1")" -ge 3 ]; do
    step=$((step + 1))
    [ $step -lt 300 ] || exit 9
    printf "step $step\\r"
    sleep 0.1
done
echo done; exit "$2"
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_long_command_is_not_silent(tmp_path: Path, code: int) -> None:
    """What takes long is announced, and its newest line is told every few seconds while it runs; its own output is
    shown where it fails, and its code is handed on.
    """
    log = tmp_path / "told"
    (tmp_path / "slow").write_text(UNTIL_TOLD)
    script = f'''source "{RUN}" help >/dev/null; set +e; TELL_SECONDS=0.2
        patiently "Doing it" newest_line bash "{tmp_path}/slow" "{log}" {code} 2>"{log}"'''
    assert subprocess.run(["bash", "-c", script], timeout=120, check=False).returncode == code
    lines = log.read_text().splitlines()
    assert lines[0] == "Doing it"
    assert all(line.startswith("  Doing it, ") for line in lines[1:4])
    assert ("done" in lines) == (code != 0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_setting_up_a_fresh_machine_is_not_silent(tmp_path: Path) -> None:
    """Where nothing is installed and nothing was downloaded before, something is said within two seconds, and then at
    least every ten until all is ready.
    """
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
