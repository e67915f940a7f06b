"""Keep the plan that passes the rows of a stored result to a sink, so that Spark analyses it once for many batches.

Theory of operation. A sink gets the rows of the attempts that the receipts name. ``rows_of`` selects them in SQL, which
Spark would parse, analyse and optimise in each batch. Only two things differ between batches: the RDD of the result,
and the attempt numbers. So the expressions of the first batch are kept. They belong to a generator, which returns the
rows of each chunk of these attempts, and raises an error for a chunk of another attempt.

Each batch builds the generator on top of a leaf with its own RDD. The sink gets a frame of the generator's RDD. Spark
cannot move a filter of the sink below that RDD, so no row is read before its attempt is checked.
"""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from riffle_spark.messages.slot_orders import attempt_number
from riffle_spark.spark.compat.java import checked, nil
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.kept_plan import TRIES, constructor_arguments, result_or_none
from riffle_spark.spark.engine.stage_frames import StoredResult, rows_of

_EXECUTION = "org.apache.spark.sql.execution"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


class KeptOutputs:
    """The plans of the sinks' rows by store. A plan is reused while the columns of the result are equal.

    ``fallbacks`` counts the batches whose rows Spark planned because the kept plan failed or no plan can be kept.
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
        kept_columns, plan, tries = self._plans.get(store, (None, None, TRIES))
        if kept_columns != columns:
            plan = None
            tries = TRIES
        if plan is None and tries:
            plan = result_or_none(store, lambda: _KeptOutput(frame, column))
        if plan is not None:
            reuse = partial(plan.rows, frame, result.rdd, attempts)
            rows = result_or_none(store, lambda: handles.in_session(frame.sparkSession, reuse))
            if rows is not None:
                self._plans[store] = columns, plan, TRIES
                return rows
        self._plans[store] = columns, None, max(tries - 1, 0)
        self.fallbacks += 1
        return rows_of(frame, column, attempts)


class _KeptOutput:
    """The generator of the output rows in a column of a result."""

    def __init__(self, frame: DataFrame, column: str) -> None:
        """Keep the expressions in the plan of ``rows_of``. Raise ``LookupError`` if it has another form."""
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
            self._leaf_output, _, *self._leaf = constructor_arguments(checked(scan, "RDDScanExec"))
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
