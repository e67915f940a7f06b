"""Compare riffle_spark with its alternatives: Flink and Kafka Streams, on the same work, machine and run.

    ./run bench peers [--json] [--only generator,kafka,latency,kill_standby,kill_cold,scale_out] [--engines riffle,...]

The work is the count and sum of 200 000 keys, or of more keys if members die or join. Flink outputs a result for every
row, riffle_spark one per key and batch, and Kafka Streams one per key that leaves its cache. The first run fetches
Flink, Kafka Streams and a compiler from a Maven repository (350 MB), and builds servers for large state with Go.
Figures that cannot be measured are named and left out. A full run takes about 20 minutes, with --seconds 12 about 15.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers.comparison import table, with_ratios
from benchmarks.peers.ground import BACKENDS, ENGINES, OURS, Ground
from riffle_spark.errors import RiffleError

GROUPS = ("riffle", "flink_rocksdb", "kafka_streams")
WITH_STANDBYS = ("riffle", "kafka_streams")
"""The engines with standbys."""
FILLED = "filled"
GUARANTEES = {"flink_rocksdb": {"": "AT_LEAST_ONCE", "_exactly_once": "EXACTLY_ONCE"}}
"""Results of Flink can be read at once, or after the checkpoint that has them. riffle_spark delivers before the commit.
"""
EngineFigures = dict[str, float]


class Run:
    """A run: its figures by engine, and the names of figures that it could not measure."""

    def __init__(self, options: argparse.Namespace, ground: Ground) -> None:
        self._ground = ground
        self._engines: list[str] = options.engines.split(",")
        self._seconds: float = options.seconds
        self._state_mb: int = options.state_mb
        self.figures: dict[str, EngineFigures] = {}
        self.missing: list[str] = []
        self.repetitions: dict[str, int] = {}

    def side(self, name: str) -> None:
        """Measure a side on all engines that have it, one after the other."""
        if name == "generator":
            self._measure_engines(name, [*OURS, *BACKENDS], partial(self._rate, "", "rows_per_s"))
        elif name == "kafka":
            if self._try_to_measure(name, self._fill):
                self._measure_engines(name, ENGINES, partial(self._rate, FILLED, "rows_per_s_from_kafka"))
        elif name == "latency":
            self._measure_engines(name, GROUPS, self._latency)
        else:
            self._measure_engines(name, GROUPS, partial(self._downtime, name))
            self._copy_cold_deaths()

    def _measure_engines(self, side: str, engines: Iterable[str], measure: Callable[[str], EngineFigures]) -> None:
        """Measure each selected engine."""
        for engine in engines:
            if engine in self._engines and (engine in WITH_STANDBYS or side != "kill_standby"):
                figures = self._try_to_measure(f"{side}.{engine}", partial(measure, engine))
                self.figures.setdefault(engine, {}).update(figures)

    def _try_to_measure(self, description: str, measure: Callable[[], EngineFigures]) -> EngineFigures:
        """Return the figures of ``measure``. If it fails, print the error and return no figures."""
        print(f"{description} ...", file=sys.stderr, flush=True)
        try:
            result = measure()
        except Exception as error:  # noqa: BLE001 - one engine's failure must not cost the figures of the others
            self.missing.append(description)
            print(f"  not measured: {error}", file=sys.stderr, flush=True)
            return {}
        print(f"  {result}", file=sys.stderr, flush=True)
        return result

    def _fill(self) -> EngineFigures:
        return {"rows": self._ground.fill(FILLED, self._seconds)}

    def _rate(self, topic: str, name: str, engine: str) -> EngineFigures:
        rate, checkpoints = self._ground.rate(engine, topic, self._seconds)
        self.repetitions[f"{engine}.{name}"] = len(rate.intervals)
        of = name.removeprefix("rows_per_s")
        counts = {f"checkpoints_{kind}{of}": float(count) for kind, count in checkpoints.items()}
        return {name: round(rate.rows_per_s), f"{name}_least": round(min(rate.intervals)), **counts}

    def _latency(self, engine: str) -> EngineFigures:
        figures: EngineFigures = {}
        for form, guarantee in GUARANTEES.get(engine, {"": ""}).items():
            ages = self._ground.latency(engine, self._seconds, guarantee)
            p50, p99 = np.percentile(ages, [50, 99])
            figures |= {f"latency{form}_p50_ms": round(float(p50), 1), f"latency{form}_p99_ms": round(float(p99), 1)}
            self.repetitions |= {f"{engine}.{name}": len(ages) for name in figures}
        return figures

    def _downtime(self, case: str, engine: str) -> EngineFigures:
        downtime = self._ground.downtime(engine, case, self._state_mb, self._seconds)
        return {f"{case}_s": round(downtime.mean, 2), f"{case}_worst_s": round(downtime.worst, 2)}

    def _copy_cold_deaths(self) -> None:
        """Copy the figures of a death without standbys for Flink, which has no standbys."""
        for figures in (self.figures.get(name, {}) for name in BACKENDS):
            figures |= {
                name.replace("cold", "standby"): figure
                for name, figure in figures.items()
                if name.startswith("kill_cold")
            }


SIDES = ("generator", "kafka", "latency", "kill_standby", "kill_cold", "scale_out")


def main() -> int:
    """Parse the command line and print the figures."""
    options = _parser().parse_args()
    wrong = sorted({*options.only.split(",")} - {*SIDES}) + sorted({*options.engines.split(",")} - {*ENGINES})
    if wrong:
        print(f"not known: {', '.join(wrong)}; there are {', '.join((*SIDES, *ENGINES))}", file=sys.stderr)
        return 1
    try:
        run = _run(options)
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    figures = with_ratios({engine: engine_figures for engine, engine_figures in run.figures.items() if engine_figures})
    details = {"not_measured": run.missing, "repetitions": run.repetitions}
    print(json.dumps({**figures, **details}) if options.json else table(figures))
    return 0 if figures else 1


def _run(options: argparse.Namespace) -> Run:
    with tempfile.TemporaryDirectory(prefix="riffle-peers-", ignore_cleanup_errors=True) as base:
        folder = Path(options.keep or base)
        folder.mkdir(parents=True, exist_ok=True)
        with Ground(folder) as ground:
            run = Run(options, ground)
            for side in options.only.split(","):
                run.side(side)
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SIDES), help="these sides (%(default)s)")
    parser.add_argument("--engines", default=",".join(ENGINES), help="these engines (%(default)s)")
    parser.add_argument("--seconds", type=float, default=18.0, help="a side of an engine is measured for (%(default)s)")
    parser.add_argument("--state-mb", type=int, default=1000, help="state where members die or come (%(default)s)")
    parser.add_argument("--keep", help="a folder for logs and states, which stays")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
