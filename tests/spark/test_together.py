"""The settings of several operators in one commit. These tests start no session."""

from __future__ import annotations

import pytest

from riffle_spark import Settings, Stateful, aggregate, count, together
from riffle_spark.errors import ConfigError
from riffle_spark.spark.stateful import StatefulJob
from tests.kit.streams.streaming import CollectingSink


def job(store: str, settings: Settings | None = None) -> StatefulJob:
    """Return a job of one operator."""
    return Stateful(store, "k", aggregate(rows=count()), settings=settings).into(CollectingSink())


@pytest.mark.parametrize("other", [Settings(key_groups=8), Settings(key_groups=4, num_standbys=0)])
def test_settings_that_differ_are_refused(other: Settings) -> None:
    """Jobs with different settings are refused, even if one only states a default, unless ``together`` gets
    settings.
    """
    one, two = job("a", Settings(key_groups=4)), job("b", other)
    with pytest.raises(ConfigError, match="RIFFLE-0371"):
        together(one, two)
    assert together(one, two, settings=Settings(key_groups=16)).settings == Settings(key_groups=16)


def test_settings_of_one_job_apply_to_all_jobs() -> None:
    """If one job has settings, or several have equal ones, they apply to all jobs. Without any there are none."""
    shared_settings = Settings(key_groups=4)
    assert together(job("a"), job("b", shared_settings)).settings is shared_settings
    assert together(job("a", shared_settings), job("b"), job("c", Settings(key_groups=4))).settings == shared_settings
    assert together(job("a"), job("b")).settings is None
