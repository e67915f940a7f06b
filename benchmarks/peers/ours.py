"""riffle_spark: a driver with two cores, or with executors on a standalone cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from apps.demo.servers import Child, Launch, S3Server, StandaloneCluster, WorkerSize
from benchmarks.peers.readings import marks_in
from benchmarks.peers.work import Group, Work

__all__ = ["RiffleGroup", "alone"]

WORKER = WorkerSize(cores=1, memory_mb=1024)


def alone(work: Work, store: S3Server) -> Child:
    """Start a driver with two cores."""
    return _driver(work, store, {}, store.environment)


def _driver(work: Work, store: S3Server, options: Mapping[str, Any], environment: Mapping[str, str]) -> Child:
    arguments = {**work.arguments, "root": f"s3://{store.bucket}/{work.name}", "endpoint": store.endpoint, **options}
    command = [sys.executable, "-u", "-m", "benchmarks.peers.riffle_totals", json.dumps(arguments)]
    return Child(Launch(work.name, command, work.folder.with_suffix(".log"), environment))


class RiffleGroup(Group):
    """A driver, and executors on one-core workers of a standalone cluster."""

    def __init__(self, work: Work, store: S3Server) -> None:
        self._work = work
        self._store = store
        self._cluster = StandaloneCluster(work.folder / "cluster", 0, WORKER)
        self._driver: Child | None = None

    def start(self, members: int) -> None:
        """Start the cluster, and then the driver."""
        self._cluster.start()
        for _ in range(members):
            self._cluster.start_worker()
        self._cluster.wait_until_ready()
        environment = {**self._cluster.environment, **self._store.environment}
        options = {"master": self._cluster.url, "members": members, "conf": _conf(self._store)}
        self._driver = _driver(self._work, self._store, options, environment)

    @property
    def _log(self) -> str:
        assert self._driver is not None, "start it first"
        return self._driver.log_tail()

    def rows(self) -> int:
        """Return the rows that the driver has logged."""
        marks = marks_in(self._log)
        return marks[-1].rows if marks else 0

    def is_ready(self) -> bool:
        """Return whether no copy moves, as the driver has logged last."""
        lines = [line for line in self._log.splitlines() if line.startswith(("ready ", "moving "))]
        return bool(lines) and lines[-1].startswith("ready ")

    def kill(self) -> None:
        """Kill a worker and its executor with SIGKILL."""
        self._cluster.kill_worker(len(self._cluster.hosts) - 1)

    def add(self) -> None:
        """Start a worker. It starts an executor at once."""
        self._cluster.start_worker()

    def stop(self) -> None:
        """End the driver, then the cluster."""
        if self._driver is not None:
            self._driver.stop()
        self._cluster.stop()

    def check(self) -> None:
        """Check that the driver runs."""
        assert self._driver is not None, "start it first"
        self._driver.check_alive()


def _conf(store: S3Server) -> dict[str, str]:
    """Return the configuration of a driver on the cluster. All other settings have Spark's defaults."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": f"{WORKER.memory_mb - 256}m",
        **{f"spark.executorEnv.{name}": value for name, value in store.environment.items()},
    }
