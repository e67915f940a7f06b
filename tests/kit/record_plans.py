"""Record the plans of ``tests.kit.planned_queries`` for tests without Spark: ``python -m tests.kit.record_plans``.

Values that differ between two runs are left out or numbered: ids, marks, folders and times.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.process.plans.cut import cut_plan, find_table
from riffle_spark.process.plans.plan_values import PlanNode
from riffle_spark.spark.plans.cut_query import read_query
from riffle_spark.spark.plans.plan_reader import PlanReader
from tests.kit.planned_queries import QUERIES, REFUSED_QUERIES, Frames
from tests.kit.recorded_plans import FOLDER, file_of

__all__ = ["queries", "record"]

_LEFT_OUT = (
    *("jvmId", "nodeId", "desc", "dataset", "__dataset_id", "__col_position", "session", "stream"),
    *("sourceName", "timeZoneId", "numSlices"),
)
_MARK = re.compile(r"\[mark \d+ of ")
_ROOT = "file:///state/of/visits"


def queries(frames: Frames) -> dict[str, DataFrame]:
    """Return the queries whose plans are recorded, by their names."""
    named = dict(QUERIES) | {f"refused {name}": query for name, (query, _) in REFUSED_QUERIES.items()}
    return {name: query(frames) for name, query in named.items()}


def record(frame: DataFrame) -> dict[str, Any]:
    """Return the plan of a frame as JSON data, with the columns of the children of its stages."""
    reader, plan = read_query(frame)
    root = reader.fetch(plan.handle)
    leaves = root.collectLeaves()
    streams = [leaf for leaf in range(leaves.size()) if leaves.apply(leaf).isStreaming()]
    outputs = {}
    for stage in cut_plan(plan).stages:
        outputs[str(stage.number)] = [_output(reader, child) for child in _children(stage.node)]
    recorded = {"plan": json.loads(str(root.toJSON())), "streams": streams, "outputs": outputs}
    normal: dict[str, Any] = _Normal().of(recorded)
    return normal


def _children(node: PlanNode) -> list[PlanNode]:
    children = list(node.children)
    table = find_table(node)
    if table is not None:
        children[table.side] = table.changes
    return children


def _output(reader: PlanReader, node: PlanNode) -> list[dict[str, Any]]:
    _, columns = reader.read_output(reader.fetch(node.handle))
    return [{"id": {"product-class": "ExprId", "id": column.id}, "field": column.field} for column in columns]


class _Normal:
    """Numbers ids in the order in which they occur, and leaves out values that differ between runs."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}

    def of(self, value: Any) -> Any:
        """Return a value of the plan in its normal form."""
        if isinstance(value, dict):
            if str(value.get("product-class", "")).endswith("ExprId"):
                return {"id": self._ids.setdefault(value["id"], len(self._ids))}
            return {key: self.of(part) for key, part in value.items() if key not in _LEFT_OUT}
        if isinstance(value, list):
            return [self.of(part) for part in value]
        return _MARK.sub("[mark 0 of ", value) if isinstance(value, str) else value


def main() -> None:
    """Record the plans in the version of Spark that is installed."""
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    folder = FOLDER / pyspark.__version__
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    with tempfile.TemporaryDirectory() as rows:
        for name, frame in queries(Frames(spark, Path(rows))).items():
            text = json.dumps(record(frame), separators=(",", ":"))
            file_of(pyspark.__version__, name).write_text(text + "\n")
            print(f"{name}: {len(text)} characters", file=sys.stderr)
    spark.stop()


if __name__ == "__main__":
    main()
