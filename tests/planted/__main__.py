"""``./run planted [NAME ...]``: plants bugs in copies of the checkout, one by one, and checks that tests find them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.planted.copies import SECONDS, Outcome, run_plants
from tests.planted.patches import PATCHES, PlantError, check_patches_apply, select_plants

__all__ = ["main"]

AS_RECORDED = 0
LOST = 1
UNUSABLE = 2


def main(arguments: Sequence[str], folder: Path = PATCHES) -> int:
    """Return 0 if all bugs are found that are recorded as found, 1 if not, 2 if a patch or its tests are unusable."""
    options = _parser().parse_args(arguments)
    outcomes = []
    try:
        plants = select_plants(options.names, folder)
        check_patches_apply(plants)
        for outcome in run_plants(plants, options.processes, options.schedules, options.seconds):
            outcomes.append(outcome)
            print(_line(outcome), file=sys.stderr if options.json else sys.stdout, flush=True)
    except PlantError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    packages = _by_package(outcomes)
    if options.json:
        print(json.dumps({"packages": packages, "bugs": [_to_json(outcome) for outcome in outcomes]}))
    else:
        print(_table(packages))
    if any(outcome.error for outcome in outcomes):
        return UNUSABLE
    return LOST if any(not outcome.is_found and not outcome.plant.missed for outcome in outcomes) else AS_RECORDED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs, or packages such as spark/sinks (default: all)")
    parser.add_argument("--processes", type=_positive, default=os.cpu_count(), help="copies at a time (%(default)s)")
    parser.add_argument("--schedules", type=_positive, default=0, help="play this many dst schedules, not the tests")
    parser.add_argument("--seconds", type=_positive, default=SECONDS, help="time limit for each bug (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _line(outcome: Outcome) -> str:
    word = "ERROR" if outcome.error else "found" if outcome.is_found else "known" if outcome.plant.missed else "LOST "
    reason = outcome.error or outcome.first or outcome.plant.missed or "no test failed"
    return f"{word} {outcome.plant.package}: {outcome.plant.name} ({outcome.seconds:.0f} s): {reason}"


def _to_json(outcome: Outcome) -> dict[str, object]:
    return {
        "name": outcome.plant.name,
        "package": outcome.plant.package,
        "found": outcome.is_found,
        "first": outcome.first,
        "seconds": outcome.seconds,
        "error": outcome.error,
    }


def _by_package(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Count the bugs per package: planted, found, and found by tests that are older than the bug."""
    packages: dict[str, dict[str, int]] = defaultdict(
        lambda: {"planted": 0, "found": 0, "before known": 0, "found before": 0}
    )
    for outcome in outcomes:
        counts = packages[outcome.plant.package]
        counts["planted"] += 1
        counts["found"] += outcome.is_found
        counts["before known"] += outcome.plant.found_before is not None
        counts["found before"] += outcome.plant.found_before is True
    return dict(sorted(packages.items()))


def _table(packages: dict[str, dict[str, int]]) -> str:
    total = {key: sum(counts[key] for counts in packages.values()) for key in next(iter(packages.values()), {})}
    rows = [("package", "planted", "found", "not found", "found by earlier tests")]
    for package, counts in [*packages.items(), ("all", total)]:
        planted, found_count, known_before, found_before = counts.values()
        rows.append(
            (
                package,
                str(planted),
                str(found_count),
                str(planted - found_count),
                f"{found_before} of {known_before}" if known_before else "-",
            )
        )
    return "\n".join(f"{row[0]:<28}{row[1]:>8}{row[2]:>8}{row[3]:>11}{row[4]:>24}" for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
