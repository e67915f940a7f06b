"""Store the figures of benchmarks in `benchmarks/results`, one file per benchmark. The numbers page is made from them.

    ./run bench throughput --save [options]

passes the JSON that the benchmark prints to this module. A file holds runs. Each run has its date, machine and
revision, and its figures by name with unit and repetitions. A figure that is measured again belongs to the newer run. A
run without remaining figures is removed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

__all__ = ["RESULTS", "Figure", "Run", "figures_in", "keep", "read", "save", "unit_of", "with_run"]

RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("riffle-spark", "pyspark", "pyarrow", "numpy")
NOT_MEASURED = (":/", ":(top,exclude)benchmarks/results", ":(top,exclude)docs/numbers.md")
TRENDS = ("calls",)
"""Benchmarks whose older runs are kept, although newer ones have measured the same figures."""
UNITS = (
    ("rows_per_s", "rows/s"),
    ("elements_per_s", "elements/s"),
    ("mb_per_s", "MB/s"),
    ("rounds", ""),
    ("ratio", "x"),
    ("over", "x"),
    ("usd", "USD"),
    ("bytes", "bytes"),
    ("mb", "MB"),
    ("ms", "ms"),
    ("s", "s"),
    ("seconds", "s"),
    ("phases", "s"),
    ("slots", "s"),
)
"""Words in the name of a figure, and their units. The first word that occurs determines the unit."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number, its unit, and the number of batches or calls of which it is the median or the best."""

    value: float
    unit: str = ""
    repetitions: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """One run: command, date, revision, machine, versions, and figures."""

    command: str
    date: str
    revision: str
    machine: str
    cores: int
    versions: Mapping[str, str]
    note: str
    figures: Mapping[str, Figure]


def read(file: Path) -> tuple[Run, ...]:
    """Return the runs of a file, oldest first; none if the file does not exist."""
    if not file.exists():
        return ()
    runs = (Run(**load) for load in json.loads(file.read_text())["runs"])
    return tuple(replace(run, figures={name: _figure(fields) for name, fields in run.figures.items()}) for run in runs)


def _figure(fields: object) -> Figure:
    assert isinstance(fields, dict), fields
    return Figure(**fields)


def save(file: Path, runs: Sequence[Run]) -> None:
    """Write a file of runs."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"runs": [asdict(run) for run in runs]}, indent=1, ensure_ascii=False) + "\n")


def with_run(runs: Sequence[Run], newer: Run) -> tuple[Run, ...]:
    """Return the runs without the figures that ``newer`` has measured again, followed by ``newer``."""
    retained = (
        replace(run, figures={name: figure for name, figure in run.figures.items() if name not in newer.figures})
        for run in runs
    )
    return (*(run for run in retained if run.figures), newer)


def figures_in(printed: Mapping[str, object]) -> dict[str, Figure]:
    """Return the numbers in the JSON of a benchmark.

    A number in an object is named `object.name`. A list counts as its length.

    The object `repetitions` has the number of batches or calls by figure, if there are several.
    """
    printed_repetitions = printed.get("repetitions", {})
    repetitions = printed_repetitions if isinstance(printed_repetitions, dict) else {}
    numbers = _numbers({name: value for name, value in printed.items() if name != "repetitions"})
    return {name: Figure(value, unit_of(name), repetitions.get(name, 1)) for name, value in numbers}


def _numbers(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", len(value)
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield f"{prefix}{name}", value


def unit_of(name: str) -> str:
    """Return the unit in a figure's name, or an empty text for a plain number."""
    words = f"_{name.replace('.', '_')}_"
    return next((unit for word, unit in UNITS if f"_{word}_" in words), "")


def _run_of(command: str, printed: Mapping[str, object]) -> Run:
    today = datetime.now(timezone.utc).date().isoformat()
    versions = {"Java": _java(), "Python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    cores = len(os.sched_getaffinity(0))
    return Run(command, today, _revision(), _machine(), cores, versions, "", figures_in(printed))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else "java"
    version_text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "([^"]+)"', version_text)
    return match[1] if match else "unknown"


def _machine() -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{match[1] if match else platform.machine()}, {memory / 2**30:.0f} GB"


def _revision() -> str:
    """Return the checked-out commit. A `+` marks uncommitted changes, except saved figures."""
    commit = _git("rev-parse", "--short", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *NOT_MEASURED)
    return f"{commit}+" if changes else commit or "unknown"


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return result.stdout.strip()


def keep(command: str, options: Sequence[str], printed: str, folder: Path = RESULTS) -> Path:
    """Save the figures in the last line that a benchmark printed. Return the file, which has the benchmark's name."""
    lines = printed.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        sys.exit("there are no figures to save")
    name = command.rsplit(maxsplit=1)[-1]
    file = folder / f"{name}.json"
    run = "./run demo" if name == "demo" else f"./run bench {name}"
    newer = _run_of(" ".join([run, *options]), json.loads(lines[-1]))
    save(file, (*read(file), newer) if name in TRENDS else with_run(read(file), newer))
    return file


def main(command: str, *options: str) -> None:
    """Read a benchmark's output from standard input, save its figures, and print the output."""
    printed = sys.stdin.read()
    file = keep(command, options, printed)
    print(printed, end="")
    print(f"Saved in benchmarks/results/{file.name}; ./run bench page writes the page", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
