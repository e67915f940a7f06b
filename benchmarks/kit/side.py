"""Run one side of a comparison in its own process, on this tree or on another revision.

The same code feeds and measures both. The folder of another revision has the ``riffle_spark`` of that revision, and the
benchmarks, apps and tests of this tree. So a side that runs there imports only public names of ``riffle_spark``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.kit.memory import PeakMemory
from riffle_spark.errors import ConfigError

__all__ = ["HERE", "Code", "alternately", "answer", "at_revision", "in_process", "product"]

CHECKOUT = Path(__file__).resolve().parents[2]
THEIRS = ("riffle_spark", "conf")
OURS = ("apps", "benchmarks", "tests")
TEXT = 4_000
Name = TypeVar("Name")
SideResult = TypeVar("SideResult")


@dataclass(frozen=True, slots=True)
class Code:
    """The code that a side runs on: the working folder of its process, and its commit, which is empty for this tree."""

    folder: Path
    revision: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment by which all Python processes of a side import this code before any installed package."""
        python_path = os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), *([python_path] if python_path else [])])}


HERE = Code(CHECKOUT)


@contextmanager
def at_revision(revision: str) -> Iterator[Code]:
    """Check out a revision into a temporary folder, with this tree's benchmarks. Remove it after the block.

    Raises ``ConfigError`` if there is no such revision.
    """
    commit = _git("rev-parse", "--short", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="riffle-revision-") as base:
        tree = Path(base) / "tree"
        folder = Path(base) / "code"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            folder.mkdir()
            for name, root in [*((name, tree) for name in THEIRS), *((name, CHECKOUT) for name in OURS)]:
                (folder / name).symlink_to(root / name)
            yield Code(folder, commit)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    completed = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise ConfigError(
            f"git {arguments[0]} refused: {completed.stderr.strip()}", remedy="name a commit of this repository"
        )
    return completed.stdout.strip()


def product() -> str:
    """Return the folder of this process's ``riffle_spark``, with links resolved."""
    return str(Path(sys.modules["riffle_spark"].__file__ or "").resolve().parent)


def answer(result: Mapping[str, Any]) -> None:
    """Print the result of a side, and the folder of its code, for the waiting process."""
    print(json.dumps({**result, "code": product()}))


def in_process(
    module: str,
    spec: Mapping[str, Any],
    seconds: float,
    environment: Mapping[str, str],
    code: Code = HERE,
    python: str = sys.executable,
    *,
    samples_memory: bool = False,
) -> dict[str, Any]:
    """Run ``python -m module --side JSON`` on ``code``, and return the JSON object in its last line.

    With ``samples_memory`` the result has ``peak_pss_mb`` of all processes. Raises ``RuntimeError`` if the process
    fails or has imported other code.
    """
    command = [python, "-m", module, "--side", json.dumps(spec)]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=code.folder,
                env={**os.environ, **code.environment, **environment},
            )
        )
        memory = stack.enter_context(PeakMemory(process.pid)) if samples_memory else None
        printed, complaints = _ended(process, seconds)
    if process.returncode != 0:
        raise RuntimeError(f"{spec} failed:\n{complaints[-TEXT:]}")
    result: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    _check(result.pop("code"), code)
    return result if memory is None else {**result, "peak_pss_mb": memory.peak_mb}


def _ended(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    except BaseException:
        process.kill()
        raise


def _check(revision: str, code: Code) -> None:
    if Path(revision) != (code.folder / "riffle_spark").resolve():
        raise RuntimeError(f"the product of {revision} ran, not that of {code.folder}")


def alternately(sides: Sequence[Name], rounds: int, run: Callable[[Name], SideResult]) -> dict[Name, list[SideResult]]:
    """Run all sides in each round, in reverse order in every other round.

    So load on the machine and the order of sides affect all sides alike.
    """
    results: dict[Name, list[SideResult]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            results[side].append(run(side))
    return results
