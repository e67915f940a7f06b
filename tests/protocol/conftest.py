"""What tests of the protocol share."""

from __future__ import annotations

from pathlib import Path

import pytest
from world import World

from riffle_spark.protocol import retention, upkeep
from riffle_spark.state import log


@pytest.fixture
def short_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep every other record, and write a full record every fourth: so that short schedules see many of both."""
    monkeypatch.setattr(upkeep, "_SWEEP_EVERY", 2)
    monkeypatch.setattr(log, "FULL_EVERY", 4)
    monkeypatch.setattr(retention, "FULL_EVERY", 4)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query of two stores on two executors."""
    return World(tmp_path)
