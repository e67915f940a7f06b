"""A column or variable that is removed and declared again starts empty, whatever local copies and objects still have.

Queries restart with random declarations, roll back and lose their copies. A dictionary has the expected state.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from riffle_spark import StatefulProcessor, StatefulProcessorHandle, rollback, transform_with_state
from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from tests.kit.examples import costly
from tests.kit.simulated.world import ROWS, Crash, World, rows_of

KEYS = ("a", "b", "c", "d", "e")
TYPES = {"long": pa.int64(), "string": pa.string()}
FIELDS = {"value long": 1, "two long": 2}
"""Kinds that can be changed to each other."""
KINDS = ("value long", "value string", "list long", "map long", "map string", "two long")
Declared = Mapping[str, str]
"""The declared names with a type or kind of each."""

PADDING = "x" * 12_000
"""A text so long that a few rows cause a merge of the stack."""
PAD = pa.field("pad", pa.string())
COLUMNS_OUT = pa.schema([("k", pa.string()), ("seen", pa.string())])


def of_type(kind: str, value: int) -> int | str:
    """Return a value in a column's type."""
    return str(value) if kind.endswith("string") else value


def columns(declared: Declared) -> Operator:
    """Return an operator that outputs the state of each key before the batch, and writes each value that is not
    negative to all declared columns.
    """
    state = pa.schema([*((name, TYPES[kind]) for name, kind in declared.items()), PAD])

    def keep(rows: pa.Table, old: pa.Table) -> tuple[pa.Table, pa.Table]:
        old_rows = {row["k"]: row for row in old.to_pylist()}
        output_rows = [
            {"k": key, "seen": json.dumps({name: old_rows.get(key, {}).get(name) for name in sorted(declared)})}
            for key in rows["k"].to_pylist()
        ]
        written = [
            {"k": row["k"], "pad": PADDING, **{n: of_type(k, row["v"]) for n, k in declared.items()}}
            for row in rows.to_pylist()
            if row["v"] >= 0
        ]
        stored = pa.schema([ROWS.field("k"), *state])
        return pa.Table.from_pylist(output_rows, COLUMNS_OUT), pa.Table.from_pylist(written, stored)

    return operator_of("kept", ["k"], arrow_function(keep, state=state, output=COLUMNS_OUT), (), ROWS)


class KeepingProcessor(StatefulProcessor):
    """A processor that does the same with variables. It writes one or both fields of a variable, as declared."""

    def __init__(self, declared: Declared) -> None:
        self.declared = dict(declared)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the variables."""
        self.states: dict[str, Any] = {}
        for name, kind in self.declared.items():
            what, kept = kind.split()
            if what == "list":
                self.states[name] = handle.getListState(name, f"n {kept}")
            elif what == "map":
                self.states[name] = handle.getMapState(name, f"at {kept}", "n long")
            else:
                fields = f"n {kept}, m {kept}" if what == "two" else f"n {kept}"
                self.states[name] = handle.getValueState(name, fields)
        self.pad = handle.getListState("pad", "n string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], _times: Any) -> Iterator[Row]:
        """Output the state, then write the value."""
        (row,) = rows
        yield Row(k=key[0], seen=json.dumps({name: self.seen(name) for name in sorted(self.declared)}))
        if row.v >= 0:
            self.pad.put([(PADDING,)])
            for name, kind in self.declared.items():
                self.write(name, kind, row.v)

    def seen(self, name: str) -> object:
        """Return the content of a variable."""
        state, (what, _) = self.states[name], self.declared[name].split()
        if what == "list":
            return [row[0] for row in state.get()] or None
        if what == "map":
            return sorted([key[0], value[0]] for key, value in state.iterator()) or None
        state_value = state.get()
        return None if state_value is None else list(state_value)

    def write(self, name: str, kind: str, value: int) -> None:
        """Write a value to a variable."""
        state, what = self.states[name], kind.split(maxsplit=1)[0]
        if what == "list":
            state.put([(value,)])
        elif what == "map":
            state.clear()
            state.updateValue((of_type(kind, value),), (value,))
        else:
            state.update((of_type(kind, value),) * (2 if what == "two" else 1))

    def close(self) -> None:
        """Do nothing."""


def held(kind: str, value: int) -> object:
    """Return the content of a variable after a value was written."""
    what, kept = kind.split(maxsplit=1)[0], of_type(kind, value)
    return {"list": [value], "map": [[kept, value]], "two": [kept, kept]}.get(what, [kept])


def carried(kind: str, before: object) -> object:
    """Return the content of a variable that now has more or fewer fields than when it was written."""
    if isinstance(before, list) and kind in FIELDS:
        return [*before, None][: FIELDS[kind]]
    return before


def variables(declared: Declared) -> Operator:
    """Return an operator of the processor."""
    processor = transform_with_state(KeepingProcessor(declared), key="k", output="k string, seen string", store="kept")
    return operator_of("kept", ["k"], processor.compute, (), ROWS)


@dataclass
class Walk:
    """The batches and restarts of one query, with the expected state after each batch."""

    folder: Path
    of_variables: bool
    version: int = -1
    declared: Declared = field(default_factory=dict)
    model: dict[str, dict[str, object]] = field(default_factory=dict)
    history: dict[int, tuple[Declared, dict[str, dict[str, object]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(
            self.folder, operators=[self.operator()], key_groups=2, retained_versions=100, snapshot_chain_links=2,
        )  # fmt: skip

    def operator(self) -> Operator:
        """Return the operator with the current declaration."""
        return variables(self.declared) if self.of_variables else columns(self.declared)

    def declare(self, declared: Declared) -> None:
        """Restart the query with other names. A name of the newest batch keeps its type."""
        known = self.history[self.version][0] if self.version >= 0 else {}
        self.declared = {
            name: kind if {kind, known.get(name, kind)} <= FIELDS.keys() else known.get(name, kind)
            for name, kind in declared.items()
        }
        self.world.operators = [self.operator()]
        self.world.start()

    def crash(self, declared: Declared) -> None:
        """Let a query with other names crash in its first batch, before the commit."""
        before = self.declared
        self.declare(declared)
        self.world.crash_at = "after seal"
        with pytest.raises(Crash):
            self.world.batch(self.version + 1, rows_of(*((key, 1_000_000, 0) for key in KEYS)))
        self.declare(before)

    def batch(self, keys: frozenset[str], value: int) -> None:
        """Run a batch that writes some keys and reads all, and compare its output."""
        kinds = self.declared.items()
        self.model = {key: {n: carried(kind, of.get(n)) for n, kind in kinds} for key, of in self.model.items()}
        self.version += 1
        self.world.batch(self.version, rows_of(*((key, value if key in keys else -1, 0) for key in KEYS)))
        last = list(self.world.sinks["kept"].by_id.values())[-1].to_pylist()
        nothing = dict.fromkeys(self.declared)
        seen = {row["k"]: json.loads(row["seen"]) for row in last}
        assert seen == {key: self.model.get(key, nothing) for key in KEYS}
        show = held if self.of_variables else of_type
        for key in keys:
            self.model[key] = {name: show(kind, value) for name, kind in self.declared.items()}
        self.history[self.version] = self.declared, {key: dict(of) for key, of in self.model.items()}

    def lose(self) -> None:
        """Lose all local copies."""
        for executor in self.world.cluster.executors():
            self.world.cluster.lose(executor.id, disk=True)
            self.world.cluster.add(f"{executor.id}x")

    def back(self, by: int) -> None:
        """Roll back some batches, and continue with the declaration of that time."""
        if self.version < by:
            return
        self.version -= by
        checkpoint = self.folder / uuid.uuid4().hex
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": "query"}))
        rollback(self.world.home.root, self.version, str(checkpoint), execute=True)
        declared, model = self.history[self.version]
        self.model = {key: dict(of) for key, of in model.items()}
        self.declared = declared
        self.declare(declared)


KINDS_DRAWN = st.lists(st.integers(0, 5), min_size=2, max_size=2)
NAMES = st.sampled_from((("x", "y"), ("x",), ("y",), ()))
PHASES = st.lists(
    st.tuples(
        NAMES,
        KINDS_DRAWN,
        st.lists(st.frozensets(st.sampled_from(KEYS), max_size=2), max_size=6),
        st.sampled_from(("go on", "go on", "lose", "crash", "back")),
        st.integers(0, 1),
    ),
    min_size=3,
    max_size=6,
)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(tuple(TYPES), id="columns"),
        pytest.param(KINDS, id="variables"),
        pytest.param(tuple(FIELDS), id="fields", marks=pytest.mark.long),
    ],
)
@costly(6)
@given(first=KINDS_DRAWN, phases=PHASES)
@pytest.mark.sample("columns")
def test_the_output_depends_only_on_the_declarations(
    kinds: tuple[str, ...], first: list[int], phases: list[Any]
) -> None:
    """The output depends on the declarations only, whatever was merged, lost, rolled back or crashed."""
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), of_variables=" " in kinds[0])
        for names, drawn, batches, then, extra in [(("x", "y"), first, [frozenset(KEYS)] * 5, "go on", 0), *phases]:
            declared = {name: kinds[at % len(kinds)] for name, at in zip(names, drawn, strict=False)}
            if then == "crash":
                walk.crash(declared)
            else:
                walk.declare(declared)
            for keys in batches:
                walk.batch(keys, walk.version + 1)
            if then == "lose":
                walk.lose()
            elif then == "back":
                walk.back(len(batches) + extra)
                walk.batch(frozenset(), 0)
        walk.batch(frozenset(), 0)


@pytest.mark.parametrize("of_variables", [False, True], ids=["columns", "variables"])
def test_an_old_snapshot_does_not_fill_a_new_column_of_the_same_name(of_variables: bool, tmp_path: Path) -> None:
    """A snapshot with an earlier column of the same name does not fill the new column."""
    kind = "value long" if of_variables else "long"
    walk = Walk(tmp_path, of_variables)
    walk.declare({"x": kind, "y": kind})
    for _ in range(6):
        walk.batch(frozenset(KEYS), walk.version + 1)
    assert all(entry.snapshot for entry in walk.world.log().manifest.entries.values())
    walk.declare({"y": kind})
    walk.batch(frozenset(), 0)
    walk.lose()
    walk.declare({"x": kind, "y": kind})
    walk.batch(frozenset(), 0)
    assert walk.model["a"] == {"x": None, "y": [5] if of_variables else 5}


@pytest.mark.parametrize("of_variables", [False, True], ids=["columns", "variables"])
def test_late_upkeep_of_a_fenced_driver_takes_no_snapshot_of_newer_state(of_variables: bool, tmp_path: Path) -> None:
    """Late upkeep of a fenced driver, which does not know the new columns, does not snapshot newer state."""
    kind = "value long" if of_variables else "long"
    walk = Walk(tmp_path, of_variables)
    walk.declare({"y": kind})
    cluster, late = walk.world.cluster, []
    upkeep = cluster.upkeep
    cluster.upkeep = lambda orders: late.append(orders) or []  # type: ignore[method-assign,func-returns-value]
    for _ in range(6):
        walk.batch(frozenset(KEYS), walk.version + 1)
    orders = late[-1]
    assert any(order.snapshots for order in orders.values())
    walk.declare({"x": kind, "y": kind})
    walk.batch(frozenset(KEYS), walk.version + 1)
    walk.batch(frozenset(), 0)
    receipts = upkeep(orders)
    assert all(snapshot.head.epoch == 1 for receipt in receipts for *_, snapshot in receipt.snapshots)
    assert "RIFFLE-0464" in str([receipt.errors for receipt in receipts])
    cluster.upkeep = upkeep  # type: ignore[method-assign]
    for _ in range(4):
        walk.batch(frozenset(), 0)
    walk.lose()
    walk.batch(frozenset(), 0)
