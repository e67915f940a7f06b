"""Start and stop all processes of a chaos run: cluster, broker, S3 server with its proxy, producer and driver."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from apps.demo.jars import connector_jars, spark_home
from apps.demo.servers import JVM_OPTIONS, Child, DiskS3Server, KafkaBroker, Launch, StandaloneCluster, WorkerSize
from riffle_spark.errors import RiffleError, UnavailableError
from tests.chaos.clocks import can_tell_clocks, clock_environment
from tests.chaos.driver_app import QUERIES
from tests.chaos.events import Plan
from tests.chaos.processes import executors
from tests.chaos.producer import end_all_windows
from tests.chaos.store_proxy import StoreProxy
from tests.kit.failing_disks import unmount_below

__all__ = ["APP", "SETTINGS", "Size", "SystemUnderTest", "run_in_folder"]

TOPIC = "events"
APP = Path(__file__).with_name("driver_app.py")
POLL_SECONDS = 0.2
ANSWER_SECONDS = 30.0
SENT_SECONDS = 240.0
LOG_TAIL = 3000
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run."""

    rate: int = 5_000
    users: int = 2_000
    partitions: int = 4
    workers: int = 3
    trigger_seconds: float = 3.0
    riffle: Mapping[str, Any] = field(default_factory=dict)
    """Additional settings of the three queries."""


SETTINGS: Mapping[str, Any] = {
    "key_groups": 32,
    "num_standbys": 1,
    "initial_rebalance_delay": "20 s",
    "scheduled_rebalance_max_delay": "20 s",
    "probing_rebalance_interval": "5 s",
    "folder_cleanup_delay": "10 min",
    "acceptable_recovery_lag": 200,
    "upkeep_timeout": "20 s",
    "retained_versions": 20,
    "retained_for": "2 min",
}
"""Settings by which actions that take long in production happen within minutes."""


def run_in_folder(name: str, play: Callable[[Path], bool], *, keep: bool = False) -> int:
    """Run ``play`` in a new folder, which is deleted after success and otherwise kept with its logs.

    Returns the exit code: 0 for success, 1 for a failure, 130 after an interruption.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix=f"riffle-{name}-"))
    try:
        good = play(folder)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return INTERRUPTED
    except (RiffleError, TimeoutError) as error:
        print(f"{error}\nThe logs are in {folder}", file=sys.stderr)
        return 1
    if good and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"The logs are in {folder}", file=sys.stderr)
    return 0 if good else 1


class SystemUnderTest:
    """All processes of one run: servers, cluster, producer and driver.

    A driver that ends unexpectedly is a ``failure``, and is started again.
    """

    def __init__(self, folder: Path, seed: int, size: Size) -> None:
        self.folder = folder
        self.size = size
        self.seed = seed
        self.broker = KafkaBroker(folder / "kafka")
        self.store = DiskS3Server(folder / "s3")
        self.clocks = [folder / "clocks" / str(host) for host in range(size.workers * can_tell_clocks())]
        environments = [clock_environment(clock) for clock in self.clocks] or [{}]
        self.cluster = StandaloneCluster(
            folder / "cluster", size.workers, WorkerSize(cores=2, memory_mb=1024), environments
        )
        self.proxy: StoreProxy
        self.plan: Plan
        self.failures: list[str] = []
        self.drivers = 0
        self.expected_to_end = threading.Event()
        self._stack = ExitStack()
        self._producer: Child
        self._driver: Child | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()

    def __enter__(self) -> SystemUnderTest:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        for name in ("reports", "begun", "asked", "checkpoint", "local", "tmp", *(f"out/{query}" for query in QUERIES)):
            (self.folder / name).mkdir(parents=True)
        self._stack.callback(unmount_below, self.folder)
        for server in (self.broker, self.store, self.cluster):
            self._stack.callback(server.stop)
            server.start()
        for server in (self.broker, self.store, self.cluster):
            server.wait_until_ready()
        self.broker.create_topic(TOPIC, self.size.partitions)
        self.proxy = StoreProxy(self.store.endpoint, self.seed)
        self.conf_file.write_text(f'[riffle]\ns3_endpoint = "{self.proxy.endpoint}"\n')
        self._stack.callback(self.proxy.stop)
        self._stack.callback(self.stop_driver)
        self.start_driver()
        watch = threading.Thread(target=self._watch, name="driver's watch", daemon=True)
        watch.start()
        self._stack.callback(watch.join)
        self._stack.callback(self._over.set)

    def start_producer(self) -> None:
        """Start the producer. Call this once the driver reads, so that event time starts with it."""
        start_ms = (int(time.time()) + 1) * 1000
        self.plan = Plan(self.seed, self.size.rate, self.size.users, self.size.partitions, start_ms)
        command = [sys.executable, "-m", "tests.chaos.producer", self.broker.bootstrap, TOPIC, str(self.folder)]
        command.append(json.dumps(asdict(self.plan)))
        environment = {"PYTHONPATH": self.cluster.environment["PYTHONPATH"]}
        self._producer = Child(Launch("the producer", command, self.folder / "producer.log", environment))
        self._stack.callback(self._producer.stop)

    def stop_producer(self) -> dict[str, float]:
        """Stop the producer. Return its summary."""
        (self.folder / "stop").touch()
        code = self._producer.wait(SENT_SECONDS)
        if code:
            raise UnavailableError(f"the producer ended with {code}:\n{self._producer.log_tail()}")
        sent: dict[str, float] = json.loads((self.folder / "sent.json").read_text())
        return sent

    def end_all_windows(self) -> None:
        """Close all windows with an event from the future."""
        end_all_windows(self.broker.bootstrap, TOPIC, self.plan)

    # --- The driver ---

    def start_driver(self) -> None:
        """Start the driver, as its supervisor would."""
        with self._lock:
            self.drivers += 1
            self.expected_to_end.clear()
            self._driver = Child(Launch("the driver", self._command(), self.driver_log, self.environment, 20.0))

    def stop_driver(self) -> None:
        """Stop the driver with SIGTERM."""
        with self._lock:
            self.expected_to_end.set()
            if self._driver is not None:
                self._driver.stop()
                self._driver = None

    @contextmanager
    def paused_driver(self) -> Iterator[None]:
        """Stop the driver for the length of the block."""
        with self._lock:
            self.stop_driver()
            try:
                yield
            finally:
                self.start_driver()

    def driver_pids(self) -> list[int]:
        """Return the driver's processes: Java first, then Python."""
        with self._lock:
            return self._driver.pids() if self._driver is not None else []

    @property
    def driver_log(self) -> Path:
        """The log file of the latest driver."""
        return self.folder / f"driver-{self.drivers}.log"

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            with self._lock:
                if self._driver is None or self._driver.alive:
                    continue
                if not self.expected_to_end.is_set():
                    self.failures.append(_reason(self.driver_log.read_text(errors="replace")))
                self._driver.stop()
                self.start_driver()

    def _command(self) -> list[str]:
        figures = {
            "bootstrap": self.broker.bootstrap,
            "topic": TOPIC,
            "folder": str(self.folder),
            "bucket": self.store.bucket,
            "max_offsets": self.size.rate * 15,
            "trigger_seconds": self.size.trigger_seconds,
            "settings": {
                **SETTINGS,
                "s3_endpoint": self.proxy.endpoint,
                "expected_executors": self.size.workers,
                "local_dir": str(self.folder / "local"),
                **self.size.riffle,
            },
        }
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", self.cluster.url]
        command += ["--jars", ",".join(map(str, connector_jars()))]
        for name, value in self._configuration().items():
            command += ["--conf", f"{name}={value}"]
        return [*command, str(APP), json.dumps(figures)]

    def _configuration(self) -> dict[str, str]:
        credentials = {f"spark.executorEnv.{name}": value for name, value in self.store.environment.items()}
        return {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.executor.cores": "2",
            "spark.executor.memory": "768m",
            "spark.sql.shuffle.partitions": "3",
            "spark.sql.session.timeZone": "UTC",
            "spark.task.maxFailures": "8",
            "spark.network.timeout": "60s",
            "spark.executor.heartbeatInterval": "5s",
            **credentials,
        }

    @property
    def conf_file(self) -> Path:
        """The settings file of commands, with the address of the store."""
        return self.folder / "riffle.toml"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the driver and of commands."""
        temporary = dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), str(self.folder / "tmp"))
        python = {"PYSPARK_DRIVER_PYTHON": sys.executable}
        return {**self.cluster.environment, **self.store.environment, **temporary, **python}

    # --- Targets of faults ---

    def executors(self) -> list[int]:
        """Return the live executors of all workers."""
        pids = [pid for child in self.cluster._workers for pid in child.pids()]  # private: the processes of each worker
        return executors(pids)

    def ask(self, query: str, call: str, *arguments: object) -> Any:
        """Send an operator's request to the driver. Return its answer, or ``None`` if the driver does not answer."""
        file = self.folder / "asked" / f"{uuid.uuid4().hex}.json"
        partial = file.with_suffix(".new")
        partial.write_text(json.dumps({"query": query, "call": call, "arguments": arguments}))
        partial.rename(file)
        answer = file.with_suffix(".answer")
        give_up = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < give_up:
            if answer.exists():
                return json.loads(answer.read_text())
            time.sleep(POLL_SECONDS)
        file.unlink(missing_ok=True)
        return None

    def committed_batches(self, query: str) -> list[int]:
        """Return the batches that Spark's checkpoint has committed."""
        return sorted(int(file.name) for file in (self.folder / "checkpoint" / query / "commits").glob("[0-9]*"))

    def read_to(self, query: str) -> int:
        """Return how many events a query has committed, according to Spark's checkpoint."""
        folder = self.folder / "checkpoint" / query
        for batch in reversed(self.committed_batches(query)):
            for line in (folder / "offsets" / str(batch)).read_text().splitlines():
                if line.startswith("{") and TOPIC in (offsets := json.loads(line)):
                    return int(sum(offsets[TOPIC].values()))
        return 0

    def remove(self) -> None:
        """Delete the folder of the run."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _reason(log: str) -> str:
    """Return the errors at the end of a driver's log, or its last lines."""
    lines = [line for line in log.splitlines() if "Error" in line or "Exception" in line]
    return "\n".join(lines[-12:])[-LOG_TAIL:] or log[-LOG_TAIL:]
