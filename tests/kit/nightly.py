"""Run parts of ``./run`` one after the other and write one report.

    python -m tests.kit.nightly FOLDER check "test --all"

Each part's output goes to a log in the folder; ``report.json`` lists the parts with their exit codes, seconds and
numbers of tests. A part that fails does not keep the next one from running.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kit.folders import CHECKOUT

__all__ = ["Part", "main", "read_counts", "run_parts"]

_SUMMARY = re.compile(r"^=+ (?P<counts>.*\d+ \w+.*) in [\d.]+s.*=+$", re.MULTILINE)
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the run. ``counts`` holds pytest's numbers by outcome; it is empty for a part without tests."""

    command: str
    exit_code: int
    seconds: float
    counts: dict[str, int]
    log: str


def run_parts(commands: Sequence[str], folder: Path, checkout: Path = CHECKOUT) -> Iterator[Part]:
    """Run ``./run COMMAND`` for each command and yield its result."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        log = folder / f"{re.sub(r'[^a-z0-9.]+', '-', command)}.log"
        started = time.monotonic()
        with log.open("w") as output:
            ended = subprocess.run(
                ["./run", *command.split()], cwd=checkout, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        seconds = round(time.monotonic() - started, 1)
        yield Part(command, ended.returncode, seconds, read_counts(log.read_text(errors="replace")), str(log))


def read_counts(log: str) -> dict[str, int]:
    """Return the numbers of pytest's last summary line by outcome."""
    summaries = _SUMMARY.findall(log)
    if not summaries:
        return {}
    return {outcome.removesuffix("s"): int(number) for number, outcome in _COUNT.findall(summaries[-1])}


def main(arguments: Sequence[str], checkout: Path = CHECKOUT) -> int:
    """Run the parts, print a line for each, write the report, and return 1 if one of them failed."""
    folder = Path(arguments[0])
    parts = []
    for part in run_parts(arguments[1:], folder, checkout):
        parts.append(part)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in part.counts.items())
        result = "passed" if part.exit_code == 0 else f"FAILED with exit code {part.exit_code}"
        print(f"{part.command}: {result} in {part.seconds:.0f} s; {counts or 'no tests'}; {part.log}", flush=True)
    (folder / "report.json").write_text(json.dumps([asdict(part) for part in parts], indent=2) + "\n")
    return 1 if any(part.exit_code for part in parts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
