"""A standalone Spark cluster. Each worker has its own host address."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from apps.demo.classes import JVM_OPTIONS
from apps.demo.jars import spark_home
from apps.demo.servers.child import Child, Launch, free_port
from apps.demo.servers.server import Server

__all__ = ["JVM_OPTIONS", "StandaloneCluster", "WorkerSize"]

START_TIMEOUT_SECONDS = 90.0
MASTER_HOST = "127.0.0.1"
LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """The resources of a worker for executors."""

    cores: int = 1
    memory_mb: int = 1024


class StandaloneCluster(Server):
    """A master on 127.0.0.1 and workers on 127.0.0.2, 127.0.0.3 and so on, each with its own local folders.

    ``environments`` are additional variables of workers and their executors, assigned in turn, such as the rack of a
    host.
    """

    def __init__(
        self,
        folder: Path,
        workers: int = 3,
        size: WorkerSize | None = None,
        environments: Sequence[Mapping[str, str]] = ({},),
    ) -> None:
        self._folder = folder
        self._size = size or WorkerSize()
        self._environments = environments
        self._first_workers = workers
        self._port = free_port()
        self._web_port = free_port()
        self._master: Child | None = None
        self._workers: list[Child] = []
        self._ended: set[int] = set()

    @property
    def url(self) -> str:
        """The URL of the master."""
        return f"spark://{MASTER_HOST}:{self._port}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The addresses of all workers in order of their start. The index of a worker is its position."""
        return tuple(_host(index) for index in range(len(self._workers)))

    def start(self) -> None:
        """Start the master and the first workers without waiting. Workers retry until the master answers."""
        ports = ["--host", MASTER_HOST, "--port", str(self._port), "--webui-port", str(self._web_port)]
        self._master = self._spark_class("master", ["org.apache.spark.deploy.master.Master", *ports], {})
        for _ in range(self._first_workers):
            self.start_worker()

    def wait_until_ready(self) -> None:
        """Wait until exactly the workers that were not stopped on purpose are registered."""
        assert self._master is not None, "start it first"
        self._master.wait_until(self._has_all_workers, START_TIMEOUT_SECONDS)

    def add_worker(self) -> int:
        """Start another worker on the next address, wait until it is registered, and return its index."""
        index = self.start_worker()
        self.wait_until_ready()
        return index

    def start_worker(self) -> int:
        """Start another worker on the next address without waiting, and return its index."""
        self._workers.append(self._new_worker(len(self._workers)))
        return len(self._workers) - 1

    def kill_worker(self, index: int) -> None:
        """Send SIGKILL to a worker and all its processes, as in a crash of its machine."""
        self._ended.add(index)
        self._workers[index].kill()

    def return_worker(self, index: int) -> None:
        """Restart a lost worker on its address and folders, and wait until it is registered."""
        self._ended.remove(index)
        self._workers[index] = self._new_worker(index)
        self.wait_until_ready()

    def stop_worker(self, index: int) -> None:
        """Stop a worker and its executors with SIGTERM."""
        self._ended.add(index)
        self._workers[index].stop()

    def stop(self) -> None:
        """Stop all processes in parallel."""
        children = [*self._workers, *([self._master] if self._master else [])]
        for child in children:
            child.ask_to_stop()
        for child in children:
            child.stop()

    def local_folder(self, index: int) -> Path:
        """Return the folder for local files of a worker's executors. It outlives them."""
        return self._folder / f"worker-{index}" / "local"

    def _new_worker(self, index: int) -> Child:
        self.local_folder(index).mkdir(parents=True, exist_ok=True)
        options = ["--host", _host(index), "--webui-port", "0", "--cores", str(self._size.cores)]
        options += [
            "--memory",
            f"{self._size.memory_mb}m",
            "--work-dir",
            str(self._folder / f"worker-{index}" / "work"),
        ]
        worker_variables = {"SPARK_LOCAL_IP": _host(index), "SPARK_LOCAL_DIRS": str(self.local_folder(index))}
        environment = {**self._environments[index % len(self._environments)], **worker_variables}
        command = ["org.apache.spark.deploy.worker.Worker", *options, self.url]
        return self._spark_class(f"worker-{index}", command, environment)

    def _spark_class(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Child:
        command = [str(spark_home() / "bin" / "spark-class"), *arguments]
        return Child(Launch(name, command, self._folder / f"{name}.log", {**self.environment, **environment}))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the cluster and its clients: no settings of the machine, small heaps.

        The folder of settings does not exist, because Java ignores an archive of classes if the class path starts with
        a folder that has files.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        logging = self._folder / "log4j2.properties"
        logging.write_text(LOGGING)
        return {
            "SPARK_HOME": str(spark_home()),
            "SPARK_CONF_DIR": str(self._folder / "no-spark-conf"),
            "LOG4J_CONFIGURATION_FILE": str(logging),
            "SPARK_LOCAL_IP": MASTER_HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])),
        }

    def _has_all_workers(self) -> bool:
        running = [child for index, child in enumerate(self._workers) if index not in self._ended]
        for child in running:
            child.check_alive()
        return self.registered_workers() == len(running)

    def registered_workers(self) -> int:
        """Return the number of workers that the master lists as alive, -1 if it does not answer.

        The master notices a killed worker at once by its connection.
        """
        try:
            with urllib.request.urlopen(f"http://{MASTER_HOST}:{self._web_port}/json/", timeout=2) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (urllib.error.URLError, OSError, ValueError):
            return -1


def _host(index: int) -> str:
    return f"127.0.0.{index + 2}"
