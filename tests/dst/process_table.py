"""The process numbers on the one machine that simulated executors share.

Numbers of ended processes are used again. An executor that claims a folder finds those of dead processes.
"""

from __future__ import annotations

import fcntl
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.state.copies import abandoned
from riffle_spark.state.copies.folder import Folder, claim_folder
from riffle_spark.worker import member_folders

__all__ = ["ProcessTable"]

_MACHINE = "pid:[1]"
_UNHINDERED_SECONDS = 20.0
"""A claim that takes longer has waited for a lock or for a folder that was still in use."""


class ProcessTable:
    """The processes of executors. ``world`` is the schedule."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._known: dict[str, tuple[int, int]] = {}
        self._begun = count(1)
        self._claiming: list[Path] = []

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Make executors find the simulated processes."""
        patch.setattr(abandoned, "_pid_namespace", lambda: _MACHINE)  # private: it reads /proc
        patch.setattr(abandoned, "_start_time", self._start_time)
        patch.setattr(member_folders, "executor_process", self._mine)
        patch.setattr(member_folders, "claim_folder", self._claimed)

    def _running(self) -> dict[int, int]:
        processes = self._world.cluster.processes
        return dict(entry for executor, entry in self._known.items() if processes[executor].alive)

    def _start_time(self, number: int) -> str:
        return str(self._running().get(number, ""))

    def _mine(self) -> str:
        actor = self._world.scheduler.mine()
        if actor is None:
            return ""
        executor = actor.process.executor
        if executor not in self._known:
            running = self._running()
            self._known[executor] = next(n for n in count(100) if n not in running), next(self._begun)
        number, started = self._known[executor]
        return f"{number} {started} {_MACHINE}"

    def _claimed(self, base: Path, owner: str, live: Collection[str], process: str = "") -> Folder:
        """Claim a folder, and check that the folder of a dead process is reused.

        It need not be reused if another actor hangs while it claims a folder, or if a disk failed.
        """
        scheduler = self._world.scheduler
        began = self._world.scheduler.now
        is_hindered = base in self._claiming
        with scheduler.quiet():
            existing = {*base.glob("m*")}
            leftover = self._left(base)
        self._claiming.append(base)
        try:
            claim_ = claim_folder(base, owner, live, process)
        finally:
            self._claiming.remove(base)
        is_hindered |= scheduler.now > began + _UNHINDERED_SECONDS
        is_hindered |= "refused disk" in self._world.faults.used  # perhaps in this claim only
        if claim_.path not in existing and not is_hindered:
            with scheduler.quiet():
                free = [folder.name for folder, whose in leftover.items() if _is_free(folder, whose)]
            if free:
                scheduler.broke(AssertionError(f"{owner} creates {claim_.member} although dead processes left {free}"))
        return claim_

    def _left(self, base: Path) -> dict[Path, str]:
        """Return the folders whose processes have ended, with their owners."""
        running = {*self._running().items()}
        claims = dict[Path, str]()
        for folder in sorted(base.glob("m*")):
            with suppress(OSError, ValueError):  # a file that a reboot tore has no owner
                number, started, machine = (folder / "process").read_text().split()
                if machine == _MACHINE and (int(number), int(started)) not in running:
                    claims[folder] = (folder / "owner").read_text()
        return claims


def _is_free(folder: Path, whose: str) -> bool:
    with suppress(OSError), (folder / "owner").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file.read() == whose
    return False
