"""The rows that each stage of a wrapped query gets from a batch, and the side outputs of late and failed rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import Input
from riffle_spark.process.plans.grouping_keys import find_event_time
from riffle_spark.process.plans.new_expressions import event_time_value
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.engine.spark_batch import DeliverySink
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.plans import batch_pieces, plan_nodes
from riffle_spark.spark.plans.tree_builder import TreeBuilder
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.spark.queries.stream_options import Place
from riffle_spark.spark.sinks import sink_choice

_STAGE_COLUMN: Final = "rows_"
"""The prefix of a batch's columns if several stages read inputs: one column per stage, with its number."""
_LATE_BY: Final = "__riffle_late_by"
_USER_FUNCTIONS: Final = ("groups", "processor")
"""The kinds of stages that call a user's function per key."""


class StageRows:
    """The rows of a stage that does not read the batch as it is. Implements ``StageInput``.

    They are rows of an input, or the results of other stages after the plan pieces between. A join may have both, each
    for one side. If several stages read inputs, the rows of this stage's input are in column ``batch_column``.
    """

    def __init__(self, stages: Sequence[PlannedStage], stage: PlannedStage, batch_column: str | None) -> None:
        """Create the rows of ``stage``. ``stages`` are all stages of the query, by number."""
        self.after = tuple(stages[number].store for number in stage.source_stages)
        self.empty = stage.map_side.catalyst.frame(stage.map_side.plan)
        self._map_side = stage.map_side
        self._batch_column = batch_column
        parts = enumerate(stage.below)
        self._pieces = {side: part for side, part in parts if isinstance(part, batch_pieces.Piece)}
        self._results = {
            number: (stages[number].store, batch_pieces.StageResults(stages[number].evaluation))
            for number in stage.source_stages
        }
        self._leaves = _leaves(stage.map_side) if batch_column and self._pieces else {}

    def frame(self, batch: DataFrame, answers: Mapping[str, DataFrame], time_ms: int) -> DataFrame:
        """Return the rows that the stage's slots get in a batch with this time.

        ``answers`` has by store the rows that the slots of earlier stages returned.
        """
        catalyst = plan_nodes.Catalyst(batch.sparkSession)
        input_rows: plan_nodes.Node | None = None
        if self._batch_column is not None:
            rows = batch.where(F.col(self._batch_column).isNotNull()).select(f"{self._batch_column}.*")
            input_rows = plan_nodes.analysed(rows)
        if not self._pieces:
            assert input_rows is not None, "a stage without pieces reads the batch"
            return catalyst.computed(input_rows)
        results = {number: rows.plan(answers[store], time_ms) for number, (store, rows) in self._results.items()}
        sides = {side: piece.fill(results, time_ms) for side, piece in self._pieces.items()}
        plan = self._map_side.fill({**self._leaves, **sides}, time_ms)
        if input_rows is not None:
            inputs = plan_nodes.children(plan)
            inputs[1 - min(self._pieces)] = input_rows
            plan = plan.withNewChildren(catalyst.seq(inputs))
        return catalyst.computed(plan)


def inputs_of(stages: Sequence[PlannedStage]) -> list[DataFrame]:
    """Return the streams of rows for the slots of the stages that read inputs, one per such stage."""
    return [stage.map_side.catalyst.frame(_input_plan(stage)) for stage in stages if stage.inputs]


def _input_plan(stage: PlannedStage) -> plan_nodes.Node:
    """Return the plan of a stage's rows from inputs: a side of a join if the other side reads results."""
    build = stage.map_side.reader.build
    inputs = {side: build(part.plan) for side, part in enumerate(stage.below) if isinstance(part, Input)}
    plan = stage.map_side.fill({**_leaves(stage.map_side), **inputs})
    return plan_nodes.children(plan)[min(inputs)] if stage.source_stages else plan


def _leaves(piece: batch_pieces.Piece) -> dict[int, plan_nodes.Node]:
    """Return the nodes in the holes of a piece before the first batch."""
    return {hole.stage: piece.leaf(hole) for hole in piece.holes}


def input_of(stages: Sequence[PlannedStage]) -> DataFrame:
    """Return the rows of all stages that read inputs as a single stream.

    If several do, each row has a struct column per stage, and is in the column of its own stage.
    """
    frames = inputs_of(stages)
    if len(frames) == 1:
        return frames[0]
    tagged = [
        frame.select(
            *[
                (F.struct("*") if other is frame else F.lit(None).cast(other.schema)).alias(f"{_STAGE_COLUMN}{number}")
                for number, other in enumerate(frames)
            ]
        )
        for frame in frames
    ]
    return reduce(DataFrame.union, tagged)


def operators_of(
    stages: Sequence[PlannedStage], mode: str, sink: DeliverySink, dead_letters: sink_choice.Give | None = None
) -> list[JobOperator]:
    """Return the operators of a job.

    ``sink`` takes the results of the last stage. ``dead_letters`` takes the failed rows of the user's function.
    """
    operators = list[JobOperator]()
    output_shifts_ms = list[int]()
    readers = [stage.stage.number for stage in stages if stage.inputs]
    for stage in stages:
        column: str | None = None
        if len(readers) > 1 and stage.inputs:
            column = f"{_STAGE_COLUMN}{readers.index(stage.stage.number)}"
        reads = StageRows(stages, stage, column) if stage.source_stages or column else None
        # As in Spark, an operator uses the earliest watermark of its inputs.
        shift_ms = min((output_shifts_ms[number] for number in stage.source_stages), default=0)
        operator = stage.operator(mode, sink if stage is stages[-1] else None, reads, shift_ms)
        if dead_letters is not None and stage.stage.kind in _USER_FUNCTIONS:
            operator = replace(operator, dead_letters=dead_letters, shown=stage.shown)
        operators.append(operator)
        output_shifts_ms.append(shift_ms + stage.shift_ms)
    return operators


class LateRows:
    """The side output of the rows that a query's first stage drops as too late.

    Spark's query then returns rows as they are below the stage. Its map side is applied to each batch of them.
    ``event_time`` is the column that decides whether a row is late; ``give`` delivers the late rows.
    """

    def __init__(self, stage: PlannedStage, event_time: plan_nodes.Node, give: sink_choice.Give) -> None:
        """Create the side output of ``stage``. The class describes the other arguments."""
        catalyst = stage.map_side.catalyst
        (hole,) = stage.map_side.holes
        (stage_input,) = stage.inputs
        self._catalyst = catalyst
        self._plan = stage.map_side.reader.build(stage_input.plan)
        self._give = give
        self._map_side = batch_pieces.StageResults(stage.map_side)
        attributes = stage.map_side.leaf(hole).output()
        self._rows = batch_pieces.FrameRows(catalyst, attributes)
        self._columns = [*plan_nodes.items(attributes), catalyst.alias(event_time, _LATE_BY)]
        self.names = [str(attribute.name()) for attribute in plan_nodes.items(attributes)]

    def input(self) -> DataFrame:
        """Return the stream of rows below the stage, with unique column names."""
        columns = enumerate(plan_nodes.items(self._plan.output()))
        aliases = [self._catalyst.alias(column, f"column_{index}") for index, column in columns]
        return self._catalyst.frame(self._catalyst.project(aliases, self._plan))

    def mapped(self, batch: DataFrame, time_ms: int) -> DataFrame:
        """Return the rows that slots get, from a batch of rows below the stage."""
        return plan_nodes.Catalyst(batch.sparkSession).computed(self._map_side.plan(batch, time_ms))

    def deliver(self, batch: DataFrame, late_ms: int, delivery: Delivery) -> None:
        """Deliver the rows of a batch with an event time at or before ``late_ms``."""
        plan = self._catalyst.project(self._columns, self._rows.project(batch))
        rows = plan_nodes.Catalyst(batch.sparkSession).frame(plan)
        late = rows.where(f"{_LATE_BY} <= timestamp_millis({late_ms})")
        self._give(late.drop(_LATE_BY), delivery)


def _event_time_of(stage: PlannedStage) -> plan_nodes.Node | None:
    """Return the event time that decides which input rows of a stage are late, or ``None`` if none can be late."""
    reader = stage.map_side.reader
    node = stage.stage.node
    _, columns = reader.read_output(reader.fetch(node.handle).child())
    if node.kind == "Aggregate":
        by_id = {column.id: column for column in columns}
        grouping = node.expressions.get("groupingExpressions", ())
        bare = [expression.children[0] if expression.kind == "Alias" else expression for expression in grouping]
        columns = tuple(by_id[expression.id] for expression in bare if expression.kind == "AttributeReference")
    time = find_event_time(columns)
    return None if time is None else TreeBuilder(reader).expression(event_time_value(time))


def late_rows(stages: Sequence[PlannedStage], mode: str, place: Place | None) -> LateRows | None:
    """Return the side output of a query's late rows, or ``None`` if ``place`` is ``None``.

    ``place`` is the folder or function that gets them. Raises ``ConfigError`` if no rows can be late, or if the query
    reads several streams.
    """
    if place is None:
        return None
    if sum(len(stage.inputs) for stage in stages) > 1:
        raise ConfigError(
            "late_rows is not supported for a query of several streams, whose rows have different columns.",
            remedy="Leave late_rows out, or start one query for each stream.",
            where="late_rows",
            id="RIFFLE-0343",
        )
    first = next((stage for stage in stages if not stage.source_stages), None)
    time = _event_time_of(first) if first else None
    if first is None or time is None or first.operator(mode, None, None, 0).late is None:
        raise ConfigError(
            "late_rows is set, but this query never drops late rows.",
            remedy="Call withWatermark before a stateful operator that uses this event time, in append or update mode. "
            "Otherwise leave late_rows out.",
            where="late_rows",
            id="RIFFLE-0344",
        )
    rows = LateRows(first, time, sink_choice.side_sink(place))
    if isinstance(place, str):
        _check_unique_names([*rows.names, "batch_id"])
    return rows


def _check_unique_names(names: Sequence[str]) -> None:
    """Raise ``ConfigError`` if two of these columns of late rows have the same name."""
    repeated = next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
    if repeated is not None:
        raise ConfigError(
            f"The folder of late rows would have two columns {repeated!r}. It also gets the window and batch_id.",
            remedy="Rename the stream's column, or pass a function as late_rows.",
            where="late_rows",
            id="RIFFLE-0345",
        )


def dead_letters(stages: Sequence[PlannedStage], place: Place | None) -> sink_choice.Give | None:
    """Return the function that delivers the rows on which the user's function fails, or ``None`` without a ``place``.

    ``place`` is the folder or function that gets them. Raises ``ConfigError`` unless exactly one stage calls a user's
    function per key.
    """
    if place is None:
        return None
    count = sum(stage.stage.kind in _USER_FUNCTIONS for stage in stages)
    if not count:
        raise ConfigError(
            "dead_letters is set, but the query has no user function whose rows could fail (applyInPandasWithState, "
            "transformWithState or transformWithStateInPandas).",
            remedy="Leave dead_letters out. Spark's expressions return null for invalid values, as from_json and "
            "try_cast do.",
            where="dead_letters",
            id="RIFFLE-0346",
        )
    if count > 1:
        raise ConfigError(
            "dead_letters is not supported for a query with several user functions, whose rows have different columns.",
            remedy="Leave dead_letters out, or make two queries with a sink between them.",
            where="dead_letters",
            id="RIFFLE-0347",
        )
    return sink_choice.side_sink(place)
