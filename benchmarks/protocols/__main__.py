"""Compare riffle_spark with Spark's placement and six protocols of consumer groups, in simulated worlds.

``./run bench protocols rolling_bounce --plot docs/pictures`` prints a table and draws pictures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.protocols.group_play import ALL, play_under
from riffle_spark.simulate.outcomes import format_table, outcome_to_json
from riffle_spark.simulate.world_file import read_world


def main() -> None:
    """Play a world under all policies, and print and draw the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", nargs="?", default="rolling_bounce", help="a world file, or the name of a world")
    parser.add_argument("--policy", action="append", choices=sorted(ALL), help="play only this one; can be repeated")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw stops, waiting rows, moves and owners")
    parser.add_argument("--json", action="store_true", help="print one object per policy")
    options = parser.parse_args()
    world = read_world(options.world)
    outcomes = [play_under(ALL[name], world) for name in options.policy or ALL]
    if options.json:
        print(json.dumps([outcome_to_json(world, outcome, history=False) for outcome in outcomes]))
    else:
        print(format_table(world, outcomes))
    if options.plot:
        from benchmarks.protocols.pictures import draw

        print(*draw(world, outcomes, options.plot, Path(options.world).stem), sep="\n")


if __name__ == "__main__":
    main()
