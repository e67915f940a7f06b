"""The readiness of standbys and warm-ups: how far each copy lags, and whether it has caught up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.simulated.elastic_world import TOUCHED, Elastic

pytestmark = pytest.mark.usefixtures("names_in_order")


def test_a_copy_is_warm_up_to_the_acceptable_lag(tmp_path: Path) -> None:
    """Standbys without upkeep lag more with each batch, and are not warm above the acceptable lag."""
    world = Elastic(tmp_path, key_groups=2, num_standbys=1, acceptable_recovery_lag=2 * TOUCHED, retained_versions=100)
    world.feed(4)
    copies = world.ownership.copies
    assert len(copies.readiness) == 2
    assert all(copy.warm for copy in copies.readiness)
    world.cluster.stalled = {"1", "2"}
    lags = set()
    for _ in range(5):
        world.feed()
        lags |= {(copy.lag_records, copy.warm) for copy in copies.readiness if copy.role == "standby"}
    assert all(warm == (lag <= 2 * TOUCHED) for lag, warm in lags)
    assert {warm for _, warm in lags} == {True, False}
