"""Every one-line edit of a job between two runs keeps or migrates its state, or is refused with an error. No edit
silently changes the meaning of state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle, transform_with_state
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Watermark
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.process.blocks.block import Computation
from riffle_spark.process.merging.aggregates import aggregate, count, first, last, max_, mean, sum_
from riffle_spark.protocol.operator import Operator, operator_of, with_watermark
from riffle_spark.settings import Settings
from riffle_spark.state.schemas.store_schema import read_operator_meanings
from riffle_spark.testing import SimSink
from tests.kit.simulated.world import World

TIME = pa.timestamp("us", "UTC")
NUMBERS = {"v": pa.int64(), "w": pa.int64(), "n": pa.int32(), "at": pa.int64()}
ROWS = pa.schema({"k": pa.string(), "j": pa.string(), **NUMBERS, "t": TIME, "u": TIME})
WIDER = ROWS.set(4, pa.field("n", pa.int64()))
BEFORE = {"k": "a", "j": "x", "v": 5, "w": 50, "n": 2, "at": 1, "t": 1_000_000, "u": 1_000_000}
AFTER = {"k": "a", "j": "x", "v": 3, "w": 70, "n": 1, "at": 2, "t": 2_000_000, "u": 2_000_000}
Made = Callable[[], Operator]
Values = Mapping[str, object]


def keyed(compute: Computation, *key: str, order_by: Sequence[str] = (), rows: pa.Schema = ROWS) -> Made:
    """Return a function that makes an operator of store ``s``."""
    return lambda: operator_of("s", key or ("k",), compute, order_by, rows)


def counted(**columns: Any) -> Made:
    """Return a function that makes aggregates by ``k``."""
    return keyed(aggregate(**columns))


def kept(
    state: Mapping[str, object],
    *,
    times: int = 1,
    output: Sequence[str] = ("k", "seen"),
    not_null: bool = False,
    **options: Any,
) -> Made:
    """Return a function that makes an operator that counts the rows of a key, and outputs ``times`` the count."""
    columns = pa.schema([pa.field(name, kind, nullable=not not_null) for name, kind in state.items()])

    def call(rows: pa.Table, old: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Count the rows of each key."""
        before = {row["k"]: row for row in old.to_pylist()}
        new = {key: {**before.get(key, {}), "k": key} for key in rows["k"].to_pylist()}
        for key in rows["k"].to_pylist():
            new[key]["seen"] = (new[key].get("seen") or 0) + 1
        results = [{"k": key, "seen": row["seen"] * times, "j": "more"} for key, row in new.items()]
        schema = pa.schema(
            [("k", pa.string()), *((name, pa.string() if name == "j" else pa.int64()) for name in output[1:])]
        )
        shaped = pa.Table.from_pylist([{name: row[name] for name in output} for row in results], schema=schema)
        stored = pa.Table.from_pylist(list(new.values()), schema=pa.schema([("k", pa.string()), *columns]))
        return shaped, stored

    schema = pa.schema(
        [("k", pa.string()), *((name, pa.string() if name == "j" else pa.int64()) for name in output[1:])]
    )
    return keyed(arrow_function(call, state=columns, output=schema, **options))


class Counting(StatefulProcessor):
    """Counts the rows of a key in a variable of the given name and kind."""

    def __init__(self, name: str = "seen", kind: str = "value", field: str = "n long", **options: Any) -> None:
        self.name, self.kind, self.field, self.options = name, kind, field, options

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variables."""
        lives = self.options.get("ttl_ms")
        if self.kind == "value":
            self.seen: Any = handle.getValueState(self.name, self.field, lives)
        elif self.kind == "list":
            self.seen = handle.getListState(self.name, self.field, lives)
        else:
            self.seen = handle.getMapState(self.name, self.options.get("map_key", "c string"), self.field, lives)
        for more in self.options.get("more", ()):
            handle.getValueState(more, "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Count the rows and output the count."""
        added = len(list(rows))
        if self.kind == "value":
            total = (self.seen.get() or (0,))[0] + added
            self.seen.update((total, *[None] * self.field.count(",")))
        elif self.kind == "list":
            for _ in range(added):
                self.seen.appendValue((1,))
            total = len(list(self.seen.get()))
        else:
            map_key = ("c",) if "string" in self.options.get("map_key", "c string") else (1,)
            total = (self.seen.getValue(map_key) or (0,))[0] + added
            self.seen.updateValue(map_key, (total,))
        yield Row(k=key[0], seen=total * self.options.get("times", 1))


def processed(*of: str, key: Sequence[str] = ("k",), time_mode: str = "None", output: str = "", **options: Any) -> Made:
    """Return a function that makes an operator of the processor."""
    columns = output or "k string, seen long"

    def make() -> Operator:
        declared = transform_with_state(
            Counting(*of, **options), key=list(key), output=columns, time_mode=time_mode, store="s"
        )
        return operator_of("s", declared.key, declared.compute, (), ROWS)

    return make


@dataclass(frozen=True)
class Edit:
    """The operator before and after an edit, and the expected output row of key ``a``.

    If the edit is ``refused``, the error contains that text, and the row is expected after the column or store in
    ``accept`` is accepted. ``warns`` is in a warning of the first batch after the edit.
    """

    before: Made
    after: Made
    row: Values | None = None
    refused: str = ""
    accept: str = ""
    warns: str = ""
    settings: Mapping[str, object] | None = None


def timed(mode: str = "EventTime", due: str = "until") -> Mapping[str, Any]:
    """Return the arguments that make a function expire keys."""
    return {"due": due, "time_mode": mode}


COUNT, TOTAL, SEEN = {"n": count()}, {"total": sum_("v")}, {"seen": pa.int64()}
UNTIL = {**SEEN, "until": pa.int64(), "later": pa.int64()}
FLOATS = ROWS.set(2, pa.field("v", pa.float64()))
SCHEMA = "has another schema"

AGGREGATES = {
    "the same": Edit(counted(**TOTAL), counted(**TOTAL), {"total": 8}),
    "a result more": Edit(counted(**TOTAL), counted(**TOTAL, **COUNT), {"total": 8, "n": 1}, warns="n starts without"),
    "a result less": Edit(counted(**TOTAL, **COUNT), counted(**TOTAL), {"total": 8}, warns="n is dropped"),
    "results in another order": Edit(counted(**TOTAL, **COUNT), counted(**COUNT, **TOTAL), {"total": 8, "n": 2}),
    "another function": Edit(
        counted(**TOTAL), counted(total=max_("v")), {"total": 5}, "under 'total', but the job declares max_", "total"
    ),
    "another function that keeps other columns": Edit(
        counted(**TOTAL), counted(total=mean("v")), {"total": 3.0}, "declares mean('v')", "total", "total is dropped"
    ),
    "another function under a name with a comma": Edit(
        counted(**{"v, all": sum_("v")}), counted(**{"v, all": max_("v")}), {"v, all": 5}, "max_('v')", "v, all"
    ),
    "another column": Edit(counted(**TOTAL), counted(total=sum_("w")), {"total": 75}, "sum_('w')", "total"),
    "a column instead of rows": Edit(counted(**COUNT), counted(n=count("v")), {"n": 2}, "count() under 'n'", "n"),
    "another argument": Edit(
        counted(f=first("v")), counted(f=first("v", ignore_nulls=True)), {"f": 5}, "ignore_nulls=True", "f"
    ),
    "last instead of first": Edit(counted(f=first("v")), counted(f=last("v")), {"f": 3}, "declares last('v'", "f"),
    "a result renamed": Edit(
        counted(**TOTAL),
        counted(sums=sum_("v")),
        {"sums": 3},
        "under 'total', but the job names it 'sums'",
        "sums",
        "sums starts without stored values, total is dropped",
    ),
    "a wider column": Edit(counted(m=max_("n")), keyed(aggregate(m=max_("n")), rows=WIDER), {"m": 2}),
    "a narrower column": Edit(keyed(aggregate(m=max_("n")), rows=WIDER), counted(m=max_("n")), refused=SCHEMA),
    "a column of floats": Edit(counted(**TOTAL), keyed(aggregate(**TOTAL), rows=FLOATS), refused=SCHEMA),
    "another spelling": Edit(counted(**TOTAL), counted(total=sum_("V")), {"total": 8}),
    "rows in another order": Edit(
        keyed(aggregate(l=last("v")), order_by=("at",)), keyed(aggregate(l=last("v")), order_by=("w", "at")), {"l": 3}
    ),
    "a function of one's own": Edit(
        counted(seen=count()), kept(SEEN), {"seen": 2}, "declares column 'seen' of a function", "seen"
    ),
    "a key column more": Edit(counted(**TOTAL), keyed(aggregate(**TOTAL), "k", "j"), refused=SCHEMA),
    "a key column less": Edit(keyed(aggregate(**TOTAL), "k", "j"), counted(**TOTAL), refused=SCHEMA),
    "key columns in another order": Edit(
        keyed(aggregate(**TOTAL), "k", "j"), keyed(aggregate(**TOTAL), "j", "k"), refused=SCHEMA
    ),
    "another key column": Edit(counted(**TOTAL), keyed(aggregate(**TOTAL), "j"), refused=SCHEMA),
    "a wider key": Edit(keyed(aggregate(**TOTAL), "n"), keyed(aggregate(**TOTAL), "n", rows=WIDER), refused=SCHEMA),
}

FUNCTIONS = {
    "other code": Edit(kept(SEEN), kept(SEEN, times=10), {"seen": 20}),
    "an output column more": Edit(kept(SEEN), kept(SEEN, output=("k", "seen", "j")), {"seen": 2, "j": "more"}),
    "a state column more": Edit(kept(SEEN), kept({**SEEN, "o": pa.string()}), {"seen": 2}, warns="o starts without"),
    "a state column less": Edit(kept({**SEEN, "o": pa.string()}), kept(SEEN), {"seen": 2}, warns="o is dropped"),
    "a state column renamed": Edit(
        kept({"was": pa.int64(), **SEEN}),
        kept({"is": pa.int64(), **SEEN}),
        {"seen": 2},
        warns="is starts without stored values, was is dropped",
    ),
    "a wider state column": Edit(kept({"seen": pa.int32()}), kept(SEEN), {"seen": 2}),
    "a narrower state column": Edit(kept(SEEN), kept({"seen": pa.int32()}), refused=SCHEMA),
    "another type": Edit(kept({**SEEN, "o": pa.string()}), kept({**SEEN, "o": pa.int64()}), refused=SCHEMA),
    "a column that may not be null": Edit(
        kept({**SEEN, "o": pa.int64()}), kept({**SEEN, "o": pa.int64()}, not_null=True), refused=SCHEMA
    ),
    "keys that end": Edit(kept(UNTIL), kept(UNTIL, **timed()), refused=SCHEMA),
    "keys that end no more": Edit(kept(UNTIL, **timed()), kept(UNTIL), refused=SCHEMA),
    "keys that end by another column": Edit(kept(UNTIL, **timed()), kept(UNTIL, **timed(due="later")), refused=SCHEMA),
    "keys that end by another time": Edit(
        kept(UNTIL, **timed()), kept(UNTIL, **timed("ProcessingTime")), refused=SCHEMA
    ),
    "another function of keys that end": Edit(
        kept(UNTIL, **timed()), kept(UNTIL, **timed(), expired=lambda state: state.select(["k", "seen"])), {"seen": 2}
    ),
    "an aggregate": Edit(
        kept(SEEN), counted(seen=count()), {"seen": 2}, "column 'seen' of a function under 'seen'", "seen"
    ),
    "a processor": Edit(kept(SEEN), processed(), refused=SCHEMA),
}

BY_TIME, BY_EVENT = {"time_mode": "ProcessingTime"}, {"time_mode": "EventTime"}
PROCESSORS = {
    "the same": Edit(processed(), processed(), {"seen": 2}),
    "other code": Edit(processed(), processed(times=10), {"seen": 20}),
    "another output schema": Edit(processed(), processed(output="k string, seen int"), {"seen": 2}),
    "a variable renamed": Edit(
        processed(), processed("count"), {"seen": 1}, warns="count starts without stored values, seen is dropped"
    ),
    "a variable more": Edit(processed(), processed(more=["extra"]), {"seen": 2}, warns="extra starts without"),
    "a variable less": Edit(processed(more=["extra"]), processed(), {"seen": 2}, warns="extra is dropped"),
    "variables in another order": Edit(
        processed("b", more=["a"]), processed("b", more=["c", "a"]), {"seen": 2}, warns="c starts without"
    ),
    "a wider field": Edit(processed("seen", "value", "n int"), processed(), {"seen": 2}),
    "a narrower field": Edit(processed(), processed("seen", "value", "n int"), refused=SCHEMA),
    "a field more": Edit(processed(), processed("seen", "value", "n long, m string"), {"seen": 2}),
    "a list instead of a value": Edit(processed(), processed("seen", "list"), refused=SCHEMA),
    "a map instead of a value": Edit(processed(), processed("seen", "map"), refused=SCHEMA),
    "another key of a map": Edit(processed("seen", "map"), processed("seen", "map", map_key="c long"), refused=SCHEMA),
    "a life": Edit(processed(**BY_TIME), processed(**BY_TIME, ttl_ms=1), {"seen": 2}),
    "no life": Edit(processed(**BY_TIME, ttl_ms=90_000), processed(**BY_TIME), {"seen": 2}),
    "another life": Edit(processed(**BY_TIME, ttl_ms=90_000), processed(**BY_TIME, ttl_ms=5), {"seen": 2}),
    "timers": Edit(processed(), processed(**BY_TIME), {"seen": 2}),
    "no timers": Edit(processed(**BY_TIME), processed(), refused=SCHEMA),
    "timers by another time": Edit(
        processed(**BY_TIME), processed(**BY_EVENT), {"seen": 2}, "times by ProcessingTime under 'timers'", "timers"
    ),
    "a key column more": Edit(processed(), processed(key=("k", "j")), refused=SCHEMA),
    "a function": Edit(processed(), kept(SEEN), refused=SCHEMA),
}

SETTINGS = {
    "another number of key-groups": Edit(
        counted(**TOTAL), counted(**TOTAL), refused="key_groups = 16", settings={"key_groups": 16}
    ),
    "another dispatch": Edit(
        counted(**TOTAL), counted(**TOTAL), refused="dispatch = partition", settings={"dispatch": "partition"}
    ),
    "standbys": Edit(counted(**TOTAL), counted(**TOTAL), {"total": 8}, settings={"num_standbys": 1}),
    "other snapshots": Edit(counted(**TOTAL), counted(**TOTAL), {"total": 8}, settings={"snapshot_chain_links": 2}),
    "output that is sealed": Edit(
        counted(**TOTAL), counted(**TOTAL), {"total": 8}, settings={"deliver_after_commit": True}
    ),
    "stores in groups": Edit(counted(**TOTAL), counted(**TOTAL), {"total": 8}, settings={"store_groups": ["s=own"]}),
}

EDITS = {
    f"{kind}: {name}": edit
    for kind, edits in (
        ("aggregate", AGGREGATES),
        ("function", FUNCTIONS),
        ("processor", PROCESSORS),
        ("settings", SETTINGS),
    )
    for name, edit in edits.items()
}


def beside() -> Operator:
    """Return another operator of the same job, which is not edited."""
    return operator_of("beside", ["k"], aggregate(all=count()), (), ROWS)


def feed(world: World, version: int, row: Mapping[str, object]) -> list[str]:
    """Run a batch of one row with the columns of the operator's input, and return its warnings."""
    table = pa.Table.from_pylist([dict(row)], schema=world.operators[0].input)
    return list(world.batch(version, table).warnings)


def answered(world: World, store: str = "s") -> dict[str, object]:
    """Return the row of the newest delivery."""
    (row,) = list(world.sinks[store].by_id.values())[-1].to_pylist()
    newest_row: dict[str, object] = row
    return newest_row


def edited(world: World, operators: list[Operator], **settings: Any) -> None:
    """Start the query again with other operators and settings."""
    world.operators = operators
    world.settings = Settings(**{**world.settings.given(), **settings})
    world.start()


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_job_continues_with_its_state_or_is_refused(name: str, tmp_path: Path) -> None:
    """A query continues after an edit and the loss of all copies with the expected state, or is refused. A refusal
    changes no object.
    """
    edit = EDITS[name]
    world = World(tmp_path, operators=[edit.before(), beside()])
    feed(world, 0, BEFORE)
    for executor in ("1", "2"):
        world.cluster.lose(executor, disk=True)
        world.cluster.add(f"{executor} again")
    edited(world, [edit.after(), beside()], **edit.settings or {})
    if edit.refused:
        before = world.memory.list("")
        with pytest.raises(ConfigError) as caught:
            feed(world, 1, AFTER)
        assert edit.refused in str(caught.value)
        assert world.memory.list("") == before
        if not edit.accept:
            return
        assert f"accept = {edit.accept!r}" in caught.value.remedy
        edited(world, [edit.after(), beside()], accept=edit.accept)  # as the remedy prints it
    warnings = feed(world, 1, AFTER)
    assert edit.row is not None
    assert {column: answered(world)[column] for column in edit.row} == edit.row
    warnings = [line for line in warnings if "RIFFLE-0800" not in line]
    assert [edit.warns in line for line in warnings] == ([True] if edit.warns else []), warnings
    assert answered(world, "beside")["all"] == 2
    edited(world, [edit.after(), beside()], accept=[])
    assert feed(world, 2, AFTER) == [], "the accepted change is stored"


@pytest.mark.parametrize("change", [("u", 1_000), ("t", 600_000), ("t", 0)], ids=["column", "longer", "shorter"])
def test_a_changed_watermark_keeps_the_state(change: tuple[str, int], tmp_path: Path) -> None:
    """State does not depend on the watermark column and delay, as in Spark."""
    world = World(tmp_path, operators=[with_watermark(counted(**TOTAL)(), Watermark("t", 1_000))])
    feed(world, 0, BEFORE)
    edited(world, [with_watermark(counted(**TOTAL)(), Watermark(*change))])
    feed(world, 1, AFTER)
    assert answered(world)["total"] == 8


def test_a_renamed_store_starts_empty_with_a_warning(tmp_path: Path) -> None:
    """A renamed store starts empty. A warning has both names."""
    world = World(tmp_path, operators=[counted(**TOTAL)()])
    feed(world, 0, BEFORE)
    world.sinks["renamed"] = SimSink()
    edited(world, [operator_of("renamed", ["k"], aggregate(**TOTAL), (), ROWS)])
    (warning,) = feed(world, 1, AFTER)
    assert warning.startswith("[RIFFLE-0810]")
    assert answered(world, "renamed")["total"] == 3


def test_case_sensitive_column_names_are_distinct(tmp_path: Path) -> None:
    """With case-sensitive names, a column that differs only in case is another column."""
    rows = pa.schema([*ROWS, ("V", pa.int64())])
    one, other = (
        operator_of("s", ["k"], aggregate(total=sum_(name)), (), rows, case_sensitive=True) for name in ("v", "V")
    )
    world = World(tmp_path, operators=[one])
    world.batch(0, pa.Table.from_pylist([{**BEFORE, "V": 1}], schema=rows))
    edited(world, [other])
    with pytest.raises(ConfigError, match="RIFFLE-0224"):
        world.batch(1, pa.Table.from_pylist([{**AFTER, "V": 1}], schema=rows))


def test_a_root_without_result_declarations_is_continued(tmp_path: Path) -> None:
    """For a root of an earlier version, which has no declarations, any declaration that can read the columns is
    accepted. Later records have the declaration.
    """
    world = World(tmp_path, operators=[counted(**TOTAL)()])
    feed(world, 0, BEFORE)
    log = world.log()
    assert log.tail is not None
    text = {name: value for name, value in log.tail.schemas["s"].items() if name != "operator"}
    log.append(replace(log.tail, commit_id="older", schemas={"s": text}), log.manifest)
    edited(world, [counted(total=max_("v"))()])
    feed(world, 1, AFTER)
    assert answered(world)["total"] == 5
    tail = world.log().tail
    assert tail is not None
    assert read_operator_meanings(tail.schemas["s"]) == {"total": "max_('v')"}
    edited(world, [counted(**TOTAL)()])
    with pytest.raises(ConfigError, match="RIFFLE-0224"):
        feed(world, 2, AFTER)
