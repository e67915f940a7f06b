"""Run the smoke tests on pairs of Spark and Python, and write the table of docs/support.md.

   ./run matrix [--spark VERSION]... [--python VERSION]... [--sample]

Each version of Python has one environment with the locked packages, and each version of Spark one folder. For a pair,
both are put on the path. A Spark that needs other versions of packages has one more folder per Python. The outcomes are
stored in docs/support.json. If a pair runs again, its new outcome replaces the old one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from riffle_spark.spark_installation import python_problem
from tests.kit.folders import CHECKOUT

__all__ = ["OUTCOMES", "PAGE", "Outcome", "read_outcomes", "read_report", "run_pair", "table", "with_table"]

SPARKS = ("3.5.0", "3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
REQUIREMENTS = CHECKOUT / "requirements"
PAGE = CHECKOUT / "docs" / "support.md"
OUTCOMES = CHECKOUT / "docs" / "support.json"
TABLE = re.compile(r"(?<=<!-- matrix -->\n).*(?=<!-- end of matrix -->)", re.DOTALL)
PAIR_SECONDS = 3_600
SAMPLE = (
    "tests/spark/engine/test_kept_plan.py",
    "tests/spark/engine/test_placement.py",
    "tests/spark/processors/test_null_structs.py",
)
"""The smoke tests that ``--sample`` runs: placement, kept plans, and processors with Spark's sinks."""
SPARKS_PACKAGES = ("pyspark==", "py4j==")
STORED = "--config-settings=--build-option=--compression=stored"  # compressing Spark's 400 MB takes minutes


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the smoke tests on one pair: how many passed, which failed, or why they could not run."""

    spark: str
    python: str
    revision: str
    date: str
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    refused: str = ""
    sample: bool = False

    @property
    def cell(self) -> str:
        """The outcome as the text of a table cell."""
        if self.refused:
            return "refused"
        tests = f"{self.passed} passed"
        if self.failed:
            tests = f"{len(self.failed)} of {self.passed + len(self.failed)} failed"
        return f"{tests} (sample)" if self.sample else tests


def main(arguments: Sequence[str]) -> int:
    """Run the pairs, one after the other; return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="./run matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--spark", action="append", help="a version of Spark; repeat it for several")
    parser.add_argument("--python", action="append", help="a version of Python, such as 3.12; repeat it for several")
    parser.add_argument("--environments", type=Path, default=CHECKOUT / ".venv-matrix", help="where they are made")
    parser.add_argument("--sample", action="store_true", help="run a few of the smoke tests only")
    options = parser.parse_args(arguments)
    failed = False
    for python in options.python or PYTHONS:
        interpreter = find_python(python)
        if interpreter is None:
            print(f"Python {python} is not installed", file=sys.stderr)
            continue
        program = python_environment(options.environments / f"python-{python}", interpreter)
        for spark in options.spark or SPARKS:
            folders = spark_folders(options.environments, spark, python, program)
            outcome = run_pair(spark, python, program, folders, SAMPLE if options.sample else ())
            print(f"Spark {spark}, Python {python}: {outcome.cell} {outcome.refused}", *outcome.failed, sep="\n  ")
            save(outcome)
            failed = failed or bool(outcome.failed)
    return int(failed)


def find_python(version: str) -> str | None:
    """Return an interpreter of a version from the path or from pyenv's folder."""
    candidates = [shutil.which(f"python{version}"), *pyenv_pythons(version)]
    for candidate in filter(None, candidates):
        command = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if answer.stdout.strip() == version:
            return candidate
    return None


def pyenv_pythons(version: str) -> list[str]:
    """Return the interpreters of a version that pyenv has installed."""
    return sorted(map(str, (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")))


def python_environment(folder: Path, interpreter: str) -> Path:
    """Return the interpreter of an environment with the locked packages except Spark.

    Create it if it does not exist.
    """
    program = folder / "bin" / "python"
    completion_mark = folder / "complete"
    if not completion_mark.exists():
        subprocess.run([interpreter, "-m", "venv", "--clear", str(folder)], check=True)
        _install(program, REQUIREMENTS / "build.txt")
        others = [entry for entry in _entries(_lock(program)) if not entry.startswith(SPARKS_PACKAGES)]
        _install(program, _written(folder, others), "--no-build-isolation")
        completion_mark.touch()
    return program


def spark_folders(environments: Path, version: str, python: str, program: Path) -> list[Path]:
    """Return the folders with a version of Spark and with the packages that it needs in other versions.

    Missing folders are installed. Such packages are compiled for one version of Python.
    """
    own_requirements = REQUIREMENTS / f"spark-{version}.txt"
    entries = _entries(own_requirements if own_requirements.exists() else _lock(program))
    spark = environments / f"spark-{version}"
    _install_once(program, [entry for entry in entries if entry.startswith(SPARKS_PACKAGES)], spark)
    others = [entry for entry in entries if not entry.startswith(SPARKS_PACKAGES)] if own_requirements.exists() else []
    if not others:
        return [spark]
    replaced = environments / f"spark-{version}-python-{python}"
    _install_once(program, others, replaced)
    return [spark, replaced]


def _install_once(program: Path, entries: Sequence[str], folder: Path) -> None:
    completion_mark = folder / "complete"
    if not completion_mark.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _install(program, _written(folder, entries), "--no-build-isolation", STORED, "--target", str(folder))
        completion_mark.touch()


def _lock(program: Path) -> Path:
    """Return the lock file of an interpreter's version."""
    recent = subprocess.run([program, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False)
    return REQUIREMENTS / ("python310.txt" if recent.returncode else "python311.txt")


def _entries(lock: Path) -> list[str]:
    """Return the packages of a lock file, each with its hashes."""
    return re.split(r"(?m)^(?=[A-Za-z0-9])", lock.read_text())[1:]


def _written(folder: Path, entries: Sequence[str]) -> Path:
    """Write packages to a file that pip reads."""
    file = folder / "locked.txt"
    file.write_text("".join(entries))
    return file


def _install(program: Path, requirements: Path, *options: str) -> None:
    command = [
        str(program),
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--require-hashes",
        "--no-deps",
    ]
    subprocess.run([*command, *options, "-r", str(requirements)], check=True)


def run_pair(spark: str, python: str, program: Path, folders: Sequence[Path], tests: Sequence[str]) -> Outcome:
    """Run the smoke tests, or only those of some files, on one pair."""
    environment = _environment(program, folders)
    outcome = Outcome(spark, python, _revision(), f"{datetime.now(timezone.utc):%Y-%m-%d}", sample=bool(tests))
    first, second, *_ = _numbers(spark)
    problem = python_problem((first, second), tuple(_numbers(python)), has_setuptools=True)  # build.txt installs it
    if problem:
        return replace(outcome, refused=problem)
    run = partial(subprocess.run, capture_output=True, text=True, env=environment, cwd=CHECKOUT, check=False)
    imported = run([str(program), "-c", "import riffle_spark"])
    if imported.returncode:
        return replace(outcome, refused=imported.stderr.splitlines()[-1])
    with tempfile.TemporaryDirectory() as temporary:
        command = [str(program), "-m", "pytest", "-q", "-m", "smoke", "--randomly-seed=1", "--randomly-dont-reorganize"]
        command += ["--timeout=300", "-p", "no:cacheprovider", f"--basetemp={temporary}/t", *tests]
        completed = run(command, timeout=PAIR_SECONDS)
    if completed.returncode not in (0, 1):
        raise SystemExit(f"pytest ended with {completed.returncode}:\n{(completed.stdout + completed.stderr)[-4000:]}")
    return read_report(completed.stdout, outcome)


def _environment(program: Path, folders: Sequence[Path]) -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK", "VIRTUAL_ENV"))
    }
    path = os.pathsep.join([str(program.parent), environment["PATH"]])
    return {**environment, "PATH": path, "PYTHONPATH": os.pathsep.join(map(str, [CHECKOUT, *folders]))}


def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout.strip()


def read_report(printed: str, pair: Outcome) -> Outcome:
    """Read the lines of pytest's summary."""
    failed = tuple(sorted(set(re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE))))
    counts = {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|skipped)", printed.splitlines()[-1])}
    return replace(pair, passed=counts.get("passed", 0), skipped=counts.get("skipped", 0), failed=failed)


def read_outcomes() -> list[Outcome]:
    """Return the stored outcomes."""
    if not OUTCOMES.exists():
        return []
    return [Outcome(**{**each, "failed": tuple(each["failed"])}) for each in json.loads(OUTCOMES.read_text())]


def save(outcome: Outcome) -> None:
    """Store the outcome of a pair, which replaces its old one, and write the table into the page."""
    kept_outcomes = [each for each in read_outcomes() if (each.spark, each.python) != (outcome.spark, outcome.python)]
    outcomes = sorted([*kept_outcomes, outcome], key=lambda each: (_numbers(each.spark), _numbers(each.python)))
    OUTCOMES.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), outcomes))


def with_table(page: str, outcomes: Iterable[Outcome]) -> str:
    """Return the page with its table replaced by the table of these outcomes."""
    return TABLE.sub(lambda _: table(outcomes), page)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the outcomes as a table with a row for each Spark and a column for each Python."""
    cells: Mapping[tuple[str, str], Outcome] = {(each.spark, each.python): each for each in outcomes}
    sparks = sorted({spark for spark, _ in cells}, key=_numbers)
    lines = [f"| Spark | {' | '.join(f'Python {python}' for python in PYTHONS)} |", f"| --- |{' --- |' * len(PYTHONS)}"]
    for spark in sparks:
        row = [cells[spark, python].cell if (spark, python) in cells else "not run" for python in PYTHONS]
        lines.append(f"| {spark} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
