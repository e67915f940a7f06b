"""Keep the plan that passes the rows of a stored result to a sink, so that Spark analyses it once for many batches.

Theory of operation. A sink gets the rows of the attempts that the receipts name. ``rows_of`` expresses that in SQL.
Spark parses, analyses and optimises this SQL again in each batch. Only two things differ between batches: the RDD with
the result, and the numbers of the attempts. So the physical node of the first batch is kept: a generator that passes
the output rows in chunks of these attempts, and raises an error for a chunk of another attempt.

Each batch puts a copy on top of a leaf with its own RDD. The sink gets the RDD of the generator. Spark cannot move a
sink's own filter below it, so no row is read before its attempt is checked.
"""

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from riffle_spark.messages.slot_orders import attempt_number
from riffle_spark.spark.compat.java import checked, nil
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.kept_plan import elements, result_or_none
from riffle_spark.spark.engine.stage_frames import StoredResult, rows_of

__all__ = ["KeptOutputs"]

_EXECUTION = "org.apache.spark.sql.execution"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_TRIES = 3
"""The number of batches in a row that may fail with a kept plan."""


class KeptOutputs:
    """The plans of sinks' rows by store. A plan is kept while the columns of the result are equal.

    ``fallbacks`` counts the calls of ``rows`` for which Spark analysed a plan although a plan was kept or cannot be
    kept.
    """

    def __init__(self) -> None:
        self.fallbacks = 0
        self._plans: dict[str, tuple[object, _KeptOutput | None, int]] = {}

    def rows(self, store: str, result: StoredResult, attempts: Sequence[str]) -> DataFrame:
        """Return the output rows of a store. Reading a row of another attempt than ``attempts`` fails."""
        frame, column = result.frame, result.rows_column(store)
        if not handles.is_classic(frame.sparkSession):
            return rows_of(frame, column, attempts)
        columns = [*result.outputs.items()]
        kept_columns, plan, tries = self._plans.get(store, (None, None, _TRIES))
        if kept_columns != columns:
            plan = None
            tries = _TRIES
        if plan is None and tries:
            plan = result_or_none(store, lambda: _KeptOutput(frame, column))
        rows = None if plan is None else _rows(store, plan, frame, result.rdd, attempts)
        if rows is not None:
            self._plans[store] = columns, plan, _TRIES
            return rows
        self._plans[store] = columns, None, max(tries - 1, 0)
        self.fallbacks += 1
        return rows_of(frame, column, attempts)


def _rows(store: str, plan: "_KeptOutput", frame: DataFrame, rdd: Any, attempts: Sequence[str]) -> DataFrame | None:
    """Return the rows by a kept plan, or ``None`` if the JVM refuses."""
    rows = result_or_none(store, lambda: plan.rows(frame, rdd, attempts))
    if rows is None:  # The caller's thread may have no session. Setting one costs calls.
        with handles.active(frame.sparkSession):
            rows = result_or_none(store, lambda: plan.rows(frame, rdd, attempts))
    return rows


class _KeptOutput:
    """The generator of the output rows in a column of a result."""

    def __init__(self, frame: DataFrame, column: str) -> None:
        """Take the analysed plan of ``rows_of`` apart. Raise ``LookupError`` if it has another form."""
        self._jvm = handles.context(frame.sparkSession)._jvm
        project = checked(rows_of(frame, column, [""])._jdf.queryExecution().analyzed(), "Project")
        generate = checked(project.child(), "Generate")
        chunk = checked(checked(generate.generator(), "Inline").child(), "If")
        self._attempt = checked(chunk.predicate(), "In").value()
        self._rows = chunk.trueValue()
        self._fails = chunk.falseValue()
        self._output = generate.generatorOutput()
        with handles.active(frame.sparkSession):
            scan = frame._jdf.queryExecution().sparkPlan()
            self._leaf_output, _, *self._leaf = elements(checked(scan, "RDDScanExec"))
        self._partitioning = self._class("org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning")(0)
        self._mapper = self._class("com.fasterxml.jackson.databind.ObjectMapper")()
        self._longs = self._class("java.lang.Class").forName("[J")

    def rows(self, frame: DataFrame, rdd: Any, attempts: Sequence[str]) -> DataFrame:
        """Return the output rows of the attempts in ``rdd``, which is the RDD of ``frame``."""
        spark = frame.sparkSession
        leaf = self._class(f"{_EXECUTION}.RDDScanExec")(self._leaf_output, rdd, *self._leaf)
        numbers = self._mapper.readValue(json.dumps([attempt_number(attempt) for attempt in attempts]), self._longs)
        number_set = handles.looked_up(self._jvm, "scala.Predef", "genericWrapArray")(numbers).toSet()
        is_ours = self._class(f"{_EXPRESSIONS}.InSet")(self._attempt, number_set)
        chunk = self._class(f"{_EXPRESSIONS}.If")(is_ours, self._rows, self._fails)
        inline = self._class(f"{_EXPRESSIONS}.Inline")(chunk)
        rows = self._class(f"{_EXECUTION}.GenerateExec")(inline, nil(self._jvm), False, self._output, leaf).execute()
        plan = handles.logical_rdd(self._jvm, self._output, rows, self._partitioning, handles.session(spark))
        return handles.rdd_frame_of(spark, plan)

    def _class(self, name: str) -> Any:
        """Return a class of the JVM by its full name."""
        return handles.looked_up(self._jvm, name)
