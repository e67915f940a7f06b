"""A process with a log, a bounded start and a guaranteed end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from apps.demo.servers.guard import descendants, kill
from riffle_spark.errors import UnavailableError

__all__ = ["Child", "Launch", "free_port", "listens"]

GUARD = Path(__file__).with_name("guard.py")
LOG_TAIL_BYTES = 4000
POLL_SECONDS = 0.1
END_SECONDS = 40.0


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether the port accepts a connection. This is cheaper than a request of the server's client."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


class Launch(NamedTuple):
    """The command to run, and how to stop it."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = {}
    grace_seconds: float = 5.0


class Child:
    """A running command. It ends with ``stop``, with ``kill``, or with this process, even if this process is killed."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        with launch.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), str(launch.grace_seconds), *launch.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops its children in order.
            )

    @property
    def log(self) -> Path:
        """The log file of the command."""
        return self._launch.log

    @property
    def alive(self) -> bool:
        """Whether the command, or a process that it started, still runs."""
        return self._guard.poll() is None

    def pids(self) -> list[int]:
        """Return the processes of the command, the command first."""
        return descendants(self._guard.pid)

    def wait(self, timeout_seconds: float) -> int:
        """Return the command's exit code. Raises UnavailableError if it does not end in time."""
        try:
            code = self._guard.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not end within {timeout_seconds:g} s") from None
        self._close_input()
        return code

    def wait_until(self, is_ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Wait for a condition.

        Raises UnavailableError with the end of the log if the command ends or takes too long.
        """
        give_up = time.monotonic() + timeout_seconds
        while not is_ready():
            self.check_alive()
            if time.monotonic() > give_up:
                raise self._failure(f"was not ready within {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)

    def check_alive(self) -> None:
        """Raise UnavailableError with the end of the log if the command has ended."""
        if not self.alive:
            raise self._failure(f"ended with code {self._guard.returncode}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting. After the grace time the command gets SIGKILL."""
        if self.alive:
            self._guard.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the command and all its processes within the grace time."""
        self.ask_to_stop()
        try:
            self._guard.wait(self._launch.grace_seconds + END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_input()

    def kill(self) -> None:
        """Send SIGKILL to the command and all its processes, as in a crash of the machine."""
        kill(self.pids())
        try:
            self._guard.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            kill([*self.pids(), self._guard.pid])
            self._guard.wait(END_SECONDS)
        self._close_input()

    def log_tail(self) -> str:
        """Return the end of the command's output."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return data[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _close_input(self) -> None:
        if self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.close()

    def _failure(self, problem: str) -> UnavailableError:
        return UnavailableError(
            f"{self._launch.name} {problem}; its log ends with:\n{self.log_tail()}",
            remedy="look at the whole log",
            where=str(self.log),
        )
