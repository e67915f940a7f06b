"""What the tests of slots share."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.process.merging.aggregates import aggregate, count, sum_
from tests.kit.worker.slot_member import Member


@pytest.fixture
def member(tmp_path: Path) -> Member:
    """Count and sum per key."""
    return Member(tmp_path, aggregate(count=count(), total=sum_("v")))
