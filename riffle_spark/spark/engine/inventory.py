"""What Spark knows about its executors, present and gone, about the running micro-batch and the query's sources. Knows
the JVM handle and what stands in for it.
"""

import json
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.protocol.ports import Executor, IncomingBatch
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.row_digest import digest
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR

__all__ = [
    "application_id",
    "await_executors",
    "batch_facts",
    "checkpoint_warning",
    "connected",
    "executors",
    "expected_executors",
    "has_executors",
    "is_active",
    "is_stopping",
    "latest_offsets",
    "may_rest",
    "offsets_before",
    "planned",
    "reason_of",
    "running_query",
    "runs_once",
    "source_options",
    "was_planned",
]

DIRECT = "direct"
"""What stands for a query's id where a batch is handed over by hand."""
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_EXCLUDING = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled")
_DYNAMIC_STARTS = ("spark.dynamicAllocation.initialExecutors", "spark.dynamicAllocation.minExecutors")
_AVAILABLE_NOW = "AvailableNow"
_ONCE = "OneTimeTrigger"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_TEMPORARY = "temporary-"
"""How Spark names the checkpoint of a query that has none."""
_A_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_POLL_SECONDS = 0.2
_CONNECT_SLOTS = 4
"""Slots where nobody tells how many cores there are (Spark Connect): the number of hash-placed tasks."""
_PLANNED_WORDS = ("killed by driver", "decommission", "explicit termination request")
_LEAVING = "killed by driver or decommission, not gone yet"
_UNKNOWN = ""
_REASON_WAIT_SECONDS = 1.0
_GONE_POLL_SECONDS = 0.05


def application_id(spark: SparkSession) -> str:
    """Return the id of the Spark application."""
    return str(spark.conf.get("spark.app.id", "application") or "application")


def executors(spark: SparkSession) -> tuple[Executor, ...]:
    """Return the executors that Spark gives tasks to, sorted by id. In local mode and with Spark Connect that is one.

    An executor that is being decommissioned, killed or excluded is live for a while but gets no task, so it is left
    out.
    """
    if not handles.is_classic(spark):
        return (Executor(LOCAL_EXECUTOR, "", _CONNECT_SLOTS),)
    context = handles.context(spark)
    known = _known_of(spark)
    if _is_local(context):
        local = known.executors.get(LOCAL_EXECUTOR) or _executor(context, LOCAL_EXECUTOR)
        known.executors = {} if local is None else {LOCAL_EXECUTOR: local}
        return (Executor(LOCAL_EXECUTOR, socket.gethostname(), local.cores if local else context.defaultParallelism),)
    found = {name: known.executors.get(name) or _executor(context, name) for name in _scheduled(context, known)}
    live = {name: executor for name, executor in found.items() if executor is not None}
    known.executors = live  # another thread's look may take its place at any moment
    return tuple(sorted(live.values()))


@dataclass(slots=True)
class _Known:
    """What stays the same as long as an application, and as long as each of its executors, lives."""

    application: str
    excludes: bool
    executors: dict[str, Executor]


_last_known: list[_Known] = []


def _known_of(spark: SparkSession) -> _Known:
    application = application_id(spark)
    if not _last_known or _last_known[-1].application != application:
        excludes = any(str(spark.conf.get(name, "false")).lower() == "true" for name in _EXCLUDING)
        _last_known[:] = [_Known(application, excludes, {})]
    return _last_known[-1]


def _scheduled(context: Any, known: _Known) -> list[str]:
    """Return the ids of executors that get tasks, or of all that are listed where the scheduler does not tell.

    One call an executor, since it is made every batch; two where Spark excludes executors that fail.
    """
    backend, store = context._jsc.sc().schedulerBackend(), context._jsc.sc().statusStore()
    try:
        active = [name for name in _listed(backend) if backend.isExecutorActive(name)]
        return [name for name in active if not (known.excludes and _is_excluded(store, name))]
    except Exception:  # noqa: BLE001 - whatever a JVM may raise: an external scheduler may have no such call
        names = [str(one.id()) for one in _items(store.executorList(True))]
        return [name for name in names if name != LOCAL_EXECUTOR]


def _is_excluded(store: Any, name: str) -> bool:
    """Tell whether Spark gives an executor no tasks for what failed there."""
    with suppress(Exception):  # whatever a JVM may raise: it has only just come or gone
        return bool(store.executorSummary(name).isExcluded())
    return False


def _is_local(context: Any) -> bool:
    """Tell whether the driver is the one executor; ``local-cluster`` has executors of its own."""
    return re.match(r"local(\[.*])?\Z", str(context.master)) is not None


def has_executors(spark: SparkSession) -> bool:
    """Tell whether tasks run in processes of their own that can be told apart."""
    return handles.is_classic(spark) and not _is_local(handles.context(spark))


def connected(spark: SparkSession) -> frozenset[str]:
    """Return the ids of the executors that the scheduler knows, those that get no tasks any more among them.

    Raises whatever the JVM raises where the scheduler does not tell.
    """
    return frozenset(_listed(handles.context(spark)._jsc.sc().schedulerBackend()))


def _listed(backend: Any) -> list[str]:
    return [name for name in str(backend.getExecutorIds().mkString(",")).split(",") if name]


def expected_executors(spark: SparkSession, settings: Settings) -> int:
    """Return how many executors a start waits for: ``expected_executors``, else what Spark starts with, else one.

    That is ``spark.executor.instances`` or, with dynamic allocation, the most of it, ``initialExecutors`` and
    ``minExecutors``. One where none can come: in local mode and with Spark Connect.
    """
    if not has_executors(spark):
        return 1
    names = ["spark.executor.instances", *(_DYNAMIC_STARTS if _is_dynamic(spark) else ())]
    return settings.expected_executors or max(1, *(int(spark.conf.get(name, "0") or 0) for name in names))


def _is_dynamic(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def await_executors(spark: SparkSession, settings: Settings, expected: int = 1) -> tuple[Executor, ...]:
    """Return the live executors once there are as many as expected, or after ``initial_rebalance_delay`` those there
    are.

    Where there is none, dynamic allocation is asked for one: it starts executors only for tasks that wait, and nobody
    makes tasks before there is a place for them. Raises ``UnavailableError`` if none comes.
    """
    deadline = time.monotonic() + settings.initial_rebalance_delay
    found = executors(spark)
    if not found and _is_dynamic(spark):
        handles.context(spark)._jsc.sc().requestExecutors(1)
    while len(found) < expected and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        found = executors(spark)
    if not found:
        raise UnavailableError(
            f"no executor came within {settings.initial_rebalance_delay:g} s",
            remedy="look at the cluster's resources, or raise initial_rebalance_delay",
            where="initial_rebalance_delay",
            id="RIFFLE-0276",
        )
    return found


def _executor(context: Any, name: str) -> Executor | None:
    """Return an executor's host and slots, which never change; ``None`` if it has only just started or ended.

    Spark counts the tasks that the executor runs at once, by ``spark.task.cpus`` and by other resources of a task.
    """
    try:
        summary = context._jsc.sc().statusStore().executorSummary(name)
    except Exception:  # noqa: BLE001 - whatever a JVM may raise; it is seen at the next look
        return None
    host = str(summary.hostPort()).rsplit(":", 1)[0]
    return Executor(name, host, max(1, int(summary.maxTasks())))


def batch_facts(batch: DataFrame, batch_id: int, now_ms: int) -> IncomingBatch:
    """Return what identifies a micro-batch: query, run, Spark's own offset-log entry, batch time and watermark; and
    whether the query's trigger is ``availableNow``.

    Without a JVM handle the rows' digest stands in for the offset log and ``now_ms`` for the batch's time.
    """
    spark = batch.sparkSession
    if not handles.is_classic(spark):
        return _connect_facts(batch, batch_id, now_ms)
    context = handles.context(spark)
    query_id = context.getLocalProperty(_QUERY_ID)
    if not query_id:  # or it is a thread that a user began, which JobCalls looks at
        return IncomingBatch(batch_id, DIRECT, DIRECT, None, digest(batch), now_ms, None)
    execution = _execution(spark, query_id)
    if execution is None:
        run_id = str(context.getLocalProperty(_RUN_ID))
        return IncomingBatch(batch_id, query_id, run_id, None, digest(batch), now_ms, None)
    offsets = _offset_entry(context, execution, batch_id)
    metadata = json.loads(offsets.split("\n")[1])
    watermark = int(metadata["batchWatermarkMs"]) or None
    time_ms, ends = int(metadata["batchTimestampMs"]), _AVAILABLE_NOW in str(execution.trigger().toString())
    run_id = str(execution.runId())  # The job group is called so, too, until a user names another one.
    return IncomingBatch(batch_id, query_id, run_id, offsets, None, time_ms, watermark, available_now=ends)


def offsets_before(batch: DataFrame, version: int) -> str | None:
    """Return Spark's offset-log entry of the batch before one; ``None`` where there is none, or no query runs."""
    execution = running_query(batch) if version > 0 else None
    return None if execution is None else _offset_entry(handles.context(batch.sparkSession), execution, version - 1)


def running_query(batch: DataFrame) -> Any:
    """Return the JVM's query that a micro-batch belongs to, or ``None``, as with Spark Connect."""
    query_id = _query_of(batch)
    return _execution(batch.sparkSession, query_id) if query_id else None


def _query_of(batch: DataFrame) -> str | None:
    spark = batch.sparkSession
    return handles.context(spark).getLocalProperty(_QUERY_ID) if handles.is_classic(spark) else None


def _execution(spark: SparkSession, query_id: str) -> Any:
    """Return the running query. The batch's session is a clone, so it is looked up where all sessions share it."""
    uuid = handles.looked_up(handles.context(spark)._jvm, "java.util.UUID", "fromString")(query_id)
    return handles.session(spark).sharedState().activeStreamingQueries().get(uuid)


def is_active(spark: SparkSession, query_id: str, run_id: str | None = None) -> bool:
    """Tell whether a query runs, from any thread, and if a run is named: whether it is that one. ``True`` where that
    cannot be known, and where batches are handed over by hand.
    """
    if not handles.is_classic(spark) or query_id == DIRECT:
        return True
    execution = _execution(spark, query_id)
    if execution is None or (run_id is not None and str(execution.runId()) != run_id):
        return False
    return bool(execution.isActive())


def may_rest(spark: SparkSession, incoming: IncomingBatch) -> bool:
    """Tell whether the query may be without a batch for a while, and somebody can look who is there meanwhile."""
    return handles.is_classic(spark) and incoming.query_id != DIRECT and not incoming.available_now


def is_stopping(batch: DataFrame) -> bool:
    """Tell from inside ``foreachBatch`` whether the query was asked to stop, so that a batch that waits can end.

    ``False`` where that cannot be known: without a query, and with Spark Connect.
    """
    return not is_active(batch.sparkSession, _query_of(batch) or DIRECT)


def _offset_entry(context: Any, execution: Any, batch_id: int) -> str:
    log = execution.offsetLog()
    out = handles.looked_up(context._jvm, "java.io.ByteArrayOutputStream")()
    log.serialize(log.get(batch_id).get(), out)
    return str(out.toString())


def _connect_facts(batch: DataFrame, batch_id: int, now_ms: int) -> IncomingBatch:
    active = batch.sparkSession.streams.active
    if len(active) > 1:
        raise ConfigError(
            f"with Spark Connect it cannot be known which of this session's {len(active)} queries a batch is of",
            remedy="give each query a session of its own: SparkSession.builder.remote(URL).create()",
            id="RIFFLE-0277",
        )
    query_id, run_id = (str(active[0].id), str(active[0].runId)) if active else ("connect", "connect")
    return IncomingBatch(batch_id, query_id, run_id, None, digest(batch), now_ms, None)


def source_options(batch: DataFrame) -> list[dict[str, str]]:
    """Return the options of each source of the query, with their names in lower case. Sources without options are left
    out. Empty if they are unknown, as with Spark Connect.
    """
    execution = running_query(batch)
    leaves = _items(execution.analyzedPlan().collectLeaves()) if execution is not None else []
    found = [_options_of(leaf, handles.context(batch.sparkSession)._jvm) for leaf in leaves]
    return [{str(name).lower(): str(value) for name, value in options.items()} for options in found]


def _options_of(leaf: Any, jvm: Any) -> Any:
    """Return the options of a streaming plan's leaf, which is a source of version 2 or of version 1."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelationV2":
        return leaf.extraOptions()
    if kind == "StreamingRelation":
        convert = handles.looked_up(jvm, "scala.jdk.javaapi.CollectionConverters", "asJava")
        return convert(leaf.dataSource().options())
    return {}


def runs_once(batch: DataFrame) -> bool:
    """Return whether the query has ``trigger(once=True)``, whose one batch ignores the sources' limits."""
    execution = running_query(batch)
    return execution is not None and _ONCE in str(execution.trigger().toString())


def checkpoint_warning(batch: DataFrame, root: str) -> str | None:
    """Return a warning if the query's checkpoint has a random name, so that the next start cannot find it again.

    Spark uses such a folder if a query names no checkpoint. There is no warning for a root inside the folder.
    """
    execution = running_query(batch)
    folder = None if execution is None else str(execution.resolvedCheckpointRoot())
    if folder is None:
        return None
    if root.partition(":")[2].lstrip("/").startswith(folder.partition(":")[2].lstrip("/")):
        return None
    name = folder.rpartition("/")[2]
    below = batch.sparkSession.conf.get(_CHECKPOINTS, None)
    is_random = bool(below) and execution.name() is None and _A_UUID.fullmatch(name) is not None
    if not is_random and not name.startswith(_TEMPORARY):
        return None
    return (
        f"the query names no checkpoint, so Spark keeps its offsets in {folder}. The next start has another folder and "
        f"is refused, because {root} belongs to this query\n  What to do: stop the query, and start it with "
        "option('checkpointLocation', ...) and a new root"
    )


def latest_offsets(batch: DataFrame) -> list[str]:
    """Return the newest entry of the query's offset log, the text of each source that has offsets."""
    latest = running_query(batch).offsetLog().getLatest()
    offsets = _items(latest.get()._2().offsets()) if latest.isDefined() else []
    return [str(offset.get()) for offset in offsets if offset.isDefined()]


def _items(seq: Any) -> list[Any]:
    return [seq.apply(at) for at in range(seq.size())]


def planned(spark: SparkSession, executors: Iterable[str]) -> frozenset[str]:
    """Return which of these executors, which get no tasks any more, were or are being taken away on purpose."""
    deadline = time.monotonic() + _REASON_WAIT_SECONDS
    return frozenset(name for name in executors if was_planned(reason_of(spark, name, deadline)))


def was_planned(reason: str) -> bool:
    """Tell from Spark's words whether an executor was taken away on purpose, not lost."""
    return any(word in reason.lower() for word in _PLANNED_WORDS)


def reason_of(spark: SparkSession, executor: str, deadline: float) -> str:
    """Return why Spark gives an executor no tasks any more, in Spark's words; nothing where it does not tell.

    The reason comes a little after the executor went, so it is asked for until ``deadline`` (of ``time.monotonic``).
    """
    if not handles.is_classic(spark):
        return _UNKNOWN
    context = handles.context(spark)._jsc.sc()
    while True:
        try:
            found = _found_reason(context, executor)
        except Exception:  # noqa: BLE001 - whatever a JVM may raise: the reason only hastens what happens anyway
            return _UNKNOWN
        if found is not None or time.monotonic() >= deadline:
            return found or _UNKNOWN
        time.sleep(_GONE_POLL_SECONDS)


def _found_reason(context: Any, executor: str) -> str | None:
    backend, summary = context.schedulerBackend(), context.statusStore().executorSummary(executor)
    if summary.removeReason().isDefined():
        return str(summary.removeReason().get())
    leaving = backend.executorsPendingToRemove().contains(executor)
    return _LEAVING if leaving or backend.executorsPendingDecommission().contains(executor) else None
