"""Faults of local disks and clocks, and requests of operators."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal

from tests.chaos.clocks import set_clock
from tests.chaos.driver_app import QUERIES
from tests.chaos.faults import Fault, Kind
from tests.chaos.system_under_test import SystemUnderTest
from tests.kit.damage.damager import Damager
from tests.kit.failing_disks import own_disk

__all__ = ["CLOCK_FAULTS", "DISK_FAULTS", "OPERATOR_FAULTS"]

TRIES = 5
DAMAGES = 4
MOST_SECONDS_APART = 600
ROLLED_BACK = (2, 4)
COMMAND_TIMEOUT_SECONDS = 120.0


class RefusingFolder(Fault):
    """Mount a small file system over a member's folder. Writes fail, and the original content returns later."""

    way: Literal["full", "read-only"] = "full"

    def __init__(self, system: SystemUnderTest, chance: random.Random) -> None:
        super().__init__(system, chance)
        self._stack = ExitStack()

    def inject(self) -> bool:
        for _ in range(TRIES):
            folders = sorted(folder for folder in self.system.folder.glob("local/*/m*") if folder.is_dir())
            if not folders:
                return False
            folder = self.chance.choice(folders)
            shutil.rmtree(folder.with_name(f".{folder.name}.kept"), ignore_errors=True)
            with suppress(shutil.Error, FileNotFoundError):  # the query keeps changing the folder
                disk = self._stack.enter_context(own_disk(folder, self.way))
                self.description = f"{folder.name}: {disk.how}"
                if disk.mounted:  # without a mount the disk would break the folder itself, and nothing would restore it
                    disk.fail()
                return disk.mounted
        return False

    def heal(self) -> None:
        self._stack.close()


class ReadOnlyFolder(RefusingFolder):
    """Mount a read-only file system over a member's folder."""

    way = "read-only"


class DamagedFiles(Fault):
    """Flip bytes of local copies, and truncate, swap or remove their files, while the query runs."""

    def inject(self) -> bool:
        damager = Damager(self.system.folder / "local", self.chance)
        done = []
        for _ in range(DAMAGES):
            with suppress(OSError):  # a file may be deleted in the meantime
                done.append(damager.damage())
        self.description = "; ".join(filter(None, done))
        return any(done)


class ClockSkew(Fault):
    """Set the clock of one host's executors, of Java and Python, up to ten minutes apart, and reset it later."""

    _clock: Path | None = None

    def inject(self) -> bool:
        self._clock = self.chance.choice(self.system.clocks) if self.system.clocks else None
        if self._clock is None:
            return False
        seconds = self.chance.choice([-1, 1]) * self.chance.uniform(2, MOST_SECONDS_APART)
        set_clock(self._clock, seconds)
        self.description = f"{self._clock.name}: {seconds:+.0f} s"
        return True

    def heal(self) -> None:
        if self._clock is not None:
            set_clock(self._clock, 0.0)


class OperatorRequest(Fault):
    """An operator's request to a query, which is revoked later."""

    def __init__(self, system: SystemUnderTest, chance: random.Random) -> None:
        super().__init__(system, chance)
        self.query = chance.choice(QUERIES)
        self._back: tuple[object, ...] = ()

    def send_request(self, call: str, *arguments: object) -> bool:
        """Send a request. Return whether it was done. A driver that is killed in the meantime does not answer."""
        answer = self.system.ask(self.query, call, *arguments)
        self.description = f"{self.query}: {call} {arguments}: {answer}"
        return bool(answer == "done")

    def revoke(self, call: str, *arguments: object) -> None:
        """Revoke the request, again if the driver is killed. Raises ``TimeoutError`` if no driver answers."""
        for _ in range(TRIES):
            if (answer := self.system.ask(self.query, call, *arguments)) is not None:
                self.description += f"; {call}: {answer}"
                return
        raise TimeoutError(f"{self.query} has not answered to {call} {arguments}")

    def member(self) -> str | None:
        """Return a live member, if the driver reports one."""
        members = self.system.ask(self.query, "members")
        live = [identity for identity, _, state in members if state != "awaited"] if isinstance(members, list) else []
        return self.chance.choice(live) if live else None


class Rebalance(OperatorRequest):
    """Request a rebalance."""

    def inject(self) -> bool:
        return self.send_request("request_rebalance")


class Drain(OperatorRequest):
    """Drain a member, and undrain it later."""

    def inject(self) -> bool:
        member = self.member()
        self._back = (member,)
        return member is not None and self.send_request("drain", member)

    def heal(self) -> None:
        if self._back and self._back[0] is not None:
            self.revoke("undrain", *self._back)


class Pin(OperatorRequest):
    """Pin a key-group to a member, and unpin it later."""

    def inject(self) -> bool:
        member = self.member()
        group = self.chance.randrange(32)
        self._back = (group,)
        return member is not None and self.send_request("pin", group, member)

    def heal(self) -> None:
        if self._back:
            self.revoke("unpin", *self._back)


class Rollback(Fault):
    """Stop the driver, roll one query back by some batches, and start the driver again."""

    def inject(self) -> bool:
        query = self.chance.choice(QUERIES)
        if len(self.system.committed_batches(query)) <= ROLLED_BACK[1]:
            return False
        with self.system.paused_driver():
            done = self.system.committed_batches(query)
            to = done[-1] - self.chance.randint(*ROLLED_BACK)
            self.description = f"{query} from {done[-1]} to {to}"
            return self._rolled_back(query, to)

    def _rolled_back(self, query: str, to: int) -> bool:
        command = [sys.executable, "-m", "riffle_spark", "rollback", f"s3://{self.system.store.bucket}/{query}"]
        command += ["--checkpoint", str(self.system.folder / "checkpoint" / query), "--to", str(to), "--execute"]
        command += ["--conf-file", str(self.system.conf_file)]
        for _ in range(TRIES):  # the store may fail at the same time
            done = subprocess.run(
                command,
                env=self.system.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_TIMEOUT_SECONDS,
            )
            if done.returncode == 0:
                return True
            time.sleep(1)
        raise RuntimeError(f"riffle rollback: {done.stdout[-500:]} {done.stderr[-1500:]}")


DISK_FAULTS: Mapping[str, Kind] = {
    "disk full": Kind(RefusingFolder, (8.0, 15.0)),
    "disk read-only": Kind(ReadOnlyFolder, (8.0, 15.0)),
    "damaged files": Kind(DamagedFiles),
}
CLOCK_FAULTS: Mapping[str, Kind] = {"clocks apart": Kind(ClockSkew, (5.0, 15.0))}
OPERATOR_FAULTS: Mapping[str, Kind] = {
    "rebalance": Kind(Rebalance),
    "drain": Kind(Drain, (8.0, 15.0)),
    "pin": Kind(Pin, (5.0, 10.0)),
    "rollback": Kind(Rollback),
}
