"""The protocol under random disturbances where shards are partitions: nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.simulated import invariants
from tests.kit.simulated.schedules import Schedule

SEEDS = range(1000, 1012)
PARTITIONS = 6
"""As many as the schedules have key-groups, so that what they check of these holds of shards."""


def partition_of(key: object) -> int:
    """Return the partition of a key: it is the number in it."""
    return int(str(key).removeprefix("key-")) % PARTITIONS


def parted(rows: pa.Table) -> pa.Table:
    """Return rows with the topic and partition of their keys."""
    numbers = pa.array([partition_of(key) for key in rows["k"].to_pylist()], pa.int64())
    return rows.append_column("topic", pa.array(["events"] * len(rows), pa.string())).append_column(
        "partition", numbers
    )


def of_shard(state: Mapping[object, tuple[object, ...]], shard: int, total: int) -> dict[object, tuple[object, ...]]:
    """Return the part of a state that lies in one shard."""
    return {key: value for key, value in state.items() if partition_of(key) == shard}


def schedule_of(seed: int, folder: Path, dispatch: str) -> Schedule:
    """Return a schedule that is dispatched by partition."""
    schedule = Schedule(seed, folder)
    world, plain = schedule.world, schedule.world.incoming
    world.settings = world.settings.but(dispatch=dispatch)
    schedule.batches = [parted(rows) for rows in schedule.batches]

    def incoming(version: int, **changes: object) -> object:
        counts = ",".join(f'"{number}":{version}' for number in range(PARTITIONS))
        return plain(version, **{"offsets": f'v1\n{{}}\n{{"events":{{{counts}}}}}', **changes})

    world.incoming = incoming  # type: ignore[method-assign, assignment]
    return schedule


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("dispatch", ["partition", "hashed"])
@pytest.mark.parametrize("seed", SEEDS)
def test_state_and_sink_equal_those_of_an_undisturbed_run(
    seed: int, dispatch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever crashes, repeats, comes late or is damaged: state, sink and every invariant hold."""
    monkeypatch.setattr(invariants, "of_key_group", of_shard)
    schedule = schedule_of(seed, tmp_path, dispatch)
    try:
        schedule.run()
    except BaseException:
        print("\n".join(schedule.history))
        raise
    tail = schedule.world.log().tail
    assert tail is not None
    assert tail.shards == tuple(("events", number) for number in range(PARTITIONS))
