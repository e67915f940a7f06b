"""Add the stages of a batch to the progress that Spark reports for it.

Theory of operation. At the end of a batch Spark reads the nodes of the batch's physical plan. Each node that writes
Spark's state store becomes a state operator of the progress. Each node that observes metrics becomes an entry of
``observedMetrics``. Spark then posts one event, which listeners, the UI and the event log receive.

``foreachBatch`` runs plans of its own, so Spark never executes the plan of the batch. Before ``foreachBatch`` returns,
this module adds nodes on top of this plan:

1. One node per stage, with Spark's name for that kind of operator and the figures of the stage as its metrics. Spark's
   nodes for joins, session windows, functions and processors need arguments that a wrapped query does not have. For
   these, a subclass of ``StateStoreSaveExec`` with the other name is compiled when it is first needed.
2. One node that observes the remaining figures of the batch as a constant.

Each node has one child, so the leaves of the plan are still the sources, and Spark still counts their rows. All batches
of a run share the nodes of state operators, because each node and each figure takes calls to the JVM.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from riffle_spark.spark import compat
from riffle_spark.spark.compat.java import MODULE, cache_of, looked_up, nil, opened_field, parameter_count, scala_seq
from riffle_spark.spark.engine import inventory
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.jvm_errors import is_interruption

_logger = logging.getLogger("riffle_spark")
_EXECUTION = "org.apache.spark.sql.execution"
_PLACES = (f"{_EXECUTION}.streaming", f"{_EXECUTION}.streaming.operators.stateful")
"""The packages of the nodes: the first until Spark 4.0, the second since 4.1."""
_UNION = f"{_EXECUTION}.UnionExec"
_SAVE = "StateStoreSaveExec"
_SAVE_NAME = "stateStoreSave"
_NAMED_CLASS = "RiffleStateOperatorExec"
_OBSERVED: Final = "riffle_spark"
"""The name in ``observedMetrics``."""
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"
_INFO_ARGUMENTS: Final = 5
"""The number of arguments of ``StatefulOperatorStateInfo`` in all versions of Spark. Later ones have more, optional."""
_STATE_FORMAT: Final = 2
_CHECKPOINT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_WITHOUT_IDS = "1"
"""With a later version of Spark's checkpoint, Spark reads the ids of state stores from each state operator."""


@dataclass(frozen=True, slots=True)
class StateOperator:
    """The figures of a stage for Spark's progress.

    ``node`` is the class of Spark's operator, ``name`` its name in Spark's progress. ``partitions`` is the number of
    slots. ``metrics`` has the figures by metric name, such as ``numUpdatedStateRows``.
    """

    node: str
    name: str
    partitions: int
    metrics: Mapping[str, int]


class SparkProgress:
    """Adds state operators and observed metrics to the progress of the batches of one run of a query.

    The nodes of the state operators are built once. Each batch gets another plan below them and other figures.
    """

    def __init__(self) -> None:
        """Create it without nodes. The first batch identifies the query."""
        self._works = True
        self._execution: Any = None
        self._nodes: _OperatorNodes | None = None
        self._observing: _ObservingNode | None = None
        self._adds_operators = True

    def add(self, batch: DataFrame, operators: Sequence[StateOperator], figures: Mapping[str, float]) -> None:
        """Add the figures of a committed batch. Call it inside ``foreachBatch``, after the batch.

        ``operators`` are listed as in Spark's progress, the last stage first. Nothing is added without a JVM, or for a
        batch without a query. After a failure, which is logged, later batches of this run add nothing.
        """
        if not self._works:
            return
        try:
            if self._execution is None:
                self._execution = inventory.running_query(batch)
            if self._execution is not None:
                handles.in_session(batch.sparkSession, lambda: self._add(batch, operators, figures))
        except Exception as error:
            if is_interruption(error):
                raise
            self._works = False
            # Cause: This version of Spark has other private classes for the nodes of a plan. State is not affected.
            _logger.warning(
                "[RIFFLE-1250] Spark's listeners and UI get no state operators, because of an error: %s\n"
                "  What to do: Read query.reports, or update riffle_spark for this version of Spark.",
                str(error).partition("\n")[0],
            )

    def _add(self, batch: DataFrame, operators: Sequence[StateOperator], figures: Mapping[str, float]) -> None:
        """Add the figures of a batch. Raise the JVM's errors."""
        last = self._execution.lastExecution()
        jvm = handles.context(batch.sparkSession)._jvm
        plan = last.executedPlan()
        if self._observing is None:
            version = batch.sparkSession.conf.get(_CHECKPOINT_VERSION, _WITHOUT_IDS)
            self._adds_operators = version == _WITHOUT_IDS
            self._observing = _ObservingNode(jvm)
        if operators and self._adds_operators:
            if self._nodes is None or not self._nodes.fit(operators):
                self._nodes = _OperatorNodes(jvm, operators, plan)
            plan = self._nodes.on_top_of(plan, operators)
        compat.replace_executed_plan(jvm, last, self._observing.on_top_of(plan, figures))


class _OperatorNodes:
    """A chain of state operators on top of a union with one child. The child of the union can be replaced."""

    def __init__(self, jvm: Any, operators: Sequence[StateOperator], plan: Any) -> None:
        """Build a node for each operator on top of a plan. The node of the first operator is the top."""
        self._jvm = jvm
        self._kinds = _kinds_of(operators)
        self._union = looked_up(jvm, _UNION)(scala_seq(jvm, [plan]))
        self._metrics: list[Any] = []
        self._values: list[dict[str, int]] = []
        self._accumulators: list[dict[str, Any]] = []
        self._top = self._union
        for number, operator in reversed(list(enumerate(operators))):
            self._top = _state_node(jvm, number, operator, self._top)
            self._metrics.insert(0, self._top.metrics())
            self._accumulators.append({})
            self._values.append({})

    def fit(self, operators: Sequence[StateOperator]) -> bool:
        """Return whether the nodes can be reused for these operators."""
        return self._kinds == _kinds_of(operators)

    def on_top_of(self, plan: Any, operators: Sequence[StateOperator]) -> Any:
        """Return the nodes on top of a plan, with the figures of these operators. Only changed figures are set."""
        opened_field(self._jvm, _UNION, "children").set(self._union, scala_seq(self._jvm, [plan]))
        for number, operator in enumerate(operators):
            partitions = dict.fromkeys(compat.PARTITION_METRICS, operator.partitions)
            values = {**operator.metrics, **partitions}
            before = self._values[number]
            accumulators = self._accumulators[number]
            for name, value in values.items():
                if value == before.get(name, 0):
                    continue
                if name not in accumulators:
                    accumulators[name] = self._metrics[number].apply(name)
                accumulators[name].set(value)
            self._values[number] = values
        return self._top


def _kinds_of(operators: Sequence[StateOperator]) -> list[tuple[str, str, int]]:
    """Return the properties of operators that their nodes depend on."""
    return [(operator.node, operator.name, operator.partitions) for operator in operators]


def _state_node(jvm: Any, number: int, operator: StateOperator, child: Any) -> Any:
    """Return the node of a state operator. Arguments that only its execution reads are empty."""
    info_class = str(_node_class(jvm, "StatefulOperatorStateInfo").getName())
    run = looked_up(jvm, "java.util.UUID", "randomUUID")()
    none = looked_up(jvm, "scala.None$", MODULE)
    optional = [none] * (parameter_count(jvm, info_class) - _INFO_ARGUMENTS)
    info = looked_up(jvm, info_class)("", run, number, 0, operator.partitions, *optional)
    some_info = looked_up(jvm, "scala.Some")(info)
    new_node = looked_up(jvm, str(_node_class(jvm, operator.node).getName()))
    if operator.node != _SAVE:
        return new_node(nil(jvm), child, some_info, none, none)
    arguments = (nil(jvm), some_info, none, none, none, _STATE_FORMAT, child)
    if operator.name == _SAVE_NAME:
        return new_node(*arguments)
    values = looked_up(jvm, "java.util.List", "of")(operator.name, *arguments).toArray()
    return _named_class(jvm).getConstructors()[0].newInstance(values)


def _named_class(jvm: Any) -> Any:
    """Return a subclass of ``StateStoreSaveExec`` whose first argument is its name in Spark's progress.

    It is compiled once per JVM, by the compiler that Spark uses for generated code.
    """
    cache = cache_of(jvm)
    if _NAMED_CLASS not in cache:
        parent = _node_class(jvm, _SAVE)
        types = [str(each.getName()) for each in parent.getConstructors()[0].getParameterTypes()]
        names = [f"a{number}" for number in range(len(types))]
        parameters = ", ".join(f"{each} {name}" for each, name in zip(types, names, strict=True))
        compiler = looked_up(jvm, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(parent.getClassLoader())
        compiler.cook(
            f"public class {_NAMED_CLASS} extends {parent.getName()} {{ private final String operatorName;"
            f" public {_NAMED_CLASS}(String operatorName, {parameters})"
            f" {{ super({', '.join(names)}); this.operatorName = operatorName; }}"
            " public String shortName() { return operatorName; } }"
        )
        cache[_NAMED_CLASS] = compiler.getClassLoader().loadClass(_NAMED_CLASS)
    return cache[_NAMED_CLASS]


def _node_class(jvm: Any, name: str) -> Any:
    return handles.first_class(jvm, tuple(f"{place}.{name}" for place in _PLACES))


class _ObservingNode:
    """Makes the node that observes a constant map of figures by name."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        map_type = looked_up(jvm, "org.apache.spark.sql.types.DataType", "fromDDL")("map<string, double>")
        converters = looked_up(jvm, "org.apache.spark.sql.catalyst.CatalystTypeConverters", "createToCatalystConverter")
        new_id = looked_up(jvm, f"{_EXPRESSIONS}.NamedExpression", "newExprId")
        none = looked_up(jvm, "scala.None$", MODULE)
        self._map_type = map_type
        self._convert = converters(map_type)
        self._mapper = looked_up(jvm, "com.fasterxml.jackson.databind.ObjectMapper")()
        self._java_map = looked_up(jvm, "java.lang.Class", "forName")("java.util.Map")
        self._alias = looked_up(jvm, f"{_EXPRESSIONS}.Alias")(None, "metrics", new_id(), nil(jvm), none, nil(jvm))

    def on_top_of(self, plan: Any, figures: Mapping[str, float]) -> Any:
        """Return the node on top of a plan.

        Raise ``LookupError`` if this thread has no active session, because Spark would fail the query when it reads the
        node.
        """
        text = json.dumps({name: float(value) for name, value in figures.items()})
        catalyst_map = self._convert.apply(self._mapper.readValue(text, self._java_map))
        literal = looked_up(self._jvm, f"{_EXPRESSIONS}.Literal")(catalyst_map, self._map_type)
        named = scala_seq(self._jvm, [self._alias.withNewChildInternal(literal)])
        node = looked_up(self._jvm, f"{_EXECUTION}.CollectMetricsExec")(_OBSERVED, named, plan)
        if node.session() is None:
            raise LookupError("the thread has no active session")
        return node
