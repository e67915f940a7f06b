"""Sides of a benchmark: on whose product they run, in what order, and how their memory is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.kit.memory import PeakMemory, pss_kb
from benchmarks.kit.side import Code, alternately, at_revision, in_process
from riffle_spark.errors import ConfigError
from tests.kit.folders import CHECKOUT
from tests.kit.streams.streaming import wait_for

ANSWERING = """
import json, sys
import riffle_spark
from benchmarks.kit.side import answer
answer({"told": json.loads(sys.argv[2])["number"] + 1})
"""


def _worktrees() -> str:
    return subprocess.run(["git", "worktree", "list"], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="needs the repository")
def test_a_revision_stands_beside_this_tree_and_goes_again() -> None:
    """The product is the revision's, benchmarks and apps are this tree's; afterwards nothing of it is left."""
    before = _worktrees()
    with at_revision("HEAD") as code:
        product = (code.folder / "riffle_spark").resolve()
        assert (product / "settings.py").exists()
        assert not product.is_relative_to(CHECKOUT)
        assert (code.folder / "benchmarks").resolve() == CHECKOUT / "benchmarks"
        assert code.revision
    assert not product.exists()
    assert _worktrees() == before


def test_an_unknown_revision_is_refused() -> None:
    """Who names no commit is told so, before anything runs."""
    with pytest.raises(ConfigError, match="rev-parse"), at_revision("no-such-revision"):
        pass


def _code(folder: Path) -> Code:
    shutil.copytree(CHECKOUT / "riffle_spark", folder / "riffle_spark", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("apps", "benchmarks"):
        (folder / name).symlink_to(CHECKOUT / name)
    (folder / "answering.py").write_text(ANSWERING)
    return Code(folder, "abc1234")


def test_a_side_that_runs_another_product_is_an_error(tmp_path: Path) -> None:
    """A side answers from the product of its folder; where it found another one, its figures are refused."""
    code = _code(tmp_path)
    assert in_process("answering", {"number": 1}, 60, {}, code) == {"told": 2}
    (tmp_path / "riffle_spark").rename(tmp_path / "elsewhere")
    with pytest.raises(RuntimeError, match="the product of"):
        in_process("answering", {"number": 1}, 60, {"PYTHONPATH": str(CHECKOUT)}, code)


def test_what_fails_says_why(tmp_path: Path) -> None:
    """The end of a side's complaints is in the error."""
    with pytest.raises(RuntimeError, match="KeyError: 'number'"):
        in_process("answering", {}, 60, {}, _code(tmp_path))


def test_sides_take_turns() -> None:
    """Each round has every side once, every other one backwards; what they found is kept by side."""
    order: list[str] = []

    def run(side: str) -> int:
        order.append(side)
        return len(order)

    assert alternately(("ours", "theirs"), 2, run) == {"ours": [1, 4], "theirs": [2, 3]}
    assert order == ["ours", "theirs", "theirs", "ours"]


def test_memory_is_that_of_all_processes_at_one_time() -> None:
    """The sample counts what is below a process too; a page that two share counts once."""
    with PeakMemory(os.getpid(), period_seconds=0.01) as memory:
        alone = wait_for_sample(memory)
        child = subprocess.Popen(["python3", "-c", "held = bytes(range(256)) * (400 << 10)\ninput()"], stdin=-1)
        wait_for(lambda: memory.peak_mb > alone + 80, "the child's 100 MB are seen")
        child.communicate(b"\n")


def wait_for_sample(memory: PeakMemory) -> float:
    """Wait for the first sample and return it."""
    wait_for(lambda: memory.peak_mb > 0, "there is a sample")
    return memory.peak_mb


def test_a_rollup_says_its_proportional_size() -> None:
    """The first line with that name counts, not those of its kinds; a process without memory has none."""
    assert pss_kb("00400000-7ffe [rollup]\nRss: 9 kB\nPss:                 123 kB\nPss_Anon: 7 kB\n") == 123
    assert pss_kb("") == 0
