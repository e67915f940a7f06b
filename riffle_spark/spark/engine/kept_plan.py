"""Keep the physical plan of an operator's slots, so that Spark analyses and plans it once for many batches.

Theory of operation. A plan consists of a leaf with the batch's rows, a leaf with the placed slots, and nodes between
them and the result: a projection, a count, an exchange and the call of Python. These nodes depend only on the columns.

1. The first batch makes the plan through PySpark. Its nodes are kept, without the sort by slot, because a partition has
   the rows of a single slot, and without the projection that repeats the slot for the grouping. The projection below
   the exchange does that too.
2. Each later batch copies the nodes on top of a new leaf and calls Python with a new function. Spark sends the nodes
   below that call to each task, so the exchanged rows are another leaf.
3. Spark reuses the object of a row, so copies of the rows are stored. A local checkpoint of a frame would copy them,
   but Spark would plan that frame. So only the function that copies rows is taken from such a checkpoint.
4. A new layout replaces the leaf of slots, the array with the slot of each key-group, and the number of partitions of
   the exchange. So the batch after a loss needs no planning either.

If the JVM refuses, the batch is planned by PySpark. After three such batches in a row no plan is kept any more.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from riffle_spark.messages.slot_orders import SLOT
from riffle_spark.spark import compat
from riffle_spark.spark.compat import SlotCall
from riffle_spark.spark.compat.java import checked, items, kind
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm_errors import is_interruption

__all__ = ["KeptPlans", "PlacedSlots", "PlanFrame", "elements", "plain_plan", "result_or_none"]

_EXECUTION = "org.apache.spark.sql.execution"
_ADAPTIVE = "AdaptiveSparkPlanExec"
_LEAF = "RDDScanExec"
_SORT = "SortExec"
_COUNTING = "CollectMetricsExec"
_EXCHANGE = "ShuffleExchangeExec"
_PROJECTION = "ProjectExec"
_GROUPING = "HashAggregateExec"
_COMPILED = "WholeStageCodegenExec"
_COMPILED_PROJECTION = ["InputAdapter", _PROJECTION, _COMPILED]
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_PLANS = "org.apache.spark.sql.catalyst.plans"
_ROWS = "LogicalRDD"
_MAX_FUNCTION_BYTES = 1 << 20
"""PySpark broadcasts larger functions."""
_TRIES = 3
"""The number of batches in a row that may fail with a kept plan."""
_logger = logging.getLogger("riffle_spark")
T = TypeVar("T")


class PlanFrame(NamedTuple):
    """A frame that is not yet computed, and a function for the number of its input rows once it is.

    ``rdd`` is the JVM's RDD of the frame if it can be stored as it is.
    """

    frame: DataFrame
    rows: Callable[[], int | None]
    rdd: Any = None


class PlacedSlots(NamedTuple):
    """A layout: a frame with slot i in partition i, the number of slots, and a function for the slot of each key-group
    as JSON.
    """

    frame: DataFrame
    slot_count: int
    slot_by_key_group: Callable[[], str]


class KeptPlans:
    """The plans of a job's operators by name. A plan is kept while its ingredients are equal.

    ``fallbacks`` counts the calls of ``planned`` that made a new plan although the ingredients were equal, or a plan
    that cannot be kept.
    """

    def __init__(self) -> None:
        self.fallbacks = 0
        self._plans: dict[str, tuple[object, _KeptPlan | None, int]] = {}

    def planned(
        self,
        name: str,
        ingredients: object,
        slots: PlacedSlots,
        batch: DataFrame,
        function: object,
        output: StructType,
        plan_by_spark: Callable[[], PlanFrame],
    ) -> PlanFrame:
        """Return the uncomputed result of a batch, from the kept plan or else from ``plan_by_spark``.

        ``name`` names the stores. The plan that ``plan_by_spark`` makes is kept while ``ingredients`` are equal. A
        batch that is not a plain RDD leaves the kept plan unchanged.
        """
        kept_ingredients, plan, tries = self._plans.get(name, (None, None, 0))
        if kept_ingredients != ingredients:
            plan = None
            tries = _TRIES
        rows = result_or_none(name, lambda: plain_plan(batch).rdd()) if tries else None
        if rows is None:
            self.fallbacks += 1
            return plan_by_spark()
        if plan is not None:
            replan = partial(plan.planned, slots, batch, rows, function, output)
            result = result_or_none(name, lambda: handles.in_session(batch.sparkSession, replan))
            if result is not None:
                self._plans[name] = ingredients, plan, _TRIES
                return result
        new_frame = plan_by_spark()
        new_plan = result_or_none(name, lambda: _KeptPlan(slots, new_frame.frame))
        if plan is not None or new_plan is None:
            self.fallbacks += 1
        self._plans[name] = ingredients, new_plan, tries - 1
        return new_frame


def result_or_none(name: str, call: Callable[[], T]) -> T | None:
    """Return the result of a call, or ``None`` if it fails with anything but an interruption.

    ``name`` is for the log.
    """
    try:
        return call()
    except Exception as error:  # the JVM may raise any error; planning by Spark only takes longer
        if is_interruption(error):
            raise
        _logger.debug("Spark plans the slots of %s: %s", name, error)
        return None


class _KeptPlan:
    """A kept plan: its nodes, and the arguments of the nodes that are made again for each batch."""

    def __init__(self, slots: PlacedSlots, frame: DataFrame) -> None:
        """Take a frame of ``cogrouped`` apart. Raise ``LookupError`` if its plan has another form."""
        top = frame._jdf.queryExecution().executedPlan()
        self._call = SlotCall(top.initialPlan() if kind(top) == _ADAPTIVE else top)
        leaf, *above = _up(self._call.rows)
        if [kind(node) for node in above[:2]] == [_PROJECTION, _COMPILED]:
            del above[1]  # Spark would generate code for a single projection on the driver, in each batch.
        self._spark = frame.sparkSession
        self._slots, *self._above_slots = _up(self._call.slots)
        self._leaf = elements(leaf)
        self._rows_output = self._call.rows.output()
        self._counting = 1 + [kind(node) for node in above].index(_COUNTING)
        self._udf, self._command = _udf_arguments(self._call.udf)
        self._above = self._without_last_projection(self._grouped_once(above))
        with handles.active(self._spark):
            # New copies, because nodes that ran keep their shuffle.
            self._above = self._copy_nodes(self._slots.rdd())[1:]
            self._row_copier = compat.row_copier(handles.context(self._spark)._jvm, slots.frame)
            self._move(slots)  # Fails now if the plan cannot take another layout.

    def planned(
        self,
        slots: PlacedSlots,
        batch: DataFrame,
        rows: Any,
        function: object,
        output: StructType,
    ) -> PlanFrame:
        """Return the uncomputed result for the rows of a batch.

        Raise ``LookupError`` if the function would be broadcast.
        """
        if slots.frame is not self._placed.frame:
            self._move(slots)
        udf = self._python_udf(function, output)
        session = handles.session(batch.sparkSession)
        jvm = handles.context(batch.sparkSession)._jvm
        nodes = self._copy_nodes(rows)
        rdd = self._call.copied(jvm, udf, self._top_of_slots, self._leaf_of(nodes[-1].execute())).execute()
        is_storable = self._row_copier is not None and handles.is_in_execution(batch.sparkSession)
        if is_storable:
            rdd = handles.mapped_rdd(jvm, rdd, self._row_copier)
        plan = handles.logical_rdd(jvm, self._call.output, rdd, self._partitioning, session)
        counting = nodes[self._counting]
        return PlanFrame(
            handles.rdd_frame_of(batch.sparkSession, plan),
            lambda: int(counting.collectedMetrics().getLong(0)),
            rdd if is_storable else None,
        )

    def _grouped_once(self, above: list[Any]) -> list[Any]:
        """Return nodes with a projection in place of the second of two groupings of the same rows, if there are two.

        The projection takes the results from the output of the first grouping. The nodes remain as they are if a
        function has several columns there, as an average has a sum and a count.
        """
        for place, (first, second) in enumerate(pairwise(above), start=1):
            if kind(first) == kind(second) == _GROUPING:
                columns = _first_results(first, second)
                projection = None if columns is None else self._node(_PROJECTION, columns, first)
                return above if projection is None else [*above[:place], projection, *above[place + 1 :]]
        return above

    def _without_last_projection(self, above: list[Any]) -> list[Any]:
        """Return nodes without the projection above the exchange, if that only repeats the slot as the first column.

        ``above`` are the nodes of ``_up`` without the leaf. The projection that computes the slot then has it twice.
        """
        exchange = [kind(node) for node in above].index(_EXCHANGE)
        projection, places = _slots_in(above)
        if [kind(node) for node in above[exchange + 1 :]] != _COMPILED_PROJECTION:
            return above
        columns = above[projection].projectList().toBuffer()
        slot = columns.apply(places[0])
        exchanged = above[exchange].output().mkString(", ")
        if above[exchange + 2].projectList().mkString(", ") != f"{slot.toAttribute().toString()}, {exchanged}":
            return above
        columns.prepend(slot)
        above = above[: exchange + 1]
        above[projection] = self._node(_PROJECTION, columns.toList(), above[projection].child())
        return above

    def _leaf_of(self, rdd: Any) -> Any:
        """Return a leaf with exchanged rows.

        Spark serialises the nodes below the call of Python with each of its tasks. A leaf has no nodes below it.
        """
        _, _, *rest = self._leaf
        return self._node(_LEAF, self._rows_output, rdd, *rest)

    def _move(self, slots: PlacedSlots) -> None:
        """Replace the layout: the slots, the look-up of their numbers and the exchange.

        Raise ``LookupError`` if a node has another form.
        """
        placed = slots.frame._jdf.queryExecution().analyzed()
        output, _, name, _, *rest = elements(self._slots)
        leaf = self._node(_LEAF, output, placed.rdd(), name, placed.outputPartitioning(), *rest)
        above = list(self._above)
        projection, places = _slots_in(above)
        columns = above[projection].projectList()
        slot = columns.apply(places[0])
        by = handles.scala_seq(handles.context(self._spark)._jvm, [slot.toAttribute()])
        exchange = [kind(node) for node in above].index(_EXCHANGE)
        _, *rest = elements(above[exchange])
        partitioning = self._class(f"{_PLANS}.physical.HashPartitioning")(by, slots.slot_count)
        above[exchange] = self._node(f"exchange.{_EXCHANGE}", partitioning, *rest)
        columns = columns.toBuffer()
        slot = self._slot_column(slot, slots.slot_by_key_group())
        for place in places:
            columns.update(place, slot)
        above[projection] = self._node(_PROJECTION, columns.toList(), above[projection].child())
        self._slots = leaf
        self._top_of_slots = _stacked(leaf, self._above_slots)[-1]
        self._partitioning = placed.outputPartitioning()
        self._above = above
        self._placed = slots

    def _slot_column(self, column: Any, slot_by_key_group: str) -> Any:
        """Return the column of slots with another array of slot numbers."""
        element_at = checked(checked(column, "Alias").child(), "ElementAt")
        ints = self._class("java.lang.Class").forName("[I")
        array = self._class("com.fasterxml.jackson.databind.ObjectMapper")().readValue(slot_by_key_group, ints)
        array = self._class(f"{_EXPRESSIONS}.UnsafeArrayData").fromPrimitiveArray(array)
        literal = self._class(f"{_EXPRESSIONS}.Literal")(array, element_at.left().dataType())
        return column.withNewChildInternal(element_at.withNewChildrenInternal(literal, element_at.right()))

    def _node(self, name: str, *arguments: Any) -> Any:
        """Return a new node of an executed plan, by the name of its class."""
        return self._class(f"{_EXECUTION}.{name}")(*arguments)

    def _class(self, name: str) -> Any:
        """Return a class of the JVM by its full name."""
        return handles.looked_up(handles.context(self._spark)._jvm, name)

    def _copy_nodes(self, rdd: Any) -> list[Any]:
        """Return copies of the nodes on top of other rows, the leaf first."""
        output, _, *rest = self._leaf
        return _stacked(self._node(_LEAF, output, rdd, *rest), self._above)

    def _python_udf(self, function: object, output: StructType) -> Any:
        """Return the node's expression that calls ``function``. Raise ``LookupError`` if PySpark would broadcast it."""
        pickled = cloudpickle.dumps((function, output))  # type: ignore[no-untyped-call]
        if len(pickled) > _MAX_FUNCTION_BYTES or list(handles.context(self._spark)._pickled_broadcast_vars):
            raise LookupError("PySpark broadcasts the function, or something in it")
        command = self._class("org.apache.spark.api.python.SimplePythonFunction")(bytearray(pickled), *self._command)
        name, *rest = self._udf
        return self._class(f"{_EXPRESSIONS}.PythonUDF")(name, command, *rest)


def plain_plan(batch: DataFrame) -> Any:
    """Return the plan of a batch. Raise ``LookupError`` if it is more than an RDD, or cached by the user.

    Reading the RDD would bypass the cache.
    """
    plan = batch._jdf.queryExecution().analyzed()
    if plan.nodeName() != _ROWS or batch._jdf.storageLevel().isValid():
        raise LookupError(f"the batch is not a {_ROWS}")
    return plan


def _udf_arguments(udf: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a ``PythonUDF`` without its function, and the function's arguments without its code."""
    function = udf.func()
    environment = [function.envVars(), function.pythonIncludes(), function.pythonExec(), function.pythonVer()]
    arguments = [udf.name(), udf.dataType(), udf.children(), udf.evalType(), udf.udfDeterministic(), udf.resultId()]
    return arguments, [*environment, function.broadcastVars(), function.accumulator()]


def _up(node: Any) -> list[Any]:
    """Return the nodes from the leaf with rows up to a node, without sorts."""
    nodes = [node]
    while kind(nodes[-1]) != _LEAF:
        nodes.append(nodes[-1].child())
    return [node for node in reversed(nodes) if kind(node) != _SORT]


def _stacked(leaf: Any, above: list[Any]) -> list[Any]:
    """Return a leaf, and copies of the nodes above it."""
    nodes = [leaf]
    for node in above:
        nodes.append(node.withNewChildInternal(nodes[-1]))
    return nodes


def elements(node: Any) -> list[Any]:
    """Return the constructor arguments of a node."""
    return [node.productElement(index) for index in range(node.productArity())]


def _first_results(first: Any, second: Any) -> Any:
    """Return the columns of the second of two groupings, from the output of the first.

    Return ``None`` if a column of the second is not one of the first.
    """
    output = first.output()
    results = second.aggregateAttributes()
    keys = output.size() - results.size()
    if keys != first.groupingExpressions().size():
        return None
    kept = {result.exprId().id(): output.apply(keys + place) for place, result in enumerate(items(results))}
    columns = second.resultExpressions().toBuffer()
    for place in range(keys, columns.size()):
        column = columns.apply(place)
        value = column.child() if kind(column) == "Alias" else None
        if value is None or kind(value) != "AttributeReference" or value.exprId().id() not in kept:
            return None
        columns.update(place, column.withNewChildInternal(kept[value.exprId().id()]))
    return columns.toList()


def _slots_in(nodes: list[Any]) -> tuple[int, list[int]]:
    """Return the index of the node that computes the slot, and the indices of the column in it.

    Raise ``LookupError`` if no node does.
    """
    for index, node in enumerate(nodes):
        columns = node.projectList() if kind(node) == _PROJECTION else None
        names = [] if columns is None else [columns.apply(column).name() for column in range(columns.size())]
        if SLOT in names:
            return index, [place for place, name in enumerate(names) if name == SLOT]
    raise LookupError("no node computes the slot")
