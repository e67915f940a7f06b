"""Aggregates in a harness equal a model of dictionaries: when keys are emitted, their values, and their expiry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import Batch
from riffle_spark.process.stages.merged_groups import MergedGroups, OutputMode
from riffle_spark.process.types.stage_specs import AggregateSpec
from riffle_spark.testing import Harness
from tests.kit.examples import costly
from tests.kit.process.page_windows import WindowModel, operator, spec

DELAY_MS = 3
MODES: list[OutputMode] = ["update", "append"]
Key = tuple[int, int, str | None]
Answer = tuple[int, int, str | None, int, int | None, float, int, tuple[str, ...]]


class Visit(NamedTuple):
    """A row: the end of its window (µs), page, seconds, and a text."""

    end: int
    page: str | None
    seconds: int | None
    seen: str | None

    @property
    def key(self) -> Key:
        """The key of the row: window start, window end and page."""
        return self.end - 10, self.end, self.page


@dataclass
class Group:
    """The model of one group."""

    seconds: list[int | None] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def take(self, visit: Visit) -> None:
        """Add a visit."""
        self.seconds.append(visit.seconds)
        self.seen += [] if visit.seen is None else [visit.seen]

    def answer(self, key: Key) -> Answer:
        """Return the output row of the group."""
        present = [seconds for seconds in self.seconds if seconds is not None]
        total = sum(present) if present else None
        return (*key, len(self.seconds), total, float(sum(present)), len(present), tuple(self.seen))


def rows_of(visits: Sequence[Visit], aggregate: AggregateSpec) -> pa.Table:
    """Return the one-row buffers of the visits."""
    columns = [
        [visit.end - 10 for visit in visits], [visit.end for visit in visits], [visit.page for visit in visits],
        [visit.seconds for visit in visits], [float(visit.seconds or 0) for visit in visits],
        [int(visit.seconds is not None) for visit in visits], [visit.seen for visit in visits],
    ]  # fmt: skip
    return pa.table(
        [pa.array(column, type) for column, type in zip(columns, aggregate.rows.types, strict=True)],
        schema=aggregate.rows,
    )


def answers_of(rows: Sequence[dict[str, object]]) -> list[Answer]:
    """Return output rows in the model's form."""
    table = pa.Table.from_pylist(list(rows), spec().output)
    plain = [table.column(0).cast(pa.int64()), table.column(1).cast(pa.int64()), *table.columns[2:]]
    return [(*row[:-1], tuple(row[-1])) for row in zip(*(column.to_pylist() for column in plain), strict=True)]


def in_order(answers: list[Answer]) -> list[Answer]:
    """Sort rows, and the elements of their lists, because the order of rows is not defined."""
    return sorted(((*answer[:-1], tuple(sorted(answer[-1]))) for answer in answers), key=repr)


_VISIT = st.builds(
    Visit, st.integers(0, 12).map(lambda half: 500 * half), st.sampled_from(["a", "b", None]),
    st.one_of(st.none(), st.integers(-3, 3)), st.sampled_from([None, "x", "y"]),
)  # fmt: skip
_BATCH = st.tuples(st.lists(_VISIT, max_size=6), st.integers(0, 6), st.sampled_from(["", "", "", "restart", "crash"]))


@costly(2)
@given(st.sampled_from(MODES), st.lists(_BATCH, max_size=8))
def test_windows_equal_a_model_of_dictionaries(mode: OutputMode, batches: list[tuple[list[Visit], int, str]]) -> None:
    """Property: windows equal the model's, with late rows, nulls, empty batches, restarts and lost executors."""
    aggregate = spec()
    model = WindowModel(mode, Group, DELAY_MS)
    with Harness(operator(aggregate, MergedGroups(aggregate, mode), DELAY_MS), aggregate.rows) as query:
        for visits, later, event in batches:
            moved = [visit._replace(end=visit.end + 1000 * later) for visit in visits]
            assert in_order(answers_of(query.feed(rows_of(moved, aggregate)))) == in_order(model.batch(moved))
            if event:
                query.crash(lose_copies=event == "crash")
        assert {tuple(key[2:]) for key in query.state()} == {key[2:] for key in model.groups}
        assert len(query.state()) == len(model.groups)


def batch_of(aggregate: AggregateSpec, visits: Sequence[Visit], keys: Sequence[Visit]) -> Batch:
    """Return a batch of these visits. All their keys are among ``keys``, and no key has state."""
    places = {visit.key: place for place, visit in enumerate(keys)}
    codes = np.array([places[visit.key] for visit in visits], np.int64)
    table = rows_of(keys, aggregate).select(aggregate.keys.names)
    state_schema = MergedGroups(aggregate, "update").declare(aggregate.keys, aggregate.rows).state
    state = pa.table([pa.nulls(len(keys), field.type) for field in state_schema], schema=state_schema)
    has_state = np.zeros(len(keys), np.bool_)
    return Batch(rows_of(visits, aggregate), codes, table, state, has_state, 1, 0, None, None, "visits")


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_key_without_rows_is_emitted_with_unchanged_state(mode: OutputMode) -> None:
    """A key without rows is emitted with its state, or with Spark's initial values, and its state is unchanged."""
    visit, other_visit = Visit(10, "a", 2, "x"), Visit(20, "b", None, None)
    update = MergedGroups(spec(), mode)(batch_of(spec(), [visit, visit], [other_visit, visit]))
    assert answers_of(update.output.to_pylist()) == [
        (10, 20, "b", 0, None, 0.0, 0, ()), (0, 10, "a", 2, 4, 4.0, 2, ("x", "x")),
    ]  # fmt: skip
    assert (update.changed.tolist(), update.state.num_rows, update.deleted.tolist()) == ([1], 1, [])


def test_complete_mode_emits_every_key_in_each_batch() -> None:
    """Complete mode emits every key in each batch, also without rows and after a loss. Keys never expire."""
    assert MergedGroups(spec(), "complete").declare(spec().keys, spec().rows).due is None
    aggregate, answers = spec(time=None), list[list[str]]()
    with Harness(operator(aggregate, MergedGroups(aggregate, "complete"), None), aggregate.rows) as query:
        for pages in ("a", "ba", "", "c"):
            visits = [Visit(10, page, 1, None) for page in pages]
            answers.append(
                sorted(f"{answer[2]}{answer[3]}" for answer in answers_of(query.feed(rows_of(visits, aggregate))))
            )
            query.crash(lose_copies=True)
    assert answers == [["a1"], ["a2", "b1"], ["a2", "b1"], ["a2", "b1", "c1"]]


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_global_aggregate_is_emitted_in_each_batch(mode: OutputMode) -> None:
    """A global aggregate is emitted in each batch, also over no rows and after a loss."""
    aggregate = AggregateSpec(
        "aggregate.all", pa.schema([("all_rows", pa.int32())]), spec().functions, None, keyless=True
    )
    table = list[tuple[object, ...]]()
    with Harness(operator(aggregate, MergedGroups(aggregate, mode), None), aggregate.rows) as query:
        for seconds in ([], [1, 4], [], [None]):
            visits = [Visit(10, None, n, None) for n in seconds]
            rows = rows_of(visits, spec()).drop_columns(["window_start", "window_end", "page"])
            rows = rows.add_column(0, "all_rows", pa.array([0] * len(visits), pa.int32()))
            (row,) = query.feed(rows)
            table.append((row["visits"], row["seconds"], row["mean_sum"], row["seen"]))
            query.crash(lose_copies=True)
    assert table == [(0, None, 0.0, []), (2, 5, 5.0, []), (2, 5, 5.0, []), (3, 5, 5.0, [])]


def test_an_overflow_error_names_the_store_and_the_key() -> None:
    """The error of a sum that does not fit has the store and the key."""
    huge = [Visit(10, "a", 2**62, None)] * 2
    with pytest.raises(UserFunctionError, match="RIFFLE-0182") as raised:
        MergedGroups(spec(), "update")(batch_of(spec(), huge, huge[:1]))
    assert "store 'visits'" in str(raised.value)
    assert "'page': 'a'" in str(raised.value)
