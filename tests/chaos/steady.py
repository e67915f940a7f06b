"""``./run chaos --steady``: run three queries without faults, and check that nothing grows.

    ./run chaos --steady --minutes 30 [--json] [--rate 1000]

The checked quantities are memory, open files, threads, temporary files, and objects in the store. At first retained
objects accumulate. A delta is deleted once a snapshot has replaced its chain, which happens after at most
``retained_versions`` batches, and once no retained record or full record lists it. Deltas on local disk are deleted
once there are enough spare ones. After this number of batches nothing may grow.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kit.memory import pss_kb
from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.state.copies import folder as deltas
from riffle_spark.state.log.log import FULL_EVERY
from tests.chaos.driver_app import QUERIES
from tests.chaos.processes import drivers, python_workers
from tests.chaos.run_of_chaos import await_first_batches, catch_up, settled_verdicts
from tests.chaos.slopes import Slope, slope_of
from tests.chaos.system_under_test import APP, SETTINGS, Size, SystemUnderTest, run_in_folder

SAMPLES = 60
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 15
SEEN_SHARE = 0.8
"""The share of the counted samples that must have a quantity. A process may end while it is sampled."""
SLOTS = 2
"""The number of slots of an executor."""
LEAKED_A_BATCH = 0.1
"""A leak of one file, thread or descriptor in ten batches, or of 100 kB per batch, is detected."""
Sample = dict[str, float]


def heap_mb(pid: int) -> float | None:
    """Return the used heap of a JVM after a collection, or ``None`` without ``jcmd``."""
    try:
        commands = [
            subprocess.run(["jcmd", str(pid), command], capture_output=True, text=True, timeout=60, check=True)
            for command in ("GC.run", "GC.heap_info")
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    used = [line.split("used ")[1].split("K")[0] for line in commands[1].stdout.splitlines() if "total" in line]
    return sum(map(int, used)) / 1024 if used else None


def of_processes(name: str, pids: Iterable[int]) -> Sample:
    """Return the total memory, open files and threads of some processes."""
    sample: Sample = defaultdict(float)
    for pid in pids:
        with suppress(OSError):
            proc = Path(f"/proc/{pid}")
            sample[f"{name}: memory, MB"] += pss_kb((proc / "smaps_rollup").read_text()) / 1024
            sample[f"{name}: open files"] += len(list((proc / "fd").iterdir()))
            sample[f"{name}: threads"] += len(list((proc / "task").iterdir()))
    return sample


def sample(system: SystemUnderTest) -> Sample:
    """Return all quantities at this moment."""
    java, python = drivers(system.driver_pids(), APP.name)
    executors = system.executors()
    sample: Sample = {}
    for name, pids in (("driver's JVM", java), ("executors' JVMs", executors)):
        heaps = [heap_mb(pid) for pid in pids]
        sample |= of_processes(name, pids)
        if pids and shutil.which("jcmd"):
            # A JVM's heap grows to its limit anyway, so use its heap after a collection instead if it is known.
            sample.pop(f"{name}: memory, MB", None)
            if None not in heaps:
                sample[f"{name}: heap after a collection, MB"] = sum(heap for heap in heaps if heap is not None)
    sample |= of_processes("driver's Python", python)
    sample |= of_processes("Python workers", [pid for executor in executors for pid in python_workers(executor)])
    sample["temporary files"] = _files(system.folder.glob("cluster/worker-*")) + _files([system.folder / "tmp"])
    objects = system.folder / "s3" / "files" / system.store.bucket
    for kind in ("sealed", "fetched", "stacks"):
        sample[f"files of copies, {kind}"] = _files((system.folder / "local").glob(f"*/*/{kind}"))
    for query in QUERIES:
        sample[f"batches of {query}"] = (system.committed_batches(query) or [-1])[-1] + 1
        sample[f"records of {query}"] = _files([objects / query / "log"])
        sample[f"deltas of {query}"] = _files([objects / query / "delta"])
        sample[f"snapshots of {query}"] = _files(objects.glob(f"{query}/*/key_group=*"))
    return sample


def _files(folders: Iterable[Path]) -> int:
    # os.walk ignores folders that are deleted after they were listed.
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def filling_batches(query_settings: Mapping[str, Any], trigger_seconds: float) -> int:
    """Return the number of batches after which all retained objects exist, for these settings."""
    settings = Settings(**query_settings)
    retained = max(settings.retained_versions, math.ceil(settings.retained_for / trigger_seconds))
    in_store = settings.retained_versions + retained + 2 * FULL_EVERY  # deletes are as rare as full records
    return max(in_store, deltas._SPARE_FILES_MAX // SLOTS)  # private: it is not a setting


def slopes(times: list[float], samples: list[Sample], filling: int) -> list[Slope]:
    """Return the trend of each quantity, counted from the first sample after ``filling`` batches of each query.

    Raises ``ConfigError`` if there are too few such samples, or if too few of them have a quantity.
    """
    done = [min(sample[f"batches of {query}"] for query in QUERIES) for sample in samples]
    first = sum(batches < filling for batches in done)
    if len(samples) - first < LEAST_SAMPLES:
        problem = f"retained objects accumulate for {filling} batches, but the run had {done[-1]:.0f}"
        raise ConfigError(problem, remedy="Increase --minutes.")
    batches = sum(samples[-1][f"batches of {query}"] for query in QUERIES)
    names = dict.fromkeys(name for sample in samples for name in sample if "batches of" not in name)
    return [_slope(name, times, samples, LEAKED_A_BATCH * batches, first) for name in names]


def _slope(name: str, times: list[float], samples: list[Sample], least: float, first: int) -> Slope:
    having = [number for number, sample in enumerate(samples) if name in sample]
    counting = sum(number >= first for number in having)
    if counting < SEEN_SHARE * (len(samples) - first):
        problem = f"{name} was seen in {counting} of the {len(samples) - first} samples that count"
        raise ConfigError(problem, remedy="Run it again on a machine with less load.")
    of_first = sum(number < first for number in having)
    return slope_of(name, [times[n] for n in having], [samples[n][name] for n in having], least, of_first)


class SteadyRun:
    """One run without faults."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """Print a message with the time since the start."""
        print(f"{time.monotonic() - self._begun:7.1f} s  {text}", file=sys.stderr, flush=True)

    def run(self) -> dict[str, object]:
        """Start everything, sample it for the given time, and compare."""
        options = self._options
        with SystemUnderTest(self._folder, options.seed, Size(rate=options.rate)) as system:
            system.start_producer()
            await_first_batches(system)
            self.say("every query has committed a batch")
            times, samples = self._sampled(system, options.minutes * 60)
            sent = system.stop_producer()
            events = int(sent["events"])
            catch_up(system, events, self.say)
            system.end_all_windows()
            verdicts = settled_verdicts(system, events)
        filling = filling_batches({**SETTINGS, **system.size.riffle}, system.size.trigger_seconds)
        found_slopes = slopes(times, samples, filling)
        for slope in found_slopes:
            print(slope, file=sys.stderr)
        batches = sum(samples[-1][f"batches of {query}"] for query in QUERIES)
        exact = all(verdict.is_exact for verdict in verdicts.values())
        return {
            "rows": events,
            "batches": int(batches),
            "exact": exact,
            "seconds": round(time.monotonic() - self._begun, 1),
            "failures": system.failures,
            "grows": [slope.name for slope in found_slopes if not slope.is_flat],
            "slopes": [asdict(slope) for slope in found_slopes],
        }

    def _sampled(self, system: SystemUnderTest, seconds: float) -> tuple[list[float], list[Sample]]:
        interval = max(LEAST_SECONDS, seconds / SAMPLES)
        started = time.monotonic()
        times = list[float]()
        samples = list[Sample]()
        while time.monotonic() - started < seconds:
            times.append(time.monotonic() - started)
            samples.append(sample(system))
            time.sleep(max(0.0, started + len(times) * interval - time.monotonic()))
        return times, samples


def is_good(figures: Mapping[str, object]) -> bool:
    """Return whether nothing grows, nothing failed and all results are right."""
    return bool(figures["exact"]) and not figures["grows"] and not figures["failures"]


def main(arguments: list[str]) -> int:
    """Run steady queries. Return 0 if nothing grows and all results are right, 1 if not, 130 if interrupted."""
    description = "Run steady queries and check whether anything grows."
    parser = argparse.ArgumentParser(prog="./run chaos --steady", description=description)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (%(default)s)")
    parser.add_argument("--rate", type=int, default=1_000, help="events per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    for name in ("minutes", "rate"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be more than 0")

    def play(folder: Path) -> bool:
        result = SteadyRun(options, folder).run()
        if options.json:
            print(json.dumps(result))
        return is_good(result)

    return run_in_folder("steady", play)
