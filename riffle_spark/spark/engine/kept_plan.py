"""The physical plan of an operator's slots, made once: later batches give it their rows and their function, and Spark
neither analyses nor plans anew. Knows Spark's plans, through the JVM. Does not know what the function does.

Theory of operation. A batch's rows are a leaf over an RDD, and so are the placed slots. Between them and the answers
lie a projection, the counting, the exchange and the call of Python: the same in every batch, as long as layout and
columns are. So the nodes are kept; a batch copies them on top of a new leaf, and calls Python with a new function. What
sorts rows by slot is left out: a partition has the rows of one slot.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm import SinkPlan

__all__ = ["KeptPlans", "PlanFrame"]

_EXECUTION = "org.apache.spark.sql.execution"
_CALL = "FlatMapCoGroupsInArrowExec"
_ADAPTIVE = "AdaptiveSparkPlanExec"
_LEAF = "RDDScanExec"
_SORT = "SortExec"
_COUNTING = "CollectMetricsExec"
_ROWS = "LogicalRDD"
_BYTES_MOST = 1 << 20
"""PySpark broadcasts larger functions."""
_logger = logging.getLogger("riffle_spark")


class PlanFrame(NamedTuple):
    """A frame that is not computed yet, and what tells how many rows went into it once it is."""

    frame: DataFrame
    rows: Callable[[], int | None]


class KeptPlans:
    """The plans of a job's operators by name, each as long as what it was made of is the same."""

    def __init__(self) -> None:
        self._plans: dict[str, tuple[object, _KeptPlan | None]] = {}
        self._sized: dict[str, tuple[str, SinkPlan]] = {}

    def planned(
        self, name: str, made_of: object, batch: DataFrame, function: object, answer: StructType,
        plainly: Callable[[], PlanFrame],
    ) -> PlanFrame:  # fmt: skip
        """Return a batch's answers: by the plan that is kept, or else ``plainly``, whose plan is kept if it can be."""
        before, plan = self._plans.get(name, (None, None))
        if before == made_of and plan is not None:
            try:
                return plan.planned(batch, function, answer)
            except Exception as error:  # noqa: BLE001 - whatever a JVM may raise; what is wrong either way is raised below
                _logger.debug("the slots of %s are planned anew: %s", name, error)
        made = plainly()
        self._plans[name] = (made_of, None if before == made_of else _kept(batch, made.frame))
        return made

    def sized(self, name: str, query: str) -> SinkPlan:
        """Return the plan of what an operator's sink gets, which a query says."""
        if self._sized.get(name, ("",))[0] != query:
            self._sized[name] = query, SinkPlan(query)
        return self._sized[name][1]


def _kept(batch: DataFrame, made: DataFrame) -> "_KeptPlan | None":
    try:
        return _KeptPlan(batch, made)
    except Exception as error:  # noqa: BLE001 - whatever a JVM may raise: plans only take longer to make without it
        _logger.debug("the plan of slots is not kept: %s", error)
        return None


class _KeptPlan:
    """One plan's nodes, and what those are made of that are made anew."""

    def __init__(self, batch: DataFrame, made: DataFrame) -> None:
        """Take a frame of ``cogrouped`` apart. Raises ``LookupError`` if its plan or the batch is of another form."""
        _rows_of(batch)
        top = made._jdf.queryExecution().executedPlan()
        call = _checked(top.initialPlan() if _kind(top) == _ADAPTIVE else top, _CALL)
        slots = _down(call.left())[-1]
        leaf, *above = [node for node in reversed(_down(call.right())) if _kind(node) != _SORT]
        self._spark = made.sparkSession
        self._leaf = [leaf.productElement(at) for at in range(leaf.productArity())]
        self._counting = 1 + [_kind(node) for node in above].index(_COUNTING)
        self._ends = (call.leftGroup(), call.rightGroup()), (call.output(), slots)
        self._udf, self._told = _parts_of(call.func())
        self._partitioning = call.outputPartitioning()
        self._above = above
        self._above = self._copied(slots.rdd())[1:]  # The nodes that ran keep their batch's shuffle.

    def planned(self, batch: DataFrame, function: object, answer: StructType) -> PlanFrame:
        """Return the answers to a batch. Raises ``LookupError`` if batch or function are of another form."""
        jvm = handles.context(batch.sparkSession)._jvm
        nodes = self._copied(_rows_of(batch))
        by, (output, slots) = self._ends
        call = handles.looked_up(jvm, f"{_EXECUTION}.python.{_CALL}")
        rdd = call(*by, self._function(function, answer), output, slots, nodes[-1]).execute()
        session, counting = handles.session(batch.sparkSession), nodes[self._counting]
        plan = handles.logical_rdd(jvm, output, rdd, self._partitioning, session)
        return PlanFrame(
            handles.frame_of(batch.sparkSession, plan), lambda: int(counting.collectedMetrics().getLong(0))
        )

    def _copied(self, rdd: Any) -> list[Any]:
        """Return the nodes on top of other rows, the leaf first."""
        output, _, *others = self._leaf
        leaf = handles.looked_up(handles.context(self._spark)._jvm, f"{_EXECUTION}.{_LEAF}")
        nodes = [leaf(output, rdd, *others)]
        for node in self._above:
            nodes.append(node.withNewChildInternal(nodes[-1]))
        return nodes

    def _function(self, function: object, answer: StructType) -> Any:
        context = handles.context(self._spark)
        sent = cloudpickle.dumps((function, answer))  # type: ignore[no-untyped-call]
        if len(sent) > _BYTES_MOST or list(context._pickled_broadcast_vars):
            raise LookupError("PySpark broadcasts the function, or something in it")
        told = handles.looked_up(context._jvm, "org.apache.spark.api.python.SimplePythonFunction")
        udf, (name, *others) = "org.apache.spark.sql.catalyst.expressions.PythonUDF", self._udf
        return handles.looked_up(context._jvm, udf)(name, told(bytearray(sent), *self._told), *others)


def _rows_of(batch: DataFrame) -> Any:
    """Return the RDD that a batch is, as a query hands it over. Raises ``LookupError`` if it is more than that."""
    plan = batch._jdf.queryExecution().analyzed()
    if plan.nodeName() != _ROWS:
        raise LookupError(f"the batch is no {_ROWS}")
    return plan.rdd()


def _parts_of(udf: Any) -> tuple[list[Any], list[Any]]:
    """Return what a call of Python is made of, but for what is called, and what says how that is called."""
    told = udf.func()
    how = [told.envVars(), told.pythonIncludes(), told.pythonExec(), told.pythonVer(), told.broadcastVars()]
    parts = [udf.name(), udf.dataType(), udf.children(), udf.evalType(), udf.udfDeterministic(), udf.resultId()]
    return parts, [*how, told.accumulator()]


def _down(node: Any) -> list[Any]:
    """Return a node and those below it, one below the other, down to rows that are there."""
    nodes = [node]
    while _kind(nodes[-1]) != _LEAF:
        nodes.append(nodes[-1].child())
    return nodes


def _checked(node: Any, kind: str) -> Any:
    if _kind(node) != kind:
        raise LookupError(f"the plan is a {_kind(node)}")
    return node


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
