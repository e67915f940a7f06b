"""What has to be green runs in a clone with nothing beside it, whole or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT

CI = CHECKOUT / ".ci" / "run"
TELLS = """#!/usr/bin/env bash
echo "$(basename "$PWD") alone: $(ls -A ..) $(ls): $*"
[ "$*" != "$FAILING" ]
"""
PARTS = ["check", "test", "test --spark 4.3.0"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two files, of which ``run`` tells how it is called; a third was never committed."""
    project = tmp_path / "projects" / "checkout"
    (project / ".ci").mkdir(parents=True)
    (project / ".ci" / "run").write_bytes(CI.read_bytes())
    (project / "run").write_text(TELLS)
    (project / "run").chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *command], cwd=project, check=True)
    (project / "forgotten").touch()
    (project.parent / "beside").touch()
    return project


def ci(project: Path, folder: Path, failing: str = "none") -> subprocess.CompletedProcess[str]:
    """Run it from elsewhere, without input, with an empty folder for temporary ones."""
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "FAILING": failing}
    command = ["bash", str(project / ".ci" / "run")]
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/"
    )


def test_every_part_runs_in_a_clone_with_nothing_beside_it(project: Path, tmp_path: Path) -> None:
    """Nothing that is not committed, and nothing that lies beside the checkout, is there; the clone goes afterwards."""
    done = ci(project, tmp_path / "temporary")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"riffle_spark alone: riffle_spark run: {part}" for part in PARTS]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_fails_is_a_failure(project: Path, tmp_path: Path, part: str) -> None:
    """Whichever it is; and the clone goes then, too."""
    done = ci(project, tmp_path / "temporary", failing=part)
    assert done.returncode != 0
    assert f": {part}" in done.stdout.splitlines()[-1]
    assert list((tmp_path / "temporary").iterdir()) == []
