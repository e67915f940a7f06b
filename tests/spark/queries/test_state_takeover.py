"""A wrapped query takes over the state and checkpoint of a ``Stateful`` job, if the query says that each column has the
same meaning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import riffle_spark
from riffle_spark import Stateful, aggregate, count, max_, mean, sum_
from riffle_spark.batch_times import TimeMode
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import Declared
from riffle_spark.process.plans.cut import Stage
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.spark.queries.stored_stages import check_expiry, check_stored
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import make_recorded_text
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.streams.streaming import CollectingSink, Feed, committed, run_to_end, settings_in

BATCHES: list[list[tuple[str, int | None]]] = [
    [("a", 1), ("b", 2), ("a", 3)],
    [("b", None), ("c", 9)],
    [("a", 5), ("d", None)],
    [("c", 1), ("b", 2)],
]
TOTALS = {"visits": "count(*)", "total": "sum(n)", "mean": "avg(n)", "most": "max(n)"}


class TotalsFeed:
    """A feed whose totals are first computed by a ``Stateful`` job and then by a query."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.checkpoint = spark, folder, folder / "c"
        self.feed = Feed(folder / "in", "page string, n long")
        self.told = dict[int, list[Row]]()
        self.fails = False

    def add(self, batch: int) -> None:
        """Add the rows of a batch."""
        self.feed.add({"page": page, "n": n} for page, n in BATCHES[batch])

    def run_job(self) -> None:
        """Run the job over all new rows."""
        compute = aggregate(visits=count(), total=sum_("n"), mean=mean("n"), most=max_("n"))
        totals = Stateful("totals", "page", compute, settings=settings_in(self.folder))
        run_to_end(self.feed.stream(self.spark), totals.into(CollectingSink()), self.checkpoint)

    def run_query(self, **options: str) -> None:
        """Run the query over all new rows."""
        events = riffle_spark.on(self.feed.stream(self.spark), settings=settings_in(self.folder))
        counted = events.groupBy("page").agg(*self.totals())
        writer = counted.writeStream.outputMode("update").foreachBatch(self._keep).trigger(availableNow=True)
        options = {"riffle.stores": "totals", "checkpointLocation": str(self.checkpoint), **options}
        query = writer.options(**options).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _keep(self, rows: DataFrame, batch_id: int) -> None:
        if self.fails:
            self.fails = False
            raise RuntimeError("the sink is full")
        self.told[batch_id] = sorted(rows.collect())

    def expected(self) -> list[Row]:
        """Return the totals of all rows of the feed."""
        return sorted(self.feed.table(self.spark).groupBy("page").agg(*self.totals()).collect())

    @staticmethod
    def totals() -> list[Column]:
        """Return the totals as aggregate functions."""
        return [F.expr(text).alias(name) for name, text in TOTALS.items()]


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.long
def test_a_query_takes_over_the_state_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    """A query takes over a job's state and checkpoint: each row counts once, although Spark has not committed the job's
    last batch and the query's first one is repeated.

    Afterwards the job is refused, and the query continues without the option.
    """
    counting, over = TotalsFeed(spark, tmp_path), {"riffle.take_over": "visits, total, mean_sum, mean_count, most"}
    counting.add(0)
    counting.add(1)
    counting.run_job()
    for name in ("1", ".1.crc"):
        (counting.checkpoint / "commits" / name).unlink()
    counting.add(2)
    with pytest.raises(ConfigError, match="RIFFLE-0333"):
        counting.run_query()
    counting.fails = True
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        counting.run_query(**over)
    counting.run_query(**over)
    assert counting.told == {2: [row for row in counting.expected() if row.page in "ad"]}
    counting.add(3)
    with pytest.raises(StreamingQueryException, match="RIFFLE-0222"):
        counting.run_job()
    counting.run_query()
    assert sorted(counting.told) == [2, 3]
    assert sorted({row.page: row for batch in (2, 3) for row in counting.told[batch]}.values()) == counting.expected()
    assert committed(f"file://{tmp_path}/state") == [0, 1, 2, 3]


STATE = pa.schema({"visits": pa.int64(), "total": pa.int64(), "most": pa.int32()})
MEANT = {"visits": "count(1): count", "total": "sum(n): sum", "most": "max(n): max"}


def stage(kept: pa.Schema, key: pa.Schema) -> PlannedStage:
    """Return a stage with these state columns and keys, without a plan of Spark."""
    nothing: Any = None
    of_plan = Stage(0, "aggregate", nothing, ())
    meant = {name: MEANT.get(name, f"count({name}): count") for name in kept.names}
    return PlannedStage(of_plan, (), "totals", key, nothing, nothing, nothing, None, meant, (), buffers=kept)


def start(
    kept: pa.Schema = STATE, key: str = "page", store: str = "totals", accepted: str = "", taken: str = ""
) -> None:
    """Check the stored schema of a job, as a query does when it starts."""
    stored = PlainColumns("totals", pa.schema({"page": pa.string()}), STATE).to_text()
    check_stored([stage(kept, pa.schema({key: pa.string()}))], {store: stored}, accepted, taken)


MORE, FEWER = STATE.append(pa.field("views", pa.int64())), STATE.remove(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "RIFFLE-0333.*'visits,total,most'.*visits is count.1.: count, total is sum"),
        ({"taken": "visits, most"}, "RIFFLE-0333.*'total'"),
        ({"kept": MORE, "taken": "visits,total,most"}, "RIFFLE-0332.*'views'"),
        ({"kept": FEWER, "taken": "visits,most"}, "RIFFLE-0332.*'total'"),
        ({"kept": STATE.set(0, pa.field("visits", pa.int32()))}, "RIFFLE-0332.*int64.*int32"),
        ({"key": "user"}, "RIFFLE-0332.*page: string.*user: string"),
        ({"store": "others", "taken": "total"}, "RIFFLE-0328.*others"),
    ],
)
def test_state_that_cannot_be_taken_over_is_refused_by_column(changes: dict[str, Any], message: str) -> None:
    """State that cannot be taken over is refused before the query runs, and the error names the columns as the option
    expects them.
    """
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        start(**changes)


def test_new_and_removed_columns_must_be_accepted_by_name() -> None:
    """Stored columns may get wider types. New and removed columns must be accepted by name."""
    start(taken="visits, total, most")
    start(STATE.set(2, pa.field("most", pa.int64())), taken="visits,total,most")
    start(MORE, taken="visits,total,most", accepted="views")
    start(FEWER, taken="visits,most", accepted="total")


def continue_with(meanings: dict[str, str], kind: str = "aggregate", accepted: str = "") -> None:
    """Check a query with these results against stored visits and totals."""
    key = pa.schema({"page": pa.string()})
    schema = PlainColumns("totals", key, STATE.remove(2))
    stored = {"totals": make_recorded_text(None, schema, 0, {"visits": MEANT["visits"], "total": MEANT["total"]})}
    query = replace(stage(STATE, key), meanings=meanings)
    check_stored([replace(query, stage=replace(query.stage, kind=kind))], stored, accepted, "")


def test_new_and_changed_results_with_distinct_are_refused_even_if_accepted() -> None:
    """A result with DISTINCT cannot start empty or get another meaning: the counted values stay in the store."""
    key, columns = pa.schema({"page": pa.string(), "user": pa.string()}), pa.schema({"users": pa.int64()})
    users = {"users": "count(DISTINCT user): count"}
    schema = PlainColumns("totals", key, columns, routed_by=("page",))
    stored = {"totals": make_recorded_text(None, schema, 0, users)}
    query = replace(stage(columns, key), meanings=users, buffers=None, distinct=("users",))
    check_stored([query], stored, "", "")
    check_stored([query], {}, "", "")
    check_stored([replace(query, meanings={**users, "visits": MEANT["visits"]})], stored, "", "")
    for name, function in (("u", "count(DISTINCT user)"), ("users", "count(DISTINCT user) FILTER (WHERE ok)")):
        changed = replace(query, meanings={name: f"{function}: count"}, distinct=(name,))
        with pytest.raises(ConfigError, match="RIFFLE-1830"):
            check_stored([changed], stored, name, "")


def test_a_hashed_result_continues_from_state_that_did_not_record_its_type() -> None:
    """State of an earlier version lacks the type of a hashed column. Another recorded type is refused."""
    key, columns = pa.schema({"page": pa.string()}), pa.schema({"users": pa.binary()})
    counted = "approx_count_distinct(user), relativeSD 0.05"
    query = replace(stage(columns, key), meanings={"users": f"{counted}, of bigint"}, buffers=None)
    for recorded in (counted, f"{counted}, of bigint"):
        text = make_recorded_text(None, PlainColumns("totals", key, columns), 0, {"users": recorded})
        check_stored([query], {"totals": text}, "", "")
    text = make_recorded_text(None, PlainColumns("totals", key, columns), 0, {"users": f"{counted}, of int"})
    with pytest.raises(ConfigError, match="RIFFLE-0334"):
        check_stored([query], {"totals": text}, "", "")


def test_a_renamed_key_is_not_advised_to_be_accepted_like_a_result() -> None:
    """The first batch refuses it, because no option accepts another key."""
    key, schema = pa.schema({"v_z": pa.string()}), PlainColumns("totals", pa.schema({"v_y": pa.string()}), STATE)
    stored = {"totals": make_recorded_text(None, schema, 0, {**MEANT, "v_y": "v.part"})}
    query = replace(stage(STATE, key), meanings={**MEANT, "v_z": "v.part"})
    check_stored([query], stored, "", "")


def test_a_result_keeps_its_stored_values_under_its_alias_only() -> None:
    """A result with another meaning is refused under a stored alias, and so is a stored result under another alias.
    Each can be accepted by name.
    """
    other, renamed = {**MEANT, "total": "max(n): max"}, {"visits": MEANT["visits"], "sum": MEANT["total"]}
    with pytest.raises(ConfigError, match="RIFFLE-0334") as refused:
        continue_with(other)
    assert "'total'" in refused.value.remedy
    continue_with(other, accepted="total")
    with pytest.raises(ConfigError, match="RIFFLE-0338") as refused:
        continue_with(renamed)
    assert "Keep the alias" in refused.value.remedy
    continue_with(renamed, accepted="sum")


def test_new_and_removed_results_are_named_in_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names a result that starts empty, and another one a result whose stored values are dropped."""
    continue_with({"visits": MEANT["visits"], "most": MEANT["most"]})
    new, removed = (record.getMessage() for record in caplog.records)
    assert new.startswith("[RIFFLE-0336] Column most (max(n): max) of store totals is new")
    assert removed.startswith("[RIFFLE-0337] Column total (sum(n): sum) of store totals is no longer used")


def test_a_join_that_reads_another_column_is_refused_until_it_is_accepted() -> None:
    """Stored rows of a join have only the columns that the query read before. Another one can be accepted as NULL."""
    with pytest.raises(ConfigError, match="RIFFLE-0335") as refused:
        continue_with(MEANT, "join")
    assert "'most'" in refused.value.remedy
    continue_with(MEANT, "join", accepted="most")


@pytest.mark.parametrize(("earlier", "present"), [("Inner", "LeftOuter"), ("LeftOuter", "Inner")])
def test_a_join_of_another_type_is_refused_even_if_it_is_accepted(earlier: str, present: str) -> None:
    """An outer join would emit stored rows of an inner join that have already matched. Other bounds can be accepted."""
    key = pa.schema({"page": pa.string()})
    schema = PlainColumns("totals", key, STATE.remove(2))
    stored = {"totals": make_recorded_text(None, schema, 0, {"join": f"{earlier} (m > n)"})}
    join = replace(stage(STATE, key), meanings={"join": f"{present} (m > n)"})
    join = replace(join, stage=replace(join.stage, kind="join"))
    with pytest.raises(ConfigError, match=f"RIFFLE-1780.*{earlier}.*{present}"):
        check_stored([join], stored, "join", "")
    bounded = replace(join, meanings={"join": f"{earlier} (m > n + 1)"})
    with pytest.raises(ConfigError, match=r"(?s)RIFFLE-0334.*'riffle.stores'.*'riffle.accept', 'join'"):
        check_stored([bounded], stored, "", "")
    check_stored([bounded], stored, "join", "")


def test_stored_rows_with_a_column_called_join_continue() -> None:
    """Earlier versions did not store the type of a join with such a column, so it cannot be compared."""
    key = pa.schema({"page": pa.string()})
    stored = {
        "totals": make_recorded_text(None, PlainColumns("totals", key, STATE.remove(2)), 0, {"join": "left join"})
    }
    join = replace(stage(STATE, key), meanings={"join_2": "LeftOuter", "join": "left join"})
    check_stored([replace(join, stage=replace(join.stage, kind="join"))], stored, "", "")


def test_a_renamed_field_of_a_group_state_is_refused_until_it_is_accepted() -> None:
    """Spark continues a renamed field, because the function gets a tuple. Here it would start empty. Fields may be
    added, removed and reordered.
    """
    key = pa.schema({"page": pa.string()})
    stored = {"totals": PlainColumns("totals", key, STATE).to_text()}

    def start_with(names: list[str], accepted: str = "") -> None:
        state = pa.schema({name: pa.int64() for name in names})
        function: Any = SimpleNamespace(declare=lambda *_: Declared(state, state, None, per_key_group=False))
        query = replace(stage(STATE, key), buffers=None, meanings={}, compute=lambda _: function)
        check_stored([replace(query, stage=replace(query.stage, kind="groups"))], stored, accepted, "")

    start_with(["most", "visits", "total", "views"])
    start_with(["visits"])
    with pytest.raises(ConfigError, match=r"RIFFLE-1800.*views instead of total") as refused:
        start_with(["visits", "views", "most"])
    assert "'views'" in refused.value.remedy
    start_with(["visits", "views", "most"], accepted="views")


def test_names_of_unnamed_columns_can_be_copied_from_the_error() -> None:
    """Names of unnamed columns, which may have spaces and commas, can be copied from the error message into
    the option.
    """
    odd = pa.schema(dict.fromkeys(["max_by(n, at)", "sum((n + 1))", "at"], pa.int64()))
    key = pa.schema({"page": pa.string()})
    stored = {"totals": PlainColumns("totals", key, odd).to_text()}
    with pytest.raises(ConfigError, match="RIFFLE-0333"):
        check_stored([stage(odd, key)], stored, "", "max_by(n, at), sum((n + 1))")
    check_stored([stage(odd, key)], stored, "", "max_by(n, at),sum((n + 1)),at")
    check_stored([stage(odd.remove(1), key)], stored, "sum((n + 1))", "max_by(n, at), at")


@pytest.mark.parametrize(("time", "mode"), [("EventTime", "complete"), ("None", "append"), ("None", "update")])
def test_a_store_with_ending_windows_cannot_switch_to_complete_mode(time: TimeMode, mode: str) -> None:
    """A store in complete mode cannot continue in another mode if its windows end, nor the other way round. All other
    modes can.
    """
    key = pa.schema({"page": pa.string(), "end": pa.timestamp("us", "UTC")})
    query = stage(STATE, key)
    schema = PlainColumns("totals", key, STATE, None if time == "None" else "end", time)
    stored = {"totals": make_recorded_text(None, schema, 0, query.meanings)}
    with pytest.raises(ConfigError, match="RIFFLE-0327"):
        check_expiry([query], stored, mode)
    for same in {"complete", "append", "update"} - ({mode} if time != "None" else {"append", "update"}):
        check_expiry([query], stored, same)
    if time == "None":
        check_expiry([replace(query, closes=False)], stored, mode)
    check_expiry([replace(query, store="other")], stored, mode)


@pytest.mark.parametrize(
    ("kind", "expires", "message"),
    [
        ("distinct", True, "query deletes keys that end.*keeps all keys"),
        ("distinct", False, "query keeps all keys.*deletes keys that end"),
        ("Inner join", True, None),
        ("LeftSemi join", True, None),
        ("LeftOuter join", True, "query deletes rows that end.*keeps all rows"),
        ("FullOuter join", True, "query deletes rows that end.*keeps all rows"),
        ("Inner join", False, "query keeps all rows.*deletes rows that end"),
        ("processor", False, None),
    ],
)
def test_keys_and_rows_do_not_begin_or_end_to_expire(kind: str, expires: bool, message: str | None) -> None:
    """A query whose watermark was added or removed is refused at its start. Only rows of a join may expire from then
    on, except those of an outer join: it would never emit the rows that are stored without a due time.
    """
    key = pa.schema({"at": pa.timestamp("us", "UTC")})
    empty = pa.schema([])
    listed = VariableColumns("totals", key, (Variable("left", "list", empty),), indexed=not expires)
    columns = PlainColumns("totals", key, empty, *((None, "None") if expires else ("at", "EventTime")))
    stored = {"totals": (columns if kind == "distinct" else listed).to_text()}
    query = stage(empty, key)
    query = replace(query, stage=replace(query.stage, kind=kind.rsplit(maxsplit=1)[-1]), buffers=None, closes=expires)
    query = replace(query, meanings={"join": kind})
    check_expiry([replace(query, closes=not expires)], stored, "append")
    if message is None:
        check_expiry([query], stored, "append")
        return
    with pytest.raises(ConfigError, match=f"RIFFLE-0327.*{message}"):
        check_expiry([query], stored, "append")


@pytest.mark.parametrize("accepted", ["", "distinct.page"])
def test_a_store_with_other_keys_is_refused_until_it_is_accepted(accepted: str) -> None:
    """If a store of the same kind with other keys was removed, the query is refused until the removed store is
    accepted.
    """
    query = replace(stage(STATE, pa.schema({"n": pa.int64()})), store="aggregate.n-page")
    nothing: dict[str, dict[str, str]] = {"aggregate.page-n": {}}
    with pytest.raises(ConfigError, match="RIFFLE-0330"):
        check_stored([query], nothing, accepted, "")
    check_stored([query], nothing, "aggregate.page-n", "")
    for begins, goes in (("exact.page-n", "aggregate.page"), ("within.n", "distinct.n"), ("processor.n", "groups.n")):
        for store, before in ((begins, goes), (goes, begins)):
            with pytest.raises(ConfigError, match="RIFFLE-0330"):
                check_stored([replace(query, store=store)], {before: {}}, accepted, "")
    check_stored([query], {**nothing, "aggregate.n-page": {}}, accepted, "")
    check_stored([query], {"distinct.page": {}}, accepted, "")


def test_adding_or_removing_a_stage_with_a_shared_name_is_refused() -> None:
    """If one of several stages with the same name is added or removed, the query is refused, because their numbers may
    shift.
    """
    nothing: dict[str, str] = {}
    first, second = (replace(stage(STATE, pa.schema({"page": pa.string()})), store=name) for name in ("a.n", "a.n-2"))
    for stages, before in (([first, second], ["a.n"]), ([first], ["a.n", "a.n-2"]), ([second], ["a.n", "a.n-2"])):
        stored = dict.fromkeys(before, nothing)
        with pytest.raises(ConfigError, match="RIFFLE-0331"):
            check_stored(stages, stored, "", "")
        check_stored(stages, stored, "a.n-2, a.n", "")
    check_stored([first, second], dict.fromkeys(["a.n", "a.n-2"], nothing), "", "")
    check_stored([first, replace(second, store="a.n-page")], {"a.n": nothing}, "", "")
