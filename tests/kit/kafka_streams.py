"""Recorded clusters and the assignments of Kafka Streams' own assignor.

`python -m tests.kit.kafka_streams NAME` prints a cluster as a file for `riffle plan`.
`tests/data/kafka_streams/README.md` says how the figures were recorded.
"""

from __future__ import annotations

import functools
import gzip
import json
import sys
from dataclasses import dataclass
from typing import Literal, cast

from riffle_spark.simulate.figures import Json
from riffle_spark.simulate.scenario import Scenario, parse_scenario
from tests.kit.folders import DATA

__all__ = ["Anchor", "Family", "anchors"]

Family = Literal["random", "worked", "scale"]
COUNTS: dict[Family, int] = {"random": 100, "worked": 17, "scale": 21}
FOLDER = DATA / "kafka_streams"


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """A cluster in the form of a scenario file, and the figures of Kafka Streams for it."""

    name: str
    content: Json
    kafka: Json

    def scenario(self, strategy: str | None = None) -> Scenario:
        """Return the scenario of the cluster. ``strategy`` replaces the strategy of the file."""
        return parse_scenario(self.content, strategy)

    @property
    def kafka_phases(self) -> list[Json]:
        """The figures of Kafka Streams by phase.

        A cluster has none if one of its assignments took Kafka Streams too long.
        """
        return cast("list[Json]", cast(Json, self.kafka["converge"])["phases"])


@functools.cache
def anchors(family: Family) -> tuple[Anchor, ...]:
    """Return all clusters of a family, each once per strategy."""
    lines = gzip.decompress((FOLDER / f"{family}.jsonl.gz").read_bytes()).splitlines()
    parsed_anchors = tuple(anchor for line in lines for anchor in _anchors_of(json.loads(line)))
    assert len(parsed_anchors) == COUNTS[family], (
        f"expected {COUNTS[family]} clusters of {family}, found {len(parsed_anchors)}"
    )
    return parsed_anchors


def _anchors_of(line: Json) -> list[Anchor]:
    """Return the clusters of a line, which has one cluster and the results of Kafka Streams by strategy."""
    cluster = cast(Json, line["scenario"])
    results = cast("dict[str, Json]", line["kafka_streams"])
    return [
        Anchor(cast(str, entry["scenario"]), _scenario_of(cluster, entry), entry)
        for _, entry in sorted(results.items())
    ]


def _scenario_of(cluster: Json, result: Json) -> Json:
    config = {**cast(Json, cluster["config"]), "strategy": result["strategy"]}
    return {**cluster, "name": result["scenario"], "config": config}


def main() -> None:
    """Print the cluster with the name that the command line gives."""
    by_name = {anchor.name: anchor for family in COUNTS for anchor in anchors(family)}
    if len(sys.argv) != 2 or sys.argv[1] not in by_name:
        raise SystemExit("say which: python -m tests.kit.kafka_streams NAME, with NAME of\n" + " ".join(by_name))
    print(json.dumps(by_name[sys.argv[1]].content))


if __name__ == "__main__":
    main()
