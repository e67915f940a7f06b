"""A backup of a running query, copied object by object in the order that the documentation names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.verify import verify
from tests.kit.simulated.world import World, one_row, totals

BEFORE, EVERY = 12, 8
"""The number of batches before the backup, and of copied objects between two batches during the backup."""


class Query:
    """A query whose root and checkpoint are folders."""

    def __init__(self, folder: Path) -> None:
        self.root, self.checkpoint = folder / "root", folder / "checkpoint"
        self.world = World(
            folder / "local", root=f"file://{self.root}", operators=[totals()], retained_versions=40, key_groups=4
        )
        self.version = 0

    def run(self, until: int) -> None:
        """Run batches up to ``until``, and write Spark's checkpoint files."""
        for version in range(self.version, until):
            (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
            (self.checkpoint / "commits").mkdir(exist_ok=True)
            (self.checkpoint / "metadata").write_text(json.dumps({"id": self.world.query_id}))
            (self.checkpoint / "offsets" / str(version)).write_text(f"offsets-{version}")
            self.world.batch(version, one_row(version, f"key-{version % 5}"))
            (self.checkpoint / "commits" / str(version)).write_text("v1\n{}")
        self.version = until

    def check(self) -> None:
        """Compare the state with plain Python's."""
        seen = [[v for v in range(self.version) if v % 5 == key] for key in range(5)]
        assert self.world.state("totals") == {f"key-{n}": (len(of), sum(of)) for n, of in enumerate(seen)}


def copied(query: Query, to: Path, *, log_first: bool) -> None:
    """Copy the root while batches run, with its log first or last, and then the checkpoint."""
    number = 0
    for of_log in (log_first, not log_first):
        files = [
            path for path in sorted(query.root.rglob("*")) if path.is_file() and (path.parts[-2] == "log") == of_log
        ]
        for path in files:
            target = to / "root" / path.relative_to(query.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            number += 1
            if number % EVERY == 0:
                query.run(query.version + 1)
        query.run(query.version + 1)
    shutil.copytree(query.checkpoint, to / "checkpoint")


@pytest.mark.parametrize("log_first", [True, False])
def test_a_backup_is_complete_if_the_log_is_copied_before_the_objects(tmp_path: Path, log_first: bool) -> None:
    """A backup is complete if the log is copied before the objects, because a record lists only objects that exist."""
    query = Query(tmp_path / "first")
    query.run(BEFORE)
    backup = tmp_path / "backup"
    copied(query, backup, log_first=log_first)
    root, checkpoint = f"file://{backup / 'root'}", str(backup / "checkpoint")
    report = verify(root)
    assert any(finding.level == "state" for finding in report.findings) is not log_first, report.findings
    if not log_first:
        return
    assert report.version is not None
    assert BEFORE - 1 <= report.version < Checkpoint(checkpoint).next_batch() - 1
    rollback(root, report.version, checkpoint, execute=True)
    restored_query = Query(backup)
    restored_query.version = report.version + 1
    restored_query.run(query.version)
    restored_query.check()
    assert verify(root, checkpoint).is_whole
