"""The physical plan of an operator's slots, made once: later batches give it their rows and their function, and Spark
neither analyses nor plans anew. Knows Spark's plans, through the JVM. Does not know what the function does.

Theory of operation. A batch's rows are a leaf over an RDD, and so are the placed slots. Between them and the answers
lie a projection, the counting, the exchange and the call of Python: the same in every batch, as long as columns are. So
the nodes are kept; a batch copies them on top of a new leaf, and calls Python with a new function. Another layout is
another leaf of slots, other numbers in the array that says a key-group's slot, and an exchange into as many parts: the
batch after a loss waits for no planner. What sorts rows by slot is left out: a partition has the rows of one slot.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from riffle_spark.messages.slot_orders import SLOT
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm import SinkPlan

__all__ = ["KeptPlans", "PlacedSlots", "PlanFrame"]

_EXECUTION = "org.apache.spark.sql.execution"
_CALL = "FlatMapCoGroupsInArrowExec"
_ADAPTIVE = "AdaptiveSparkPlanExec"
_LEAF = "RDDScanExec"
_SORT = "SortExec"
_COUNTING = "CollectMetricsExec"
_EXCHANGE = "ShuffleExchangeExec"
_PROJECTION = "ProjectExec"
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_PLANS = "org.apache.spark.sql.catalyst.plans"
_ROWS = "LogicalRDD"
_BYTES_MOST = 1 << 20
"""PySpark broadcasts larger functions."""
_TRIES = 3
"""So many batches in a row may fail with a plan that is kept, until none is kept any more."""
_logger = logging.getLogger("riffle_spark")
T = TypeVar("T")


class PlanFrame(NamedTuple):
    """A frame that is not computed yet, and what tells how many rows went into it once it is."""

    frame: DataFrame
    rows: Callable[[], int | None]


class PlacedSlots(NamedTuple):
    """A layout as plans take it: a frame whose partition i is slot i, how many there are, and what tells the number of
    each key-group's slot, as JSON.
    """

    frame: DataFrame
    parts: int
    numbers: Callable[[], str]


class KeptPlans:
    """The plans of a job's operators by name, each as long as what it was made of is the same.

    ``fallbacks`` counts the calls of ``planned`` that made a plan anew although columns had not changed, or whose plan
    cannot be kept.
    """

    def __init__(self) -> None:
        self.fallbacks = 0
        self._plans: dict[str, tuple[object, _KeptPlan | None, int]] = {}
        self._sized: dict[str, tuple[object, SinkPlan]] = {}

    def planned(
        self, name: str, made_of: object, slots: PlacedSlots, batch: DataFrame, function: object,
        answer: StructType, plainly: Callable[[], PlanFrame],
    ) -> PlanFrame:  # fmt: skip
        """Return a batch's answers: by the plan that is kept, or else ``plainly``, whose plan is kept if it can be. A
        batch of another form leaves what is kept to those after it.
        """
        before, plan, left = self._plans.get(name, (None, None, 0))
        if before != made_of:
            plan, left = None, _TRIES
        rows = _tried(name, lambda: _rows_of(batch)) if left else None
        if rows is None:
            self.fallbacks += 1
            return plainly()
        found = None
        if plan is not None:
            again = partial(plan.planned, slots, batch, rows, function, answer)
            found = _tried(name, again)
            if found is None:  # A thread of the user's own has no session: asked for only now, as it costs calls.
                with handles.active(batch.sparkSession):
                    found = _tried(name, again)
        if found is not None:
            self._plans[name] = made_of, plan, _TRIES
            return found
        made = plainly()
        new_plan = _tried(name, lambda: _KeptPlan(slots, made.frame))
        if plan is not None or new_plan is None:
            self.fallbacks += 1
        self._plans[name] = made_of, new_plan, left - 1
        return made

    def sized(self, name: str, query: str, output: object) -> SinkPlan:
        """Return the plan of what an operator's sink gets, which a query says, from rows of an output's types."""
        if self._sized.get(name, ("",))[0] != (query, output):
            self._sized[name] = (query, output), SinkPlan(query)
        return self._sized[name][1]


def _tried(name: str, call: Callable[[], T]) -> T | None:
    """Return what a call returns, or ``None`` where it fails otherwise than by an interruption."""
    try:
        return call()
    except Exception as error:  # whatever a JVM may raise: plans only take longer to make
        if handles.is_interruption(error):
            raise
        _logger.debug("the slots of %s are planned anew: %s", name, error)
        return None


class _KeptPlan:
    """One plan's nodes, and what those are made of that are made anew."""

    def __init__(self, slots: PlacedSlots, made: DataFrame) -> None:
        """Take a frame of ``cogrouped`` apart. Raises ``LookupError`` if its plan is of another form."""
        top = made._jdf.queryExecution().executedPlan()
        call = _checked(top.initialPlan() if _kind(top) == _ADAPTIVE else top, _CALL)
        leaf, *above = [node for node in reversed(_down(call.right())) if _kind(node) != _SORT]
        self._spark = made.sparkSession
        self._slots = _down(call.left())[-1]
        self._leaf = _elements(leaf)
        self._counting = 1 + [_kind(node) for node in above].index(_COUNTING)
        self._groups = call.leftGroup(), call.rightGroup()
        self._output = call.output()
        self._udf, self._told = _parts_of(call.func())
        self._above = above
        with handles.active(self._spark):
            self._above = self._copied(self._slots.rdd())[1:]  # The nodes that ran keep their batch's shuffle.
            self._move(slots)  # So that a loss looks no classes up, and finds no plan that takes no other layout.

    def planned(
        self, slots: PlacedSlots, batch: DataFrame, rows: Any, function: object, answer: StructType
    ) -> PlanFrame:
        """Return the answers to a batch of these rows. Raises ``LookupError`` if the function is of another form."""
        if slots.frame is not self._placed.frame:
            self._move(slots)
        nodes = self._copied(rows)
        told = self._function(function, answer), self._output, self._slots, nodes[-1]
        rdd = self._node(f"python.{_CALL}", *self._groups, *told).execute()
        session, counting = handles.session(batch.sparkSession), nodes[self._counting]
        jvm = handles.context(batch.sparkSession)._jvm
        plan = handles.logical_rdd(jvm, self._output, rdd, self._partitioning, session)
        return PlanFrame(
            handles.frame_of(batch.sparkSession, plan), lambda: int(counting.collectedMetrics().getLong(0))
        )

    def _move(self, slots: PlacedSlots) -> None:
        """Take another layout: nothing but the slots, the look-up of their numbers and the exchange knows it. Raises
        ``LookupError`` if one of them is of another form.
        """
        placed = slots.frame._jdf.queryExecution().analyzed()
        output, _, name, _, *others = _elements(self._slots)
        leaf = self._node(_LEAF, output, placed.rdd(), name, placed.outputPartitioning(), *others)
        above = list(self._above)
        computes, column = _slot_in(above)
        columns = above[computes].projectList()
        by = handles.scala_seq(handles.context(self._spark)._jvm, [columns.apply(column).toAttribute()])
        at = [_kind(node) for node in above].index(_EXCHANGE)
        _, *others = _elements(above[at])  # By the slot, too, where one slot needs no column to be found.
        partitioning = self._class(f"{_PLANS}.physical.HashPartitioning")(by, slots.parts)
        above[at] = self._node(f"exchange.{_EXCHANGE}", partitioning, *others)
        columns = columns.updated(column, self._looked_up(columns.apply(column), slots.numbers()))
        above[computes] = self._node(_PROJECTION, columns, above[computes].child())
        self._slots, self._partitioning, self._above, self._placed = leaf, placed.outputPartitioning(), above, slots

    def _looked_up(self, column: Any, numbers: str) -> Any:
        """Return the column of slots, looked up among other numbers."""
        look_up = _checked(_checked(column, "Alias").child(), "ElementAt")
        ints = self._class("java.lang.Class").forName("[I")
        array = self._class("com.fasterxml.jackson.databind.ObjectMapper")().readValue(numbers, ints)
        array = self._class(f"{_EXPRESSIONS}.UnsafeArrayData").fromPrimitiveArray(array)
        literal = self._class(f"{_EXPRESSIONS}.Literal")(array, look_up.left().dataType())
        look_up = look_up.withNewChildrenInternal(literal, look_up.right())
        return column.withNewChildInternal(look_up)

    def _node(self, name: str, *given: Any) -> Any:
        return self._class(f"{_EXECUTION}.{name}")(*given)

    def _class(self, name: str) -> Any:
        return handles.looked_up(handles.context(self._spark)._jvm, name)

    def _copied(self, rdd: Any) -> list[Any]:
        """Return the nodes on top of other rows, the leaf first."""
        output, _, *others = self._leaf
        nodes = [self._node(_LEAF, output, rdd, *others)]
        for node in self._above:
            nodes.append(node.withNewChildInternal(nodes[-1]))
        return nodes

    def _function(self, function: object, answer: StructType) -> Any:
        sent = cloudpickle.dumps((function, answer))  # type: ignore[no-untyped-call]
        if len(sent) > _BYTES_MOST or list(handles.context(self._spark)._pickled_broadcast_vars):
            raise LookupError("PySpark broadcasts the function, or something in it")
        told = self._class("org.apache.spark.api.python.SimplePythonFunction")(bytearray(sent), *self._told)
        name, *others = self._udf
        return self._class(f"{_EXPRESSIONS}.PythonUDF")(name, told, *others)


def _rows_of(batch: DataFrame) -> Any:
    """Return the RDD that a batch is, as a query hands it over. Raises ``LookupError`` if it is more than that, or if
    a user has cached it: who reads the RDD reads past the cache.
    """
    plan = batch._jdf.queryExecution().analyzed()
    if plan.nodeName() != _ROWS or batch._jdf.storageLevel().isValid():
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


def _elements(node: Any) -> list[Any]:
    """Return what a node was made of, in the order in which it is made."""
    return [node.productElement(at) for at in range(node.productArity())]


def _slot_in(nodes: list[Any]) -> tuple[int, int]:
    """Return which of the nodes computes the slot, and as which of its columns."""
    for at, node in enumerate(nodes):
        columns = node.projectList() if _kind(node) == _PROJECTION else None
        names = [] if columns is None else [columns.apply(column).name() for column in range(columns.size())]
        if SLOT in names:
            return at, names.index(SLOT)
    raise LookupError("no node computes the slot")


def _checked(node: Any, kind: str) -> Any:
    if _kind(node) != kind:
        raise LookupError(f"the plan is a {_kind(node)}")
    return node


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
