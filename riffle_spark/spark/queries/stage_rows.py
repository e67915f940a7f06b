"""The rows of a wrapped query's stages in each batch: what Spark's query hands over, where each stage has its own from,
and what was too late for the first one. Knows planned stages. Does not know how their nodes were read.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.built import end_value
from riffle_spark.process.plans.cut import Input
from riffle_spark.process.plans.grouping_keys import find_event_time
from riffle_spark.protocol.ports import Delivery
from riffle_spark.spark.engine.spark_batch import DeliverySink
from riffle_spark.spark.job_operators import JobOperator
from riffle_spark.spark.plans import batch_pieces, plan_nodes
from riffle_spark.spark.plans.tree_builder import TreeBuilder
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.spark.sinks import sink_choice

__all__ = ["LateRows", "dead_letters", "input_of", "inputs_of", "late_rows", "operators_of"]

_SHARE: Final = "rows_"
"""What the columns of a batch are called that has rows for several stages, each with its number behind."""
_LATE_BY: Final = "__riffle_late_by"
_OF_USERS: Final = ("groups", "processor")
"""The kinds of stages that call a function of the user's key by key."""


class StageRows:
    """The rows that a stage's slots get where these are not the batch: those of one of its columns, ``share``, where
    each stage that reads inputs has one; results of other stages under the pieces between; or both, a side each.
    """

    def __init__(self, stages: Sequence[PlannedStage], stage: PlannedStage, share: str | None) -> None:
        self.after = tuple(stages[one].store for one in stage.after)
        self.empty = stage.map_side.catalyst.frame(stage.map_side.plan)
        self._map_side, self._share = stage.map_side, share
        below = dict(enumerate(stage.below))
        self._pieces = {at: one for at, one in below.items() if isinstance(one, batch_pieces.Piece)}
        self._results = {
            one: (stages[one].store, batch_pieces.StageResults(stages[one].evaluation)) for one in stage.after
        }
        self._leaves = _leaves(stage.map_side) if share and self._pieces else {}

    def frame(self, batch: DataFrame, answers: Mapping[str, DataFrame], time_ms: int) -> DataFrame:
        """Return the rows of a batch."""
        catalyst = plan_nodes.Catalyst(batch.sparkSession)
        share: plan_nodes.Node | None = None
        if self._share is not None:
            share = plan_nodes.analysed(batch.where(F.col(self._share).isNotNull()).select(f"{self._share}.*"))
        if not self._pieces:
            assert share is not None, "a stage without pieces reads the batch"
            return catalyst.computed(share)
        results = {one: rows.plan(answers[store], time_ms) for one, (store, rows) in self._results.items()}
        below = {at: piece.fill(results, time_ms) for at, piece in self._pieces.items()}
        plan = self._map_side.fill({**self._leaves, **below}, time_ms)
        if share is not None:
            sides = plan_nodes.children(plan)
            sides[1 - min(self._pieces)] = share
            plan = plan.withNewChildren(catalyst.seq(sides))
        return catalyst.computed(plan)


def inputs_of(stages: Sequence[PlannedStage]) -> list[DataFrame]:
    """Return the streams of rows that the slots of stages get which read inputs."""
    return [one.map_side.catalyst.frame(_of_inputs(one)) for one in stages if one.inputs]


def _of_inputs(stage: PlannedStage) -> plan_nodes.Node:
    """Return the plan of a stage's rows that come of inputs: of the two sides of one, where the other is of results."""
    below = {at: stage.map_side.reader.build(one.plan) for at, one in enumerate(stage.below) if isinstance(one, Input)}
    plan = stage.map_side.fill({**_leaves(stage.map_side), **below})
    return plan_nodes.children(plan)[min(below)] if stage.after else plan


def _leaves(piece: batch_pieces.Piece) -> dict[int, plan_nodes.Node]:
    """Return what stands in the holes of a piece before there is anything."""
    return {hole.stage: piece.leaf(hole) for hole in piece.holes}


def input_of(stages: Sequence[PlannedStage]) -> DataFrame:
    """Return all that stages read of inputs as one stream: where several do, each row has a column for each of them,
    and is in the one whose it is.
    """
    frames = inputs_of(stages)
    if len(frames) == 1:
        return frames[0]
    tagged = [
        frame.select(
            *[
                (F.struct("*") if other is frame else F.lit(None).cast(other.schema)).alias(f"{_SHARE}{at}")
                for at, other in enumerate(frames)
            ]
        )
        for frame in frames
    ]
    return reduce(DataFrame.union, tagged)


def operators_of(
    stages: Sequence[PlannedStage], mode: str, sink: DeliverySink, letters: sink_choice.Give | None = None
) -> list[JobOperator]:
    """Return what a job runs: the sink takes the results of the last stage, and each other one is read by another;
    ``letters`` takes the dead letters of the one with a function of the user's.
    """
    made, left_at = list[JobOperator](), list[int]()
    readers = [one.stage.number for one in stages if one.inputs]
    for stage in stages:
        share = f"{_SHARE}{readers.index(stage.stage.number)}" if len(readers) > 1 and stage.inputs else None
        reads = StageRows(stages, stage, share) if stage.after or share else None
        # As in Spark, an operator goes by the earliest of what comes to it.
        shift_ms = min((left_at[one] for one in stage.after), default=0)
        operator = stage.operator(mode, sink if stage is stages[-1] else None, reads, shift_ms)
        if letters is not None and stage.stage.kind in _OF_USERS:
            operator = replace(operator, dead_letters=letters, shown=stage.shown)
        made.append(operator)
        left_at.append(shift_ms + stage.shift_ms)
    return made


class LateRows:
    """The rows that the stage which reads the input leaves out as too late, and the sink of their own that takes them.

    Spark's query then hands over rows as they are below the stage, and its map side is put on each batch of them.
    """

    def __init__(self, stage: PlannedStage, time: plan_nodes.Node, give: sink_choice.Give) -> None:
        catalyst, (hole,) = stage.map_side.catalyst, stage.map_side.holes
        (below,) = stage.inputs
        self._catalyst, self._plan, self._give = catalyst, stage.map_side.reader.build(below.plan), give
        self._mapped = batch_pieces.StageResults(stage.map_side)
        attributes = stage.map_side.leaf(hole).output()
        self._rows = batch_pieces.FrameRows(catalyst, attributes)
        self._columns = [*plan_nodes.items(attributes), catalyst.alias(time, _LATE_BY)]
        self.names = [str(one.name()) for one in plan_nodes.items(attributes)]

    def input(self) -> DataFrame:
        """Return the stream of rows, whose columns have names that are one's alone."""
        columns = enumerate(plan_nodes.items(self._plan.output()))
        named = [self._catalyst.alias(one, f"column_{index}") for index, one in columns]
        return self._catalyst.frame(self._catalyst.project(named, self._plan))

    def mapped(self, batch: DataFrame, time_ms: int) -> DataFrame:
        """Return what slots get of a batch's rows, as of the batch's time."""
        return plan_nodes.Catalyst(batch.sparkSession).computed(self._mapped.plan(batch, time_ms))

    def deliver(self, batch: DataFrame, late_ms: int, delivery: Delivery) -> None:
        """Give on those rows of a batch that are late by a watermark."""
        plan = self._catalyst.project(self._columns, self._rows.project(batch))
        rows = plan_nodes.Catalyst(batch.sparkSession).frame(plan)
        late = rows.where(f"{_LATE_BY} <= timestamp_millis({late_ms})")
        self._give(late.drop(_LATE_BY), delivery)


def _event_time_of(stage: PlannedStage) -> plan_nodes.Node | None:
    """Return by what the rows below a stage are late, as an expression of them; ``None``: by nothing."""
    reader, node = stage.map_side.reader, stage.stage.node
    _, columns = reader.read_output(reader.fetch(node.handle).child())
    if node.kind == "Aggregate":
        by_id = {column.id: column for column in columns}
        grouping = node.expressions.get("groupingExpressions", ())
        bare = [each.children[0] if each.kind == "Alias" else each for each in grouping]
        columns = tuple(by_id[each.id] for each in bare if each.kind == "AttributeReference")
    time = find_event_time(columns)
    return None if time is None else TreeBuilder(reader).expression(end_value(time))


def late_rows(stages: Sequence[PlannedStage], mode: str, given: str | Callable[..., object] | None) -> LateRows | None:
    """Return the side output of a query's late rows, if it is to have one.

    Raises ``ConfigError`` where no rows can be late, and for a join, whose rows are of two streams.
    """
    if given is None:
        return None
    first = next((one for one in stages if not one.after), None)
    if sum(len(one.inputs) for one in stages) > 1:
        raise ConfigError(
            "late_rows is not there where a query reads several streams: their rows have not the same columns",
            remedy="leave late_rows out; a query of its own for each stream, with an aggregate, can tell its late rows",
            where="late_rows",
            id="RIFFLE-0343",
        )
    time = _event_time_of(first) if first else None
    if first is None or time is None or first.operator(mode, None, None, 0).late is None:
        raise ConfigError(
            "late_rows is set, but this query never drops late rows",
            remedy="put withWatermark before the stateful operator, which has to go by that time, in append or update "
            "mode; or leave late_rows out",
            where="late_rows",
            id="RIFFLE-0344",
        )
    rows = LateRows(first, time, sink_choice.side_sink(given))
    if isinstance(given, str):
        _check_no_name_twice([*rows.names, "batch_id"])
    return rows


def _check_no_name_twice(names: Sequence[str]) -> None:
    twice = next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
    if twice is not None:
        raise ConfigError(
            f"late rows would have two columns {twice!r} in their folder: the window's, or the batch's number, is one",
            remedy="give the stream's column another name, or late_rows a function",
            where="late_rows",
            id="RIFFLE-0345",
        )


def dead_letters(
    stages: Sequence[PlannedStage], given: str | Callable[..., object] | None
) -> sink_choice.Give | None:  # fmt: skip
    """Return the side output of rows that a query's function fails on, if it is to have one.

    Raises ``ConfigError`` where no function of the user's gets rows key by key, or several do.
    """
    if given is None:
        return None
    count = sum(stage.stage.kind in _OF_USERS for stage in stages)
    if not count:
        raise ConfigError(
            "dead_letters is set, but the query has no function that could fail on a row: applyInPandasWithState, "
            "transformWithState or transformWithStateInPandas",
            remedy="leave dead_letters out. Spark's own expressions say what becomes of what they cannot read: "
            "from_json and try_cast make it null, and a query of its own can take that by where()",
            where="dead_letters",
            id="RIFFLE-0346",
        )
    if count > 1:
        raise ConfigError(
            "dead_letters is not there for a query with several functions of yours: they get rows of other columns",
            remedy="leave dead_letters out, or make two queries with a sink between them",
            where="dead_letters",
            id="RIFFLE-0347",
        )
    return sink_choice.side_sink(given)
