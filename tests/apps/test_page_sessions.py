"""The page sessions' function on Arrow against a plain one, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from apps.page_sessions import GAP_MS, OUTPUT, sessions

VIEWS = pa.schema([("user_id", pa.string()), ("at_ms", pa.int64())])
NOON = 1_777_636_800_000
View = tuple[str, int]
Session = tuple[str, int, int, int]


def plain(views: Iterable[View]) -> list[Session]:
    """Return all sessions of views, row by row."""
    open_sessions: list[Session] = []
    for user, time in sorted(views):
        if open_sessions and open_sessions[-1][0] == user and time - open_sessions[-1][2] <= GAP_MS:
            open_sessions[-1] = (user, open_sessions[-1][1], time, open_sessions[-1][3] + 1)
        else:
            open_sessions.append((user, time, time, 1))
    return open_sessions


def run(batches: Iterable[Sequence[View]]) -> tuple[list[Session], list[Session]]:
    """Hand batches to the function with the state of their users; return closed and open sessions."""
    closed: list[Session] = []
    state = OUTPUT.empty_table()
    for batch in batches:
        users, times = zip(*batch, strict=True)
        rows = pa.table([pa.array(users, pa.string()), pa.array(times, pa.int64())], schema=VIEWS)
        touched = pc.is_in(state["user_id"], rows["user_id"].combine_chunks())
        output, new_state = sessions(rows, state.filter(touched))
        closed += listed(output)
        state = pa.concat_tables([state.filter(pc.invert(touched)), new_state.select(OUTPUT.names)])
    return sorted(closed), sorted(listed(state))


def listed(table: pa.Table) -> list[Session]:
    """Return a table's rows."""
    assert table.schema.equals(OUTPUT)
    return list(zip(*(table[name].to_pylist() for name in OUTPUT.names), strict=True))


def drawn(chance: random.Random) -> list[View]:
    """Return views of few users in the order of time, with gaps around the boundary."""
    views = []
    now_ms = NOON
    for _ in range(chance.randint(1, 120)):
        now_ms += chance.choice([0, 1, 60_000, GAP_MS // 3, GAP_MS - 1, GAP_MS, GAP_MS + 1, 3 * GAP_MS])
        views.append((f"u{chance.randrange(4)}", now_ms))
    return views


def split(chance: random.Random, views: Sequence[View]) -> list[Sequence[View]]:
    """Cut views into batches of random sizes."""
    batches = []
    start = 0
    while start < len(views):
        end = start + chance.randint(1, 20)
        batches.append(views[start:end])
        start = end
    return batches


@pytest.mark.parametrize("seed", range(40))
def test_random_splits_give_the_sessions_of_all_views(seed: int) -> None:
    """However views are cut into batches and shuffled in them, closed and open sessions are those of a plain loop."""
    chance = random.Random(seed)
    views = drawn(chance)
    batches = [chance.sample(batch, len(batch)) for batch in split(chance, views)]
    closed, still_open = run(batches)
    assert sorted(closed + still_open) == plain(views)
    assert sorted(user for user, *_ in still_open) == sorted({user for user, _ in views})


@pytest.mark.parametrize(("gap", "closes"), [(GAP_MS, False), (GAP_MS + 1, True)])
@pytest.mark.parametrize("at_once", [True, False])
def test_the_gap_itself_still_belongs_to_the_session(gap: int, closes: bool, at_once: bool) -> None:
    """Thirty minutes are one session and a millisecond more are two, within a batch and across batches."""
    views = [("u", NOON), ("u", NOON + gap)]
    closed, still_open = run([views] if at_once else [[view] for view in views])
    assert (len(closed), len(still_open)) == ((1, 1) if closes else (0, 1))


def test_a_view_that_comes_late_extends_the_open_session_backwards() -> None:
    """A view from before the open session, within the gap, moves its start; one from far before is its own session."""
    closed, still_open = run([[("u", NOON)], [("u", NOON - GAP_MS)], [("u", NOON - 3 * GAP_MS)]])
    assert still_open == [("u", NOON - GAP_MS, NOON, 2)]
    assert closed == [("u", NOON - 3 * GAP_MS, NOON - 3 * GAP_MS, 1)]


def test_a_users_views_never_reach_into_anothers_sessions() -> None:
    """Users whose times overlap or lie far apart are kept apart, whatever order they come in."""
    late = [("a", NOON), ("a", NOON + 5)]
    early = [("b", NOON - 9 * GAP_MS), ("b", NOON + 1)]
    closed, still_open = run([early + late])
    assert closed == [("b", NOON - 9 * GAP_MS, NOON - 9 * GAP_MS, 1)]
    assert still_open == [("a", NOON, NOON + 5, 2), ("b", NOON + 1, NOON + 1, 1)]
