"""The Arrow function of the page sessions returns the sessions of a plain loop. These tests need no Spark."""

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
    """Return the sessions of the views, computed row by row."""
    open_sessions: list[Session] = []
    for user, time in sorted(views):
        if open_sessions and open_sessions[-1][0] == user and time - open_sessions[-1][2] <= GAP_MS:
            open_sessions[-1] = (user, open_sessions[-1][1], time, open_sessions[-1][3] + 1)
        else:
            open_sessions.append((user, time, time, 1))
    return open_sessions


def run(batches: Iterable[Sequence[View]]) -> tuple[list[Session], list[Session]]:
    """Call the function for each batch with the state of its users. Return the closed and the open sessions."""
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
    """Return the rows of a table as tuples."""
    assert table.schema.equals(OUTPUT)
    return list(zip(*(table[name].to_pylist() for name in OUTPUT.names), strict=True))


def drawn(chance: random.Random) -> list[View]:
    """Return random views of four users, ordered by time, with gaps around the session gap."""
    views = []
    now_ms = NOON
    for _ in range(chance.randint(1, 120)):
        now_ms += chance.choice([0, 1, 60_000, GAP_MS // 3, GAP_MS - 1, GAP_MS, GAP_MS + 1, 3 * GAP_MS])
        views.append((f"u{chance.randrange(4)}", now_ms))
    return views


def split(chance: random.Random, views: Sequence[View]) -> list[Sequence[View]]:
    """Split views into batches of random sizes."""
    batches = []
    start = 0
    while start < len(views):
        end = start + chance.randint(1, 20)
        batches.append(views[start:end])
        start = end
    return batches


@pytest.mark.parametrize("seed", range(40))
def test_random_batches_give_the_same_sessions_as_a_plain_loop(seed: int) -> None:
    """Property: any split of the views into shuffled batches gives the sessions of a plain loop."""
    chance = random.Random(seed)
    views = drawn(chance)
    batches = [chance.sample(batch, len(batch)) for batch in split(chance, views)]
    closed, still_open = run(batches)
    assert sorted(closed + still_open) == plain(views)
    assert sorted(user for user, *_ in still_open) == sorted({user for user, _ in views})


@pytest.mark.parametrize(("gap", "closes"), [(GAP_MS, False), (GAP_MS + 1, True)])
@pytest.mark.parametrize("at_once", [True, False])
def test_views_exactly_one_gap_apart_are_one_session(gap: int, closes: bool, at_once: bool) -> None:
    """Views 30 minutes apart are one session, and a millisecond more makes two, in one batch and in two."""
    views = [("u", NOON), ("u", NOON + gap)]
    closed, still_open = run([views] if at_once else [[view] for view in views])
    assert (len(closed), len(still_open)) == ((1, 1) if closes else (0, 1))


def test_a_late_view_moves_the_start_of_the_open_session() -> None:
    """A late view within the gap moves the start of the open session. A view far before it is a separate session."""
    closed, still_open = run([[("u", NOON)], [("u", NOON - GAP_MS)], [("u", NOON - 3 * GAP_MS)]])
    assert still_open == [("u", NOON - GAP_MS, NOON, 2)]
    assert closed == [("u", NOON - 3 * GAP_MS, NOON - 3 * GAP_MS, 1)]


def test_sessions_of_different_users_are_never_merged() -> None:
    """Sessions of different users are never merged, in any order of rows, whether their times overlap or not."""
    late = [("a", NOON), ("a", NOON + 5)]
    early = [("b", NOON - 9 * GAP_MS), ("b", NOON + 1)]
    closed, still_open = run([early + late])
    assert closed == [("b", NOON - 9 * GAP_MS, NOON - 9 * GAP_MS, 1)]
    assert still_open == [("a", NOON, NOON + 5, 2), ("b", NOON + 1, NOON + 1, 1)]
