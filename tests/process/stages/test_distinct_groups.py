"""Aggregates of distinct values in a harness equal sets, also with late rows, restarts and lost executors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful
from riffle_spark.offline.purge import purge_keys
from riffle_spark.offline.requested_edits import request_edit
from riffle_spark.offline.state_edits import Editor, KeyChoice, delete_keys
from riffle_spark.offline.steering import Mailroom
from riffle_spark.offline.switch import switch_dispatch
from riffle_spark.process.stages.merged_groups import DistinctGroups, OutputMode
from riffle_spark.process.store_computation import StoreComputation
from riffle_spark.process.types.stage_specs import AggregateSpec, Buffer, FunctionSpec
from riffle_spark.state.formats.json_keys import json_of_array
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.testing import Harness
from tests.kit.examples import costly
from tests.kit.process.page_windows import TIME, WINDOW, WindowModel

WHY = Editor("ticket 7", "ann", "laptop")
DELAY_MS = 3
MODES: list[OutputMode] = ["update", "append"]
OF_USERS, OF_SECONDS = "count(DISTINCT user)", "sum(DISTINCT seconds)"
SPEC = AggregateSpec(
    "exact.window-page",
    pa.schema([("window_start", TIME), ("window_end", TIME), ("page", pa.string())]),
    (
        FunctionSpec("Count", (Buffer("visits", pa.int64(), "count(1): count", 1),)),
        FunctionSpec("Count", (Buffer("users", pa.int64(), f"{OF_USERS}: count", 1),), distinct=OF_USERS),
        FunctionSpec(
            "Sum", (Buffer("seconds", pa.int64(), f"{OF_SECONDS}: sum"),), options=(("evalMode", "ANSI"),),
            distinct=OF_SECONDS,
        ),
    ),
    WINDOW,
    elements=pa.schema([("distinct_for", pa.string()), ("user", pa.string()), ("second", pa.int64())]),
)  # fmt: skip


class Visit(NamedTuple):
    """A row: the end of its window (µs), page, user and seconds."""

    end: int
    page: str | None
    user: str | None
    seconds: int | None

    @property
    def key(self) -> Key:
        """The key of the row: window end and page."""
        return self.end, self.page


Key = tuple[int, str | None]
Answer = tuple[int, str | None, int, int, int | None]


@dataclass
class Group:
    """The model of one group."""

    visits: int = 0
    users: set[str] = field(default_factory=set)
    seconds: set[int] = field(default_factory=set)

    def take(self, visit: Visit) -> None:
        """Add a visit."""
        self.visits += 1
        self.users |= set() if visit.user is None else {visit.user}
        self.seconds |= set() if visit.seconds is None else {visit.seconds}

    def answer(self, key: Key) -> Answer:
        """Return the output row of the group."""
        return (*key, self.visits, len(self.users), sum(self.seconds) if self.seconds else None)


def rows_of(visits: Sequence[Visit]) -> pa.Table:
    """Return a row per visit for its group, and one for each of its values that is not null."""
    rows = list[tuple[object, ...]]()
    for end, page, user, seconds in visits:
        key = (end - 10, end, page)
        rows.append((*key, None, None, None, None))
        rows += [(*key, OF_USERS, user, None, None)] if user is not None else []
        rows += [(*key, OF_SECONDS, None, seconds, seconds)] if seconds is not None else []
    columns = zip(*rows, strict=True) if rows else [()] * len(SPEC.rows)
    return pa.table([pa.array(list(column), of.type) for column, of in zip(columns, SPEC.rows, strict=True)], SPEC.rows)


def operator(mode: OutputMode) -> Stateful:
    """Return the aggregate as an operator that drops late rows by the end of their window."""
    return Stateful(
        "visits",
        SPEC.stored_key.names,
        DistinctGroups(SPEC, mode),
        watermark=("window_end", f"{DELAY_MS} milliseconds"),
    )


def answers_of(rows: Sequence[dict[str, object]]) -> list[Answer]:
    """Return output rows in the model's form."""
    table = pa.Table.from_pylist(list(rows), SPEC.output)
    plain = [table.column(1).cast(pa.int64()), *table.columns[2:]]
    return list(zip(*(column.to_pylist() for column in plain), strict=True))


_VISIT = st.builds(
    Visit, st.integers(0, 12).map(lambda half: 500 * half), st.sampled_from(["a", None]),
    st.sampled_from([None, "x", "y"]), st.sampled_from([None, -1, 0, 7]),
)  # fmt: skip
_BATCH = st.tuples(st.lists(_VISIT, max_size=6), st.integers(0, 6), st.sampled_from(["", "", "", "restart", "crash"]))


@costly(2)
@given(st.sampled_from(MODES), st.lists(_BATCH, max_size=8))
def test_a_value_counts_once_per_group(mode: OutputMode, batches: list[tuple[list[Visit], int, str]]) -> None:
    """Property: a value counts once per group, in one batch or in several. An expired group leaves no state."""
    model = WindowModel(mode, Group, DELAY_MS)
    with Harness(operator(mode), SPEC.rows) as query:
        for visits, later, event in batches:
            moved = [visit._replace(end=visit.end + 1000 * later) for visit in visits]
            answers = answers_of(query.feed(rows_of(moved)))
            assert sorted(answers, key=repr) == sorted(model.batch(moved), key=repr)
            if event:
                query.crash(lose_copies=event == "crash")
        stored_count = sum(1 + len(group.users) + len(group.seconds) for _, group in model.groups.values())
        assert len(query.state()) == stored_count


def test_complete_mode_emits_only_groups() -> None:
    """In complete mode the output has only groups. Their distinct values are state and not output."""
    table = list[list[Answer]]()
    compute = DistinctGroups(replace(SPEC, time=None), "complete")
    with Harness(Stateful("visits", SPEC.stored_key.names, compute), SPEC.rows) as query:
        for users in ("xy", "yx", ""):
            table.append(answers_of(query.feed(rows_of([Visit(10, "a", user, 2) for user in users]))))
    assert table == [[(10, "a", 2, 2, 2)], [(10, "a", 4, 2, 2)], [(10, "a", 4, 2, 2)]]


def test_a_group_and_its_values_are_in_the_same_key_group() -> None:
    """A group and its values are in the same key-group, because rows are routed by the columns of the group."""
    with Harness(operator("update"), SPEC.rows) as query:
        query.feed(rows_of([Visit(10, "a", f"user {number}", number) for number in range(40)]))
        assert len(query.state()) == 81
    compute = DistinctGroups(SPEC, "update")
    declared = compute.declare(SPEC.stored_key, SPEC.rows)
    schema = StoreComputation(compute).schema("visits", SPEC.stored_key, declared)
    assert declared.routed_by == schema.routing == ("window_start", "window_end", "page")
    assert schema_of_text("visits", schema.to_text()) == schema
    plain = PlainColumns("visits", SPEC.stored_key, declared.state, declared.due, declared.time_mode)
    assert not plain.can_read(schema.to_text())


def test_a_new_number_of_key_groups_keeps_values_with_their_group() -> None:
    """A switch to another number of key-groups keeps the values with their group: none is lost or counted twice."""
    visits = [Visit(10, page, f"user {number}", number) for number in range(20) for page in "abcdef"]
    with Harness(operator("update"), SPEC.rows) as query:
        for visit_times, key_groups in enumerate((3, 32, 8), start=1):
            answers = answers_of(query.feed(rows_of(visits)))
            assert sorted(answers) == [(10, page, 20 * visit_times, 20, 190) for page in "abcdef"]
            switch_dispatch(query.root, "key_group", key_groups=key_groups, execute=True)
            query.restart(dispatch="key_group", key_groups=key_groups)


def group_key(query: Harness, page: str) -> pa.Table:
    """Return the stored key of a group, with all columns."""
    is_group = pc.field("distinct_for").is_null()
    return query.table().filter((pc.field("page") == page) & is_group).select(SPEC.stored_key.names)


@pytest.mark.parametrize("command", [delete_keys, purge_keys])
def test_a_deleted_group_leaves_with_all_its_values(command: Callable[..., object], tmp_path: Path) -> None:
    """A group whose whole key is deleted leaves with its values: they count again with their next rows."""
    with Harness(operator("update"), SPEC.rows) as query:
        query.feed(rows_of([Visit(10, page, "x", 7) for page in "ab"]))
        pq.write_table(group_key(query, "a"), tmp_path / "keys.parquet")
        command(query.root, "visits", KeyChoice(file=tmp_path / "keys.parquet"), WHY, execute=True)
        query.restart()
        assert len(query.state()) == 3
        answers = answers_of(query.feed(rows_of([Visit(10, page, "x", 7) for page in "ab"])))
        assert sorted(answers) == [(10, "a", 1, 1, 7), (10, "b", 2, 1, 7)]


@pytest.mark.parametrize("names_values", [False, True])
def test_a_group_is_deleted_by_request(names_values: bool) -> None:
    """A running query deletes a group with its values, with or without the columns of the values in the key."""
    with Harness(operator("update"), SPEC.rows, control="on", now_ms=time.time_ns() // 1_000_000) as query:
        query.feed(rows_of([Visit(10, "a", "x", 7)]))
        key = group_key(query, "a").select(SPEC.stored_key.names[: None if names_values else 3])
        (values,) = zip(*(json_of_array(column.combine_chunks()) for column in key.columns), strict=True)
        request_edit(Mailroom(query.root), "visits", json.dumps(values), None, WHY, "", execute=True)
        assert answers_of(query.feed(rows_of([Visit(10, "a", "x", 7)]))) == [(10, "a", 1, 1, 7)]
