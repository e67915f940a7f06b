"""Read plans that were recorded as JSON on several versions of Spark. No Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riffle_spark.process.plans.columns import Column
from riffle_spark.process.plans.plan_values import Expression, PlanNode, parse_plan

__all__ = ["FOLDER", "VERSIONS", "RecordedPlan", "file_of", "plan_of"]

FOLDER = Path(__file__).parents[1] / "data" / "plans"
VERSIONS = sorted(path.name for path in FOLDER.iterdir()) if FOLDER.exists() else []


@dataclass(frozen=True)
class RecordedPlan:
    """A plan, and the columns of each child of each stage, by the number of the stage."""

    plan: PlanNode
    outputs: Mapping[int, list[list[Column]]]


def file_of(version: str, query: str) -> Path:
    """Return the file of a query's recorded plan in a version of Spark."""
    return FOLDER / version / f"{query.replace(' ', '-').replace(',', '')}.json"


def plan_of(version: str, query: str) -> RecordedPlan:
    """Return the recorded plan of a query in a version of Spark."""
    record = json.loads(file_of(version, query).read_text())
    plan, _ = parse_plan(json.dumps(record["plan"]), lambda leaf: leaf in record["streams"])
    outputs = {int(stage): [list(map(_column, side)) for side in sides] for stage, sides in record["outputs"].items()}
    return RecordedPlan(plan, outputs)


def _column(recorded: Mapping[str, Any]) -> Column:
    attribute = {"name": recorded["field"]["name"], "exprId": recorded["id"]}
    return Column(Expression("AttributeReference", (), attribute, recorded["id"]["id"]), recorded["field"])
