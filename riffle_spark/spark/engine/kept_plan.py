"""Keep the physical plan of an operator's slots, so that Spark analyses and plans it once for many batches.

Theory of operation. A plan has two leaves: the batch's rows and the placed slots. The nodes above them are a
projection, a count, an exchange and the node that calls Python. These nodes depend only on the columns.

1. PySpark plans the first batch. The nodes of that plan are kept, except two. The sort by slot is not needed, because a
   partition has the rows of a single slot. The projection above the exchange only repeats the slot column for the
   grouping, so the projection below the exchange does that instead.
2. Each later batch copies the nodes on top of a new leaf, and gives the Python node a new function. Spark sends all
   nodes below the Python node to each task. So the RDD of the exchange becomes a leaf of its own, without nodes below.
3. The result is stored as an RDD. Spark reuses one object for all rows, so the rows have to be copied before.
   ``DataFrame.localCheckpoint`` copies them, but also plans the frame. So only its function that copies rows is used.
4. A new layout replaces the leaf of slots, the array with the slot of each key-group, and the number of partitions of
   the exchange. So Spark does not plan the batch after the loss of an executor either.

If the JVM raises an error, PySpark plans the batch. After three such batches in a row, PySpark plans all batches with
these columns.
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

_EXECUTION = "org.apache.spark.sql.execution"
_ADAPTIVE = "spark.sql.adaptive.enabled"
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
TRIES = 3
"""The number of failures in a row after which a plan is no longer kept."""
_logger = logging.getLogger("riffle_spark")
T = TypeVar("T")


class PlanFrame(NamedTuple):
    """An uncomputed frame. Once it is computed, ``rows`` returns the number of its input rows.

    ``rdd`` is the JVM's RDD of the frame if ``store_rdd`` can store it, else ``None``.
    """

    frame: DataFrame
    rows: Callable[[], int | None]
    rdd: Any = None


class PlacedSlots(NamedTuple):
    """A layout as a frame with slot i in partition i.

    ``slot_by_key_group`` returns a JSON array with the slot of each key-group.
    """

    frame: DataFrame
    slot_count: int
    slot_by_key_group: Callable[[], str]


class KeptPlans:
    """The plans of a job's operators by name. A plan is reused while its key is equal.

    ``fallbacks`` counts the batches that Spark planned although their key was unchanged, or whose plan cannot be kept.
    """

    def __init__(self) -> None:
        self.fallbacks = 0
        self._plans: dict[str, tuple[object, _KeptPlan | None, int]] = {}

    def plan_batch(
        self,
        name: str,
        plan_key: object,
        slots: PlacedSlots,
        batch: DataFrame,
        function: object,
        output: StructType,
        plan_by_spark: Callable[[], PlanFrame],
    ) -> PlanFrame:
        """Return the uncomputed result of a batch, from the kept plan or else from ``plan_by_spark``.

        ``name`` names the stores. ``plan_key`` is everything that the nodes of the plan depend on. A batch that is not
        a plain RDD leaves the kept plan unchanged.
        """
        kept_key, plan, tries = self._plans.get(name, (None, None, 0))
        if kept_key != plan_key:
            plan = None
            tries = TRIES
        rows = result_or_none(name, lambda: plain_plan(batch).rdd()) if tries else None
        if rows is None:
            self.fallbacks += 1
            return plan_by_spark()
        if plan is not None:
            reuse = partial(plan.plan_batch, slots, batch, rows, function, output)
            result = result_or_none(name, lambda: handles.in_session(batch.sparkSession, reuse))
            if result is not None:
                self._plans[name] = plan_key, plan, TRIES
                return result
        new_frame = plan_by_spark()
        new_plan = result_or_none(name, lambda: _KeptPlan(slots, new_frame.frame))
        if plan is not None or new_plan is None:
            self.fallbacks += 1
        self._plans[name] = plan_key, new_plan, tries - 1
        return new_frame


def result_or_none(name: str, call: Callable[[], T]) -> T | None:
    """Return the result of a call, or ``None`` if it fails. An interruption of the batch is raised.

    ``name`` names the stores in the log.
    """
    try:
        return call()
    except Exception as error:  # the JVM may raise any error; planning by Spark only takes longer
        if is_interruption(error):
            raise
        _logger.debug("Spark plans the slots of %s: %s", name, error)
        return None


class _KeptPlan:
    """The nodes of a plan, and the constructor arguments of the nodes that each batch replaces."""

    def __init__(self, slots: PlacedSlots, frame: DataFrame) -> None:
        """Keep the nodes of a frame of ``cogrouped``. Raise ``LookupError`` if its plan has another form."""
        # An adaptive plan is compiled stage by stage while it runs, so the nodes that it starts with are not compiled.
        with handles.setting(frame.sparkSession, _ADAPTIVE, "false"):
            self._call = SlotCall(frame._jdf.queryExecution().executedPlan())
        leaf, *above = _nodes_from_leaf(self._call.rows)
        if [kind(node) for node in above[:2]] == [_PROJECTION, _COMPILED]:
            del above[1]  # Spark would generate code for a single projection on the driver, in each batch.
        self._spark = frame.sparkSession
        self._slots, *self._above_slots = _nodes_from_leaf(self._call.slots)
        self._leaf = constructor_arguments(leaf)
        self._rows_output = self._call.rows.output()
        self._counting = 1 + [kind(node) for node in above].index(_COUNTING)
        self._udf, self._command = _udf_arguments(self._call.udf)
        self._above = self._without_last_projection(self._with_one_grouping(above))
        with handles.active(self._spark):
            # Copies, because nodes that ran keep their shuffle.
            self._above = self._copy_nodes(self._slots.rdd())[1:]
            self._row_copier = compat.row_copier(handles.context(self._spark)._jvm, slots.frame)
            self._set_layout(slots)  # A plan that cannot take another layout fails here, not in a later batch.

    def plan_batch(
        self,
        slots: PlacedSlots,
        batch: DataFrame,
        rows: Any,
        function: object,
        output: StructType,
    ) -> PlanFrame:
        """Return the uncomputed result of a batch, whose RDD is ``rows``.

        Raise ``LookupError`` if PySpark would broadcast the function.
        """
        if slots.frame is not self._placed.frame:
            self._set_layout(slots)
        udf = self._python_udf(function, output)
        session = handles.session(batch.sparkSession)
        jvm = handles.context(batch.sparkSession)._jvm
        nodes = self._copy_nodes(rows)
        rdd = self._call.copied(jvm, udf, self._top_of_slots, self._exchanged_leaf(nodes[-1].execute())).execute()
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

    def _with_one_grouping(self, above: list[Any]) -> list[Any]:
        """Return the nodes, with a projection instead of the second of two groupings of the same rows.

        Spark plans a partial and a final grouping. Combined rows have no exchange between the two, so the partial
        grouping has the results already. An average stays grouped twice, because its partial result is a sum and a
        count.
        """
        for place, (first, second) in enumerate(pairwise(above), start=1):
            if kind(first) == kind(second) == _GROUPING:
                columns = _results_of_first(first, second)
                projection = None if columns is None else self._node(_PROJECTION, columns, first)
                return above if projection is None else [*above[:place], projection, *above[place + 1 :]]
        return above

    def _without_last_projection(self, above: list[Any]) -> list[Any]:
        """Return the nodes without the projection above the exchange if it only repeats the slot as the first column.

        The projection that computes the slot then has this column twice. ``above`` are the nodes above the leaf.
        """
        exchange = [kind(node) for node in above].index(_EXCHANGE)
        projection, places = _find_slot_columns(above)
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

    def _exchanged_leaf(self, rdd: Any) -> Any:
        """Return a leaf with the exchanged rows, which are an RDD."""
        _, _, *rest = self._leaf
        return self._node(_LEAF, self._rows_output, rdd, *rest)

    def _set_layout(self, slots: PlacedSlots) -> None:
        """Replace the leaf of slots, the array with the slot of each key-group, and the exchange.

        Raise ``LookupError`` if a node has another form.
        """
        placed = slots.frame._jdf.queryExecution().analyzed()
        output, _, name, _, *rest = constructor_arguments(self._slots)
        leaf = self._node(_LEAF, output, placed.rdd(), name, placed.outputPartitioning(), *rest)
        above = list(self._above)
        projection, places = _find_slot_columns(above)
        columns = above[projection].projectList()
        slot = columns.apply(places[0])
        grouping = handles.scala_seq(handles.context(self._spark)._jvm, [slot.toAttribute()])
        exchange = [kind(node) for node in above].index(_EXCHANGE)
        _, *rest = constructor_arguments(above[exchange])
        partitioning = self._class(f"{_PLANS}.physical.HashPartitioning")(grouping, slots.slot_count)
        above[exchange] = self._node(f"exchange.{_EXCHANGE}", partitioning, *rest)
        columns = columns.toBuffer()
        slot = self._slot_column(slot, slots.slot_by_key_group())
        for place in places:
            columns.update(place, slot)
        above[projection] = self._node(_PROJECTION, columns.toList(), above[projection].child())
        self._slots = leaf
        self._top_of_slots = _copy_above(leaf, self._above_slots)[-1]
        self._partitioning = placed.outputPartitioning()
        self._above = above
        self._placed = slots

    def _slot_column(self, column: Any, slot_by_key_group: str) -> Any:
        """Return the slot column with another array of slots by key-group."""
        element_at = checked(checked(column, "Alias").child(), "ElementAt")
        ints = self._class("java.lang.Class").forName("[I")
        array = self._class("com.fasterxml.jackson.databind.ObjectMapper")().readValue(slot_by_key_group, ints)
        array = self._class(f"{_EXPRESSIONS}.UnsafeArrayData").fromPrimitiveArray(array)
        literal = self._class(f"{_EXPRESSIONS}.Literal")(array, element_at.left().dataType())
        return column.withNewChildInternal(element_at.withNewChildrenInternal(literal, element_at.right()))

    def _node(self, name: str, *arguments: Any) -> Any:
        """Return a new node of a physical plan, given the name of its class."""
        return self._class(f"{_EXECUTION}.{name}")(*arguments)

    def _class(self, name: str) -> Any:
        """Return a class of the JVM by its full name."""
        return handles.looked_up(handles.context(self._spark)._jvm, name)

    def _copy_nodes(self, rdd: Any) -> list[Any]:
        """Return a leaf with the rows of an RDD, and copies of the nodes above it."""
        output, _, *rest = self._leaf
        return _copy_above(self._node(_LEAF, output, rdd, *rest), self._above)

    def _python_udf(self, function: object, output: StructType) -> Any:
        """Return the expression that calls ``function``. Raise ``LookupError`` if PySpark would broadcast it."""
        pickled = cloudpickle.dumps((function, output))  # type: ignore[no-untyped-call]
        if len(pickled) > _MAX_FUNCTION_BYTES or list(handles.context(self._spark)._pickled_broadcast_vars):
            raise LookupError("PySpark broadcasts the function, or something in it")
        command = self._class("org.apache.spark.api.python.SimplePythonFunction")(bytearray(pickled), *self._command)
        name, *rest = self._udf
        return self._class(f"{_EXPRESSIONS}.PythonUDF")(name, command, *rest)


def plain_plan(batch: DataFrame) -> Any:
    """Return the plan of a batch that is a plain RDD. Raise ``LookupError`` for other batches.

    A batch that the user cached is not plain, because reading its RDD would bypass the cache.
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


def _nodes_from_leaf(node: Any) -> list[Any]:
    """Return a node and all nodes below it, the leaf first, without sorts."""
    nodes = [node]
    while kind(nodes[-1]) != _LEAF:
        nodes.append(nodes[-1].child())
    return [node for node in reversed(nodes) if kind(node) != _SORT]


def _copy_above(leaf: Any, above: list[Any]) -> list[Any]:
    """Return a leaf, and copies of the nodes ``above`` on top of it."""
    nodes = [leaf]
    for node in above:
        nodes.append(node.withNewChildInternal(nodes[-1]))
    return nodes


def constructor_arguments(node: Any) -> list[Any]:
    """Return the constructor arguments of a node."""
    return [node.productElement(index) for index in range(node.productArity())]


def _results_of_first(first: Any, second: Any) -> Any:
    """Return the result columns of the second of two groupings, taken from the output of the first.

    Return ``None`` if the first has no such column.
    """
    output = first.output()
    results = second.aggregateAttributes()
    keys = output.size() - results.size()
    if keys != first.groupingExpressions().size():
        return None
    columns_by_id = {result.exprId().id(): output.apply(keys + place) for place, result in enumerate(items(results))}
    columns = second.resultExpressions().toBuffer()
    for place in range(keys, columns.size()):
        column = columns.apply(place)
        value = column.child() if kind(column) == "Alias" else None
        if value is None or kind(value) != "AttributeReference" or value.exprId().id() not in columns_by_id:
            return None
        columns.update(place, column.withNewChildInternal(columns_by_id[value.exprId().id()]))
    return columns.toList()


def _find_slot_columns(nodes: list[Any]) -> tuple[int, list[int]]:
    """Return the index of the node that computes the slot, and the indices of the slot column in this node.

    Raise ``LookupError`` if no node computes the slot.
    """
    for index, node in enumerate(nodes):
        columns = node.projectList() if kind(node) == _PROJECTION else None
        names = [] if columns is None else [columns.apply(column).name() for column in range(columns.size())]
        if SLOT in names:
            return index, [place for place, name in enumerate(names) if name == SLOT]
    raise LookupError("no node computes the slot")
