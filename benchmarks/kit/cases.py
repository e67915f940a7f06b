"""Run a benchmark of several cases, also against another revision: options, sides, results, and figures."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from benchmarks.kit.names import wanted_names
from benchmarks.kit.side import HERE, Code, alternately, at_revision
from benchmarks.kit.streams import median
from riffle_spark.errors import RiffleError

__all__ = ["Case", "Figures", "Played", "Player", "Side", "parse_options", "run", "run_and_print"]

Figures = dict[str, float]
SCALED = ("keys", "rows")


@dataclass(frozen=True, slots=True)
class Side:
    """A load on an engine, its sizes, and the number of last batches that are measured.

    The engine ``before`` is ``riffle`` on another revision, and ``spark_heap`` is ``spark`` on its default store.
    """

    load: str
    engine: str
    sizes: dict[str, int]
    measured: int

    def scaled(self: SideT, scale: float) -> SideT:
        """Return the side with its keys and rows multiplied by ``scale``."""
        sizes = {name: round(size * scale) if name in SCALED else size for name, size in self.sizes.items()}
        return replace(self, sizes=sizes)


@dataclass(frozen=True, slots=True)
class Played:
    """The results of a side: the seconds of every batch with rows, and the rows of the last batch.

    ``cpu_ms`` is the CPU of the side's processes per measured batch, ``server_cpu_ms`` that of the S3 server.
    """

    seconds: list[float]
    rows: int
    measured: int
    cpu_ms: float = field(default=math.nan, kw_only=True)
    server_cpu_ms: float = field(default=math.nan, kw_only=True)

    def median_s(self, until: int | None = None) -> float:
        """Return the median time of the measured batches, which are the last ones, or the last ones before batch
        ``until``.
        """
        return median(self.seconds[:until][-self.measured :])

    @property
    def rows_per_s(self) -> float:
        """The rows of a batch divided by the median time."""
        return self.rows / self.median_s()


SideT = TypeVar("SideT", bound=Side)
PlayedT = TypeVar("PlayedT", bound=Played)


class Player(Generic[SideT, PlayedT]):
    """Runs the sides of the selected engines, scaled. Sides of riffle and of the other revision run in several rounds.

    ``nothing`` is the result of a side whose engine is not selected. Its seconds are NaN.
    """

    def __init__(
        self,
        play: Callable[[SideT, Code], PlayedT],
        nothing: PlayedT,
        engines: Iterable[str],
        scale: float = 1.0,
        baseline: Code | None = None,
        rounds: int = 1,
    ) -> None:
        self._play = play
        self._nothing = nothing
        ours = dict.fromkeys(("riffle", "spark", "spark_heap", "stateful"), HERE)
        self._codes = {**ours, **({"before": baseline} if baseline else {})}
        self._engines = {*engines, "before", "stateful"} & self._codes.keys()
        self._scale = scale
        self.rounds = rounds

    def __call__(self, side: SideT) -> PlayedT:
        """Run one side."""
        is_wanted = side.engine in self._engines
        return self._play(side.scaled(self._scale), self._codes[side.engine]) if is_wanted else self._nothing

    def in_turn(self, side: SideT, *engines: str) -> dict[str, list[PlayedT]]:
        """Run a side on several engines alternately, in all rounds."""
        return alternately(engines, self.rounds, lambda engine: self(replace(side, engine=engine)))


Case = Callable[[Player[SideT, PlayedT]], Figures]


def run(names: Iterable[str], cases: Mapping[str, Case[SideT, PlayedT]], player: Player[SideT, PlayedT]) -> Figures:
    """Run the cases one after the other. Return all figures, with the time of each case."""
    figures: Figures = {}
    for name in names:
        started = time.monotonic()
        figures |= cases[name](player)
        figures[f"{name}_case_s"] = time.monotonic() - started
    return {name: round(value, 3) for name, value in figures.items() if not math.isnan(value)}


def parse_options(text: str | None, cases: Collection[str]) -> argparse.Namespace:
    """Parse the command line. Return the options, with the selected cases as ``names``. Exit if a case is unknown."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(cases), help="these cases (%(default)s)")
    parser.add_argument("--engines", default="riffle,spark,spark_heap", help="leave a side out (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="of keys and rows (%(default)s)")
    parser.add_argument("--against", metavar="REVISION", help="the commit whose code runs beside ours")
    parser.add_argument("--rounds", type=int, default=0, help="of ours and the revision's (1, with --against 2)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.names = wanted_names(parser, options.only, cases)
    options.rounds = options.rounds or (2 if options.against else 1)
    return options


def run_and_print(
    options: argparse.Namespace,
    cases: Mapping[str, Case[SideT, PlayedT]],
    play: Callable[[SideT, Code], PlayedT],
    nothing: PlayedT,
    repetitions: Callable[[Figures, int], Mapping[str, int]],
    descriptions: Mapping[str, str],
) -> int:
    """Run the selected cases, also on the revision of ``--against``, and print the figures. Return the exit code."""
    try:
        with at_revision(options.against) if options.against else nullcontext() as baseline:
            player = Player(play, nothing, options.engines.split(","), options.scale, baseline, options.rounds)
            result = run(options.names, cases, player)
        record: dict[str, object] = {**result, **({"against": baseline.revision} if baseline else {})}
    except RiffleError as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({**record, "repetitions": repetitions(result, options.rounds)}))
        return 0
    for name, value in record.items():
        print(f"{name:36} {value!s:>16}  {descriptions.get(name, '')}".rstrip())
    return 0
