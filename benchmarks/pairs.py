"""Compare the CPU time of batches with those of another commit or another Spark, in interleaved pairs.

./run bench pairs COMMIT [--pairs 20] [--warm 15] [--only window,session,...] [--json]
./run bench pairs --python .venv-3.5.9/bin/python [...]

For each query two drivers run at once: one with the code of COMMIT, and one with this tree's. Each waits for its turn.
A pair is one batch of each driver, with equal rows. Every other pair starts with the other driver. The figure of a
batch is the CPU time of the driver's whole process tree: Python, the JVM and the Python workers. The ratio of a query
is the median over its pairs, with the 95 % interval of a bootstrap with a fixed seed. Wall times are printed too. They
are meaningful only on idle cores.

With ``--python`` both drivers have this tree's code. The other one runs in the environment of that interpreter, which
has another Spark (``./run setup --spark 3.5.9`` makes it). A ratio of at least 0.9 then means that the other Spark has
at least 0.9 of this Spark's rate.

The exit code is 1 if the whole interval of the CPU times is above 1.03. Then chance does not explain the slowdown. With
``--python`` it is 1 if a median of the CPU times is below 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import riffle_spark as riffle
from benchmarks.blocks import block_feeds as feeds
from benchmarks.blocks.block_feeds import Batch
from benchmarks.blocks.block_queries import BLOCKS
from benchmarks.kit.cpu import tree_cpu_s
from benchmarks.kit.side import HERE, Code, at_revision
from benchmarks.kit.streams import session
from benchmarks.processors.classes import CountingInPandas

PAIRS = 20
WARM_BATCHES = 15
ROWS = 100_000
KEYS = 50_000
SLOWER_ALLOWED = 1.03
RATE_TARGET = 0.9
OF_SPARK = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Environment variables that name the Spark and the Python of this process."""
RESAMPLES = 10_000
SEED = 20_260_101
ON_EACH_SPARK = ("window", "session", "dedup", "join", "groups", "chain", "totals")
QUERIES = (*ON_EACH_SPARK, "frames")


def _totals(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.count("*").alias("rows"), F.sum("amount").alias("total"))


def _frames(frame: DataFrame) -> DataFrame:
    grouped = frame.groupBy("key")
    return grouped.transformWithStateInPandas(CountingInPandas(), "key long, count long", "update", "none")


PLAIN: Mapping[str, Callable[[DataFrame], DataFrame]] = {"totals": _totals, "frames": _frames}


def _batches(query: str, count: int) -> Iterator[Batch]:
    if query in PLAIN:
        return feeds.drawn(KEYS, ROWS if query == "totals" else ROWS // 5, count)
    return BLOCKS[query].feed({"keys": KEYS, "rows": ROWS, "batches": count})


def run_side(query: str, folder: Path) -> None:
    """Start the query on an empty folder. Run one batch per line of the standard input, and print a line after it."""
    block = BLOCKS.get(query, BLOCKS["count"])
    reader = session(**{"spark.scheduler.mode": "FAIR", "spark.ui.showConsoleProgress": "false"}).readStream.schema(
        block.schema
    )
    settings = riffle.Settings(root=f"file://{folder}/state", local_dir=f"{folder}/copies")
    streams = {}
    for name in block.streams:
        (folder / "in" / name).mkdir(parents=True)
        streams[name] = riffle.on(reader.parquet(f"{folder}/in/{name}"), settings=settings)
    frame = PLAIN[query](streams["rows"]) if query in PLAIN else block.build(streams)
    writer = frame.writeStream.outputMode(block.mode).format("noop")
    running = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
    print("ready", flush=True)
    for number, _ in enumerate(sys.stdin):
        for name in block.streams:
            file = Path(name, f"{number:06d}.parquet")
            (folder / "all" / file).replace(folder / "in" / file)
        running.processAllAvailable()
        print("done", flush=True)
    running.stop()


class SideProcess:
    """A driver of one side that waits for its turn."""

    def __init__(self, command: Sequence[str], code: Code, python: str = sys.executable) -> None:
        """Start ``python -m command`` in the folder of ``code``, and wait until it prints ``ready``.

        It runs one batch per line of its standard input, and prints ``done`` after each.
        """
        inherited = dict(os.environ)
        if python != sys.executable:
            inherited = {name: value for name, value in inherited.items() if name not in OF_SPARK}
        self._process = subprocess.Popen(
            [python, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=code.folder,
            env={**inherited, **code.environment},
        )
        self._expect("ready")

    def batch_seconds(self) -> tuple[float, float]:
        """Run one batch. Return the CPU seconds of the driver's process tree, and the elapsed seconds."""
        cpu_before = tree_cpu_s(self._process.pid)
        began = time.perf_counter()
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._expect("done")
        passed = time.perf_counter() - began
        return tree_cpu_s(self._process.pid) - cpu_before, passed

    def stop(self) -> None:
        """End the driver."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == word:
                return
        raise RuntimeError(f"a driver ended before it was {word}, with exit code {self._process.wait(60)}")


@contextmanager
def _sides(query: str, baseline: Code, python: str, batches: int) -> Iterator[tuple[SideProcess, SideProcess]]:
    base = Path(tempfile.mkdtemp(prefix="riffle-pairs-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        sides = []
        for name, code, interpreter in (("before", baseline, python), ("now", HERE, sys.executable)):
            feeds.write(base / name / "all", _batches(query, batches))
            sides.append(SideProcess(["benchmarks.pairs", "--side", query, str(base / name)], code, interpreter))
            stack.callback(sides[-1].stop)
        yield sides[0], sides[1]


def compare(query: str, baseline: Code, python: str, pairs: int, warm: int) -> dict[str, float]:
    """Return the median ratio of CPU times (now to before), its 95 % interval, and both medians in seconds.

    The same figures of the wall times have names that begin with ``wall_``.
    """
    with _sides(query, baseline, python, warm + pairs) as sides:
        cpu_s, wall_s = run_pairs(sides, pairs, warm)
    return {**_figures(cpu_s), **{f"wall_{name}": value for name, value in _figures(wall_s).items()}}


def _figures(measured: npt.NDArray[np.float64]) -> dict[str, float]:
    before_s, now_s = np.median(measured, axis=0)
    return {**ratio_of(measured), "before_s": before_s, "now_s": now_s}


def run_pairs(
    sides: tuple[SideProcess, SideProcess], pairs: int, warm: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Run ``warm`` batches, then ``pairs`` batches on both sides; return CPU and wall seconds, one row per pair."""
    times: list[list[tuple[float, float]]] = []
    for number in range(warm + pairs):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        seconds = {index: sides[index].batch_seconds() for index in order}
        times.append([seconds[0], seconds[1]])
    measured = np.array(times[warm:])
    return measured[:, :, 0], measured[:, :, 1]


def ratio_of(measured: npt.NDArray[np.float64]) -> dict[str, float]:
    """Return the median ratio of the second column to the first, with its 95 % interval by bootstrap."""
    ratios = measured[:, 1] / measured[:, 0]
    picks = np.random.default_rng(SEED).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [2.5, 97.5])
    return {"ratio": np.median(ratios), "low": low, "high": high}


def main(arguments: Sequence[str]) -> int:
    """Compare all queries. Return 1 if a query is slower than chance explains, or than the other Spark may be."""
    parser = argparse.ArgumentParser(prog="./run bench pairs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", help="compare with the product of this commit")
    parser.add_argument("--python", help="compare with this tree's product in the environment of this interpreter")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--warm", type=int, default=WARM_BATCHES)
    parser.add_argument("--only", help="these queries, separated by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if (options.commit is None) == (options.python is None):
        parser.error("name either a commit or --python")
    queries = options.only.split(",") if options.only else [*QUERIES] if options.commit else [*ON_EACH_SPARK]
    figures = {}
    with at_revision(options.commit) if options.commit else nullcontext(HERE) as baseline:
        for query in queries:
            measured = compare(query, baseline, options.python or sys.executable, options.pairs, options.warm)
            figures[query] = {name: round(float(value), 4) for name, value in measured.items()}
            if not options.json:
                print(query, figures[query], flush=True)
    if options.json:
        compared = {"commit": options.commit} if options.commit else {"python": options.python}
        print(json.dumps({**compared, "pairs": options.pairs, "cpu": figures}))
    if options.python:
        return int(any(figure["ratio"] < RATE_TARGET for figure in figures.values()))
    return int(any(figure["low"] > SLOWER_ALLOWED for figure in figures.values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        run_side(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
