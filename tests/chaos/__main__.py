"""``./run chaos``: break real processes at random from a seed, then compare their deliveries with a ledger.

./run chaos --seed 1 --minutes 5 [--json] [--least 3] [--without KIND] [--rate 5000]
./run chaos --steady --minutes 30 [--json] [--rate 1000]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from tests.chaos import steady
from tests.chaos.disk_faults import CLOCK_FAULTS, DISK_FAULTS, OPERATOR_FAULTS
from tests.chaos.drawing import fewer_than
from tests.chaos.driver_app import QUERIES
from tests.chaos.faults import PROCESS_FAULTS, STORE_FAULTS, Kind
from tests.chaos.run_of_chaos import (
    Lane,
    Outcome,
    Tally,
    await_first_batches,
    catch_up,
    committed_share,
    lanes_over,
    reports,
    settled_verdicts,
)
from tests.chaos.system_under_test import Size, SystemUnderTest, run_in_folder

FAMILIES: Mapping[str, Mapping[str, Kind]] = {
    "store": STORE_FAULTS,
    "processes": PROCESS_FAULTS,
    "hosts": {**DISK_FAULTS, **CLOCK_FAULTS, **OPERATOR_FAULTS},
}
"""The lanes run in parallel. In one lane, one fault follows the other."""
LEAST_COMMITTED = 0.6
SPARE = 1.03
"""The producer aims at a rate this much higher, because it starts slowly and a broker is restarted."""


class Chaos:
    """One chaos run with one seed."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._begun = time.monotonic()
        self._tally = Tally()

    def say(self, text: str) -> None:
        """Print a message with the time since the start."""
        print(f"{time.monotonic() - self._begun:7.1f} s  {text}", file=sys.stderr, flush=True)

    def run(self) -> Outcome:
        """Start everything, inject faults for the given time, and compare."""
        options = self._options
        with SystemUnderTest(self._folder, options.seed, Size(rate=round(SPARE * options.rate))) as system:
            self.say(f"servers run in {self._folder}")
            system.start_producer()
            await_first_batches(system)
            self.say("every query has committed a batch")
            lanes = [Lane(name, system, kinds, self._tally, self.say) for name, kinds in self.families().items()]
            try:
                for lane in lanes:
                    lane.start()
                time.sleep(options.minutes * 60)
            finally:
                lanes_over(lanes)
            sent = system.stop_producer()
            self.say(f"{sent['events']:.0f} events sent, the broker holds {sent['held']:.0f}")
            events = int(sent["events"])
            caught_up = catch_up(system, events, self.say)
            system.end_all_windows()
            query_verdicts = settled_verdicts(system, events)
            system.stop_driver()
            return self._outcome(system, sent, query_verdicts, caught_up=caught_up)

    def families(self) -> dict[str, dict[str, Kind]]:
        """Return the kinds of faults of each lane, without the excluded ones."""
        without = self._options.without
        return {name: {k: v for k, v in kinds.items() if k not in without} for name, kinds in FAMILIES.items()}

    def _outcome(
        self,
        system: SystemUnderTest,
        sent: Mapping[str, float],
        final_figures: Mapping[str, object],
        *,
        caught_up: bool,
    ) -> Outcome:
        by_query = {query: asdict(verdict) for query, verdict in final_figures.items()}  # type: ignore[call-overload]
        batch_reports = {query: reports(system.folder / "reports" / f"{query}.jsonl") for query in QUERIES}
        committed = {
            q: sum(r["decision"] == "run" for r in query_reports) for q, query_reports in batch_reports.items()
        }
        sums = {
            name: sum(query_figures[name] for query_figures in by_query.values())
            for name in ("lost", "doubled", "wrong")
        }
        calls = sum(len(list((system.folder / "out" / q).glob("*/_SUCCESS"))) for q in QUERIES)
        batches = sum(committed.values())
        required_kinds = [kind for kinds in self.families().values() for kind in kinds]
        few = fewer_than(self._options.least, required_kinds, self._tally.happened)
        rate = sent["events"] / sent["seconds"]
        share = committed_share(system.folder / "begun", batch_reports)
        not_met = [f"{kind} happened {times} times" for kind, times in few.items()]
        not_met += [f"{rate:.0f} rows/s"] if rate < self._options.rate else []
        not_met += [f"{share:.0%} of batches committed"] if share < LEAST_COMMITTED else []
        not_met += [] if caught_up else ["a query made no progress, so not all events were read"]
        not_met += ["the broker holds another number of events"] if sent["held"] != sent["events"] else []
        differing = sum(query_figures["differing"] + query_figures["missing"] for query_figures in by_query.values())
        return Outcome(
            seed=self._options.seed,
            rows=int(sent["events"]),
            batches=batches,
            **sums,
            late=sum(int(str(r["late_rows"])) for query_reports in batch_reports.values() for r in query_reports),
            faults=dict(sorted(self._tally.happened.items())),
            seconds=round(time.monotonic() - self._begun, 1),
            rows_per_second=round(rate),
            committed_share=round(share, 3),
            repeated_deliveries=max(0, calls - batches),
            drivers=system.drivers,
            failures=system.failures,
            broken=self._tally.broken,
            not_met=not_met + ([f"{differing} deliveries differ or are missing"] if differing else []),
            by_query=by_query,
        )


def is_good(outcome: Outcome) -> bool:
    """Return whether the run met every requirement."""
    exact = outcome.lost == outcome.doubled == outcome.wrong == 0
    return exact and not outcome.failures and not outcome.broken and not outcome.not_met


def _options(arguments: list[str]) -> argparse.Namespace:
    all_kinds = [kind for kinds in FAMILIES.values() for kind in kinds]
    parser = argparse.ArgumentParser(prog="./run chaos", description="Break real processes at random from a seed.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected (%(default)s)")
    parser.add_argument("--rate", type=int, default=5_000, help="events per second (%(default)s)")
    parser.add_argument("--least", type=int, default=3, help="how often each fault has to happen (%(default)s)")
    parser.add_argument("--without", action="append", default=[], choices=all_kinds, metavar="KIND")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs, also after success")
    parser.add_argument("--steady", action="store_true", help="inject no faults, see --steady --help")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    options = parser.parse_args(arguments)
    for name in ("minutes", "rate"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be more than 0")
    return options


def main(arguments: list[str]) -> int:
    """Run chaos. Return 0 if every requirement was met, 1 if not, 130 if interrupted."""
    if "--steady" in arguments:
        return steady.main([argument for argument in arguments if argument != "--steady"])
    options = _options(arguments)

    def play(folder: Path) -> bool:
        with redirect_stdout(sys.stderr):
            outcome = Chaos(options, folder).run()
        print(json.dumps(asdict(outcome), indent=None if options.json else 1))
        return is_good(outcome)

    return run_in_folder("chaos", play, keep=options.keep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
