"""Start a wrapped query: cut its plan, name its stores, check its root, and connect job and sink."""

import atexit
import io
import logging
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from riffle_spark.errors import ConfigError, command
from riffle_spark.protocol.batch.enter import check_stale
from riffle_spark.protocol.ports import Delivery
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, jvm, tick
from riffle_spark.spark.job_wiring import home_of, settings_of
from riffle_spark.spark.plans import batch_pieces
from riffle_spark.spark.plans.cut_query import CutQuery, check_plan, cut_query
from riffle_spark.spark.queries import planned_stages, query_roots, stage_rows, stored_stages, stream_query
from riffle_spark.spark.queries.stream_options import StreamOptions
from riffle_spark.spark.seeds import seeding
from riffle_spark.spark.sinks import sink_choice, spark_sinks
from riffle_spark.spark.sinks.writer_settings import WriterSettings
from riffle_spark.unknown_names import check_known

_logger = logging.getLogger("riffle_spark")
_CHECKPOINT: Final = "checkpointLocation"
_CHECKPOINTS_CONF: Final = "spark.sql.streaming.checkpointLocation"
_ROOT: Final = "riffle.root"
_STORES: Final = "riffle.stores"
_OPTIONS: Final = (_ROOT, _STORES, stored_stages.ACCEPT, stored_stages.TAKE_OVER, sink_choice.DELIVERY_ID)
_SLASHES: Final = re.compile(":/+")
_TRIGGERS: Final = ("availableNow", "once", "processingTime")
_ROOTS: Final = {"file": "file:///", "s3": "s3://", "s3a": "s3://", "gs": "gs://", "abfss": "abfss://"}
"""Schemes of checkpoints that can also hold the state, and the prefix of such a root."""


class PieceSink:
    """The sink of a query's last stage: it evaluates the stage's rows, applies the plan after it, and delivers them.

    ``give`` delivers a frame to the sink that the user has chosen.
    """

    def __init__(self, results: batch_pieces.StageResults, give: sink_choice.Give) -> None:
        """Create the sink. The class describes the arguments."""
        self._results = results
        self._give = give

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Deliver the results of a batch, given the ``rows`` that the slots of the last stage returned."""
        self._give(jvm.frame_of(rows.sparkSession, self._results.plan(rows, delivery.time_ms)), delivery)


def start_query(
    frame: DataFrame,
    writer_settings: WriterSettings,
    options: StreamOptions,
    prepare: Callable[[stream_query.StreamJob], object] | None = None,
) -> StreamingQuery:
    """Start a wrapped frame's query. A query without a stateful operator is Spark's own.

    ``prepare`` is called with the job before Spark starts the query.
    """
    spark = frame.sparkSession
    names = [name.lower() for name in writer_settings.options if name.lower().startswith("riffle.")]
    check_known("option", names, _OPTIONS, source="the query's options")
    query = cut_query(frame)
    check_plan(query, writer_settings.mode)
    if not query.stages:
        stage_rows.late_rows((), writer_settings.mode, options.late_rows)
        stage_rows.dead_letters((), options.dead_letters)
        return _start_in_spark(query, writer_settings)
    _check_trigger(writer_settings)
    stages = planned_stages.planned_stages(query, writer_settings.option(_STORES))
    late_rows = stage_rows.late_rows(stages, writer_settings.mode, options.late_rows)
    dead_letters = stage_rows.dead_letters(stages, options.dead_letters)
    checkpoint = _checkpoint(spark, writer_settings)
    spark_sinks.check_file_system(spark, checkpoint)
    tick.check_offset_format(spark, checkpoint)
    sink_choice.check_recovery(spark, writer_settings, checkpoint)
    shared_root = query.values.root or options.root or settings_of(spark, options.settings).root or ""
    own_root = writer_settings.option(_ROOT) or ("" if shared_root else _root_in(spark, checkpoint))
    settings = (options.settings or Settings()).but(root=own_root or shared_root)
    settings = _with_accepted(spark, settings, writer_settings.option(stored_stages.ACCEPT))
    settings = _choose_root(spark, settings, stages, writer_settings, checkpoint, is_shared=not own_root)
    results = batch_pieces.StageResults(stages[-1].evaluation, query.top)
    sink = PieceSink(results, sink_choice.sink_of(frame, writer_settings))
    operators = stage_rows.operators_of(stages, writer_settings.mode, sink, dead_letters)
    by_clock = any(stage.by_clock for stage in stages)
    ticking = tick.Tick(spark, checkpoint, by_clock=by_clock, once="once" in writer_settings.trigger)
    rows = ticking.unite_with(late_rows.input() if late_rows is not None else stage_rows.input_of(stages))
    seed: Callable[[SparkSession], None] | None = None
    if options.initial_state:
        seed = seeding.seeder(stage_rows.input_of(stages), operators, options.initial_state, settings, checkpoint)
    job = stream_query.StreamJob(operators, settings, ticking, late_rows, seed)
    if prepare is not None:
        prepare(job)
    writer = writer_settings.apply_to(DataStreamWriter(rows), "queryName", "trigger")
    spark_query = writer.foreachBatch(job).option(_CHECKPOINT, checkpoint).start()
    return stream_query.StreamQuery(spark_query, job, lambda: list(_describe(query, stages)))


def explain_query(frame: DataFrame, extended: bool | str | None, mode: str | None) -> str:
    """Return as text Spark's plan of a wrapped query's inputs, its stages, and the plan after them.

    ``extended`` and ``mode`` are the arguments of Spark's ``explain``.
    """
    query = cut_query(frame)
    stages = planned_stages.planned_stages(query, None)
    lines = ["== Run by Spark =="]
    for spark_frame in stage_rows.inputs_of(stages) or [query.reader.catalyst.frame(query.plan)]:
        with redirect_stdout(io.StringIO()) as output:
            spark_frame.explain(extended, mode)
        lines.append(output.getvalue().strip())
    return "\n".join([*lines, *_describe(query, stages)])


def _describe(query: CutQuery, stages: Sequence[planned_stages.PlannedStage]) -> Iterator[str]:
    """Yield the lines that describe the stages and the plan after them."""
    for stage in stages:
        yield from ("", f"== Stage {stage.stage.number}: {stage.store} ==")
        if stage.source_stages:
            yield f"reads the results of {' and '.join(stages[number].store for number in stage.source_stages)}"
        yield f"keys: {', '.join(f'{key.name} {key.type}' for key in stage.keys)}"
        yield from stage.description
    if stages:
        results = {stage.stage.number: stage.evaluation.plan for stage in stages}
        yield from ("", "== Then, on each batch's results ==", str(query.top.fill(results).toString()).strip())


def _start_in_spark(query: CutQuery, writer_settings: WriterSettings) -> StreamingQuery:
    """Start a query without stateful operators in Spark, as if its frame had not been wrapped."""
    sink_choice.check_spark_query(writer_settings)
    writer = writer_settings.apply_to(DataStreamWriter(query.reader.catalyst.frame(query.plan)))
    if writer_settings.table is None:
        return writer.start(writer_settings.path)
    return writer.toTable(writer_settings.table)


def _check_trigger(writer_settings: WriterSettings) -> None:
    """Raise ``ConfigError`` for a trigger that does not run micro-batches."""
    for trigger in writer_settings.trigger:
        if trigger not in _TRIGGERS:
            raise ConfigError(
                f"trigger({trigger}=...) is not supported, because state is committed with batches.",
                remedy=f"Use one of {', '.join(_TRIGGERS)}.",
                where="trigger",
                id="RIFFLE-0339",
            )


def _with_accepted(spark: SparkSession, settings: Settings, option: str | None) -> Settings:
    """Return settings that also accept the names in the query's option ``riffle.accept``."""
    if not option:
        return settings
    names = [name.strip() for name in option.split(",")]
    return settings.but(accept=(*settings_of(spark, settings).accept, *names))


def _choose_root(
    spark: SparkSession,
    settings: Settings,
    stages: Sequence[planned_stages.PlannedStage],
    writer_settings: WriterSettings,
    checkpoint: str,
    *,
    is_shared: bool,
) -> Settings:
    """Return the settings with the query's own root, after a check that the query can continue with it.

    Stores of another query are not compared. The first batch is then refused with both queries' ids.
    """
    in_force = settings_of(spark, settings)
    home = home_of(spark, in_force)
    planned_stages.check_dispatch(stages, in_force)
    query_id = tick.query_id_in(spark, checkpoint)
    if is_shared:
        opened = query_roots.choose_root(home, _new_query(spark, stages, writer_settings, checkpoint, query_id))
    else:
        opened = query_roots.exact_root(home)
    settings = settings.but(root=opened.root)
    tail = opened.tail
    is_own = tail is not None and tail.query_id == query_id
    _check_checkpoint(spark, checkpoint, opened, query_id)
    if tail is not None and not is_own:
        return settings
    if tail is not None:
        check_stale(tail, [stage.store for stage in stages], in_force.accept, opened.root)
    schemas = tail.schemas if tail is not None else {}
    stored_stages.check_expiry(stages, schemas, writer_settings.mode)
    taken_over = writer_settings.option(stored_stages.TAKE_OVER) or ""
    stored_stages.check_stored(stages, schemas, ",".join(in_force.accept), taken_over)
    query_roots.mark_started(opened.root)
    return settings


def _check_checkpoint(
    spark: SparkSession, checkpoint: str, opened: query_roots.OpenedRoot, query_id: str | None
) -> None:
    """Raise ``ConfigError`` if a checkpoint has Spark's own state.

    ``opened`` is the query's root, and ``query_id`` the id in the checkpoint.
    """
    tail = opened.tail
    is_own = tail is not None and tail.query_id == query_id
    was_moved = is_own and tail is not None and tail.kind == "adopt" and tail.offsets is not None
    if query_id is None or (is_own and not was_moved) or not spark_sinks.path_exists(spark, f"{checkpoint}/state"):
        return
    if was_moved:
        raise ConfigError(
            f"The checkpoint {checkpoint} is that of Spark's own query, whose state was moved to {opened.root}.",
            remedy="Set checkpointLocation to the new checkpoint that riffle import wrote (by default the name of the "
            "old one with -riffle at its end).",
            where=_CHECKPOINT,
            id="RIFFLE-1634",
        )
    options = {"checkpoint": checkpoint, "query": "MODULE:FUNCTION"}
    import_command = command("import", "--execute", root=opened.root, **options)
    raise ConfigError(
        f"The checkpoint {checkpoint} belongs to a query with Spark's own state, which riffle cannot continue from.",
        remedy=f"Stop that query and move its state: {import_command}. "
        "Then start with the new checkpointLocation that it prints. Or set a new checkpointLocation to start without "
        "state, at startingOffsets.",
        where=_CHECKPOINT,
        id="RIFFLE-1129",
    )


def _new_query(
    spark: SparkSession,
    stages: Sequence[planned_stages.PlannedStage],
    writer_settings: WriterSettings,
    checkpoint: str,
    query_id: str | None,
) -> query_roots.NewQuery:
    """Return a query's known properties before its start. Warn of a checkpoint that the next start does not find."""
    has_parent = writer_settings.name is not None and spark.conf.get(_CHECKPOINTS_CONF, None) is not None
    path: str | None = None
    if writer_settings.option(_CHECKPOINT) or has_parent:
        path = checkpoint if ":/" in checkpoint else spark_sinks.qualified_path(spark, checkpoint)
        path = _SLASHES.sub(":/", path).rstrip("/")
    else:
        _logger.warning(
            "[RIFFLE-1123] The query has no checkpoint location, so its next start begins without state.\n"
            "  What to do: Set option('checkpointLocation', ...)."
        )
    stores = [stage.store for stage in stages]
    return query_roots.NewQuery(query_id, writer_settings.name, path, stores)


def _checkpoint(spark: SparkSession, writer_settings: WriterSettings) -> str:
    """Return the query's checkpoint: its option, a folder below the session's default, or a temporary folder."""
    location = writer_settings.option(_CHECKPOINT)
    if location:
        return location
    parent = spark.conf.get(_CHECKPOINTS_CONF, None)
    if parent:
        return f"{parent.rstrip('/')}/{writer_settings.name or uuid.uuid4()}"
    if writer_settings.function:
        sink = writer_settings.function[0]
    else:
        sink = "table" if writer_settings.table else writer_settings.source(spark)
    if sink not in sink_choice.TEMPORARY:
        raise ConfigError(
            "The query has no checkpoint location.",
            remedy=f"Set option({_CHECKPOINT!r}, ...) or {_CHECKPOINTS_CONF}.",
            where=_CHECKPOINT,
            id="RIFFLE-0340",
        )
    folder = tempfile.mkdtemp(prefix="temporary-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _root_in(spark: SparkSession, checkpoint: str) -> str:
    """Return the root of a query without one: a folder in its checkpoint.

    Raises ``ConfigError`` if the checkpoint cannot hold the state.
    """
    folder = checkpoint if ":/" in checkpoint else spark_sinks.qualified_path(spark, checkpoint)
    scheme, _, path = folder.partition(":")
    if scheme not in _ROOTS or (scheme == "file" and inventory.has_executors(spark)):
        # Cause: Without a root, state is stored in the checkpoint. This needs an object store, or a disk in local mode.
        raise ConfigError(
            f"The query has no root, and its checkpoint {folder} cannot hold the state.",
            remedy="Set riffle_spark.on(events, root='s3://bucket/prefix') or spark.riffle.root.",
            where="root",
            id="RIFFLE-0341",
        )
    return f"{_ROOTS[scheme]}{path.strip('/')}/riffle"
