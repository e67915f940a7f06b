"""Measure where the time of a small batch goes, beside Spark's stateful aggregation on its default store.

./run bench small_batch [--rows 100] [--batches 60] [--against REVISION] [--json]

Each side is a query in its own process tree, with 60 batches of warm-up. Then the sides take turns of some seconds: the
processes of all other sides are stopped meanwhile. Batches that a turn cuts off are not counted. CPU is that of all
processes of a side, without the S3 server: Python's driver, the JVM, what the JVM forks (``chmod``), Python workers.
State of riffle_spark is committed to an S3 server, Spark's state to the local disk. Spark's side has its aggregation in
one stage of two tasks, as riffle_spark has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import riffle_spark as riffle
from apps.demo.servers import S3Server
from benchmarks.kit.process_cpu import KINDS, cpu_ms_by_kind, jvm_cpu_ms_by_thread, tree_of
from benchmarks.kit.side import HERE, Code, at_revision
from benchmarks.kit.streams import HEAP, session, source

__all__ = ["main"]

WARM_UP = 60
KEYS = 200_000
TURN_SECONDS = 4.0
START_SECONDS = 300.0
_RULES = {
    "plans analysed": "org.apache.spark.sql.catalyst.analysis.UpdateOuterReferences",
    "plans optimised": "org.apache.spark.sql.catalyst.optimizer.InferFiltersFromConstraints",
}
"""Rules that Spark runs once for a plan that it analyses, and once for a plan that it optimises."""
Spec = dict[str, Any]


class CountedCalls:
    """Counts the calls from Python to the JVM in all threads."""

    def __init__(self, spark: SparkSession) -> None:
        self.by_thread: Counter[int] = Counter()
        context: Any = spark.sparkContext
        client = type(context._jvm._gateway_client)  # private: Py4J counts no calls itself
        send = client.send_command

        def counting(gateway: Any, *args: Any, **options: Any) -> Any:
            self.by_thread[threading.get_ident()] += 1
            return send(gateway, *args, **options)

        client.send_command = counting


class SideQuery:
    """A running query in this process, with the counts of its batches."""

    def __init__(self, spec: Spec) -> None:
        """Start the query of a side on an empty folder."""
        self._spark = session(**{"spark.scheduler.mode": "FAIR", **spec["conf"]})
        self._calls = CountedCalls(self._spark)
        self._batches: list[dict[str, Any]] = []
        self._job: riffle.StatefulJob | None = None
        stream = source(self._spark, spec["rows"], spec["keys"])
        if spec["engine"] == "ours":
            writer = stream.writeStream.foreachBatch(self._riffle(spec))
        else:
            totals = stream.groupBy("key").agg({"*": "count", "amount": "sum"})
            writer = totals.writeStream.outputMode("update").format("noop")
        self.query = writer.option("checkpointLocation", f"{spec['folder']}/checkpoint").start()

    def _riffle(self, spec: Spec) -> Any:
        """Return the function for ``foreachBatch`` that runs a job of riffle_spark and counts what it costs."""
        settings = riffle.Settings(
            root=spec["root"], s3_endpoint=spec["endpoint"], s3_region="us-east-1", local_dir=spec["folder"]
        )
        compute = riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount"))
        job = riffle.Stateful("totals", key="key", compute=compute, settings=settings).into(
            lambda rows, _: rows.write.format("noop").mode("append").save()
        )
        self._job = job

        def run(batch: DataFrame, batch_id: int) -> None:
            thread = threading.get_ident()
            calls = self._calls.by_thread[thread]
            started = time.perf_counter()
            job(batch, batch_id)
            seconds = time.perf_counter() - started
            self._batches.append({"calls": self._calls.by_thread[thread] - calls, "job_ms": 1000 * seconds})

        return run

    def wait(self, batches: int) -> None:
        """Wait for so many batches."""
        deadline = time.monotonic() + START_SECONDS
        while (self.query.lastProgress or {"batchId": -1})["batchId"] < batches:
            if not self.query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"the query did not run {batches} batches: {self.query.exception()}")
            time.sleep(0.1)

    def totals(self) -> dict[str, float]:
        """Return what the side has done since its start: jobs, stages, tasks, plans and calls."""
        context: Any = self._spark.sparkContext
        jvm = context._jvm  # private: only the JVM has the counts of its rules
        rules = jvm.org.apache.spark.sql.catalyst.rules.RuleExecutor.dumpTimeSpent()
        ran = {name: int(runs) for name, runs in re.findall(r"(org\.\S+) .* / (\d+) *$", rules, re.MULTILINE)}
        scheduler = context._jsc.sc().dagScheduler()
        return {
            "jobs": scheduler.numTotalJobs(),
            "stages": scheduler.nextStageId(),
            **{name: ran.get(rule, 0) for name, rule in _RULES.items()},
            "calls of all threads": sum(self._calls.by_thread.values()),
            "batches": (self.query.lastProgress or {"batchId": -1})["batchId"] + 1,
        }

    def result(self, before: Mapping[str, float]) -> dict[str, Any]:
        """Return the batches of this side, and its counts per batch since ``before``."""
        after = self.totals()
        batches = after["batches"] - before["batches"]
        progress = [each for each in self.query.recentProgress if each["batchId"] >= before["batches"]]
        rows = [
            {"id": each["batchId"], "started": _seconds_of(each["timestamp"]), **each["durationMs"]}
            for each in progress
            if each["numInputRows"] > 0
        ]
        counts = {name: (after[name] - count) / batches for name, count in before.items() if name != "batches"}
        result = {"batches": rows, "counts": counts, "measured": batches}
        if self._job is not None:
            result["reports"] = [_figures(report) for report in self._job.reports][-len(rows) :]
            result["calls"] = self._batches[-len(rows) :]
        return result


def _seconds_of(timestamp: str) -> float:
    """Return Spark's timestamp of a trigger as Unix seconds."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _figures(report: riffle.BatchReport) -> dict[str, float]:
    """Return the figures of a report as milliseconds and counts."""
    phases = {f"phase {name}": 1000 * seconds for name, seconds in report.seconds.items()}
    steps = {f"slot {name}": 1000 * seconds for name, seconds in report.slot_seconds.items()}
    requests = {f"requests {name}": count for name, count in report.requests.items()}
    return {**phases, **steps, **requests, "fallbacks": report.plan_fallbacks}


def run_side(spec: Spec) -> None:
    """Run the query of a side until a line arrives on the standard input, and print what it measured."""
    side = SideQuery(spec)
    side.wait(WARM_UP)
    before = side.totals()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(side.result(before)), flush=True)
    sys.stdin.readline()
    side.query.stop()


class Side:
    """The process tree of a side. It is stopped except in its turns."""

    def __init__(self, spec: Spec, code: Code, environment: Mapping[str, str]) -> None:
        """Start the side and wait for its warm-up. Then stop it."""
        self.cpu_ms: Counter[str] = Counter()
        self.thread_ms: Counter[str] = Counter()
        self.turns: list[tuple[float, float]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.small_batch", "--side", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=code.folder,
            env={**os.environ, **code.environment, **environment},
        )
        assert self._process.stdout is not None
        if not any(line.strip() == "ready" for line in self._process.stdout):
            raise RuntimeError(f"{spec['engine']} ended with {self._process.wait(60)}")
        self._signal(signal.SIGSTOP)

    def take_turn(self, seconds: float) -> None:
        """Let the side run for some seconds, and record its CPU time."""
        cpu = cpu_ms_by_kind(self._process.pid)
        threads = jvm_cpu_ms_by_thread(self._process.pid)
        started = time.time()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self.turns.append((started, time.time()))
        self.cpu_ms.update({kind: ms - cpu[kind] for kind, ms in cpu_ms_by_kind(self._process.pid).items()})
        after = jvm_cpu_ms_by_thread(self._process.pid)
        self.thread_ms.update({name: max(0.0, ms - threads.get(name, 0.0)) for name, ms in after.items()})

    def end(self) -> dict[str, Any]:
        """Return what the side measured, and end it."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())
        self._process.stdin.close()
        self._process.wait(60)
        return result

    def kill(self) -> None:
        """End all processes of the side."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in reversed(tree_of(self._process.pid)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def figures_of(side: Side, result: Mapping[str, Any]) -> dict[str, float]:
    """Return the medians of the batches that ran within turns, and counts and CPU milliseconds per batch."""
    whole = [
        index
        for index, batch in enumerate(result["batches"])
        if any(
            first <= batch["started"] and batch["started"] + batch["triggerExecution"] / 1000 <= last
            for first, last in side.turns
        )
    ]
    batches = [result["batches"][index] for index in whole]
    busy_ms = sum(1000 * (last - first) for first, last in side.turns)
    turn_batches = busy_ms / statistics.fmean(batch["triggerExecution"] for batch in batches)
    figures = {"batches": float(len(batches)), "batch_ms": _median(batches, "triggerExecution")}
    figures |= {f"spark {name}": _median(batches, name) for name in batches[0] if name not in {"id", "started"}}
    for part in ("reports", "calls"):
        rows = [result[part][index] for index in whole if index < len(result.get(part, ()))]
        figures |= {name: _median(rows, name) for name in (rows[0] if rows else ())}
    figures |= {name: round(count, 2) for name, count in result["counts"].items()}
    figures |= {f"cpu {kind}": side.cpu_ms[kind] / turn_batches for kind in KINDS}
    figures["cpu_ms"] = sum(side.cpu_ms.values()) / turn_batches
    threads = [(f"thread {name}", ms / turn_batches) for name, ms in side.thread_ms.most_common(12)]
    return {**figures, **dict(threads)}


def _median(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return float(statistics.median(row.get(name, 0) for row in rows))


@contextmanager
def _sides(options: argparse.Namespace, base: Path, server: S3Server) -> Iterator[dict[str, Side]]:
    """Yield the sides by name, all stopped."""
    with ExitStack() as stack:
        baseline = stack.enter_context(at_revision(options.against) if options.against else nullcontext())
        names = options.sides.split(",")
        codes = {"before": baseline} if baseline else {}
        sides: dict[str, Side] = {}
        for name in [*names, *codes]:
            conf = HEAP if name == "heap" else {}
            if name != "before":
                conf = {**conf, **dict(pair.split("=", 1) for pair in options.conf)}
            spec = {
                "engine": "ours" if name in {"ours", "before"} else name,
                "conf": conf,
                "rows": options.rows,
                "keys": KEYS,
                "folder": str(base / name),
                "root": f"s3://{server.bucket}/{name}",
                "endpoint": server.endpoint,
            }
            (base / name).mkdir()
            side = Side(spec, codes.get(name, HERE), server.environment)
            stack.callback(side.kill)
            sides[name] = side
        yield sides


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run all sides in turns; return the figures by side."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="riffle-small-")))
        server = stack.enter_context(S3Server(folder / "s3"))
        sides = stack.enter_context(_sides(options, folder, server))
        for number in range(options.turns):
            order = list(sides.values())
            for side in order if number % 2 == 0 else reversed(order):
                side.take_turn(options.seconds)
        return {name: figures_of(side, side.end()) for name, side in sides.items()}


def main(arguments: Sequence[str]) -> None:
    """Measure and print a table; with ``--json`` one line of JSON."""
    parser = argparse.ArgumentParser(prog="./run bench small_batch")
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS)
    parser.add_argument("--sides", default="ours,heap")
    parser.add_argument("--against", default="")
    parser.add_argument("--conf", action="append", default=[], help="NAME=VALUE of Spark, for all but --against")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures = measure(options)
    if options.json:
        print(json.dumps(figures))
        return
    names = list(dict.fromkeys(name for each in figures.values() for name in each))
    print(f"{'':<32}" + "".join(f"{side:>12}" for side in figures))
    for name in names:
        print(
            f"{name:<32}" + "".join(f"{each[name]:>12.1f}" if name in each else " " * 12 for each in figures.values())
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        run_side(json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])
