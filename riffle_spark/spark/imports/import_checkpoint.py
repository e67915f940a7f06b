"""Move a stopped Spark query to riffle with its state (`riffle import`).

Theory of operation. The Spark query is stopped. Its checkpoint is only read.

1. The wrapped query's stages are matched with the stateful nodes of Spark's own plan, and so with the operators in the
   checkpoint. State that cannot be moved is refused by name, before anything is written.
2. Each store gets one snapshot per key-group, of the state after the last committed batch.
3. A new checkpoint gets the query id, the offsets, the last commit and the logs of sources. It also counts the source
   without rows that starts the batches of wrapped queries when something is due.
4. One record lists all snapshots. It has the id, batch, offsets and watermark of the Spark query, so the wrapped query
   continues with the next batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.offline.checkpoint import Checkpoint, times_of_entry, with_added_sources
from riffle_spark.offline.command_errors import machine_clocks, translated_errors
from riffle_spark.offline.recovery import Plan
from riffle_spark.process.plans.cut import STATEFUL
from riffle_spark.process.plans.plan_values import PlanNode, walk
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.settings import Settings
from riffle_spark.spark.command_session import made_by
from riffle_spark.spark.engine import jvm, tick
from riffle_spark.spark.frames.stream_frame import query_parts
from riffle_spark.spark.imports.element_states import rows_of_groups, rows_of_join, rows_of_processor
from riffle_spark.spark.imports.native_state import NativeState, operators_in
from riffle_spark.spark.imports.stage_states import StageState, rows_of_aggregate, rows_of_distinct
from riffle_spark.spark.job_operators import JobOperators
from riffle_spark.spark.job_wiring import home_of, settings_of
from riffle_spark.spark.plans import aggregate_plan
from riffle_spark.spark.plans.batch_pieces import Piece
from riffle_spark.spark.plans.cut_query import CutQuery, check_plan, cut_query
from riffle_spark.spark.plans.plan_nodes import Node, analysed, items
from riffle_spark.spark.queries import planned_stages, stage_rows
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.spark.seeds.first_version import (
    FirstRows,
    commit_first_version,
    new_draft,
    write_first_version,
)
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import add_query
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store

_STORES = "riffle.stores"
_ROCKSDB = "RocksDBStateStoreProvider"
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    "aggregate": ("stateStoreSave", "sessionWindowStateStoreSaveExec"),
    "distinct": ("dedupe", "dedupeWithinWatermark"),
    "groups": ("applyInPandasWithState",),
    "join": ("symmetricHashJoin",),
    "processor": ("transformWithStateInPandasExec", "transformWithStateInPySparkExec"),
}
"""Spark's names of operators in the metadata of a checkpoint, by kind of stage."""
_CONVERSIONS: Mapping[str, Callable[[StageState], FirstRows]] = {
    "aggregate": rows_of_aggregate,
    "distinct": rows_of_distinct,
    "groups": rows_of_groups,
    "join": rows_of_join,
    "processor": rows_of_processor,
}


@dataclass(frozen=True)
class _WrappedQuery:
    """The query that takes the state: its plan, stages and operators, and the settings in effect."""

    spark: SparkSession
    cut: CutQuery
    stages: Sequence[PlannedStage]
    operators: Sequence[Operator]
    settings: Settings


def import_checkpoint(
    root: str,
    checkpoint: str,
    query: Callable[[SparkSession], object],
    *,
    spark: SparkSession,
    new_checkpoint: str | None = None,
    settings: Settings | None = None,
    execute: bool = False,
) -> Plan:
    """Write the state of a stopped Spark query as the state of the wrapped query that continues it.

    Args:
        root: where to write the state. It must be empty.
        checkpoint: the ``checkpointLocation`` of the Spark query. It is only read.
        query: a function that is called with the session, and returns the query wrapped by ``riffle_spark.on``: a
            frame, or its writer. A writer's output mode and its option ``riffle.stores`` count.
        spark: a session of Spark 4.0 or newer.
        new_checkpoint: the ``checkpointLocation`` from which the wrapped query continues. By default it is
            ``checkpoint`` with ``-riffle`` at its end.
        settings: settings for reaching the root. Those of the query's ``riffle_spark.on`` count before them.
        execute: write the state and the new checkpoint. Without it only the schemas are compared.

    Returns:
        The steps, the last committed batch, and its offsets.

    Raises:
        ConfigError: the state cannot be moved, the root or the new checkpoint is not empty, or the checkpoint has no
            committed batch.
        ConflictError: the Spark query continued during the import.
        FencedError: another query has started in the root during the import.

    Example:
        >>> import_checkpoint("s3://bucket/visits", "s3://bucket/old", visits, spark=spark)  # doctest: +SKIP
    """
    wrapped = _read_query(spark, query, root, settings)
    home = home_of(spark, wrapped.settings)
    source = Checkpoint(checkpoint, home.options)
    target = Checkpoint(new_checkpoint or f"{checkpoint.rstrip('/')}-riffle", home.options)
    query_id = source.query_id()
    version, offsets = _last_batch(source)
    log = Log(open_store(home.root, home.options), home.root, machine_clocks)
    _check_targets(log, target, root)
    added_sources = _count_added_sources(wrapped, offsets)
    stores = list(_rows_of_stages(wrapped, checkpoint, version, offsets))
    steps = [f"read the state of query {query_id} after batch {version} from {source.shown}"]
    steps += [f"write it to {root} as store {rows.schema.store!r}: {rows.text['text']}" for rows in stores]
    steps.append(f"write the checkpoint {target.shown}. The wrapped query continues there with batch {version + 1}")
    if execute:
        with translated_errors(log, f"move the state of query {query_id}"):
            written = write_first_version(home, wrapped.settings.key_groups, version, stores)
            if source.last_committed_batch() != version:
                raise ConflictError(
                    f"The Spark query of {source.shown} committed a batch while its state was read.",
                    remedy="Stop that query, and run the command again with an empty root.",
                    where=source.shown,
                    id="RIFFLE-1615",
                )
            source.copy_to(target, version, added_sources)
            draft = _draft(query_id, version, with_added_sources(offsets, added_sources), wrapped.settings.key_groups)
            commit_first_version(log, written, draft)
            _register(home, list(written.schemas))
        steps += [f"store {store!r}: {count} rows" for store, count in written.row_counts.items()]
    next_step = f"Start the wrapped query with checkpointLocation {target.shown}."
    return Plan(tuple(steps), execute, version, offsets, next_step)


def _last_batch(source: Checkpoint) -> tuple[int, str]:
    """Return the last committed batch and its entry of the offset log. Raises ``ConfigError`` without one."""
    version = source.last_committed_batch()
    offsets = source.offsets(version) if version >= 0 else None
    if offsets is None:
        raise ConfigError(
            f"The checkpoint {source.shown} has no committed batch.",
            remedy="Let the Spark query commit a batch, stop it, and import again. Or start the wrapped query with a "
            "new checkpoint, because there is no state to move. Then a source that starts with the latest rows skips "
            "those that came before.",
            where=source.shown,
            id="RIFFLE-1614",
        )
    if offsets.partition("\n")[0] != tick.OFFSET_FORMAT_1:
        raise tick.offset_format_error(source.shown)
    return version, offsets


def _read_query(
    spark: SparkSession, query: Callable[[SparkSession], object], root: str, settings: Settings | None
) -> _WrappedQuery:
    """Return the query that ``query`` makes. Raises ``ConfigError`` if it has no wrapped state, or fails."""
    made = made_by(query, spark)
    parts = query_parts(made)
    if parts is None:
        raise ConfigError(
            f"The query function returned a {type(made).__name__}, not a query that riffle_spark.on has wrapped.",
            remedy="Return the wrapped frame or its writeStream, and do not start it.",
            where="--query",
            id="RIFFLE-1616",
        )
    frame, writer_settings, options = parts
    cut = cut_query(frame)
    check_plan(cut, writer_settings.mode)
    if not cut.stages:
        raise ConfigError(
            "The query has no stateful operator, so there is no state to move.",
            remedy="Start the query with its own checkpoint.",
            where="--query",
            id="RIFFLE-1617",
        )
    stages = planned_stages.planned_stages(cut, writer_settings.option(_STORES))
    active = settings_of(spark, (options.settings or settings or Settings()).but(root=root))
    if active.dispatch != "key_group":
        raise ConfigError(
            f"State is moved by key-group, but dispatch = {active.dispatch}.",
            remedy="Import with dispatch = key_group, and switch the state then (riffle dispatch).",
            where="dispatch",
            id="RIFFLE-1618",
        )
    declared = stage_rows.operators_of(stages, writer_settings.mode, None)  # type: ignore[arg-type] # nothing is delivered
    operators = JobOperators(declared, active, "spark", Weights()).of_batch(stage_rows.input_of(stages))
    return _WrappedQuery(spark, cut, stages, operators, active)


def _check_targets(log: Log, target: Checkpoint, root: str) -> None:
    """Raise ``ConfigError`` unless the root and the new checkpoint are empty."""
    if log.open() is not None:
        raise ConfigError(f"{root} already holds state.", remedy="Name an empty root.", where=root, id="RIFFLE-1619")
    if not target.is_empty():
        raise ConfigError(
            f"The new checkpoint {target.shown} is not empty.",
            remedy="Name another one with --new-checkpoint. If an earlier import was interrupted, remove its folder.",
            where=target.shown,
            id="RIFFLE-1620",
        )


def _count_added_sources(wrapped: _WrappedQuery, offsets: str) -> int:
    """Return how many sources the wrapped query has after those of the Spark query: the one that starts batches.

    Raises ``ConfigError`` if the wrapped query reads other sources than ``offsets`` has, or in another order.
    """
    spark_sources = _sources(wrapped.cut.reader.catalyst.frame(wrapped.cut.plan))
    wrapped_sources = _sources(stage_rows.input_of(wrapped.stages))
    count = len(offsets.split("\n")[2:])
    if spark_sources != wrapped_sources or count != len(wrapped_sources):
        # Cause: Spark stores the offsets by the position of the source in the plan.
        raise ConfigError(
            f"The checkpoint has the offsets of {count} sources, but the wrapped query reads {len(wrapped_sources)}, "
            "or reads them in another order.",
            remedy="Pass the query that wrote the checkpoint. If an aggregate is on the right side of a join, put it "
            "on the left side, or start without state.",
            where="--query",
            id="RIFFLE-1621",
        )
    return 1


def _sources(frame: DataFrame) -> list[str]:
    """Return the streams that a frame reads, in the order in which Spark numbers them."""
    return [str(leaf.output().mkString()) for leaf in items(analysed(frame).collectLeaves()) if leaf.isStreaming()]


def _rows_of_stages(wrapped: _WrappedQuery, checkpoint: str, version: int, offsets: str) -> Iterator[FirstRows]:
    """Yield the rows of each stage's store. Raises ``ConfigError`` if the state of any cannot be moved.

    ``offsets`` is the offset-log entry of batch ``version``.
    """
    reader = wrapped.cut.reader
    optimiser = jvm.session(wrapped.spark).sessionState().optimizer()  # A frame would refuse to optimise streams.
    native_plan = reader.read(optimiser.execute(wrapped.cut.plan))
    nodes = [node for node in walk(native_plan) if _is_stateful(node)]
    numbers = list(_stages_from_top(wrapped.stages, len(wrapped.stages) - 1))
    stages = [wrapped.stages[number] for number in numbers]
    names = operators_in(wrapped.spark, checkpoint)
    kinds = [STATEFUL[node.kind] for node in nodes]
    is_matched = kinds == [stage.stage.kind for stage in stages]
    if not is_matched or (names and not _fit(names, kinds)):
        operators = ", ".join(names[number] for number in sorted(names)) or ", ".join(kinds)
        raise ConfigError(
            f"The checkpoint has the operators {operators}, but the query has "
            f"{', '.join(stage.store for stage in stages)}.",
            remedy="Pass the query that wrote the checkpoint.",
            where="--query",
            id="RIFFLE-1622",
        )
    for operator_id, (stage, node) in enumerate(zip(stages, nodes, strict=True)):
        native = NativeState(wrapped.spark, checkpoint, version, operator_id, stage.store)
        operator = next(operator for operator in wrapped.operators if operator.store == stage.store)
        state = StageState(stage, operator, native)
        if stage.stage.kind == "aggregate":
            state = replace(state, function_ids=aggregate_plan.function_ids(reader, node))
        elif stage.stage.kind == "join":
            state = replace(state, side_ids=[_output_ids(reader.fetch(child.handle)) for child in node.children])
        if not names and _ROCKSDB in offsets and isinstance(operator.compute, SessionGroups):
            # Cause: Without metadata Spark does not know how RocksDB's keys are split, and cannot read them.
            state.refuse(
                "Spark 3.5 wrote no metadata of its session windows, so Spark cannot read them from RocksDB.",
                "Run the Spark query on Spark 4 until it has committed a batch, stop it, and run the command again.",
            )
        yield _CONVERSIONS[stage.stage.kind](state)


def _output_ids(plan: Node) -> list[int]:
    """Return the ids of the columns of a plan in the JVM."""
    return [int(attribute.exprId().id()) for attribute in items(plan.output())]


def _is_stateful(node: PlanNode) -> bool:
    """Return whether a node of an optimised plan keeps state in a streaming query."""
    if node.kind == "Join":
        return all(child.is_streaming for child in node.children)
    return node.is_streaming and node.kind in STATEFUL


def _stages_from_top(stages: Sequence[PlannedStage], number: int) -> Iterator[int]:
    """Yield the number of a stage and of those that it reads, in the order in which Spark numbers its operators."""
    yield number
    for part in stages[number].below:
        if isinstance(part, Piece):
            for hole in part.holes:
                yield from _stages_from_top(stages, hole.stage)


def _fit(names: Mapping[int, str], kinds: Sequence[str]) -> bool:
    """Return whether the operators in a checkpoint, by number, are of these kinds."""
    return sorted(names) == list(range(len(kinds))) and all(
        names[number] in _OPERATORS.get(kind, ()) for number, kind in enumerate(kinds)
    )


def _register(home: Home, stores: Sequence[str]) -> None:
    """Store the name of a query whose root is below a shared root, as its first start does."""
    shared, is_below, name = home.root.rpartition(f"/{paths.QUERY}")
    if is_below and "/" not in name:
        add_query(open_store(shared, home.options), name, stores)


def _draft(query_id: str, version: int, offsets: str, total: int) -> Record:
    """Return the draft of the record that binds the moved state to the query, with the times of its last batch."""
    time_ms, watermark_ms = times_of_entry(offsets)
    return replace(
        new_draft(query_id, total),
        version=version,
        offsets=offsets,
        time_ms=time_ms,
        watermark_ms=watermark_ms,
        late_watermark_ms=watermark_ms,
    )
