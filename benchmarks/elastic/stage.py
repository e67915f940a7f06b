"""A cluster and a session on which a case runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from pyspark.sql import SparkSession

import riffle_spark
from apps.demo.servers import JVM_OPTIONS, DiskS3Server, StandaloneCluster, WorkerSize
from apps.demo.servers.guard import descendants

__all__ = ["Stage", "wait_for"]

WORKER = WorkerSize(cores=1, memory_mb=1024)
WAIT_SECONDS = 240.0
POLL_SECONDS = 0.05


def wait_for(description: str, is_reached: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Wait until ``is_reached`` returns true, and return the seconds. Raise ``TimeoutError`` if it takes too long."""
    started = time.monotonic()
    while not is_reached():
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"waited {seconds:g} s in vain for {description}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - started


class Stage:
    """The servers of one case, in its folder: a standalone cluster of one-core workers, and an S3 server over files."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.cluster = StandaloneCluster(folder / "cluster", workers, WORKER)
        self.store = DiskS3Server(folder / "s3")
        self._servers = ExitStack()
        self._spark: SparkSession | None = None

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            for server in (self.cluster, self.store):
                stack.callback(server.stop)
                server.start()
            self.cluster.wait_until_ready()
            self.store.wait_until_ready()
            self._servers = stack.pop_all()
        os.environ.update({**self.cluster.environment, **self.store.environment})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._servers:
            self.end_session()

    def session(self, **conf: str) -> SparkSession:
        """Return the session, whose driver is this process. If there is none, start it with ``conf``."""
        if self._spark is None:
            builder = SparkSession.builder.master(self.cluster.url).appName("elasticity")
            for name, value in {**self._conf(), **conf}.items():
                builder = builder.config(name, value)
            self._spark = riffle_spark.configure(builder, kafka=False).getOrCreate()
        return self._spark

    def _conf(self) -> dict[str, str]:
        credentials = {f"spark.executorEnv.{name}": value for name, value in self.store.environment.items()}
        return {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.cores": "1",
            "spark.executor.memory": f"{WORKER.memory_mb - 256}m",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.pollingDelay": "100ms",
            "spark.scheduler.mode": "FAIR",
            **credentials,
        }

    def end_session(self) -> None:
        """End the application and its executors. Workers, their folders and the store continue."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def executors(self) -> dict[str, tuple[int, str]]:
        """Return the process id and host of every executor on this stage's workers, by its id."""
        hosts = {}
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "--executor-id" in words and "java" in words[0]:
                    host = words[words.index("--hostname") + 1]
                    hosts[words[words.index("--executor-id") + 1]] = (pid, host)
        return hosts

    def executor_on(self, worker: int) -> str:
        """Return the id of the only executor on a worker."""
        host = self.cluster.hosts[worker]
        (name,) = [name for name, (_, executor_host) in self.executors().items() if executor_host == host]
        return name

    def sees_tasks(self, group: str, count: int, is_over: Callable[[], bool]) -> bool:
        """Wait until a Spark job of the group runs a stage with ``count`` tasks.

        Return ``False`` if ``is_over`` returns true first.
        """
        tracker = self.session().sparkContext.statusTracker()
        while not is_over():
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            if any(stage.numTasks == count and stage.numActiveTasks for stage in stages if stage):
                return True
        return False

    def await_executors(self, count: int) -> None:
        """Wait until Spark counts this number of executors."""
        spark = self.session()
        wait_for(f"{count} executors", lambda: _registered(spark) == count)


def _registered(spark: SparkSession) -> int:
    """Return the number of live executors by Spark's own count, without the driver."""
    listed = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return sum(str(listed.apply(index).id()) != "driver" for index in range(listed.size()))
