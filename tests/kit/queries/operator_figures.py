"""The figures of state operators that a listener receives while a shape is played.

The figures of a batch have a row for each operator: its name and ``FIELDS``. Batches that changed nothing are left out,
because Spark runs more of them than a wrapped query.

   .venv/bin/python -m tests.kit.queries.operator_figures NAME ...

records the figures of Spark's own run of the shapes with these names.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from tests.kit.folders import DATA
from tests.kit.processors.record_cases import environment
from tests.kit.queries.all_shapes import SHAPES
from tests.kit.queries.played_query import play
from tests.kit.queries.query_shape import Shape
from tests.kit.queries.record_shapes import session

__all__ = [
    "FIELDS",
    "Changes",
    "EventList",
    "added_up",
    "changes_of",
    "difference",
    "listening",
    "recorded_changes",
    "registered",
]

FIELDS = ("numRowsTotal", "numRowsUpdated", "numRowsRemoved", "numRowsDroppedByWatermark")
RECORDED = DATA / "state_operators.json"
WAIT_MS = 30_000
NAMES_OF_SPARK_35 = {"defaultName": "sessionWindowStateStoreSaveExec"}
"""Names of operators on Spark 4, by their different names on Spark 3.5."""
Progress = Mapping[str, Any]
Changes = list[list[list[Any]]]
"""A list of batches, each with a row per operator: its name and its figures."""


class EventList:
    """A listener that stores the progress of each event as JSON, and counts ended queries.

    PySpark's listener makes Python objects of each event, in about 100 calls of the JVM. It took a third of a test's
    time.
    """

    class Java:
        """The Java interface that Py4J implements with this class."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.ended = 0

    def onQueryStarted(self, _event: Any) -> None:  # noqa: N802 - Spark calls it by this name
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark calls it by this name
        """Store the progress."""
        self.progress.append(json.loads(event.progress().json()))

    def onQueryIdle(self, _event: Any) -> None:  # noqa: N802 - Spark calls it by this name
        """Do nothing."""

    def onQueryTerminated(self, _event: Any) -> None:  # noqa: N802 - Spark calls it by this name
        """Count the ended query."""
        self.ended += 1


@contextmanager
def registered(spark: SparkSession) -> Iterator[EventList]:
    """Register a new listener with Spark's queries during a block."""
    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)
    events = EventList()
    listener = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(events)
    streams: Any = spark.streams
    streams._jsqm.addListener(listener)  # PySpark registers its listeners in the same way
    try:
        yield events
    finally:
        streams._jsqm.removeListener(listener)


@contextmanager
def listening(spark: SparkSession) -> Iterator[Callable[[], list[Progress]]]:
    """Listen to Spark's queries during a block. Yield a function that returns the progress of all events so far."""
    with registered(spark) as events:

        def received() -> list[Progress]:
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(WAIT_MS)
            return list(events.progress)

        yield received


def changes_of(progress: list[Progress]) -> Changes:
    """Return the figures of the batches that changed something."""
    batches = [
        [[_name_of(operator), *(operator[field] for field in FIELDS)] for operator in event["stateOperators"]]
        for event in progress
    ]
    changes: Changes = []
    totals: list[int] = []
    for batch in batches:
        totals_before = totals
        totals = [figures[1] for figures in batch]
        if totals != totals_before or any(any(figures[2:]) for figures in batch):
            changes.append(batch)
    return changes


def _name_of(operator: Mapping[str, Any]) -> str:
    """Return the name that an operator has on Spark 4."""
    name = operator["operatorName"]
    return NAMES_OF_SPARK_35.get(name, name)


def added_up(changes: Changes) -> Changes:
    """Return the figures of all batches as one batch: the sums per operator, with its newest total."""
    sums = [[name, total, 0, 0, 0] for name, total, *_ in changes[-1]]
    for batch in changes:
        for row, (_, _, *figures) in zip(sums, batch, strict=True):
            row[2:] = [before + figure for before, figure in zip(row[2:], figures, strict=True)]
    return [sums]


def recorded_changes(shape: Shape) -> Changes | None:
    """Return the figures of Spark's own run of a shape, or ``None`` if they are not recorded."""
    recorded: dict[str, Changes] = json.loads(RECORDED.read_text())
    return recorded.get(shape.name)


def difference(ours: Changes, theirs: Changes, left_out: frozenset[str] = frozenset()) -> str:
    """Describe the first difference, or return an empty text. ``left_out`` are fields that may differ."""
    if len(ours) != len(theirs):
        return f"{len(ours)} batches with changes, expected {len(theirs)}: {ours}, expected {theirs}"
    compared = [0, *(place for place, field in enumerate(FIELDS, 1) if field not in left_out)]
    for number, (batch, expected) in enumerate(zip(ours, theirs, strict=True)):
        if any(row[place] != other[place] for row, other in zip(batch, expected, strict=True) for place in compared):
            return f"batch {number} with changes: {batch}, expected {expected}"
    return ""


def main() -> None:
    """Record the figures of the shapes that the command line names."""
    environment()
    spark = session()
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with tempfile.TemporaryDirectory(prefix="riffle-queries-") as folder:
        for name in sys.argv[1:]:
            with listening(spark) as received:
                play(spark, SHAPES[name], Path(folder) / name)
                recorded[name] = changes_of(received())
        spark.stop()
    rows = [f"{json.dumps(name)}: {json.dumps(changes)}" for name, changes in sorted(recorded.items())]
    RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
