"""The start of a wrapped query: its plan, the names of its stores, its root, its job and its sink put together. The one
place that knows all of these rooms. Does not know batches.
"""

import atexit
import io
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.batch.enter import check_stale
from riffle_spark.protocol.ports import Delivery
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, jvm, tick
from riffle_spark.spark.job_wiring import home_of, settings_of
from riffle_spark.spark.plans import batch_pieces
from riffle_spark.spark.plans.cut_query import CutQuery, check_plan, cut_query
from riffle_spark.spark.queries import planned_stages, shared_roots, stage_rows, stream_query
from riffle_spark.spark.queries.stream_options import StreamOptions
from riffle_spark.spark.sinks import sink_choice, spark_sinks
from riffle_spark.spark.sinks.writer_settings import WriterSettings
from riffle_spark.state.log import log
from riffle_spark.state.objects.open import open_store
from riffle_spark.unknown_names import check_known

__all__ = ["explained", "started"]

_CHECKPOINT: Final = "checkpointLocation"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_STORES: Final = "riffle.stores"
_OPTIONS: Final = (_STORES, planned_stages.ACCEPT, planned_stages.TAKE_OVER, sink_choice.DELIVERY_ID)
_TRIGGERS: Final = ("availableNow", "once", "processingTime")
_ROOTS: Final = {"file": "file:///", "s3": "s3://", "s3a": "s3://"}
"""Where the folder of a checkpoint may have the state beside it, and what a root there begins with."""


class PieceSink:
    """What takes the answers of the last stage's slots: evaluates them, puts what follows on top, and gives that on."""

    def __init__(self, results: batch_pieces.StageResults, give: sink_choice.Give) -> None:
        self._results = results
        self._give = give

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Take one delivery's rows."""
        self._give(jvm.frame_of(rows.sparkSession, self._results.plan(rows, delivery.time_ms)), delivery)


def started(frame: DataFrame, told: WriterSettings, options: StreamOptions) -> StreamingQuery:
    """Start a wrapped frame's query. Without a stateful operator it is Spark's own, and so is what is returned."""
    spark = frame.sparkSession
    ours = [name.lower() for name in told.options if name.lower().startswith("riffle.")]
    check_known("option", ours, _OPTIONS, source="the query's options")
    found = cut_query(frame)
    check_plan(found, told.mode)
    if not found.stages:
        stage_rows.late_rows((), told.mode, options.late_rows)
        stage_rows.dead_letters((), options.dead_letters)
        return _sparks_own(found, told)
    _check_trigger(told)
    stages = planned_stages.planned_stages(found, told.option(_STORES))
    late = stage_rows.late_rows(stages, told.mode, options.late_rows)
    letters = stage_rows.dead_letters(stages, options.dead_letters)
    checkpoint = _checkpoint(spark, told)
    sink_choice.check_recovery(spark, told, checkpoint)
    settings = _settings(spark, found.root or options.root, options.settings, checkpoint)
    settings = _accepting(spark, settings, told.option(planned_stages.ACCEPT))
    query_id = tick.query_id_in(spark, checkpoint)
    with shared_roots.reserved_root(settings.root or "", query_id) as note_query:
        _check_root(spark, settings, stages, told, query_id)
        results = batch_pieces.StageResults(stages[-1].evaluation, found.top)
        sink = PieceSink(results, sink_choice.sink_of(frame, told))
        operators = stage_rows.operators_of(stages, told.mode, sink, letters)
        by_clock = any(stage.by_clock for stage in stages)
        ticking = tick.Tick(spark, checkpoint, by_clock=by_clock, once="once" in told.trigger)
        rows = ticking.beside(late.input() if late is not None else stage_rows.input_of(stages))
        job = stream_query.StreamJob(operators, settings, ticking, late)
        writer = told.on(DataStreamWriter(rows), "queryName", "trigger")
        query = writer.foreachBatch(job).option(_CHECKPOINT, checkpoint).start()
        started_query = stream_query.StreamQuery(query, job, lambda: list(_lines(found, stages)))
        note_query(started_query)
    return started_query


def explained(frame: DataFrame, extended: bool | str | None, mode: str | None) -> str:
    """Return how a wrapped query is run: Spark's plan of its inputs, its stages, and what follows them."""
    found = cut_query(frame)
    stages = planned_stages.planned_stages(found, None)
    lines = ["== Run by Spark =="]
    for one in stage_rows.inputs_of(stages) or [found.catalyst.frame(found.plan)]:
        with redirect_stdout(io.StringIO()) as said:
            one.explain(extended, mode)
        lines.append(said.getvalue().strip())
    return "\n".join([*lines, *_lines(found, stages)])


def _lines(found: CutQuery, stages: Sequence[planned_stages.PlannedStage]) -> Iterator[str]:
    """Yield what is told of stages and of what follows them."""
    for stage in stages:
        yield from ("", f"== Stage {stage.stage.number}: {stage.store} ==")
        if stage.after:
            yield f"reads the results of {' and '.join(stages[one].store for one in stage.after)}"
        yield from (f"keys: {', '.join(f'{one.name} {one.type}' for one in stage.keys)}", *stage.said)
    if stages:
        results = {stage.stage.number: stage.evaluation.plan for stage in stages}
        yield from ("", "== Then, on each batch's results ==", str(found.top.fill(results).toString()).strip())


def _sparks_own(found: CutQuery, told: WriterSettings) -> StreamingQuery:
    """Start a query that has nothing of ours, as if it had never been wrapped."""
    sink_choice.check_sparks_own(told)
    writer = told.on(DataStreamWriter(found.catalyst.frame(found.plan)))
    return writer.start(told.path) if told.table is None else writer.toTable(told.table)


def _check_trigger(told: WriterSettings) -> None:
    """Refuse what runs no batches."""
    for kind_of_trigger in told.trigger:
        if kind_of_trigger not in _TRIGGERS:
            raise ConfigError(
                f"trigger({kind_of_trigger}=...) runs no batches, and state is committed with a batch",
                remedy=f"use one of {', '.join(_TRIGGERS)}",
                where="trigger",
                id="RIFFLE-0339",
            )


def _accepting(spark: SparkSession, settings: Settings, option: str | None) -> Settings:
    """Return the settings with the names in the query's option added to those that they accept."""
    if not option:
        return settings
    names = [name.strip() for name in option.split(",")]
    return settings.but(accept=(*settings_of(spark, settings).accept, *names))


def _check_root(
    spark: SparkSession,
    settings: Settings,
    stages: Sequence[planned_stages.PlannedStage],
    writer_settings: WriterSettings,
    query_id: str | None,
) -> None:
    """Check that the query can continue with its root. ``query_id`` is the id in its checkpoint, if that has one.

    Stores are not compared with those of another query: the first batch is refused with both queries' ids.
    """
    in_force = settings_of(spark, settings)
    home = home_of(spark, in_force)
    planned_stages.check_dispatch(stages, in_force)
    tail = log.Log(open_store(home.root, home.options), home.root).open()
    if tail is not None and tail.query_id != query_id:
        return
    if tail is not None:
        check_stale(tail, [stage.store for stage in stages], in_force.accept, home.root)
    schemas = tail.schemas if tail is not None else {}
    planned_stages.check_mode(stages, schemas, writer_settings.mode)
    taken = writer_settings.option(planned_stages.TAKE_OVER)
    planned_stages.check_stored(stages, schemas, ",".join(in_force.accept), taken)


def _checkpoint(spark: SparkSession, told: WriterSettings) -> str:
    """Return where Spark keeps the query's offsets: as told, or below where the session has them, or for a while."""
    given = told.option(_CHECKPOINT)
    if given:
        return given
    below = spark.conf.get(_CHECKPOINTS, None)
    if below:
        return f"{below.rstrip('/')}/{told.name or uuid.uuid4()}"
    kind_of_sink = told.function[0] if told.function else "table" if told.table else told.source(spark)
    if kind_of_sink not in sink_choice.TEMPORARY:
        raise ConfigError(
            "the query has no checkpoint location",
            remedy=f"set one: option({_CHECKPOINT!r}, ...), or set {_CHECKPOINTS}",
            where=_CHECKPOINT,
            id="RIFFLE-0340",
        )
    made = tempfile.mkdtemp(prefix="temporary-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _settings(spark: SparkSession, root: str, given: Settings | None, checkpoint: str) -> Settings:
    """Return the settings with a root: the one that is set somewhere, or the folder beside the checkpoint's files.

    Raises ``ConfigError`` where a root is asked for.
    """
    root = root or settings_of(spark, given).root or ""
    if not root:
        folder = checkpoint if ":/" in checkpoint else spark_sinks.qualified(spark, checkpoint)
        scheme, _, place = folder.partition(":")
        if scheme not in _ROOTS or (scheme == "file" and inventory.has_executors(spark)):
            raise ConfigError(
                f"the query has no root, and the checkpoint {folder} is not where state can lie",
                remedy="set one: riffle_spark.on(events, root='s3://bucket/prefix'), or set spark.riffle.root",
                where="root",
                id="RIFFLE-0341",
            )
        root = f"{_ROOTS[scheme]}{place.strip('/')}/riffle"
    return (given or Settings()).but(root=root)
