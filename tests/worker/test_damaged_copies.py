"""Local files that are damaged between batches do not change results. A damage costs only fetched bytes.

The tests damage all files in the folders of members, whatever their format.
"""

from __future__ import annotations

import pytest

from tests.kit.damage.trials import Plan, run_trials

PLANS = [Plan("columns", 1, 15), Plan("variables", 1, 15)]
LONG_PLANS = [Plan(load, *sizes) for load in ("columns", "variables") for sizes in ((2, 850), (3, 150, 2))]
ALL_PLANS = [*PLANS, *(pytest.param(plan, marks=pytest.mark.long) for plan in LONG_PLANS)]


@pytest.mark.parametrize("plan", ALL_PLANS, ids=str)
@pytest.mark.sample(step=2)
def test_damaged_copies_never_change_rows_or_state_or_end_a_process(plan: Plan) -> None:
    """After flipped bits and truncated, zeroed, swapped, old or removed files, rows and state equal those of a model.
    No process ends, and each damage costs at most the restore of the damaged copies.
    """
    trials = run_trials(plan)
    assert [trial.number for trial in trials] == list(range(plan.trials))
    fetched = [trial.fetched_bytes for trial in trials]
    print(f"{plan}: {sum(n > 0 for n in fetched)} trials fetched {sum(fetched)} bytes, at most {max(fetched)}")
    assert [trial for trial in trials if trial.fault] == []
    assert [trial for trial in trials if trial.fetched_bytes > trial.restore_bytes] == []
