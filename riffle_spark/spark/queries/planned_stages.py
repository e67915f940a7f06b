"""Read the stages of a wrapped query: their plans, computations and stores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.plans import cut, rules
from riffle_spark.process.plans.grouping_keys import GroupingKey
from riffle_spark.process.stages import distinct_rows, merged_groups, paired_rows, session_groups, table_rows
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import routing
from riffle_spark.spark.engine.spark_batch import DeliverySink
from riffle_spark.spark.engine.stage_frames import StageInput
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.plans import (
    aggregate_plan,
    batch_pieces,
    cut_query,
    distinct_plan,
    groups_plan,
    join_plan,
    table_plan,
)
from riffle_spark.spark.queries.group_stages import GroupsStage
from riffle_spark.state.log import paths

_WITH_PARTITION: Final[Mapping[str, str]] = {
    "aggregate": "Group by",
    "distinct": "Select",
    "groups": "Group by",
    "join": "Join on",
    "processor": "Group by",
    "table": "Join on",
}
"""How a stage of each kind gets the columns of topic and partition."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of any kind, as read from its plan.

    ``map_side`` makes the slots' rows from the input, ``evaluation`` makes the node's output from the rows that slots
    return. ``late`` is the rule for late rows. ``meanings`` describe the stored columns. ``buffers`` are the stored
    columns of an aggregate with one row per key, and ``distinct`` the names of those with DISTINCT. ``description`` is
    printed by ``explain``. ``by_clock`` is set if something is due by processing time. ``initial`` and ``shown`` belong
    to a processor (``JobOperator``).

    ``shift_ms`` (at most 0) is the distance from the watermark to the oldest possible result of the stage. The
    watermark of later stages is shifted by it. ``closes`` is set if some of its state ends with event time.

    ``grouping`` are the key expressions, and ``result_ids`` Spark's ids of an aggregate's results, in the order of the
    stored columns.
    """

    stage: cut.Stage
    below: tuple[cut.Input | batch_pieces.Piece, ...]
    store: str
    keys: pa.Schema
    compute: Callable[[merged_groups.OutputMode], Computation]
    map_side: batch_pieces.Piece
    evaluation: batch_pieces.Piece
    late: LateRule | None
    meanings: Mapping[str, str]
    description: tuple[str, ...]
    by_clock: bool = False
    initial: DataFrame | None = None
    shown: Mapping[str, str] | None = None
    shift_ms: int = 0
    closes: bool = True
    buffers: pa.Schema | None = None
    distinct: tuple[str, ...] = ()
    grouping: tuple[GroupingKey, ...] = ()
    result_ids: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[cut.Input, ...]:
        """Return the inputs that the stage reads."""
        return tuple(part for part in self.below if isinstance(part, cut.Input))

    @property
    def source_stages(self) -> tuple[int, ...]:
        """Return the numbers of the stages whose results it reads. Empty if it reads only inputs."""
        pieces = [part for part in self.below if isinstance(part, batch_pieces.Piece)]
        return tuple(hole.stage for piece in pieces for hole in piece.holes)

    def operator(self, mode: str, sink: DeliverySink | None, reads: StageInput | None, shift_ms: int) -> JobOperator:
        """Return the stage as an operator of a job.

        ``mode`` is the output mode. ``sink`` gets its results, ``None`` if another stage reads them. ``reads`` has its
        rows unless it reads the batch as it is. ``shift_ms`` is the distance of its watermark from the query's.
        """
        # As in Spark, only rows of sessions are late in complete mode.
        keeps_all = mode == "complete" and self.stage.kind == "aggregate"
        return JobOperator(
            self.store,
            tuple(self.keys.names),
            self.compute(cast(merged_groups.OutputMode, mode)),
            (),
            True,
            sink,
            initial=self.initial,
            late=None if keeps_all and self.late is not None and self.late.by == "keys" else self.late,
            meanings=self.meanings,
            shown=self.shown if self.stage.kind == "processor" else None,
            reads=reads,
            shift_ms=shift_ms,
            closes=self.closes and not keeps_all,
        )


def _plan_aggregate(query: cut_query.CutQuery, stage: cut.Stage, used_stores: tuple[str, ...]) -> PlannedStage:
    """Return the planned stage of an aggregate.

    ``used_stores`` are the names of the stores of the stages before it; its own store gets another name.
    """
    plan = aggregate_plan.read_aggregate(query.reader, stage.node, used_stores)
    spec = plan.spec
    description = list[str]()
    for function in spec.functions:
        columns = ", ".join(f"{buffer.name} {buffer.type}" for buffer in function.inputs)
        meaning = function.inputs[0].meaning
        description.append(f"{function.function}: {columns}; {meaning.rpartition(': ')[0] or meaning}")
    if spec.time is not None:
        description.append(f"late and due by {spec.time.column}, {spec.time.delay_ms} ms behind the newest row")
    has_stable_keys = spec.routing_key == spec.keys
    buffer_meanings = {buffer.name: buffer.meaning for function in spec.functions for buffer in function.inputs}
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.stored_key,
        lambda mode: session_groups.make_group_computation(spec, mode),
        plan.map_side,
        plan.evaluation,
        # The session of a single row is late or not before it is merged with any other session.
        None if spec.time is None else LateRule(spec.time.column, "keys" if has_stable_keys else "rows"),
        {**plan.keys, **buffer_meanings},
        tuple(description),
        closes=spec.time is not None,
        buffers=merged_groups.StoredBuffers.of(spec).schema if has_stable_keys else None,
        distinct=tuple(buffer.name for function in spec.functions if function.distinct for buffer in function.inputs),
        grouping=plan.grouping,
        result_ids=plan.result_ids,
    )


def _plan_deduplication(query: cut_query.CutQuery, stage: cut.Stage, used_stores: tuple[str, ...]) -> PlannedStage:
    """Return the planned stage of a de-duplication (``dropDuplicates``).

    ``used_stores`` are the names of the stores of the stages before it; its own store gets another name.
    """
    plan = distinct_plan.read_distinct(query.reader, stage.node, used_stores, stage.used_columns)
    spec = plan.spec
    late = None if spec.time is None else LateRule(spec.time.column, "rows")
    description = ["passes the first row per key and stores only the key"]
    if late is not None:
        description.append(
            f"late by {late.column}; keys expire by {spec.due}" if spec.due else f"late by {late.column}"
        )
    if spec.due is None:
        description.append("keys are kept forever: no key column has a watermark")
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.keys,
        lambda _mode: distinct_rows.DistinctRows(spec),
        plan.map_side,
        plan.evaluation,
        late,
        {spec.due: "until when a key is known"} if spec.due and spec.stores_due else {},
        tuple(description),
        closes=spec.due is not None,
        grouping=plan.grouping,
    )


def _plan_join(query: cut_query.CutQuery, stage: cut.Stage, used_stores: tuple[str, ...]) -> PlannedStage:
    """Return the planned stage of a join of two streams.

    ``used_stores`` are the names of the stores of the stages before it; its own store gets another name.
    """
    plan = join_plan.read_join(query.reader, stage.node, used_stores, stage.used_columns)
    spec = plan.spec
    description = list[str]()
    for name, side in (("left", spec.left), ("right", spec.right)):
        expiry = "are kept forever: no condition bounds their event time"
        if side.due:
            expiry = f"expire {side.eviction_delay_ms} ms after {side.due}"
        description.append(f"{name} rows ({', '.join(side.buffered.names)}) {expiry}")
    description.extend(f"{compared.left} {compared.function} {compared.right}" for compared in spec.comparisons)
    # An outer row may be emitted as late as its eviction. As in Spark, rows that are kept forever do not count.
    delays_ms = [side.eviction_delay_ms for side in (spec.left, spec.right) if side.due]
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.keys,
        lambda _mode: paired_rows.PairedRows(spec),
        plan.map_side,
        plan.evaluation,
        None if spec.event_time is None else LateRule(spec.event_time, "rows"),
        plan.meanings,
        tuple(description),
        shift_ms=-max([0, *delays_ms]),
        closes=bool(spec.left.due or spec.right.due),
    )


def _plan_groups(query: cut_query.CutQuery, stage: cut.Stage, used_stores: tuple[str, ...]) -> PlannedStage:
    """Return the planned stage of a user's function per key.

    ``used_stores`` are the names of the stores of the stages before it; its own store gets another name.
    """
    plan = groups_plan.read_groups(query.reader, stage.node, stage.kind, used_stores)
    groups = GroupsStage.of(plan)
    compute = groups.of_frames() if stage.kind == "groups" else groups.of_processor()
    return PlannedStage(
        stage,
        query.below(stage),
        plan.spec.store,
        plan.spec.keys,
        lambda _mode: compute,
        plan.map_side,
        plan.evaluation,
        groups.late,
        {},
        tuple(groups.describe()),
        groups.time_mode == "ProcessingTime",
        groups.initial,
        groups.shown,
        grouping=plan.grouping,
    )


def _plan_table(query: cut_query.CutQuery, stage: cut.Stage, used_stores: tuple[str, ...]) -> PlannedStage:
    """Return the planned stage of a join with a table.

    ``used_stores`` are the names of the stores of the stages before it; its own store gets another name.
    """
    plan = table_plan.read_table(query.reader, stage.node, used_stores, stage.used_columns)
    spec = plan.spec
    columns = ", ".join(spec.table_columns.names)
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.keys,
        lambda _mode: table_rows.TableRows(spec),
        plan.map_side,
        plan.evaluation,
        None,
        plan.meanings,
        (f"the table has the last row per key by {', '.join(spec.order_by)} ({columns})",),
        closes=False,
    )


READERS: Final[Mapping[str, Callable[[cut_query.CutQuery, cut.Stage, tuple[str, ...]], PlannedStage]]] = {
    "aggregate": _plan_aggregate,
    "distinct": _plan_deduplication,
    "groups": _plan_groups,
    "join": _plan_join,
    "processor": _plan_groups,
    "table": _plan_table,
}
"""Functions that read the node of a stage, by kind. They also get the names of the query's other stores."""


def planned_stages(query: cut_query.CutQuery, stores_option: str | None) -> list[PlannedStage]:
    """Read the stages of a query, each with its plan, computation and store.

    ``stores_option`` is the text of option ``riffle.stores``, a list of store names, or ``None``. Raises
    ``ConfigError`` for unsupported terms and for wrong store names.
    """
    if len(query.top.holes) > 1:
        raise rules.refusal_error("several_results", query.values.top.plan.kind)
    for stage in query.stages:
        if stage.kind != "table" and len({type(part) for part in stage.below}) > 1:
            raise rules.refusal_error("result_and_input", stage.node.kind)
    names = [name.strip() for name in stores_option.split(",")] if stores_option else []
    if len(names) > len(query.stages):
        raise ConfigError(
            f"option('riffle.stores', {stores_option!r}) names {len(names)} stores, but the query has "
            f"{len(query.stages)} stateful operators.",
            remedy="Name one store for each stateful operator, from the sources on.",
            where="riffle.stores",
            id="RIFFLE-0323",
        )
    stages = list[PlannedStage]()
    for stage in query.stages:
        used_stores = tuple(planned.store for planned in stages)
        planned = READERS[stage.kind](query, stage, used_stores)
        if stage.number < len(names) and names[stage.number]:
            planned = replace(planned, store=paths.check_store_name(names[stage.number]))
        if planned.store in used_stores:
            raise ConfigError(
                f"Two stateful operators have the store {planned.store}.",
                remedy="Give each operator its own store name.",
                where=planned.store,
                id="RIFFLE-0324",
            )
        stages.append(planned)
    return stages


def check_dispatch(stages: Sequence[PlannedStage], settings: Settings) -> None:
    """Raise ``ConfigError`` if dispatch is by partition and the rows of a stage lack topic and partition."""
    if settings.dispatch == "key_group":
        return
    if sum(bool(stage.inputs) for stage in stages) > 1:
        raise ConfigError(
            f"dispatch = {settings.dispatch} supports one input stream, but several operators of this query read one.",
            remedy="Start one query for each stream, or set dispatch = key_group.",
            where="dispatch",
            id="RIFFLE-0325",
        )
    columns = " and ".join(routing.PARTITION_COLUMNS)
    for stage in stages:
        rows = stage.map_side.catalyst.frame(stage.map_side.plan)
        if stage.stage.kind in ("join", "table"):  # Each row has nulls in the columns of the other side.
            rows = rows.select(*map(routing.quoted, stage.keys.names))
        if not routing.has_partition_columns(rows):
            raise ConfigError(
                f"dispatch = {settings.dispatch} routes rows by {columns}, but operator {stage.store} only has the "
                f"columns {', '.join(rows.columns)}.",
                remedy=f"{_WITH_PARTITION[stage.stage.kind]} {columns} too, or set dispatch = key_group.",
                where="dispatch",
                id="RIFFLE-0326",
            )
