"""The whole protocol under random disturbances, against what an undisturbed run gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.simulated.schedules import Schedule

SEEDS = [*range(60), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(60, 150))]
"""As many as find every planted bug (test_mutations); the others where there is time."""


@pytest.mark.usefixtures("short_cycles")
@pytest.mark.parametrize("seed", SEEDS)
def test_state_and_sink_equal_those_of_an_undisturbed_run(seed: int, tmp_path: Path) -> None:
    """Whatever crashes, repeats, comes late or is damaged: state, sink and every invariant hold."""
    schedule = Schedule(seed, tmp_path)
    try:
        schedule.run()
    except BaseException:
        print("\n".join(schedule.history))
        print(f"replay: pytest tests/protocol/test_simulation.py -k '[{seed}]'")
        raise


@pytest.mark.usefixtures("short_cycles")
def test_a_seed_plays_the_same_history_twice(tmp_path: Path) -> None:
    """What happened can be played again from its seed."""
    assert Schedule(20, tmp_path / "once").run() == Schedule(20, tmp_path / "again").run()
