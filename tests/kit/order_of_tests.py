"""Distribute tests over processes: one file at a time, in the order of the collection, and few processes with a JVM."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["InOrder"]

SPLIT = "tests/spark/"
"""Files below it run last and share one session, so they can be split."""
SPLIT_TESTS_MAX = 5
EARLY = "tests/live/"
"""Files below it wait much. So of three processes one begins with them, and the others use the processors."""
PROCESSES = {EARLY: 1, SPLIT: 2}
"""How many processes run the files below a folder. The JVM of each process first loads and compiles all it runs."""


class InOrder(LoadScopeScheduling):
    """Gives an idle process the next run of tests of one file: fast tests first, tests of one Spark session together.

    Long files at the end are split into runs of a few tests. Otherwise one process works alone on the last file.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._runs: dict[str, str] = {}
        self._last = ""
        self._last_tests = 0
        self._folders: dict[WorkerController, set[str]] = {}
        """The folders of ``PROCESSES`` that each process runs."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the run of a test. Tests of a file that do not follow each other are different runs."""
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
        """Give a process the first run that it may run. Without one it ends."""
        own = self._folders.setdefault(node, set())
        allowed = [run for run in self.workqueue if self._may_run(node, _folder_of(run))]
        run = min(allowed, key=lambda run: self._rank(own, _folder_of(run)), default=None)
        if run is None:
            node.shutdown()
            return
        own.update({_folder_of(run)} - {""})
        self.workqueue.move_to_end(run, last=False)
        super()._assign_work_unit(node)

    def _rank(self, own: set[str], folder: str) -> int:
        """Return how soon a process with the folders ``own`` runs a file of a folder; equal ones in their order."""
        if own and folder and folder not in own:
            return 2
        return 0 if folder == EARLY and len(self.nodes) > 2 else 1

    def _may_run(self, node: WorkerController, folder: str) -> bool:
        """Return whether a process runs a folder already, or may begin to, because not enough others do."""
        others = [other for other in self.nodes if other is not node and not other.shutting_down]
        return sum(folder in self._folders.get(other, ()) for other in others) < PROCESSES.get(folder, len(self.nodes))


def _folder_of(run: str) -> str:
    return next((folder for folder in PROCESSES if run.startswith(folder)), "")
