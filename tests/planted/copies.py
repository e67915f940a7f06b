"""Run tests in copies of the checkout that have one planted bug each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from tests.kit.examples import PLANTED
from tests.kit.folders import CHECKOUT
from tests.planted.patches import Plant, PlantError, apply_patch

__all__ = ["Outcome", "command_of", "run_plants"]

COPIED = (
    *("riffle_spark", "tests", "apps", "benchmarks", "conf", "docs", "requirements"),
    *("setup.cfg", "pyproject.toml", "run", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
)
PYTEST = (
    *("-m", "pytest", "-x", "-q", "-m", "not long", "--no-header", "--tb=line", "-p", "no:cacheprovider"),
    *("--randomly-seed=1", "--randomly-dont-reorganize", "--hypothesis-seed=1", "--timeout=300"),
    f"--hypothesis-profile={PLANTED}",
)
SCHEDULES = ("-m", "tests.dst", "--json", "--processes", "1", "--schedules")
SECONDS = 900.0
PASSED = 0
FAILED = 1
TIMED_OUT = 1_000
_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)|\bseed[ :=]+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one planted bug: whether a test or schedule found it, and which one first.

    ``error``: the tests could not be run, so it is unknown whether they find the bug.
    """

    plant: Plant
    is_found: bool
    first: str
    seconds: float
    error: str = ""


def command_of(plants: Sequence[Plant], schedules: int = 0) -> list[tuple[str, ...]]:
    """Return the Python commands that run all tests of these plants, or ``schedules`` schedules instead."""
    tests = dict.fromkeys(test for plant in plants for test in plant.tests)
    if schedules or not tests:
        played = schedules or max(plant.schedules for plant in plants)
        return [(*SCHEDULES, str(played))]
    schedules_max = max(plant.schedules for plant in plants)
    return [(*PYTEST, *tests), *([(*SCHEDULES, str(schedules_max))] if schedules_max else [])]


def run_plants(
    plants: Sequence[Plant], processes: int, schedules: int = 0, seconds: float = SECONDS
) -> Iterator[Outcome]:
    """Plant each bug in a copy of the checkout and run its tests there. Yield the outcomes.

    The tests also run once without a bug. Raises ``PlantError`` if they fail then, because they would find every bug.
    """
    copies = Queue[Path]()
    with tempfile.TemporaryDirectory(prefix="riffle-planted-") as scratch, ThreadPoolExecutor(processes) as pool:
        for number in range(processes):
            copies.put(_copy_checkout(Path(scratch) / str(number)))

        def check_unplanted(command: tuple[str, ...]) -> Outcome | None:
            with _taken(copies) as folder:
                result = _run(folder, command, seconds * len(plants))
            if result.returncode != PASSED:
                raise PlantError(f"nothing is planted, and the tests fail:\n{result.stdout[-4000:]}")
            return None

        def try_plant(plant: Plant) -> Outcome | None:
            began = time.monotonic()
            with _taken(copies) as folder, _planted_in(folder, plant):
                (command,) = command_of([plant], schedules)
                result = _run(folder, command, seconds)
            return _judge(plant, result, round(time.monotonic() - began, 1))

        unplanted = [pool.submit(check_unplanted, command) for command in command_of(plants, schedules)]
        tried = [pool.submit(try_plant, plant) for plant in plants]
        try:
            for future in as_completed([*unplanted, *tried]):
                outcome = future.result()
                if outcome is not None:
                    yield outcome
        finally:
            pool.shutdown(cancel_futures=True)


def _judge(plant: Plant, result: subprocess.CompletedProcess[str], seconds: float) -> Outcome:
    match = _FIRST_FAILURE.search(result.stdout)
    first = (match[1] or f"seed {match[2]}") if match else ""
    if result.returncode in (PASSED, TIMED_OUT):
        reason = "the tests did not end in time" if result.returncode == TIMED_OUT else ""
        return Outcome(plant, False, reason, seconds)
    if result.returncode == FAILED and first:
        return Outcome(plant, True, first, seconds)
    error = f"the tests ended with code {result.returncode}: {result.stdout.strip()[-1000:]}"
    return Outcome(plant, False, "", seconds, error)


def _copy_checkout(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.so")
    folder.mkdir()
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
    return folder


@contextmanager
def _taken(copies: Queue[Path]) -> Iterator[Path]:
    folder = copies.get()
    try:
        yield folder
    finally:
        copies.put(folder)


@contextmanager
def _planted_in(folder: Path, plant: Plant) -> Iterator[None]:
    """Apply a patch on entry, and restore the files on exit."""
    originals = {folder / name: (folder / name).read_bytes() for name in plant.files}
    if refusal := apply_patch(plant, folder):
        raise PlantError(f"{plant.name} does not apply: {refusal}")
    try:
        _forget_compiled(originals)
        yield
    finally:
        for path, data in originals.items():
            path.write_bytes(data)
        _forget_compiled(originals)


def _forget_compiled(sources: dict[Path, bytes]) -> None:
    """Delete compiled modules, because Python compares file times in whole seconds."""
    for source in sources:
        shutil.rmtree(source.parent / "__pycache__", ignore_errors=True)


def _run(folder: Path, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder. Kill it after these seconds."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            code = TIMED_OUT
    return subprocess.CompletedProcess(command, code, output)
