"""The way to Spark's JVM, behind one getter; what is asked of a kept frame and of jobs there; and how an interruption
looks that comes from there. With ``inventory`` and ``placed`` all of Spark's that is private: docs/spark-internals.md.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

__all__ = [
    "NoJvm",
    "Py4JJavaError",
    "SinkPlan",
    "active",
    "cogrouped",
    "context",
    "counted",
    "first_class",
    "frame_of",
    "is_classic",
    "is_interruption",
    "is_same",
    "logical_rdd",
    "looked_up",
    "names_any",
    "observed",
    "release",
    "removals_since",
    "running_seconds",
    "scala_seq",
    "selected",
    "sent_files",
    "session",
    "session_conf",
]


_logger = logging.getLogger("riffle_spark")
_LONG_BYTES = 8
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_LOGICAL_RDD = "org.apache.spark.sql.execution.LogicalRDD"
_NIL = "scala.collection.immutable.Nil$"
_MODULE = "MODULE$"
"""Where the one instance of a Scala object is."""
_BETWEEN = "\x1f"
"""What no setting has in its value."""
_COUNT = "count(1) as rows"
_CALLS_FOR_MANY = 3
_MOST_AT_ONCE = 10
"""How many items Java's ``List.of`` takes."""
_TASKS = 10_000
_STATUS = "org.apache.spark.status.api.v1"
_INTERRUPTIONS = ("java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")


_last_known: list[tuple[Any, dict[object, Any]]] = []
"""The JVM that was asked last, and what stays the same in it."""


class NoJvm(Exception):
    """This session has no JVM handle, as with Spark Connect."""


def is_classic(spark: SparkSession) -> bool:
    """Tell whether the session runs in a process with a JVM handle."""
    return hasattr(spark, "_jsparkSession")


def is_same(spark: SparkSession, other: SparkSession | None) -> bool:
    """Tell whether two objects are one session: Spark wraps the JVM's anew for every micro-batch."""
    if spark is other or other is None or not (is_classic(spark) and is_classic(other)):
        return spark is other
    return bool(spark._jsparkSession == other._jsparkSession)


def context(spark: SparkSession) -> Any:
    """Return the SparkContext, or raise ``NoJvm``."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no SparkContext")
    return spark.sparkContext


def session(spark: SparkSession) -> Any:
    """Return the JVM's session, or raise ``NoJvm``."""
    if not is_classic(spark):
        raise NoJvm("Spark Connect has no JVM session")
    return spark._jsparkSession


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Have the plans that this thread makes in the block be of a session: another thread of the user's has none."""
    sessions = looked_up(context(spark)._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session(spark))
    try:
        yield
    finally:
        sessions.setActiveSession(before.get()) if before.isDefined() else sessions.clearActiveSession()


def session_conf(spark: SparkSession) -> dict[str, str]:
    """Return what a session's configuration sets. PySpark's own ``conf.getAll`` takes two calls per setting."""
    text = str(session(spark).conf().getAll().mkString(_BETWEEN))
    pairs = (line.partition(" -> ") for line in text.split(_BETWEEN) if line)
    return {key: value for key, _, value in pairs}


def sent_files(spark: SparkSession) -> tuple[str, ...]:
    """Return the names of the Python files that Spark sends to workers, in a session that has a context."""
    return tuple(getattr(context(spark), "_python_includes", None) or ())


def selected(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    """Return ``frame.selectExpr(*texts)``, in fewer calls."""

    def asked(jvm: Any) -> Any:
        return frame._jdf.selectExpr(scala_seq(jvm, list(texts)))

    return _shorter(frame.sparkSession, asked, lambda: frame.selectExpr(*texts))


def counted(frame: DataFrame, name: str, parts: int, by: str) -> DataFrame:
    """Return a frame in so many parts by a column, which observes its number of rows under a name."""

    def asked(jvm: Any) -> Any:
        counting = frame._jdf.observe(name, _column(jvm, _COUNT), looked_up(jvm, _NIL, _MODULE))
        return counting.repartition(parts, _columns(jvm, by))

    return _shorter(frame.sparkSession, asked, lambda: frame.observe(name, F.expr(_COUNT)).repartition(parts, by))


def cogrouped(left: DataFrame, right: DataFrame, by: str, function: Any, answer: StructType) -> DataFrame:
    """Return ``applyInArrow`` of a function on two frames' rows, grouped by a column that both have, in fewer calls."""

    def asked(jvm: Any) -> Any:
        kind = PythonEvalType.SQL_COGROUPED_MAP_ARROW_UDF
        told: Any = F.pandas_udf(function, returnType=answer, functionType=kind)  # type: ignore[call-overload]
        given = [frame._jdf.apply(name) for frame in (left, right) for name in frame.columns]
        column, at = told._unwrapped._judf.apply(scala_seq(jvm, given)), _columns(jvm, by)
        return left._jdf.groupBy(at).flatMapCoGroupsInArrow(right._jdf.groupBy(at), column)

    return _shorter(
        left.sparkSession, asked, lambda: left.groupBy(by).cogroup(right.groupBy(by)).applyInArrow(function, answer)
    )


def _shorter(spark: SparkSession, asked: Callable[[Any], Any], plainly: Callable[[], DataFrame]) -> DataFrame:
    """Return the JVM's frame that ``asked`` makes: PySpark's own way takes up to ten calls for a column's name. Without
    a JVM, or where that is missing in it what was asked for, it is PySpark's way.
    """
    if is_classic(spark):
        try:
            return DataFrame(asked(context(spark)._jvm), spark)
        except Exception as error:  # noqa: BLE001 - whatever a JVM may raise; what is wrong either way is raised below
            _logger.debug("a frame is made in more calls: %s", error)
    return plainly()


def _columns(jvm: Any, name: str) -> Any:
    """Return a Scala Seq of one column, made once."""
    known = _known(jvm)
    if ("columns", name) not in known:
        known["columns", name] = scala_seq(jvm, [_column(jvm, name)])
    return known["columns", name]


def _column(jvm: Any, text: str) -> Any:
    """Return a column by its SQL text, made once: whoever takes it parses it anew."""
    known = _known(jvm)
    if ("column", text) not in known:
        known["column", text] = looked_up(jvm, "org.apache.spark.sql.functions", "expr")(text)
    return known["column", text]


def observed(frame: DataFrame, name: str) -> int | None:
    """Return the number that a frame observed under a name while it was computed, or ``None`` if Spark does not tell.

    It is read from the plan that ran. What Spark's listener bus tells may be dropped under load. Spark Connect tells
    nothing of a frame that is kept.
    """
    if not is_classic(frame.sparkSession):
        return None
    row = frame._jdf.queryExecution().observedMetrics().get(name)
    return int(row.get().getLong(0)) if row.isDefined() else None


def checkpointed(frame: DataFrame) -> Any:
    """Return the plan of a local checkpoint, which is an RDD of rows."""
    return frame._jdf.queryExecution().analyzed()


def release(frame: DataFrame) -> None:
    """Drop what a local checkpoint keeps."""
    checkpointed(frame).rdd().unpersist(False)


class SinkPlan:
    """What a query of the form ``select ... from r where ...`` finds in the rows of a local checkpoint and one column
    more, which tells whether one of them is in a list of texts: one plan, whose leaf has the rows' size, as Spark's
    block managers know it. It is analysed once: later checkpoints of the same columns are put below the same nodes.
    """

    def __init__(self, query: str) -> None:
        self._query = query
        self._nodes: tuple[Any, ...] | None = None

    def frame(self, frame: DataFrame, column: str) -> DataFrame:
        """Return what is found in a checkpoint. Raises whatever the JVM raises."""
        spark, leaf = frame.sparkSession, checkpointed(frame)
        jvm, parser = context(spark)._jvm, session(spark).sessionState().sqlParser()
        output, mark, query = self._nodes or (leaf.output(), None, parser.parsePlan(self._query))
        told = parser.parseExpression(column)
        if mark is not None:
            members = looked_up(jvm, "org.apache.spark.sql.catalyst.expressions.In")
            told = mark.withNewChildInternal(members(mark.child().value(), told.child().list()))
        plan = logical_rdd(jvm, output, leaf.rdd(), leaf.outputPartitioning(), session(spark), _size(spark, leaf.rdd()))
        plan = looked_up(jvm, f"{_LOGICAL}.Project")(output.appended(told), plan)
        plan = looked_up(jvm, f"{_LOGICAL}.Filter")(query.child().condition(), plan)
        found = frame_of(spark, looked_up(jvm, f"{_LOGICAL}.Project")(query.projectList(), plan))
        if self._nodes is None:
            query = found._jdf.queryExecution().analyzed()
            self._nodes = output, query.child().child().projectList().last(), query
        return found


def _size(spark: SparkSession, rdd: Any) -> Any:
    """Return an RDD's size as plans are told it."""
    kept = [info for info in context(spark)._jsc.sc().getRDDStorageInfo() if info.id() == rdd.id()]
    size = sum(info.memSize() + info.diskSize() for info in kept)
    # Statistics take a Scala BigInt, which Py4J turns into an int at once: those of so many longs stand in for them.
    longs = looked_up(context(spark)._jvm, f"{_LOGICAL}.Range$", _MODULE).apply(0, size // _LONG_BYTES + 1, 1, 1)
    return longs.stats()


def logical_rdd(jvm: Any, output: Any, rdd: Any, partitioning: Any, session: Any, stats: Any = None) -> Any:
    """Return a plan that is an RDD of rows; its constructor gained a tenth parameter in Spark 4.3."""
    none, nil = looked_up(jvm, "scala.None$", _MODULE), looked_up(jvm, _NIL, _MODULE)
    told = none if stats is None else looked_up(jvm, "scala.Some")(stats)
    made = looked_up(jvm, _LOGICAL_RDD)
    return made(*[output, rdd, partitioning, nil, False, none, session, told, none, False][: _arity(jvm)])


def _arity(jvm: Any) -> int:
    known = _known(jvm)
    if _LOGICAL_RDD not in known:
        made = looked_up(jvm, "java.lang.Class", "forName")(_LOGICAL_RDD)
        known[_LOGICAL_RDD] = made.getConstructors()[0].getParameterCount()
    return int(known[_LOGICAL_RDD])


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """Return a logical plan as a DataFrame."""
    dataset = looked_up(context(spark)._jvm, "org.apache.spark.sql.classic.Dataset$", _MODULE)
    return DataFrame(dataset.ofRows(session(spark), plan), spark)


def looked_up(jvm: Any, name: str, member: str = "") -> Any:
    """Return a class of the JVM or one of its static members, which is looked up once as long as the JVM is the same.

    Py4J asks the JVM anew for each part of a dotted name, and Spark then searches its jars.
    """
    known = _known(jvm)
    if (name, member) not in known:
        found = getattr(jvm, name)
        known[name, member] = getattr(found, member) if member else found
    return known[name, member]


def first_class(jvm: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these classes that exists, searched once per JVM: Py4J describes an error in 80 calls."""
    known = _known(jvm)
    if ("class", names) not in known:
        for_name = looked_up(jvm, "java.lang.Class", "forName")
        for name in names[:-1]:
            try:
                known["class", names] = for_name(name)
                break
            except Exception as error:  # noqa: BLE001 - Py4J raises what the JVM raises
                _logger.debug("Class %s does not exist: %s", name, error)
        else:
            known["class", names] = for_name(names[-1])
    return known["class", names]


def _known(jvm: Any) -> dict[object, Any]:
    if not _last_known or _last_known[-1][0] is not jvm:
        _last_known[:] = [(jvm, {})]
    return _last_known[-1][1]


def scala_seq(jvm: Any, items: list[Any]) -> Any:
    """Return a Scala Seq of the items, none of which is ``None``. A few items take a call each, many take fewer."""
    nil = looked_up(jvm, _NIL, _MODULE)
    if len(items) <= _CALLS_FOR_MANY:
        sequence = nil
        for item in reversed(items):
            sequence = looked_up(jvm, "scala.collection.immutable.$colon$colon")(item, sequence)
        return sequence
    of = looked_up(jvm, "java.util.List", "of")
    java_list = of(*items[:_MOST_AT_ONCE])
    if len(items) > _MOST_AT_ONCE:
        java_list = looked_up(jvm, "java.util.ArrayList")(java_list)
        for start in range(_MOST_AT_ONCE, len(items), _MOST_AT_ONCE):
            java_list.addAll(of(*items[start : start + _MOST_AT_ONCE]))
    return looked_up(jvm, "scala.jdk.javaapi.CollectionConverters", "asScala")(java_list).toSeq()


def running_seconds(spark: SparkSession, tag: str) -> dict[str, float]:
    """Return for how many seconds the tasks have run that now run for jobs with this tag, the longest of each executor.

    Raises whatever the JVM raises where Spark does not tell.
    """
    jvm, asked = context(spark)._jvm, context(spark)._jsc.sc()
    tracker, running = asked.statusTracker(), looked_up(jvm, "java.util.ArrayList")()
    running.add(looked_up(jvm, f"{_STATUS}.TaskStatus", "RUNNING"))
    by = looked_up(jvm, f"{_STATUS}.TaskSorting", "ID")
    stages = [stage for job in tracker.getJobIdsForTag(tag) for stage in tracker.getJobInfo(job).get().stageIds()]
    found: dict[str, float] = {}
    for attempt in filter(lambda info: info.isDefined(), map(tracker.getStageInfo, stages)):
        stage = attempt.get()
        tasks = asked.statusStore().taskList(stage.stageId(), stage.currentAttemptId(), 0, _TASKS, by, running)
        for task in map(tasks.apply, range(tasks.size())):
            name, seconds = str(task.executorId()), time.time() - task.launchTime().getTime() / 1000
            found[name] = max(seconds, found.get(name, 0.0))
    return found


def removals_since(spark: SparkSession, seconds: float) -> list[str]:
    """Return why executors went since a time (Unix), in Spark's words, those of which it tells.

    Raises whatever the JVM raises where Spark does not tell.
    """
    listed = context(spark)._jsc.sc().statusStore().executorList(False)
    gone = [one for one in map(listed.apply, range(listed.size())) if one.removeReason().isDefined()]
    return [str(one.removeReason().get()) for one in gone if one.removeTime().get().getTime() >= seconds * 1000]


class Py4JJavaError(Exception):
    """Reads in a traceback like the error of the same name that Spark looks for."""

    def __str__(self) -> str:
        return "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: the query was stopped"


Py4JJavaError.__module__ = "py4j.protocol"


def is_interruption(error: BaseException) -> bool:
    """Tell whether an error, or what caused it, is Spark's interruption of the batch."""
    return names_any(error, _INTERRUPTIONS)


def names_any(error: BaseException, words: Sequence[str]) -> bool:
    """Tell whether an error, or what caused it, has one of the words in its text."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if any(word in str(link) for word in words):
            return True
        link = link.__cause__ or link.__context__
    return False
