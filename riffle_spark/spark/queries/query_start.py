"""The start of a wrapped query: its plan, the names of its stores, its root, its job and its sink put together. The one
place that knows all of these rooms. Does not know batches.
"""

import atexit
import io
import logging
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.block import BlockComputation
from riffle_spark.process.stages.merged_groups import OutputMode
from riffle_spark.process.stages.session_groups import groups_of
from riffle_spark.protocol.ports import Delivery
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import inventory, jvm, tick
from riffle_spark.spark.job import JobOperator, home_of, settings_of
from riffle_spark.spark.plans import batch_pieces, plan_nodes, plan_rules
from riffle_spark.spark.plans.aggregate_plan import read_aggregate
from riffle_spark.spark.plans.plan_cut import CutPlan, Input, Stage, cut
from riffle_spark.spark.queries import stream_query
from riffle_spark.spark.queries.stream_options import StreamOptions
from riffle_spark.spark.sinks import sink_choice, spark_sinks
from riffle_spark.state.log import log, paths
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.store_schema import meanings_in

__all__ = ["explained", "started"]

_logger = logging.getLogger("riffle_spark")

_CHECKPOINT: Final = "checkpointLocation"
_CHECKPOINTS: Final = "spark.sql.streaming.checkpointLocation"
_ACCEPT: Final = "riffle.accept"
_STORES: Final = "riffle.stores"
_TRIGGERS: Final = ("availableNow", "once", "processingTime")
_ROOTS: Final = {"file": "file:///", "s3": "s3://", "s3a": "s3://"}
"""Where the folder of a checkpoint may have the state beside it, and what a root there begins with."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage, and what was read of its node, whatever kind it is: ``map_side`` makes what slots get of the rows below,
    ``evaluation`` the node's result of what they answer, which is the leaf of its hole. ``meanings`` say what is kept
    in each column of the state, ``late`` what is too late where the mode leaves that out, ``said`` more to people.
    """

    stage: Stage
    store: str
    keys: pa.Schema
    compute: Callable[[OutputMode], BlockComputation]
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece
    late: LateRule | None
    meanings: Mapping[str, str]
    said: tuple[str, ...]

    def input(self) -> DataFrame:
        """Return the stream of rows that its slots get."""
        (below,) = self.stage.below
        assert isinstance(below, Input)
        return self.map_side.catalyst.frame(self.map_side.on({0: below.plan}))

    def operator(self, mode: OutputMode, sink: "PieceSink") -> JobOperator:
        """Return what a job runs."""
        late = None if mode == "complete" else self.late  # As in Spark: complete results have late rows, too.
        keys, compute = tuple(self.keys.names), self.compute(mode)
        return JobOperator(self.store, keys, compute, (), True, sink, late=late, meanings=self.meanings)

    def lines(self) -> Iterator[str]:
        """Yield what is told of it to people."""
        yield f"== Stage {self.stage.number}: {self.store} =="
        yield f"keys: {', '.join(f'{one.name} {one.type}' for one in self.keys)}"
        yield from self.said


def _aggregate(catalyst: plan_nodes.Catalyst, stage: Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = read_aggregate(catalyst, stage.node, taken)
    spec, said = plan.spec, list[str]()
    kept = [(one, one.buffers if one.given is None else (one.given,)) for one in spec.functions]
    for function, buffers in kept:
        columns = ", ".join(f"{buffer.name} {buffer.type}" for buffer in buffers)
        said.append(f"{function.function}: {columns}; {buffers[0].meaning.rpartition(': ')[0] or buffers[0].meaning}")
    if not len(spec.routed):
        raise ConfigError(
            "a session window alone is no key: as in Spark, sessions are those of another key",
            remedy="group by another column, too; by lit(0) for sessions of all rows",
            where=spec.store,
        )
    if spec.time is not None:
        said.append(f"late and due by {spec.time.column}, {spec.time.delay_ms} ms behind the newest row")
    return PlannedStage(
        stage, spec.store, spec.routed, lambda mode: groups_of(spec, mode), plan.map_side, plan.evaluation,
        # A row's own session is late or not before it is one with any other.
        None if spec.time is None else LateRule(spec.time.column, "keys" if spec.routed == spec.keys else "rows"),
        {buffer.name: buffer.meaning for _, buffers in kept for buffer in buffers}, tuple(said),
    )  # fmt: skip


_READERS: Final[Mapping[str, Callable[[plan_nodes.Catalyst, Stage, tuple[str, ...]], PlannedStage]]] = {
    "aggregate": _aggregate
}
"""What reads the nodes of stages, by their kinds."""


class PieceSink:
    """What takes the answers of the last stage's slots: evaluates them, puts what follows on top, and gives that on."""

    def __init__(self, evaluation: batch_pieces.Piece, top: batch_pieces.Piece, give: sink_choice.Give) -> None:
        (hole,) = evaluation.holes
        self._evaluation = evaluation
        self._top = top
        self._give = give
        self._rows = batch_pieces.KeptRows(evaluation.catalyst, plan_nodes.at(evaluation.plan, hole.path).output())

    def deliver(self, rows: DataFrame, delivery: Delivery) -> None:
        """Take one delivery's rows."""
        result = self._evaluation.on({0: self._rows.of(rows)}, delivery.time_ms)
        above = self._top.on({hole.stage: result for hole in self._top.holes}, delivery.time_ms)
        self._give(jvm.frame_of(rows.sparkSession, above), delivery)


def started(frame: DataFrame, told: sink_choice.WriterSettings, options: StreamOptions) -> StreamingQuery:
    """Start a wrapped frame's query. Without a stateful operator it is Spark's own, and so is what is returned."""
    spark = frame.sparkSession
    catalyst = plan_nodes.Catalyst(spark)
    found = cut(catalyst, plan_nodes.analysed(frame))
    plan_rules.check_plan(catalyst, found, told.mode)
    if not found.stages:
        return _sparks_own(catalyst, found, told)
    _check_trigger(told)
    (stage,) = _planned(catalyst, found, told)
    checkpoint = _checkpoint(spark, told)
    sink_choice.check_recovery(spark, told, checkpoint)
    settings = _settings(spark, found.root or options.root, options.settings, checkpoint)
    _check_stored(spark, settings, [stage], told)
    sink = PieceSink(stage.evaluation, found.top, sink_choice.sink_of(frame, told))
    ticking = tick.Tick(spark, checkpoint)
    rows = ticking.beside(stage.input())
    job = stream_query.StreamJob([stage.operator(cast(OutputMode, told.mode), sink)], settings, ticking)
    writer = told.on(DataStreamWriter(rows), "queryName", "trigger")
    query = writer.foreachBatch(job).option(_CHECKPOINT, checkpoint).start()
    return stream_query.StreamQuery(query, job, lambda: list(_lines(found, [stage])))


def explained(frame: DataFrame, extended: bool | str | None, mode: str | None) -> str:
    """Return how a wrapped query is run: Spark's plan of its inputs, its stages, and what follows them."""
    catalyst = plan_nodes.Catalyst(frame.sparkSession)
    found = cut(catalyst, plan_nodes.analysed(frame))
    stages = _planned(catalyst, found, sink_choice.WriterSettings(()))
    lines = ["== Run by Spark =="]
    for one in [stage.input() for stage in stages] or [catalyst.frame(found.plan)]:
        with redirect_stdout(io.StringIO()) as said:
            one.explain(extended, mode)
        lines.append(said.getvalue().strip())
    return "\n".join([*lines, *_lines(found, stages)])


def _lines(found: CutPlan, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield what is told of stages and of what follows them."""
    for stage in stages:
        yield from ("", *stage.lines())
    if stages:
        results = {stage.stage.number: stage.evaluation.plan for stage in stages}
        yield from ("", "== Then, on each batch's results ==", str(found.top.on(results).toString()).strip())


def _sparks_own(catalyst: plan_nodes.Catalyst, found: CutPlan, told: sink_choice.WriterSettings) -> StreamingQuery:
    """Start a query that has nothing of ours, as if it had never been wrapped."""
    sink_choice.check_sparks_own(told)
    writer = told.on(DataStreamWriter(catalyst.frame(found.plan)))
    return writer.start(told.path) if told.table is None else writer.toTable(told.table)


def _check_trigger(told: sink_choice.WriterSettings) -> None:
    """Refuse what runs no batches."""
    for kind_of_trigger in told.trigger:
        if kind_of_trigger not in _TRIGGERS:
            raise ConfigError(
                f"trigger({kind_of_trigger}=...) runs no batches, and state is committed with a batch",
                remedy=f"use one of {', '.join(_TRIGGERS)}",
                where="trigger",
            )


def _planned(catalyst: plan_nodes.Catalyst, found: CutPlan, told: sink_choice.WriterSettings) -> list[PlannedStage]:
    """Read the stages' nodes. Raises ``ConfigError`` for what is not there in a wrapped query."""
    stages = list[PlannedStage]()
    named = [name.strip() for name in (told.option(_STORES) or "").split(",") if name.strip()]
    for stage in found.stages:
        if stage.kind not in _READERS or len(found.stages) > 1:
            several = " together with another stateful operator" if len(found.stages) > 1 else ""
            raise ConfigError(
                f"{plan_nodes.kind(stage.node)}{several} is not there yet in a wrapped query",
                remedy="start the query without riffle_spark.on",
                where=plan_nodes.kind(stage.node),
            )
        planned = _READERS[stage.kind](catalyst, stage, tuple(one.store for one in stages))
        if stage.number < len(named):
            planned = replace(planned, store=paths.check_store_name(named[stage.number]))
        stages.append(planned)
    return stages


def _check_stored(
    spark: SparkSession, settings: Settings, stages: Sequence[PlannedStage], told: sink_choice.WriterSettings
) -> None:  # fmt: skip
    """Look what the root has of an earlier start: raise ``ConfigError`` where a column has another meaning now, and
    warn of what begins, and of what is not kept on.
    """
    home = home_of(spark, settings_of(spark, settings))
    tail = log.Log(open_store(home.root, home.options), home.root).open()
    before = tail.schemas if tail is not None else {}
    accepted = (told.option(_ACCEPT) or "").replace(" ", "").split(",")
    for stage in stages:
        _check_meanings(stage, meanings_in(before.get(stage.store, {})), accepted)
    for store in before.keys() - {stage.store for stage in stages}:
        _logger.warning("store %s is none of the query's any more; its state stays, and costs what it is", store)


def _check_meanings(stage: PlannedStage, before: Mapping[str, str], accepted: Sequence[str]) -> None:
    for name, meaning in stage.meanings.items():
        if before.get(name, meaning) != meaning and name not in accepted:
            raise ConfigError(
                f"the state has {before[name]} under {name!r}, and the query says {meaning}",
                remedy=f"give the result another alias, so that it begins anew; or option({_ACCEPT!r}, {name!r}), to "
                "go on with what is kept",
                where=stage.store,
            )
    for name in stage.meanings.keys() - before.keys() if before else ():
        _logger.warning("store %s: %s begins now (%s)", stage.store, name, stage.meanings[name])
    for name in before.keys() - stage.meanings.keys():
        _logger.warning("store %s: %s is dropped (%s)", stage.store, name, before[name])


def _checkpoint(spark: SparkSession, told: sink_choice.WriterSettings) -> str:
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
            remedy=f"say it: option({_CHECKPOINT!r}, ...), or set {_CHECKPOINTS}",
            where=_CHECKPOINT,
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
                remedy="say it: riffle_spark.on(events, root='s3://bucket/prefix'), or set spark.riffle.root",
                where="root",
            )
        root = f"{_ROOTS[scheme]}{place.strip('/')}/riffle"
    return (given or Settings()).but(root=root)
