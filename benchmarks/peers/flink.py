"""Flink: a job in one process, or on a cluster of task managers."""

from __future__ import annotations

import json
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from apps.demo.servers import Child, S3Server, free_port
from benchmarks.peers.programs import Programs, words_of
from benchmarks.peers.readings import marks_in
from benchmarks.peers.work import Group, Work

__all__ = ["FlinkGroup", "alone", "checkpoints"]

START_SECONDS = 120.0
HEAP_MB = 2048
Settings = dict[str, object]
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
MEMORY = {
    "taskmanager.cpu.cores": "1.0",
    "taskmanager.memory.task.heap.size": "500m",
    "taskmanager.memory.task.off-heap.size": "0b",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.managed.size": "256m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.jvm-overhead.max": "192m",
}
"""The memory settings that Flink's scripts compute for a process of 1.4 GB."""
GROWING: Settings = {
    "jobmanager.scheduler": "adaptive",
    "taskmanager.numberOfTaskSlots": 1,
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "1 s",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "2 s",
    "jobmanager.adaptive-scheduler.submission.resource-stabilization-timeout": "2 s",
}
SURVIVING: Settings = {"taskmanager.numberOfTaskSlots": 2, "taskmanager.load-balance.mode": "SLOTS"}


def alone(programs: Programs, backend: str, work: Work, store: S3Server) -> Child:
    """Start a job in its own process, with two slots."""
    local = {"taskmanager.memory.managed.size": "512m", "taskmanager.memory.network.min": "128m"}
    settings = {**_settings(backend, work, store), **local, "taskmanager.memory.network.max": "128m"}
    words = words_of(work.arguments, settings)
    return programs.start(work.name, "FlinkTotals", words, "flink", HEAP_MB)


def _settings(backend: str, work: Work, store: S3Server) -> Settings:
    files = work.folder / "flink-files"
    files.mkdir(parents=True, exist_ok=True)
    credentials = store.client_arguments
    return {
        "rest.port": _port_in(work.folder),
        "rest.bind-port": _port_in(work.folder),
        "io.tmp.dirs": files,
        "state.backend.type": backend,
        "execution.checkpointing.interval": f"{work.each_ms} ms",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"s3://{store.bucket}/{work.name}",
        "pipeline.object-reuse": "true",
        "s3.endpoint": credentials["endpoint_url"],
        "s3.path.style.access": "true",
        "s3.access-key": credentials["aws_access_key_id"],
        "s3.secret-key": credentials["aws_secret_access_key"],
    }


def _port_in(folder: Path) -> int:
    """Return the port of a job's REST address. It is chosen once."""
    port_file = folder / "flink-port"
    if not port_file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        port_file.write_text(str(free_port()))
    return int(port_file.read_text())


def checkpoints(folder: Path) -> dict[str, int]:
    """Return the numbers of completed and failed checkpoints of a folder's job; an empty dictionary if it does not
    answer.
    """
    with suppress(OSError, ValueError, LookupError):
        (job, *_) = _get_json(folder, "/jobs")["jobs"]
        counts = _get_json(folder, f"/jobs/{job['id']}/checkpoints")["counts"]
        return {"completed": counts["completed"], "failed": counts["failed"]}
    return {}


def _get_json(folder: Path, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{_port_in(folder)}{path}", timeout=5) as answer:
        return json.load(answer)


class FlinkGroup(Group):
    """A job manager, one-core task managers, and a job on RocksDB that was submitted to them.

    A job for scale-out runs under the adaptive scheduler, with one slot per task manager. A job for a death runs under
    the default scheduler, and every task manager has a spare slot.
    """

    def __init__(self, programs: Programs, work: Work, store: S3Server, grows: bool) -> None:
        self._programs = programs
        self._work = work
        self._grows = grows
        self._settings = {**_settings("rocksdb", work, store), **_cluster_settings(grows)}
        self._children: list[Child] = []
        self._managers: list[Child] = []
        self._checkpoints: int | None = None

    def start(self, members: int) -> None:
        """Start job manager and task managers, wait for them, and submit the job."""
        conf = self._work.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "config.yaml").write_text("".join(f'{name}: "{value}"\n' for name, value in self._settings.items()))
        manager = self._start("jobs", JOB_MANAGER, ["--configDir", str(conf)], 512)
        for _ in range(members):
            self.add()
        manager.wait_until(lambda: self._registered() == members, START_SECONDS)
        arguments = {**self._work.arguments, "port": _port_in(self._work.folder)}
        ours = {**self._settings, "parallelism.default": 2 * members if self._grows else members}
        self._start("client", "FlinkTotals", words_of(arguments, ours), 256)

    def _start(self, name: str, main: str, words: list[str], heap_mb: int) -> Child:
        child = self._programs.start(f"{self._work.name}-{name}", main, words, "flink", heap_mb)
        self._children.append(child)
        return child

    def _registered(self) -> int:
        with suppress(OSError, ValueError, LookupError):
            return len(_get_json(self._work.folder, "/taskmanagers")["taskmanagers"])
        return 0

    def add(self) -> None:
        """Start a task manager."""
        number = len(self._managers)
        words = ["--configDir", str(self._work.folder / "conf"), "-D", f"taskmanager.resource-id=m{number}"]
        words += [word for name, value in MEMORY.items() for word in ("-D", f"{name}={value}")]
        self._managers.append(self._start(f"m{number}", TASK_MANAGER, words, 628))

    def rows(self) -> int:
        """Return the sum of the rows that the task managers have logged."""
        marks = (marks_in(child.log_tail()) for child in self._managers)
        return sum(mark[-1].rows for mark in marks if mark)

    def is_ready(self) -> bool:
        """Return whether two checkpoints were completed since the first call."""
        completed = checkpoints(self._work.folder).get("completed", 0)
        if self._checkpoints is None:
            self._checkpoints = completed
        return completed >= self._checkpoints + 2

    def kill(self) -> None:
        """Kill a task manager with SIGKILL."""
        killed = self._managers.pop()
        self._children.remove(killed)
        killed.kill()

    def stop(self) -> None:
        """End all processes at the same time."""
        for child in self._children:
            child.ask_to_stop()
        for child in self._children:
            child.stop()

    def check(self) -> None:
        """Check that each process runs."""
        for child in self._children:
            child.check_alive()


def _cluster_settings(grows: bool) -> Settings:
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": free_port(),
        "rest.address": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "jobmanager.memory.heap.size": "512m",
        "pipeline.max-parallelism": 128,
        "execution.state-recovery.from-local": "true",
        # The interval and the timeout of Kafka Streams in this benchmark. The defaults are 10 s and 50 s.
        "heartbeat.interval": "2 s",
        "heartbeat.timeout": "10 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "1 s",
        **(GROWING if grows else SURVIVING),
    }
