"""State that is built from buffers equals the state that the rows of a batch would have built."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.stages.merged_groups import MergedGroups
from riffle_spark.process.stages.rows_to_state import BufferFolding, buffer_folding, state_of_rows, wide_rows
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.process.types.stage_specs import AggregateSpec
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.process.page_windows import FUNCTIONS, SESSION, spec

COUNT_SUM_MEAN = FUNCTIONS[:3]
Visit = tuple[int, str | None, int | None]
VISITS = st.lists(
    st.tuples(st.sampled_from([0, 10, 20]), st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 9))
)


def schema_of(aggregate: AggregateSpec, compute: MergedGroups | SessionGroups) -> PlainColumns:
    """Return the columns of the aggregate's store."""
    declared = compute.declare(aggregate.stored_key, aggregate.rows)
    return PlainColumns(aggregate.store, aggregate.stored_key, declared.state, declared.due, declared.time_mode)


def buffers_of(visits: Sequence[Visit], aggregate: AggregateSpec, gap: int = 10) -> pa.Table:
    """Return the one-row buffers of visits, with all columns."""
    columns = {
        "window_start": [start for start, _, _ in visits],
        "window_end": [start + gap for start, _, _ in visits],
        "page": [page for _, page, _ in visits],
        "visits": [1 for _ in visits],
        "seconds": [seconds for _, _, seconds in visits],
        "mean_sum": [float(seconds or 0) for _, _, seconds in visits],
        "mean_count": [int(seconds is not None) for _, _, seconds in visits],
    }
    schema = buffer_folding(MergedGroups(aggregate, "update")).rows
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


@given(VISITS)
def test_buffers_of_groups_build_the_state_of_their_rows(visits: list[Visit]) -> None:
    """Property: buffers of groups build the state of their rows. Merging the merged buffers again changes nothing."""
    aggregate = spec(functions=COUNT_SUM_MEAN)
    compute = MergedGroups(aggregate, "update")
    schema = schema_of(aggregate, compute)
    folding = buffer_folding(compute)
    merged, count = state_of_rows(schema, folding, buffers_of(visits, aggregate))
    assert count == len({(start, page) for start, page, _ in visits})
    again, _ = state_of_rows(schema, folding, merged.select(folding.rows.names))
    assert again.equals(merged)
    for row in merged.to_pylist():
        start = row["window_start"].microsecond
        seconds = [s for other, page, s in visits if (other, page) == (start, row["page"]) and s is not None]
        assert row["visits"] == sum((other, page) == (start, row["page"]) for other, page, _ in visits)
        assert (row["seconds"], row["mean_count"]) == (sum(seconds) if seconds else None, len(seconds))


def test_two_sessions_of_a_key_are_one_row_of_state() -> None:
    """Two sessions of a key are one row of state, due at the earliest end, and count as two."""
    aggregate = spec(SESSION, COUNT_SUM_MEAN)
    compute = SessionGroups(aggregate, "append")
    visits: list[Visit] = [(50, "a", 1), (10, "a", 2), (10, "b", 3)]
    folding = BufferFolding(SessionGroups(buffer_folding(compute).compute.spec, "append"))
    state, count = state_of_rows(schema_of(aggregate, compute), folding, buffers_of(visits, aggregate))
    rows = {row["page"]: row for row in state.to_pylist()}
    assert count == 3
    assert rows["a"]["seconds"] == [2, 1]
    assert [end.microsecond for end in rows["a"]["window_end"]] == [20, 60]
    assert rows["a"]["window_end_due"].microsecond == 20
    assert rows["b"]["visits"] == [1]


def test_list_elements_are_numbered_per_key_and_variable() -> None:
    """List elements without an index are numbered per key and variable in the order of rows. Timers get no number."""
    schema = VariableColumns(
        "join",
        pa.schema([("k", pa.string())]),
        tuple(Variable(name, "list", pa.schema([("n", pa.int64())])) for name in ("left", "right")),
    )
    count = 6
    rows = pa.table(
        {
            "k": ["a", "b", "a", "a", "b", "a"],
            VARIABLE: ["left", "left", "right", "left", "left", "__timer"],
            INDEX: pa.array([None] * count, pa.int64()),
            DUE: pa.array([None] * 5 + [7], pa.int64()),
        }
    )
    made = wide_rows(schema, rows)
    assert made.column(INDEX).to_pylist() == [0, 0, 0, 1, 1, None]
    assert made.column(VARIABLE).to_pylist() == ["left", "left", "right", "left", "left", "__timer"]
    numbered = rows.slice(0, 5).set_column(2, INDEX, pa.array([9, 8, 7, 6, 5], pa.int64()))
    assert wide_rows(schema, numbered).column(INDEX).to_pylist() == [9, 8, 7, 6, 5]
