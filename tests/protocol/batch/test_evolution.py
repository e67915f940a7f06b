"""A query with changed columns reads state that was written with the old columns, or is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.process.blocks.arrow_function import arrow_function
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.simulated.world import ROWS, World, rows_of

SMALL = pa.schema([("n", pa.int32()), ("last", pa.string())])


def keeping(state: pa.Schema) -> Operator:
    """Return an operator that outputs the state of each key before the batch, and sets ``n`` of new keys to their
    value.
    """
    output = pa.schema([("k", pa.string()), *state])

    def keep(rows: pa.Table, old: pa.Table) -> tuple[pa.Table, pa.Table]:
        old_rows = {row["k"]: row for row in old.to_pylist()}
        new = [
            old_rows.get(row["k"], {"k": row["k"], "n": row["v"], "last": "first"} if "n" in state.names else {})
            for row in rows.to_pylist()
        ]
        table = pa.Table.from_pylist([{name: row.get(name) for name in output.names} for row in new], schema=output)
        return table, table

    return operator_of("kept", ["k"], arrow_function(keep, state=state, output=output), (), ROWS)


def delivered(world: World) -> list[dict[str, object]]:
    """Return the rows of the last delivery."""
    last = list(world.sinks["kept"].by_id.values())[-1]
    rows: list[dict[str, object]] = last.to_pylist()
    return rows


CHANGED = {
    "a column more": (pa.schema([*SMALL, ("more", pa.float64())]), {"n": 1, "last": "first", "more": None}),
    "a wider type": (pa.schema([("n", pa.int64()), ("last", pa.large_string())]), {"n": 1, "last": "first"}),
    "a column less": (pa.schema([("n", pa.int32())]), {"n": 1}),
    "another order": (pa.schema([("last", pa.string()), ("n", pa.int32())]), {"last": "first", "n": 1}),
    "all at once": (pa.schema([("b", pa.list_(pa.int8())), ("n", pa.float64())]), {"b": None, "n": 1.0}),
}


@pytest.mark.parametrize(
    ("at_hand", "snapshots"), [(False, True), (True, False)], ids=["cold snapshots", "deltas beside copies"]
)
@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.sample(step=2)
def test_a_query_continues_after_a_restart_with_changed_columns(
    change: str, at_hand: bool, snapshots: bool, tmp_path: Path
) -> None:
    """A query with changed columns reads deltas and snapshots with the old columns, from the store or beside local
    copies.
    """
    links = 2 if snapshots else 1000
    world = World(tmp_path, operators=[keeping(SMALL)], snapshot_chain_links=links)
    keys = [f"key-{number}" for number in range(20)]
    for version in range(4):
        world.batch(version, rows_of(*[(key, 1, 0) for key in keys]))
    if not at_hand:
        for executor in ("1", "2"):
            world.cluster.lose(executor, disk=True)
        world.cluster.add("3")
    state, expected = CHANGED[change]
    world.operators = [keeping(state)]
    world.start()
    for version in (4, 5):
        world.batch(version, rows_of(*[(key, 7, 0) for key in [*keys, "new"]]))
        rows = {row.pop("k"): row for row in delivered(world)}
        assert {key: rows[key] for key in keys} == dict.fromkeys(keys, expected)


KEY = pa.schema([("k", pa.string())])
N, TEXT = pa.schema([("n", pa.int32())]), pa.schema([("t", pa.string())])
VARIABLES = VariableColumns("s", KEY, (Variable("a", "value", N), Variable("m", "map", N, TEXT)), indexed=True)


@pytest.mark.parametrize(
    ("variables", "indexed", "allowed"),
    [
        ((Variable("m", "map", N, TEXT), Variable("a", "value", N, ttl_ms=5)), True, True),
        ((Variable("a", "value", pa.schema([("n", pa.int64()), ("t", pa.string())])),), True, True),
        ((*VARIABLES.variables, Variable("b", "list", N)), True, True),
        ((Variable("a", "list", N), VARIABLES.variables[1]), True, False),
        ((VARIABLES.variables[0], Variable("m", "map", N, N)), True, False),
        (VARIABLES.variables, False, False),
    ],
    ids=["moved with another TTL", "removed and widened", "added", "changed kind", "changed map key", "timers removed"],
)
def test_variables_can_be_added_removed_and_reordered(
    variables: tuple[Variable, ...], indexed: bool, allowed: bool
) -> None:
    """Variables may be added, removed or reordered, and their fields change like columns. Kinds, map keys and timers
    must stay.
    """
    assert VariableColumns("s", KEY, variables, indexed).can_read(VARIABLES.to_text()) is allowed


def test_a_store_cannot_change_between_columns_and_variables() -> None:
    """A store of columns cannot be read as variables, nor variables as columns."""
    assert not VARIABLES.can_read(PlainColumns("s", KEY, N).to_text())
    assert not PlainColumns("s", KEY, N).can_read(VARIABLES.to_text())


def test_timers_can_be_added_but_not_removed() -> None:
    """A processor with timers reads state without timers. A processor without timers cannot read state with timers."""
    untimed = VariableColumns("s", KEY, VARIABLES.variables, indexed=False)
    assert VARIABLES.can_read(untimed.to_text())
    assert not untimed.can_read(VARIABLES.to_text())
