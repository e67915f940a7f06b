"""Read from Spark's JVM: live and removed executors, and the identity and sources of a micro-batch."""

import json
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.protocol.ports import Executor, IncomingBatch
from riffle_spark.settings import Settings
from riffle_spark.spark.compat.java import items, kind
from riffle_spark.spark.engine import jvm as handles
from riffle_spark.spark.engine.active_run import active_run
from riffle_spark.spark.engine.connect_root import session_of_user
from riffle_spark.spark.engine.jvm_errors import is_interruption
from riffle_spark.spark.engine.row_digest import digest
from riffle_spark.worker.member_folders import LOCAL_EXECUTOR

DIRECT = "direct"
"""The query id of a batch that does not belong to a query."""
_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
_ADMISSION = "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl"
_EXCLUDING = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.application.enabled")
_DYNAMIC_STARTS = ("spark.dynamicAllocation.initialExecutors", "spark.dynamicAllocation.minExecutors")
_POLL_SECONDS = 0.2
_CONNECT_SLOTS = 4
"""Slots with Spark Connect, where the number of cores is unknown."""
_PLANNED_WORDS = ("killed by driver", "decommission", "explicit termination request")
_LEAVING = "killed by driver or decommission, not gone yet"
_UNKNOWN = ""
_ERROR_ID = re.compile(r"\[(RIFFLE-\d{4})\]")
_REASON_WAIT_SECONDS = 1.0
_GONE_POLL_SECONDS = 0.05


def application_id(spark: SparkSession) -> str:
    """Return the id of the Spark application."""
    if handles.is_classic(spark):
        return _id_of_application(handles.context(spark))
    return str(spark.conf.get("spark.app.id", "application") or "application")


@lru_cache(maxsize=1)
def _id_of_application(context: SparkContext) -> str:
    """Return the id of an application. It never changes, so it is read once per context."""
    return str(context.applicationId)


def executors(spark: SparkSession) -> tuple[Executor, ...]:
    """Return the executors that Spark gives tasks, sorted by id. In local mode and with Spark Connect there is one.

    Executors that are decommissioned, killed or excluded are left out, because they get no tasks.
    """
    if not handles.is_classic(spark):
        return (Executor(LOCAL_EXECUTOR, "", _CONNECT_SLOTS),)
    context = handles.context(spark)
    cache = _cache_of(spark)
    if _is_local(context):
        local = cache.executors.get(LOCAL_EXECUTOR) or _executor(context, LOCAL_EXECUTOR)
        cache.executors = {} if local is None else {LOCAL_EXECUTOR: local}
        return (Executor(LOCAL_EXECUTOR, socket.gethostname(), local.cores if local else context.defaultParallelism),)
    current = [cache.executors.get(name) or _executor(context, name) for name in _scheduled(context, cache)]
    live = {executor.id: executor for executor in current if executor is not None}
    cache.executors = live  # in one assignment, because other threads read it
    return tuple(sorted(live.values()))


@dataclass(slots=True)
class _ApplicationCache:
    """Properties of an application and its executors that never change.

    ``excludes`` is whether Spark excludes failing executors. ``executors`` has the known executors by id.
    """

    application: str
    excludes: bool
    executors: dict[str, Executor]


_caches: list[_ApplicationCache] = []
"""The cache of the current application."""


def _cache_of(spark: SparkSession) -> _ApplicationCache:
    """Return the cache of the session's application. It is empty for a new application."""
    application = application_id(spark)
    if not _caches or _caches[-1].application != application:
        excludes = any(str(spark.conf.get(name, "false")).lower() == "true" for name in _EXCLUDING)
        _caches[:] = [_ApplicationCache(application, excludes, {})]
    return _caches[-1]


def _scheduled(context: Any, cache: _ApplicationCache) -> list[str]:
    """Return the ids of the executors that get tasks, or of all executors if the scheduler does not report these.

    Every batch calls this, so it makes one JVM call per executor, and two if Spark excludes failing executors.
    """
    backend = context._jsc.sc().schedulerBackend()
    store = context._jsc.sc().statusStore()
    try:
        active = [name for name in _listed(backend) if backend.isExecutorActive(name)]
        return [name for name in active if not (cache.excludes and _is_excluded(store, name))]
    except Exception:  # noqa: BLE001 - an external scheduler may lack the call
        names = [str(summary.id()) for summary in items(store.executorList(True))]
        return [name for name in names if name != LOCAL_EXECUTOR]


def _is_excluded(store: Any, name: str) -> bool:
    """Return whether Spark excludes an executor because tasks failed on it."""
    with suppress(Exception):  # the executor may just have started or ended
        return bool(store.executorSummary(name).isExcluded())
    return False


def _is_local(context: Any) -> bool:
    """Return whether the driver is the only executor. ``local-cluster`` has separate executors."""
    return re.match(r"local(\[.*])?\Z", str(context.master)) is not None


def has_executors(spark: SparkSession) -> bool:
    """Return whether tasks run in separate processes that Spark lists."""
    return handles.is_classic(spark) and not _is_local(handles.context(spark))


def connected(spark: SparkSession) -> frozenset[str]:
    """Return the ids of all executors that are connected to the scheduler, with those that no longer get tasks.

    Raise the JVM's error if the scheduler does not list them.
    """
    return frozenset(_listed(handles.context(spark)._jsc.sc().schedulerBackend()))


def _listed(backend: Any) -> list[str]:
    """Return the ids of the executors in a scheduler backend."""
    return [name for name in str(backend.getExecutorIds().mkString(",")).split(",") if name]


def expected_executors(spark: SparkSession, settings: Settings) -> int:
    """Return how many executors a start waits for: the setting ``expected_executors``, or the number Spark starts.

    Spark starts ``spark.executor.instances`` or, with dynamic allocation, the maximum of that, ``initialExecutors`` and
    ``minExecutors``. In local mode and with Spark Connect it is one.
    """
    if not has_executors(spark):
        return 1
    names = ["spark.executor.instances", *(_DYNAMIC_STARTS if _is_dynamic(spark) else ())]
    return settings.expected_executors or max(1, *(int(spark.conf.get(name, "0") or 0) for name in names))


def _is_dynamic(spark: SparkSession) -> bool:
    """Return whether dynamic allocation is enabled."""
    return str(spark.conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"


def await_executors(spark: SparkSession, settings: Settings, expected: int = 1) -> tuple[Executor, ...]:
    """Wait up to ``initial_rebalance_delay`` for the expected number of executors. Return the live ones.

    If there is none, request an executor from dynamic allocation, because it starts executors only for waiting tasks.
    Raise ``UnavailableError`` if none starts.
    """
    deadline = time.monotonic() + settings.initial_rebalance_delay
    live = executors(spark)
    if not live and _is_dynamic(spark):
        handles.context(spark)._jsc.sc().requestExecutors(1)
    while len(live) < expected and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        live = executors(spark)
    if not live:
        # Cause: The cluster has no free cores or memory for executors, or executors fail when they start.
        raise UnavailableError(
            f"No executor started within {settings.initial_rebalance_delay:g} s.",
            remedy="Check the cluster's resources, or raise initial_rebalance_delay.",
            where="initial_rebalance_delay",
            id="RIFFLE-0276",
        )
    return live


def _executor(context: Any, name: str) -> Executor | None:
    """Return an executor with its host and slots, or ``None`` if it has just started or ended.

    The number of slots is the number of tasks that Spark runs on it at once, given ``spark.task.cpus`` and other
    resources of a task.
    """
    try:
        summary = context._jsc.sc().statusStore().executorSummary(name)
    except Exception:  # noqa: BLE001 - the JVM may raise any error; the next call retries
        return None
    host = str(summary.hostPort()).rsplit(":", 1)[0]
    return Executor(name, host, max(1, int(summary.maxTasks())))


def batch_facts(batch: DataFrame, batch_id: int, now_ms: int) -> IncomingBatch:
    """Return the identity, batch time and watermark of a micro-batch, and whether its trigger is ``availableNow``.

    Without a JVM handle, the digest of the rows replaces Spark's offset-log entry, and ``now_ms`` is the batch time.
    """
    spark = batch.sparkSession
    if not handles.is_classic(spark):
        return _connect_facts(batch, batch_id, now_ms)
    context = handles.context(spark)
    query_id = context.getLocalProperty(_QUERY_ID)
    if not query_id:  # no query, or a thread of the caller, which JobCalls checks
        return IncomingBatch(batch_id, DIRECT, DIRECT, None, digest(batch), now_ms, None)
    run = active_run(query_id, partial(_execution, spark, query_id))
    if run is None:
        run_id = str(context.getLocalProperty(_RUN_ID))
        return IncomingBatch(batch_id, query_id, run_id, None, digest(batch), now_ms, None)
    offsets = _serialized_entry(context, run.offset_log, batch_id)
    metadata = json.loads(offsets.split("\n")[1])
    watermark = int(metadata["batchWatermarkMs"]) or None
    time_ms = int(metadata["batchTimestampMs"])
    return IncomingBatch(
        batch_id, query_id, run.id, offsets, None, time_ms, watermark, available_now=run.is_available_now
    )


def offsets_before(batch: DataFrame, version: int) -> str | None:
    """Return Spark's offset-log entry of the batch before ``version``, or ``None`` if there is none."""
    execution = running_query(batch) if version > 0 else None
    if execution is None:
        return None
    return _serialized_entry(handles.context(batch.sparkSession), execution.offsetLog(), version - 1)


def query_name(batch: DataFrame) -> str:
    """Return the name of a micro-batch's query, or ``""`` if the query has no name or is unknown."""
    execution = running_query(batch)
    return str(execution.name() or "") if execution is not None else ""


def checkpoint_location(batch: DataFrame) -> str:
    """Return the URL of the checkpoint of a micro-batch's query, or ``""`` if the query is unknown."""
    execution = running_query(batch)
    return "" if execution is None else str(execution.resolvedCheckpointRoot())


def offset_sources(batch: DataFrame) -> list[Any]:
    """Return the sources of a micro-batch's query that can report their newest offsets, as handles of the JVM.

    Return an empty list if they are unknown, as with Spark Connect.
    """
    execution = running_query(batch)
    if execution is None:
        return []
    admission = handles.looked_up(handles.context(batch.sparkSession)._jvm, "java.lang.Class", "forName")(_ADMISSION)
    return [source for source in items(execution.sources()) if admission.isInstance(source)]


def newest_offsets(sources: Iterable[Any]) -> list[str]:
    """Return the newest offsets of ``sources`` when Spark made the current batch, as text.

    The sources keep these offsets since Spark requested them, so this sends no request. A source that raises an error
    is left out, such as Kafka in a batch that Spark repeats after a restart, because Spark has requested none yet.
    """
    texts = []
    for source in sources:
        try:
            offset = source.reportLatestOffset()
        except Exception as error:
            if is_interruption(error):
                raise
        else:
            texts += [] if offset is None else [str(offset.json())]
    return texts


def running_query(batch: DataFrame) -> Any:
    """Return the running query of a micro-batch in the JVM, or ``None`` if it is unknown, as with Spark Connect."""
    query_id = _query_of(batch)
    return _execution(batch.sparkSession, query_id) if query_id else None


def _query_of(batch: DataFrame) -> str | None:
    """Return the id of the query that a micro-batch belongs to, ``None`` if it is unknown."""
    spark = batch.sparkSession
    return handles.context(spark).getLocalProperty(_QUERY_ID) if handles.is_classic(spark) else None


def _execution(spark: SparkSession, query_id: str) -> Any:
    """Return the running query with this id from the state that all sessions share. A batch's session is a clone."""
    uuid = handles.looked_up(handles.context(spark)._jvm, "java.util.UUID", "fromString")(query_id)
    return handles.session(spark).sharedState().activeStreamingQueries().get(uuid)


def is_active(spark: SparkSession, query_id: str, run_id: str | None = None) -> bool:
    """Return whether a query runs and, if ``run_id`` is set, whether this run of it does. Any thread may call it.

    Return ``True`` with Spark Connect, which does not show it, and for batches without a query.
    """
    if not handles.is_classic(spark) or query_id == DIRECT:
        return True
    execution = _execution(spark, query_id)
    if execution is None or (run_id is not None and str(execution.runId()) != run_id):
        return False
    return bool(execution.isActive())


def failure_of(query: Any) -> tuple[str, str] | None:
    """Return the error that ended a query of ``running_query``: the class of its first cause, and its ``RIFFLE`` id.

    The id is empty for errors of other packages. Return ``None`` for a query that runs, was stopped or is unknown.
    """
    failure = None if query is None else query.exception()
    if failure is None or not failure.isDefined():
        return None
    cause = failure.get()
    while cause.getCause() is not None:
        cause = cause.getCause()
    error_id = _ERROR_ID.search(str(failure.get().getMessage()))
    return kind(cause), error_id[1] if error_id else ""


def may_rest(spark: SparkSession, incoming: IncomingBatch) -> bool:
    """Return whether the query may be idle after this batch, and ``is_active`` shows when it ends."""
    return has_observable_end(spark, incoming) and not incoming.available_now


def has_observable_end(spark: SparkSession, incoming: IncomingBatch) -> bool:
    """Return whether ``is_active`` shows when the query of this batch ends."""
    return handles.is_classic(spark) and incoming.query_id != DIRECT


def is_stopping(batch: DataFrame) -> bool:
    """Return, inside ``foreachBatch``, whether the query is stopping. Return ``False`` if it is unknown."""
    return not is_active(batch.sparkSession, _query_of(batch) or DIRECT)


def _serialized_entry(context: Any, log: Any, batch_id: int) -> str:
    """Return the entry of a batch in Spark's offset log as text."""
    out = handles.looked_up(context._jvm, "java.io.ByteArrayOutputStream")()
    log.serialize(log.get(batch_id).get(), out)
    return str(out.toString())


def _connect_facts(batch: DataFrame, batch_id: int, now_ms: int) -> IncomingBatch:
    """Return the facts of a batch with Spark Connect. Raises ``ConfigError`` if the session has several queries."""
    active = session_of_user(batch.sparkSession).streams.active
    if len(active) > 1:
        # Cause: On Spark Connect a batch does not show its query, so a session may run only one.
        raise ConfigError(
            f"With Spark Connect it is unknown which of the session's {len(active)} queries a batch belongs to.",
            remedy="Create a separate session for each query: SparkSession.builder.remote(URL).create().",
            id="RIFFLE-0277",
        )
    query_id, run_id = (str(active[0].id), str(active[0].runId)) if active else ("connect", "connect")
    return IncomingBatch(batch_id, query_id, run_id, None, digest(batch), now_ms, None)


def source_options(batch: DataFrame) -> list[dict[str, str]]:
    """Return the options of each source of the query, with names in lower case. Sources without options are left out.

    Return an empty list if they are unknown, as with Spark Connect.
    """
    execution = running_query(batch)
    leaves = items(execution.analyzedPlan().collectLeaves()) if execution is not None else []
    options_of_leaves = [_options_of(leaf, handles.context(batch.sparkSession)._jvm) for leaf in leaves]
    return [{str(name).lower(): str(value) for name, value in options.items()} for options in options_of_leaves]


def _options_of(leaf: Any, jvm: Any) -> Any:
    """Return the options of a leaf of a streaming plan, a source of version 1 or 2."""
    if kind(leaf) == "StreamingRelationV2":
        return leaf.extraOptions()
    if kind(leaf) == "StreamingRelation":
        convert = handles.looked_up(jvm, "scala.collection.JavaConverters", "mapAsJavaMap")
        return convert(leaf.dataSource().options())
    return {}


def latest_offsets(batch: DataFrame) -> list[str]:
    """Return the offsets of each source in the newest entry of the query's offset log, as text."""
    latest = running_query(batch).offsetLog().getLatest()
    offsets = items(latest.get()._2().offsets()) if latest.isDefined() else []
    return [str(offset.get()) for offset in offsets if offset.isDefined()]


def find_planned_removals(spark: SparkSession, executors: Iterable[str]) -> frozenset[str]:
    """Return which of these executors, which no longer get tasks, Spark removed or is removing on purpose."""
    deadline = time.monotonic() + _REASON_WAIT_SECONDS
    return frozenset(name for name in executors if was_planned(reason_of(spark, name, deadline)))


def was_planned(reason: str) -> bool:
    """Return whether Spark's reason for a removal means that the executor was removed on purpose."""
    return any(word in reason.lower() for word in _PLANNED_WORDS)


def reason_of(spark: SparkSession, executor: str, deadline: float) -> str:
    """Return Spark's reason why an executor no longer gets tasks, or an empty text if it is unknown.

    Spark records the reason after the removal, so poll for it until ``deadline`` (of ``time.monotonic``).
    """
    if not handles.is_classic(spark):
        return _UNKNOWN
    context = handles.context(spark)._jsc.sc()
    while True:
        try:
            reason = _recorded_reason(context, executor)
        except Exception:  # noqa: BLE001 - the JVM may raise any error; without a reason the driver waits longer
            return _UNKNOWN
        if reason is not None or time.monotonic() >= deadline:
            return reason or _UNKNOWN
        time.sleep(_GONE_POLL_SECONDS)


def _recorded_reason(context: Any, executor: str) -> str | None:
    """Return the reason that Spark recorded for the removal of an executor, ``None`` if there is none yet."""
    backend = context.schedulerBackend()
    summary = context.statusStore().executorSummary(executor)
    if summary.removeReason().isDefined():
        return str(summary.removeReason().get())
    leaving = backend.executorsPendingToRemove().contains(executor)
    return _LEAVING if leaving or backend.executorsPendingDecommission().contains(executor) else None
