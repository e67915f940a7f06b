"""Run the demo: real servers, a job that gains one worker and loses another, and a comparison of all events.

./run demo [--events 1000000] [--keys 50000] [--json]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from apps.demo.job import APP, PREFIX, Job, counted_by, counted_minutes
from apps.demo.ledger import Difference, Ledger, compare
from apps.demo.live import LiveView
from apps.demo.outcome import Outcome, outcome_of
from apps.demo.producer import produced_by
from apps.demo.reports import ReportFile, Run
from apps.demo.servers import Child, KafkaBroker, Launch, S3Server, StandaloneCluster
from apps.demo.waiting import Waiting
from riffle_spark.errors import RiffleError, UnavailableError

TOPIC = "events"
PARTITIONS = 6
RACKS = ({"RIFFLE_RACK": "a"}, {"RIFFLE_RACK": "b"})
VICTIM = 1
ADD_AT = 0.05
KILL_AT = 0.6
"""Shares of the events."""
POLL_SECONDS = 0.2
STALL_SECONDS = 240.0
INTERRUPTED = 130


class Demo:
    """A run of the demo in a folder. Its processes are stopped with the stack."""

    def __init__(self, options: argparse.Namespace, folder: Path, console: Console) -> None:
        self._events: int = options.events
        self._keys: int = options.keys
        self._console = console
        self._folder = folder
        self._broker = KafkaBroker(folder / "kafka")
        self._store = S3Server(folder / "s3")
        self._cluster = StandaloneCluster(folder / "cluster", environments=RACKS)
        self._job = Job(folder, TOPIC, self._events, options.app)
        self._ledger_file = folder / "ledger.npz"
        self._minutes_file = folder / "minutes.npz"
        self._goes_on: Callable[[], str] = str
        self._waiting = Waiting(self._say, self._what_goes_on)

    def run(self) -> Outcome:
        """Start everything, add a worker, kill another, and compare."""
        started = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self._waiting)
            self._start_servers(stack)
            producer = self._start_producer(stack)
            self._wait_for_servers()
            job = self._job.submit(self._broker, self._store, self._cluster)
            stack.callback(job.stop)
            self._print(f"The job runs on {', '.join(self._cluster.hosts)}; its log: {job.log}")
            self._goes_on = lambda: f"{self._job.stage()}; {produced_by(producer)} events produced"
            run = self._follow(job, producer)
            self._goes_on = lambda: "comparing with the ledger, and ending what was started"
            ledger = Ledger.read(self._ledger_file)
            difference = compare(ledger, counted_by(self._job.output, self._keys))
            of_minutes = self._compare_minutes(job)
            outcome = outcome_of(run, ledger, difference, of_minutes, time.monotonic() - started)
            outcome.print_on(self._console, self._where_the_state_lies())
        return outcome

    def _compare_minutes(self, job: Child) -> Difference:
        """Wait until the windowed query has written all complete minutes. Return the differences."""
        self._goes_on = lambda: "waiting for the windowed query's last minutes"
        expected = Ledger.read(self._minutes_file)

        def count_events() -> Ledger:
            return counted_minutes(self._job.minutes, len(expected.counts))

        job.wait_until(lambda: bool(count_events().counts.all()), STALL_SECONDS)
        return compare(expected, count_events())

    def _what_goes_on(self) -> str:
        return self._goes_on()

    def _print(self, text: str) -> None:
        self._say(text)
        self._waiting.note_output()

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def _start_servers(self, stack: ExitStack) -> None:
        """Start all servers in parallel, and wait only for the broker."""
        self._print("Starting a Kafka broker, an S3 server, a Spark master and three workers")
        self._goes_on = lambda: "the Kafka broker starts"
        for server in (self._broker, self._store, self._cluster):
            stack.callback(server.stop)
            server.start()
        self._broker.wait_until_ready()
        self._broker.create_topic(TOPIC, PARTITIONS)

    def _wait_for_servers(self) -> None:
        self._goes_on = lambda: "the S3 server starts"
        self._store.wait_until_ready()
        self._goes_on = lambda: f"{max(self._cluster.registered_workers(), 0)} of 3 Spark workers are registered"
        self._cluster.wait_until_ready()

    def _start_producer(self, stack: ExitStack) -> Child:
        command = [sys.executable, "-m", "apps.demo.producer", self._broker.bootstrap, TOPIC]
        command += [str(self._events), str(self._keys), str(self._ledger_file), str(self._minutes_file)]
        producer = Child(Launch("the producer", command, self._folder / "producer.log"))
        stack.callback(producer.stop)
        return producer

    def _follow(self, job: Child, producer: Child) -> Run:
        """Watch the reports until all events are processed. Meanwhile start a worker and kill another."""
        reports = ReportFile(self._job.report_file)
        run = Run()
        last_news = time.monotonic()
        with LiveView(self._console, self._events) as view:
            events = deque([(ADD_AT, self._add_worker), (KILL_AT, self._kill_worker)])
            while run.rows < self._events or not self._ledger_file.exists():
                rows = run.rows
                run = reports.read()
                if view.show(run):
                    self._waiting.note_output()
                last_news = time.monotonic() if run.rows > rows else last_news
                while events and run.rows >= events[0][0] * self._events:
                    events.popleft()[1](view)
                self._check(job, producer, time.monotonic() - last_news)
                time.sleep(POLL_SECONDS)
        return run

    def _add_worker(self, view: LiveView) -> None:
        index = self._cluster.start_worker()
        view.say(f"A worker joins on {self._cluster.hosts[index]}")

    def _kill_worker(self, view: LiveView) -> None:
        view.say(f"SIGKILL to the worker on {self._cluster.hosts[VICTIM]} and its executor")
        self._cluster.kill_worker(VICTIM)

    def _check(self, job: Child, producer: Child, silent_seconds: float) -> None:
        job.check_alive()
        if not self._ledger_file.exists():
            producer.check_alive()
        if silent_seconds > STALL_SECONDS:
            raise UnavailableError(f"no batch for {STALL_SECONDS:g} s:\n{job.log_tail()}", where=str(job.log))

    def _where_the_state_lies(self) -> str:
        objects, size = self._store.measure(PREFIX)
        place = f"s3://{self._store.bucket}/{PREFIX} at {self._store.endpoint}"
        return f"{place}: {objects} objects, {size / 1e6:.1f} MB; copies in {self._cluster.local_folder(0).parents[1]}"


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo", description="A job on real servers gains a worker and loses another, and no event."
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="how many events are produced (%(default)s)")
    parser.add_argument("--keys", type=int, default=50_000, help="over how many keys (%(default)s)")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as one JSON object; the rest goes to stderr"
    )
    parser.set_defaults(app=APP)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the demo. Return 0 if every count and sum is right, 1 if not or after a failure, 130 if interrupted."""
    options = _options(arguments)
    console = Console(stderr=options.json)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="riffle-demo-"))
    try:
        outcome = Demo(options, folder, console).run()
    except KeyboardInterrupt:
        console.print("Interrupted; everything it started has ended")
        shutil.rmtree(folder, ignore_errors=True)
        return INTERRUPTED
    except RiffleError as error:
        console.print(f"{error}\nThe logs are in {folder}", highlight=False, markup=False, soft_wrap=True)
        return 1
    if options.json:
        print(outcome.to_json())
    if not outcome.is_exact:
        console.print(f"The logs are in {folder}", highlight=False)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
