"""Distribute test files over processes in the order of their collection, so that few processes start a JVM."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["InOrder"]

SPLIT = "tests/spark/"
"""Files below this folder run last and share one session, so they can be split."""
SPLIT_TESTS_MAX = 5
SPLIT_PROCESSES = 2
"""The number of processes that run these files. The JVM of each process first loads and compiles all that it runs."""
NEVER = 4
EARLY = "tests/live/"
"""Tests below this folder wait much. So of three processes one begins with them, and the others use the processors."""


class InOrder(LoadScopeScheduling):
    """Gives an idle process the next run of tests of one file.

    Fast tests run first, and tests that share a Spark session run together. Long files at the end are split into runs
    of a few tests. Otherwise one process would work alone on the last file.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._runs: dict[str, str] = {}
        self._last = ""
        self._last_tests = 0
        self._folders: dict[WorkerController, set[str]] = {}
        """The folders ``SPLIT`` and ``EARLY`` that each process has run files of."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the run that a test belongs to. Tests of one file that are not adjacent belong to different runs."""
        if nodeid not in self._runs:
            file = nodeid.partition("::")[0]
            is_full = file.startswith(SPLIT) and self._last_tests == SPLIT_TESTS_MAX
            if is_full or self._last.partition("@")[0] != file:
                self._last = f"{file}@{len(self._runs)}"
                self._last_tests = 0
            self._last_tests += 1
            self._runs[nodeid] = self._last
        return self._runs[nodeid]

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process the first run that it may execute, or shut it down if there is none."""
        own = self._folders.setdefault(node, set())
        others = [self._folders.get(other, ()) for other in self.nodes if other is not node and not other.shutting_down]
        ranks = {run: self._rank(_folder_of(run), own, others) for run in self.workqueue}
        run = min(ranks, key=ranks.__getitem__)
        if ranks[run] == NEVER:
            node.shutdown()
            return
        own.update({_folder_of(run)} - {""})
        self.workqueue.move_to_end(run, last=False)
        super()._assign_work_unit(node)

    def _rank(self, folder: str, own: Collection[str], others: Sequence[Collection[str]]) -> int:
        """Return how soon a process runs a file of a folder, or ``NEVER``. Files of equal rank keep their order.

        ``own`` has the folders of which this process has run files, ``others`` the same for each other process.
        """
        if folder == SPLIT and folder not in own and sum(SPLIT in folders for folders in others) >= SPLIT_PROCESSES:
            return NEVER
        if folder == EARLY and folder not in own and any(EARLY in folders for folders in others):
            return 3
        if folder and own and folder not in own:
            return 2
        return 0 if folder == EARLY and len(others) > 1 else 1


def _folder_of(run: str) -> str:
    return next((folder for folder in (SPLIT, EARLY) if run.startswith(folder)), "")
