"""Session windows in a harness equal a model that adds one row after the other to a list of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.process.blocks.block import Batch
from riffle_spark.process.stages.merged_groups import MergedGroups, OutputMode
from riffle_spark.process.stages.session_groups import SessionGroups, make_group_computation
from riffle_spark.testing import Harness
from tests.kit.examples import costly
from tests.kit.process.page_windows import SESSION, operator, spec

DELAY_MS = 3
MODES: list[OutputMode] = ["append", "complete"]
Answer = tuple[int, int, str | None, int, int | None, float, int, tuple[str, ...]]


class Visit(NamedTuple):
    """A row: its time, the gap of its session (µs), page, seconds, and a text."""

    at: int
    gap: int
    page: str | None
    seconds: int | None
    seen: str | None


@dataclass
class Session:
    """A session of the model."""

    start: int
    end: int
    page: str | None
    visits: list[Visit] = field(default_factory=list)

    def touches(self, other_session: Session) -> bool:
        """Return whether two sessions overlap and have the same page."""
        return self.page == other_session.page and self.start <= other_session.end and other_session.start <= self.end

    def answer(self) -> Answer:
        """Return the output row of the session."""
        present = [visit.seconds for visit in self.visits if visit.seconds is not None]
        seen_values = tuple(sorted(visit.seen for visit in self.visits if visit.seen is not None))
        total = sum(present) if present else None
        return self.start, self.end, self.page, len(self.visits), total, float(sum(present)), len(present), seen_values


@dataclass
class Model:
    """The sessions, and Spark's rules of late rows and due sessions."""

    mode: OutputMode
    sessions: list[Session] = field(default_factory=list)
    late_ms: int = 0
    watermark_ms: int = 0

    def visit(self, visit: Visit) -> None:
        """Add a row. Its session is merged with all sessions that it overlaps."""
        session = Session(visit.at, visit.at + visit.gap, visit.page, [visit])
        for other_session in [other_session for other_session in self.sessions if other_session.touches(session)]:
            self.sessions.remove(other_session)
            session = Session(
                min(session.start, other_session.start),
                max(session.end, other_session.end),
                session.page,
                [*other_session.visits, *session.visits],
            )
        self.sessions.append(session)

    def batch(self, visits: Sequence[Visit]) -> list[Answer]:
        """Return the output of a batch."""
        for visit in visits:
            if visit.at + visit.gap > self.late_ms * 1000:
                self.visit(visit)
        newest = max(((visit.at + visit.gap) // 1000 for visit in visits), default=0)
        if self.mode == "complete":
            over = self.sessions
        else:
            over = [session for session in self.sessions if session.end <= self.watermark_ms * 1000]
            self.sessions = [session for session in self.sessions if session not in over]
        self.late_ms, self.watermark_ms = self.watermark_ms, max(self.watermark_ms, newest - DELAY_MS)
        return sorted((session.answer() for session in over), key=repr)


GIVEN = spec(SESSION)


def rows_of(visits: Sequence[Visit]) -> pa.Table:
    """Return the one-row buffers of the visits."""
    columns = [
        [visit.at for visit in visits], [visit.at + visit.gap for visit in visits], [visit.page for visit in visits],
        [visit.seconds for visit in visits], [float(visit.seconds or 0) for visit in visits],
        [int(visit.seconds is not None) for visit in visits], [visit.seen for visit in visits],
    ]  # fmt: skip
    kinds = GIVEN.rows.types
    return pa.table([pa.array(session, kind) for session, kind in zip(columns, kinds, strict=True)], schema=GIVEN.rows)


def answers_of(rows: Sequence[dict[str, object]]) -> list[Answer]:
    """Return output rows in the model's form."""
    table = pa.Table.from_pylist(list(rows), GIVEN.output)
    plain = [table.column(0).cast(pa.int64()), table.column(1).cast(pa.int64()), *table.columns[2:]]
    rows_told = zip(*(column.to_pylist() for column in plain), strict=True)
    return sorted(((*row[:-1], tuple(sorted(row[-1]))) for row in rows_told), key=repr)


_VISIT = st.builds(
    Visit, st.integers(0, 16).map(lambda half: 500 * half), st.sampled_from([500, 1000, 2500]),
    st.sampled_from(["a", "b", None]), st.one_of(st.none(), st.integers(-3, 3)), st.sampled_from([None, "x", "y"]),
)  # fmt: skip
_BATCH = st.tuples(st.lists(_VISIT, max_size=6), st.integers(0, 6), st.sampled_from(["", "", "", "restart", "crash"]))


@costly(2)
@given(st.sampled_from(MODES), st.lists(_BATCH, max_size=8))
def test_sessions_equal_those_of_a_model(mode: OutputMode, batches: list[tuple[list[Visit], int, str]]) -> None:
    """Property: sessions equal the model's, with late rows, nulls, empty batches, restarts and lost executors."""
    model = Model(mode)
    delay = DELAY_MS if mode == "append" else None
    with Harness(operator(GIVEN, SessionGroups(GIVEN, mode), delay), GIVEN.rows) as query:
        for visits, later, event in batches:
            moved = [visit._replace(at=visit.at + 1000 * later) for visit in visits]
            if mode == "complete":
                model.late_ms = -1
            assert answers_of(query.feed(rows_of(moved))) == model.batch(moved)
            if event:
                query.crash(lose_copies=event == "crash")
        state = query.table()
        assert sum(map(len, state["window_end"].to_pylist())) == len(model.sessions)
        if mode == "append":
            dues = zip(state["page"].to_pylist(), state["window_end_due"].cast(pa.int64()).to_pylist(), strict=True)
            latest_first = sorted(model.sessions, key=lambda session: -session.end)
            assert dict(dues) == {session.page: session.end for session in latest_first}


def batch_of(visits: Sequence[Visit]) -> Batch:
    """Return a batch of visits to new keys."""
    kept = SessionGroups(GIVEN, "append").declare(GIVEN.routing_key, GIVEN.rows).state
    pages = sorted({str(visit.page) for visit in visits})
    state = pa.table([pa.nulls(len(pages), field.type) for field in kept], schema=kept)
    codes, has_state = np.array([pages.index(str(visit.page)) for visit in visits]), np.zeros(len(pages), np.bool_)
    return Batch(rows_of(visits), codes, pa.table({"page": pages}), state, has_state, 1, 0, None, None, "visits")


def test_sessions_with_very_distant_times_stay_separate() -> None:
    """Sessions whose times are more than 2 to the 62 µs apart stay separate."""
    far = [Visit(start, 5, page, 1, None) for page in "abcde" for start in (-(2**61), 2**61, 2**61 + 5)]
    update = SessionGroups(GIVEN, "append")(batch_of(far))
    starts, ends = (
        update.state.column(name).cast(pa.list_(pa.int64())).to_pylist() for name in ("window_start", "window_end")
    )
    assert (starts, ends) == ([[-(2**61), 2**61]] * 5, [[-(2**61) + 5, 2**61 + 10]] * 5)
    assert update.state.column("seconds").to_pylist() == [[1, 2]] * 5


def test_a_new_buffer_column_has_sparks_initial_value() -> None:
    """A buffer column that is new has Spark's initial value in open sessions, also if they merge."""
    compute = SessionGroups(GIVEN, "append")
    first = compute(batch_of([Visit(0, 5, "a", 1, "x"), Visit(10, 5, "a", 2, "y"), Visit(90, 5, "a", 2, "z")]))
    without = first.state.set_column(3, "seconds", pa.nulls(1, pa.list_(pa.int64())))
    second_batch = batch_of([Visit(3, 9, "a", 7, None)])
    assert first.state.column_names[3] == "seconds"
    update = compute(
        Batch(
            second_batch.rows,
            second_batch.codes,
            second_batch.keys,
            without,
            ~second_batch.has_state,
            2,
            0,
            None,
            None,
            "visits",
        )
    )
    table = {name: update.state.column(name).to_pylist()[0] for name in ("visits", "seconds", "seen")}
    assert table == {"visits": [3, 1], "seconds": [7, None], "seen": [["x", "y"], ["z"]]}


def test_a_session_is_not_part_of_the_routing_key() -> None:
    """The routing key has a time window but not a session. Each has its own computation."""
    assert (spec().routing_key.names, GIVEN.routing_key.names) == (["window_start", "window_end", "page"], ["page"])
    assert make_group_computation(spec(), "append") == MergedGroups(spec(), "append")
    assert make_group_computation(GIVEN, "append") == SessionGroups(GIVEN, "append")
