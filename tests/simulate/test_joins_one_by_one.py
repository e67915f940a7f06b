"""While members join one by one, running warm-ups continue, and each new copy is fetched about once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, Member, TaskId
from riffle_spark.simulate.play import Play
from riffle_spark.simulate.policy import RIFFLE
from riffle_spark.simulate.world_file import parse_world
from tests.kit.assign_views import WHOLE, caught_up, settled, view

STATE_BYTES = 60e6
MEMBER = {"threads": 1, "restore_bytes_per_second": 1e6}


def joining(members: int, tasks: int, warmups: int, standbys: int, apart: int) -> Play:
    """Return a cluster that four members join, one every ``apart`` seconds. Fetching a copy takes a minute."""
    world = parse_world(
        {
            "name": "joins",
            "seconds": 6000,
            "every": 2,
            "config": {"max_warmup_replicas": warmups, "num_standbys": standbys, "acceptable_recovery_lag": 100},
            "protocol": {"state_cleanup_delay": 60},
            "members": [{"id": "m{}", "count": members, **MEMBER}],
            "tasks": [{"subtopology": "s", "count": tasks, "state_bytes": STATE_BYTES, "rows_per_second": 1}],
            "events": [{"at": 60 + apart * n, "join": [{"id": f"new{n}", **MEMBER}]} for n in range(4)],
        }
    )
    return Play(world, RIFFLE)


def copies(present: Assignment) -> set[tuple[TaskId, str]]:
    """Return the copies of owners and standbys."""
    standby_copies = {
        (standby_task, member) for standby_task, members in present.standbys.items() for member in members
    }
    return standby_copies | set(present.owners.items())


@pytest.mark.parametrize(
    ("members", "tasks", "warmups", "standbys", "apart"),
    [(4, 48, 4, 0, 36), (4, 48, 8, 0, 100), (4, 48, 8, 1, 100), (6, 96, 6, 1, 40)],
)
@pytest.mark.sample(step=2)
def test_running_warm_ups_continue_when_members_join(
    members: int, tasks: int, warmups: int, standbys: int, apart: int
) -> None:
    """No warm-up is cancelled while its target is the same. The fetched bytes are at most 1.3 times the size of the new
    copies.
    """
    game = joining(members, tasks, warmups, standbys, apart)
    initial_copies = copies(game.present)
    cancelled: Counter[tuple[TaskId, str]] = Counter()
    while game.now < game.world.seconds:
        previous = game.present
        game.step()
        current = game.present
        for task_id, warmup in previous.warmups.items():
            dropped = [
                m for m in warmup if m not in current.warmups.get(task_id, ()) and (task_id, m) not in copies(current)
            ]
            cancelled.update((task_id, m) for m in dropped if current.target[task_id] == m)
    assert not cancelled
    fresh = copies(game.present) - initial_copies
    fetched = game.outcome.bytes_warmed + game.outcome.bytes_kept + game.outcome.bytes_owned
    assert fetched <= 1.3 * STATE_BYTES * len(fresh), f"{fetched / STATE_BYTES / len(fresh):.2f} times the new copies"


def test_a_running_warm_up_precedes_that_of_a_newer_member() -> None:
    """Running warm-ups continue while their targets are the same, and precede warm-ups of a newer member."""
    settings = AssignSettings(max_warmup_replicas=2)
    initial = view("a:0-11 b:12-23 c:")
    first = assign(initial, settings)
    assert sum(map(len, first.warmups.values())) == 2
    running = caught_up(initial, replace(first, warmups={}))
    lags = {warmup: {**running.lags[warmup], "c": WHOLE // 3} for warmup in first.warmups}
    running = replace(running, warmups=first.warmups, lags={**running.lags, **lags})
    joined = assign(replace(running, members=(*running.members, Member("d"))), settings)
    assert joined.warmups == first.warmups
    assert {joined.target[warmup] for warmup in first.warmups} == {"c"}


def test_a_running_standby_warm_up_precedes_a_new_owner_warm_up() -> None:
    """Member c fetches a standby when d joins. With one warm-up allowed, the owners for d wait."""
    settings = AssignSettings(max_warmup_replicas=1, num_standbys=1)
    layout = "a:0-7 b:8-15 c:16-23"
    first = settled(view(layout), settings)
    lost = [
        task_id for task_id, standby in first.standbys.items() if standby == ("c",) and first.owners[task_id] == "a"
    ]
    initial = caught_up(view(layout), replace(first, standbys={**first.standbys, **dict.fromkeys(lost, ("b",))}))
    lags = {**initial.lags, lost[0]: {**initial.lags[lost[0]], "c": WHOLE // 3}}
    running = replace(initial, lags=lags, warmups={lost[0]: ("c",)})
    joined = replace(running, members=(*running.members, Member("d")))
    assert "d" in assign(joined, settings).target.values()
    assert assign(running, settings).warmups == assign(joined, settings).warmups == {lost[0]: ("c",)}
