"""Fixtures for the tests of slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from tests.kit.worker.slot_member import Member


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """Return a member whose store counts and sums per key."""
    return Member(tmp_path, aggregate(count=count(), total=sum_("v")))
