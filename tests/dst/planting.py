"""Planted bugs: does what is there find them? Each is a patch in ``planted``, put on a copy of the checkout, in which a
command runs then: schedules of the simulation, or the pure tests. Knows patches and processes. Does not know bugs.

    python -m tests.dst.planting --by tests fence_compared_one_way
"""

from __future__ import annotations

import argparse
import json as _json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kit.folders import CHECKOUT

__all__ = ["BY_TESTS", "SECONDS", "Outcome", "Plant", "misfits", "planted", "plants", "tried"]

PLANTED = Path(__file__).parent / "planted"
COPIED = ("riffle_spark", "tests", "apps", "conf", "setup.cfg", "pyproject.toml")
PURE = "not spark and not cluster and not long"
BY_TESTS = (
    *("-m", "pytest", "-q", "-x", "-m", PURE, "--no-header", "--tb=line", "-W", "default"),
    *("-p", "no:cacheprovider"),
    *("tests/process/processors", "tests/worker", "tests/state", "tests/offline", "tests/protocol"),
)
SECONDS = 900.0
LAST_SCHEDULES = 60.0
"""Schedules that have begun when the seconds are over come to their end, and figures are told."""
_FILES = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)
_PLAYED = re.compile(r'"schedules": (\d+)')
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)|\bseed[ :=]+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted bug: its name, what goes wrong for a user, its patch. ``unread``: by who had not read the checks."""

    name: str
    told: str
    patch: Path
    unread: bool

    @property
    def files(self) -> list[str]:
        """The files that it changes."""
        return _FILES.findall(self.patch.read_text())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a planted bug was found, by which seed or test first, after how many schedules and how many seconds."""

    name: str
    found: bool
    first: str
    seconds: float


def plants(names: Sequence[str] = (), folder: Path = PLANTED) -> list[Plant]:
    """Return the planted bugs of these names, all of them without a name. Raises ``SystemExit`` for an unknown one."""
    every = {path.stem: _read(path) for path in sorted(folder.rglob("*.patch"))}
    if unknown := sorted(set(names) - every.keys()):
        raise SystemExit(f"nothing is planted as {', '.join(unknown)}; there are: {', '.join(every)}")
    return [every[name] for name in names or every]


def _read(path: Path) -> Plant:
    first, _, _ = path.read_text().partition("\n")
    return Plant(path.stem, first.removeprefix("# "), path, path.parent.name == "unread")


def misfits(some: Sequence[Plant], folder: Path = CHECKOUT) -> dict[str, str]:
    """Return those patches that do not apply to a checkout (any more), with what git says."""
    told = {one.name: _apply(one, folder, "--check") for one in some}
    return {name: said for name, said in told.items() if said}


def planted(
    names: Sequence[str], schedules: int, json: bool, *, by: str = "schedules", seconds: float = SECONDS
) -> int:  # fmt: skip
    """Plant each of these bugs (all without a name), run so many schedules or ``by`` the pure tests, and print what
    became of each. Return 0 if all were found.
    """
    some = plants(names)
    if wrong := misfits(some):
        raise SystemExit("\n".join(f"{name} does not apply: {said}" for name, said in wrong.items()))
    schedules_of = ("-m", "tests.dst", "--no-shrink", "--schedules", str(schedules), "--seconds", str(seconds))
    command, most = (BY_TESTS, seconds) if by == "tests" else (schedules_of, seconds + LAST_SCHEDULES)
    outcomes = []
    for outcome in tried(some, command, most):
        outcomes.append(outcome)
        print(told(outcome), file=sys.stderr if json else sys.stdout, flush=True)
    missed = [one.name for one in outcomes if not one.found]
    if json:
        print(_json.dumps({"planted": len(some), "missed": missed, "plants": [asdict(one) for one in outcomes]}))
    else:
        print(f"{len(some) - len(missed)} of {len(some)} planted bugs were found")
    return 1 if missed else 0


def told(outcome: Outcome) -> str:
    """Return one line of what became of a planted bug."""
    return f"{'found ' if outcome.found else 'MISSED'} {outcome.name} ({outcome.seconds:.0f} s): {outcome.first}"


def tried(some: Sequence[Plant], command: Sequence[str], seconds: float = SECONDS) -> Iterator[Outcome]:
    """Plant one bug after the other in a copy of the checkout, and run Python there with this command, for so many
    seconds at most: one that is not found by then was missed, lest a slow machine find bugs.

    Raises ``SystemExit`` if the command fails where nothing is planted (it would find everything), or does not come
    to its end there (it would find nothing).
    """
    with _copied() as folder:
        untouched = _run(folder, command, seconds)
        if untouched.returncode < 0:
            raise SystemExit(f"nothing is planted, and the command takes more than {seconds:.0f} s: give it more time")
        if untouched.returncode:
            raise SystemExit(f"nothing is planted, and the command fails:\n{untouched.stdout[-4000:]}")
        for one in some:
            with _planted_in(folder, one):
                began = time.monotonic()
                ended = _run(folder, command, seconds)
                yield _judged(one, ended, time.monotonic() - began)


def _judged(one: Plant, ended: subprocess.CompletedProcess[str], seconds: float) -> Outcome:
    first, played = _FIRST.search(ended.stdout), _PLAYED.search(ended.stdout)
    said = next((f"seed {seed}" if seed else test for test, seed in [first.groups()]), "") if first else ""
    if ended.returncode < 0:
        said = "it did not come to its end in time"
    elif played:
        said = ", ".join(filter(None, [said, f"{played.group(1)} schedules"]))
    return Outcome(one.name, ended.returncode > 0, said, round(seconds, 1))


def _run(folder: Path, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python there; what it starts ends with it. One that takes too long has a negative code."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, said)


@contextmanager
def _copied() -> Iterator[Path]:
    """Make a copy of what the checks need of the checkout, as it is now."""
    ignored = shutil.ignore_patterns("__pycache__", ".cache", "*.so")
    with tempfile.TemporaryDirectory(prefix="riffle-planted-") as made:
        folder = Path(made)
        for name in COPIED:
            source = CHECKOUT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                shutil.copy2(source, folder / name)
        yield folder


@contextmanager
def _planted_in(folder: Path, one: Plant) -> Iterator[None]:
    """Have the bug in the copy for the length of the block. What was compiled goes: times of files are in seconds."""
    before = {folder / name: (folder / name).read_bytes() for name in one.files}
    if said := _apply(one, folder):
        raise SystemExit(f"{one.name} does not apply: {said}")
    try:
        _forget_compiled(before)
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)
        _forget_compiled(before)


def _forget_compiled(sources: dict[Path, bytes]) -> None:
    for source in sources:
        shutil.rmtree(source.parent / "__pycache__", ignore_errors=True)


def _apply(one: Plant, folder: Path, *options: str) -> str:
    """Apply a patch to a folder, be that in a repository or not; return what git has against it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    command = ["git", "apply", *options, str(one.patch)]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return "" if ended.returncode == 0 else ended.stderr.strip() or f"git ended with {ended.returncode}"


def main(argv: Sequence[str]) -> int:
    """Plant and look, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.dst.planting", description=planted.__doc__)
    parser.add_argument("names", nargs="*", help="planted bugs (all, without a name)")
    parser.add_argument("--schedules", type=int, default=500, help="schedules of the simulation for each")
    parser.add_argument("--by", choices=("schedules", "tests"), default="schedules", help="what is to find them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each at most")
    parser.add_argument("--json", action="store_true", help="one line of JSON at the end")
    given = parser.parse_args(argv)
    return planted(given.names, given.schedules, given.json, by=given.by, seconds=given.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
