"""The stages of a wrapped query, whatever their kinds: what is read of their nodes, how their stores are called, and
what an earlier start left in these. Knows the plan and the computation of each kind. Does not know jobs that run.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.plans import cut, rules
from riffle_spark.process.stages import distinct_rows, merged_groups, paired_rows, session_groups, table_rows
from riffle_spark.process.types.stage_specs import stage_kind, unnumbered_name
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
from riffle_spark.state.formats.arrow_schemas import can_become, listed
from riffle_spark.state.log import paths
from riffle_spark.state.schemas.store_schema import StoreSchema, meanings_in, schema_of_text

__all__ = ["ACCEPT", "READERS", "TAKE_OVER", "PlannedStage", "check_dispatch", "check_stored", "planned_stages"]

_logger = logging.getLogger("riffle_spark")

ACCEPT: Final = "riffle.accept"
"""The option with the columns that go on though they mean something else."""
TAKE_OVER: Final = "riffle.take_over"
"""The option with the columns of a ``Stateful`` operator's state that a query goes on with."""
_WITH_PARTITION: Final[Mapping[str, str]] = {
    "aggregate": "group by",
    "distinct": "select",
    "groups": "group by",
    "join": "join on",
    "processor": "group by",
    "table": "join on",
}
"""How a stage of each kind gets the columns of topic and partition."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage, and what was read of its node, whatever kind it is: ``map_side`` makes what slots get of the rows below,
    ``evaluation`` the node's result of what they answer, which is the leaf of its hole. ``meanings`` say what is kept
    in each column of the state, ``kept`` are these columns of an aggregate that has one row a key, ``late`` is what is
    too late where the mode leaves that out, ``said`` more to people. With ``by_clock`` something is due by processing
    time; ``initial`` and ``shown`` are a processor's (``JobOperator``). ``shift_ms`` is how far event time moves in
    it: its results may be so much older than the watermark of its rows (less than 0), and what is late and due behind
    it goes by a watermark that is moved alike. ``closes``: something of it is over at some time.
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
    said: tuple[str, ...]
    by_clock: bool = False
    initial: DataFrame | None = None
    shown: Mapping[str, str] | None = None
    shift_ms: int = 0
    closes: bool = True
    kept: pa.Schema | None = None

    @property
    def inputs(self) -> tuple[cut.Input, ...]:
        """The inputs that it reads."""
        return tuple(below for below in self.below if isinstance(below, cut.Input))

    @property
    def after(self) -> tuple[int, ...]:
        """The numbers of the stages whose results it reads; none: it reads inputs."""
        pieces = [below for below in self.below if isinstance(below, batch_pieces.Piece)]
        return tuple(hole.stage for piece in pieces for hole in piece.holes)

    def operator(self, mode: str, sink: DeliverySink | None, reads: StageInput | None, shift_ms: int) -> JobOperator:
        """Return what a job runs: ``shift_ms`` is how far its watermark is from the query's."""
        whole = mode == "complete" and self.stage.kind == "aggregate"  # as in Spark: only sessions' rows are late then
        late = None if whole and self.late is not None and self.late.by == "keys" else self.late
        keys, compute = tuple(self.keys.names), self.compute(cast(merged_groups.OutputMode, mode))
        return JobOperator(
            self.store, keys, compute, (), True, sink, initial=self.initial, late=late, meanings=self.meanings,
            shown=self.shown if self.stage.kind == "processor" else None, reads=reads, shift_ms=shift_ms,
            closes=self.closes and not whole,
        )  # fmt: skip


def _aggregate(query: cut_query.CutQuery, stage: cut.Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = aggregate_plan.read_aggregate(query.reader, stage.node, taken)
    spec, said = plan.spec, list[str]()
    for function in spec.functions:
        columns, meaning = ", ".join(f"{one.name} {one.type}" for one in function.inputs), function.inputs[0].meaning
        said.append(f"{function.function}: {columns}; {meaning.rpartition(': ')[0] or meaning}")
    if spec.time is not None:
        said.append(f"late and due by {spec.time.column}, {spec.time.delay_ms} ms behind the newest row")
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.stored_key,
        lambda mode: session_groups.groups_of(spec, mode),
        plan.map_side,
        plan.evaluation,
        # A row's own session is late or not before it is one with any other.
        None if spec.time is None else LateRule(spec.time.column, "keys" if spec.routing_key == spec.keys else "rows"),
        {**plan.keys, **{one.name: one.meaning for function in spec.functions for one in function.inputs}},
        tuple(said),
        kept=merged_groups.StoredBuffers.of(spec).schema if spec.routing_key == spec.keys else None,
    )


def _distinct(query: cut_query.CutQuery, stage: cut.Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = distinct_plan.read_distinct(query.reader, stage.node, taken)
    spec = plan.spec
    late = None if spec.time is None else LateRule(spec.time.column, "rows")
    said = ["the first row of a key passes; nothing is kept but the key"]
    if late is not None:
        said.append(f"late by {late.column}; keys go by {spec.due}" if spec.due else f"late by {late.column}")
    if spec.due is None:
        said.append("keys are kept forever: no column of theirs has a watermark")
    meanings = {spec.due: "until when a key is known"} if spec.due and spec.stores_due else {}
    return PlannedStage(
        stage,
        query.below(stage),
        spec.store,
        spec.keys,
        lambda _mode: distinct_rows.DistinctRows(spec),
        plan.map_side,
        plan.evaluation,
        late,
        meanings,
        tuple(said),
    )


def _join(query: cut_query.CutQuery, stage: cut.Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = join_plan.read_join(query.reader, stage.node, taken, stage.used_columns)
    spec, said = plan.spec, list[str]()
    for name, side in (("left", spec.left), ("right", spec.right)):
        leaves = (
            f"leave {side.eviction_delay_ms} ms after {side.due}"
            if side.due
            else "are kept forever: nothing bounds their time"
        )
        said.append(f"{name} rows ({', '.join(side.buffered.names)}) {leaves}")
    said.extend(f"{one.left} {one.function} {one.right}" for one in spec.comparisons)
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
        tuple(said),
        # What is kept that long may be answered then; as in Spark, nobody waits for what is kept for ever.
        shift_ms=-max([0, *(side.eviction_delay_ms for side in (spec.left, spec.right) if side.due)]),
        closes=bool(spec.left.due or spec.right.due),
    )


def _groups(query: cut_query.CutQuery, stage: cut.Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = groups_plan.read_groups(query.reader, stage.node, stage.kind, taken)
    told = GroupsStage.of(plan)
    compute = told.of_frames() if stage.kind == "groups" else told.of_processor()
    return PlannedStage(
        stage,
        query.below(stage),
        plan.spec.store,
        plan.spec.keys,
        lambda _mode: compute,
        plan.map_side,
        plan.evaluation,
        told.late,
        {},
        tuple(told.said()),
        told.time_mode == "ProcessingTime",
        told.initial,
        told.shown,
    )


def _table(query: cut_query.CutQuery, stage: cut.Stage, taken: tuple[str, ...]) -> PlannedStage:
    plan = table_plan.read_table(query.reader, stage.node, taken, stage.used_columns)
    spec = plan.spec
    said = (
        f"the table has of each key the last row by {', '.join(spec.order_by)} ({', '.join(spec.table_columns.names)})",
    )
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
        said,
        closes=False,
    )


READERS: Final[Mapping[str, Callable[[cut_query.CutQuery, cut.Stage, tuple[str, ...]], PlannedStage]]] = {
    "aggregate": _aggregate,
    "distinct": _distinct,
    "groups": _groups,
    "join": _join,
    "processor": _groups,
    "table": _table,
}
"""What reads the node of a stage, by the stage's kind (``cut.Stage``); the names are those of stores that the
query has already.
"""


def planned_stages(found: cut_query.CutQuery, names: str | None) -> list[PlannedStage]:
    """Read the stages' nodes; ``names`` are those of their stores where the user lists them.

    Raises ``ConfigError`` for what is not there in a wrapped query.
    """
    stages = list[PlannedStage]()
    if len(found.top.holes) > 1:
        raise rules.refusal("several_results", found.values.top.plan.kind)
    for one in found.stages:
        if one.kind != "table" and len({type(below) for below in one.below}) > 1:
            raise rules.refusal("result_and_input", one.node.kind)
    named = dict(enumerate(name.strip() for name in (names or "").split(",")))
    if names and len(named) > len(found.stages):
        raise ConfigError(
            f"option('riffle.stores', {names!r}) names {len(named)} stores, but the query has {len(found.stages)} "
            "stateful operators",
            remedy="name one store for each stateful operator, the first operator first",
            where="riffle.stores",
            id="RIFFLE-0323",
        )
    for stage in found.stages:
        taken = tuple(one.store for one in stages)
        planned = READERS[stage.kind](found, stage, taken)
        if named.get(stage.number):
            planned = replace(planned, store=paths.check_store_name(named[stage.number]))
        if planned.store in taken:
            raise ConfigError(
                "two stages have one store", remedy="give each a name of its own", where=planned.store, id="RIFFLE-0324"
            )
        stages.append(planned)
    return stages


def check_dispatch(stages: Sequence[PlannedStage], settings: Settings) -> None:
    """Raise ``ConfigError`` if dispatch is by topic and partition and a stage's rows do not have these columns."""
    if settings.dispatch == "key_group":
        return
    keep = "or keep dispatch = key_group"
    if sum(bool(stage.inputs) for stage in stages) > 1:
        raise ConfigError(
            f"dispatch = {settings.dispatch} routes the rows of one stream, and several operators of this query read "
            "streams",
            remedy=f"start one query for each stream; {keep}",
            where="dispatch",
            id="RIFFLE-0325",
        )
    columns = " and ".join(routing.PARTITION_COLUMNS)
    for stage in stages:
        rows = stage.map_side.catalyst.frame(stage.map_side.plan)
        if stage.stage.kind in ("join", "table"):  # A row of one side has nulls in the columns of the other.
            rows = rows.select(*map(routing.quoted, stage.keys.names))
        if not routing.has_partition_columns(rows):
            how = _WITH_PARTITION[stage.stage.kind]
            raise ConfigError(
                f"dispatch = {settings.dispatch} routes rows by {columns}, and operator {stage.store} gets no such "
                f"columns: it has {', '.join(rows.columns)}",
                remedy=f"{how} {columns} too; {keep}",
                where="dispatch",
                id="RIFFLE-0326",
            )


def check_mode(stages: Sequence[PlannedStage], stored: Mapping[str, Mapping[str, str]], mode: str) -> None:
    """Raise ``ConfigError`` if stored windows end, and ``mode`` keeps all windows, or the reverse.

    Sessions are the same in every mode.
    """
    for stage in stages:
        text = stored.get(stage.store, {})
        if stage.kept is None or stage.late is None or not meanings_in(text):
            continue
        ended = "due" in text
        if ended == (mode != "complete"):
            continue
        earlier = "outputMode('append') or outputMode('update')" if ended else "outputMode('complete')"
        raise ConfigError(
            f"the state was written with {earlier}, and outputMode({mode!r}) cannot continue it: complete mode keeps "
            "all windows, the other modes delete windows that end",
            remedy=f"set {earlier} again; or name a new store to start without state: option('riffle.stores', 'NAME')",
            where=stage.store,
            id="RIFFLE-0327",
        )


def check_stored(
    stages: Sequence[PlannedStage], before: Mapping[str, Mapping[str, str]], accepted: str | None, taken: str | None
) -> None:
    """Compare the stages with the schemas that stores have of an earlier start: raise ``ConfigError`` for a column that
    means something else now and is not ``accepted``, or has no meaning and is not ``taken`` over; warn of what goes.
    """
    names, over = (_Names(f",{told or ''},") for told in (accepted, taken))
    if taken and not any(stage.store in before for stage in stages):
        raise ConfigError(
            f"there is nothing to take over: the stores of the root are {', '.join(sorted(before)) or 'none'}",
            remedy="say which one it is: option('riffle.stores', 'totals'), and the root that its job has",
            where=", ".join(stage.store for stage in stages),
            id="RIFFLE-0328",
        )
    for stage in stages:
        stored = before.get(stage.store, {})
        if stage.kept is not None and "state" in stored and not meanings_in(stored):
            _check_taken(stage, schema_of_text(stage.store, stored), names, over)
        else:
            _check_meanings(stage, meanings_in(stored), names)
    now = {stage.store for stage in stages}
    gone = sorted(before.keys() - now)
    _check_keys(sorted(now - before.keys()), gone, names)
    _check_order(sorted(now ^ before.keys()), now & before.keys(), names)
    for store in gone:
        _logger.warning(
            "[RIFFLE-0329] the query no longer uses store %s; its state stays in the root and takes space there", store
        )


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in an option, between commas. What nobody has named may have spaces and commas in its own name."""

    told: str

    def __contains__(self, name: str) -> bool:
        return f",{name},".replace(" ", "") in self.told.replace(" ", "")


def _check_keys(begun: Sequence[str], gone: Sequence[str], accepted: _Names) -> None:
    """Refuse a store that would begin empty where one of its kind goes: most likely it is that one, by other keys."""
    for store in begun:
        earlier = next((one for one in gone if stage_kind(one) == stage_kind(store) and one not in accepted), None)
        if "." in store and earlier is not None:
            raise ConfigError(
                f"the query no longer has store {earlier!r}, and this store of the same kind would start without state",
                remedy="group by the same columns in the same order, count DISTINCT values as before, and rename or "
                f"reorder results in a select behind it; or option({ACCEPT!r}, {earlier!r}) to start without state: "
                "the state of that store stays in the root",
                where=store,
                id="RIFFLE-0330",
            )


def _check_order(changed: Sequence[str], kept: Set[str], accepted: _Names) -> None:
    """Refuse a stage that comes or goes beside others of its kind and keys: order alone says which store is whose."""
    for store in changed:
        other = next(
            (one for one in kept if unnumbered_name(one) == unnumbered_name(store) and store not in accepted), None
        )
        if other is not None:
            raise ConfigError(
                f"stages of one kind with the same keys were added or removed, and {other!r} may belong to another one",
                remedy="name the stores of all stages, in their order: option('riffle.stores', ...); or "
                f"option({ACCEPT!r}, {store!r}), if the last of these stages was added or removed",
                where=store,
                id="RIFFLE-0331",
            )


def _check_taken(stage: PlannedStage, stored: StoreSchema, accepted: _Names, over: _Names) -> None:
    """Refuse a store that a ``Stateful`` operator has left, of which nobody knows what its columns mean, unless the
    query says with which of them it goes on, and says so of all.
    """
    before = stored.either(lambda plain: plain.state, lambda _: pa.schema([]))
    for problem, remedy in _misfits(stage, stored.key, before, accepted) if len(before) else ():
        raise ConfigError(problem, remedy=remedy, where=stage.store, id="RIFFLE-0332")
    untold = [name for name in before.names if name in stage.meanings and name not in over]
    if untold:
        meant = "; ".join(f"{name} is {stage.meanings[name]}" for name in untold)
        raise ConfigError(
            "the state is that of a Stateful operator, and the query does not say which of its columns it continues",
            remedy=f"option({TAKE_OVER!r}, {','.join(untold)!r}) goes on with it, if this is so: {meant}",
            where=stage.store,
            id="RIFFLE-0333",
        )


def _misfits(stage: PlannedStage, key: pa.Schema, before: pa.Schema, accepted: _Names) -> Iterator[tuple[str, str]]:
    """Yield what of a ``Stateful`` operator's state the query cannot go on with, and what to do."""
    if (key.names, key.types) != (stage.keys.names, stage.keys.types):
        yield (
            f"the state is kept by {listed(key)}, and the query groups by {listed(stage.keys)}",
            "group by columns of these names and types alone, or give the store another name to start without state",
        )
    for wanted in stage.kept or ():
        if wanted.name not in before.names and wanted.name not in accepted:
            yield (
                f"the state has no column {wanted.name!r} ({stage.meanings[wanted.name]}), but {listed(before)}",
                "give the result the alias that the column has there, and rename it in a select behind; or "
                f"option({ACCEPT!r}, {wanted.name!r}), to start it without stored values",
            )
        elif wanted.name in before.names and not can_become(
            pa.schema([before.field(wanted.name)]), pa.schema([wanted])
        ):
            yield (
                f"the state has {before.field(wanted.name).type} under {wanted.name!r}, and the query keeps "
                f"{wanted.type}",
                "cast what is aggregated, or give the result another alias",
            )
    for name in before.names:
        if name not in stage.meanings and name not in accepted:
            yield (
                f"the state has {name!r}, and the query has no result that continues it",
                f"aggregate it, too, under this alias; or option({ACCEPT!r}, {name!r}), to drop its stored values",
            )


def _check_meanings(stage: PlannedStage, before: Mapping[str, str], accepted: _Names) -> None:
    for name, meaning in stage.meanings.items():
        if before.get(name, meaning) != meaning and name not in accepted:
            remedy = (
                f"give the result another alias to start it empty; or set option({ACCEPT!r}, {name!r}) to continue "
            )
            remedy += "with the stored values, if their type stays the same"
            if name in stage.keys.names:
                remedy = f"group by {before[name]}; or set option({ACCEPT!r}, {name!r}) to continue with the stored "
                remedy += (
                    f"keys; or give the key another alias and set option({ACCEPT!r}, {stage.store!r}) to start empty"
                )
            raise ConfigError(
                f"the state has {before[name]} under {name!r}, and the query says {meaning}",
                remedy=remedy,
                where=stage.store,
                id="RIFFLE-0334",
            )
    new = stage.meanings.keys() - before.keys() - set(stage.keys.names) if before else set[str]()
    begins = sorted(name for name in new if name not in accepted)
    if begins and stage.stage.kind in ("join", "table"):
        raise ConfigError(
            f"stored rows of the join have no {', '.join(begins)}, which the query now reads",
            remedy="give the store another name to start without state; or "
            f"option({ACCEPT!r}, {','.join(begins)!r}) to read null there in stored rows",
            where=stage.store,
            id="RIFFLE-0335",
        )
    _check_aliases(stage, before, accepted)
    for name in new:
        _logger.warning("[RIFFLE-0336] store %s: %s is new (%s)", stage.store, name, stage.meanings[name])
    for name in before.keys() - stage.meanings.keys():
        _logger.warning("[RIFFLE-0337] store %s: %s is dropped (%s)", stage.store, name, before[name])


def _check_aliases(stage: PlannedStage, before: Mapping[str, str], accepted: _Names) -> None:
    """Refuse a result whose stored values have another alias: it would start empty, where Spark continues."""
    gone = {meaning: name for name, meaning in before.items() if name not in stage.meanings}
    for name, meaning in stage.meanings.items():
        if name not in before and name not in accepted and meaning in gone:
            raise ConfigError(
                f"the state has {meaning} under {gone[meaning]!r}, and the query calls it {name!r} now",
                remedy=f"keep the alias, and rename the result in a select behind it; or option({ACCEPT!r}, {name!r}), "
                "to start it without stored values and drop the stored ones",
                where=stage.store,
                id="RIFFLE-0338",
            )
