"""What tests of the protocol share."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.protocol.upkeep import retention, upkeep
from riffle_spark.state.copies import folder
from riffle_spark.state.log import log
from riffle_spark.state.restore import bring
from tests.kit.simulated.elastic_world import InOrder
from tests.kit.simulated.world import World


@pytest.fixture
def short_cycles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep every other record, and write a full record every fourth: so that short schedules see many of both.

    Every other schedule keeps restored snapshots as files beside their copies, however small they are.
    """
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed", 0) % 2:
        monkeypatch.setattr(bring, "_BASE_BYTES", 1)  # private: small state
        monkeypatch.setattr(bring, "_SETTLED_BYTES", 300)  # private: small state
    monkeypatch.setattr(upkeep, "_SWEEP_EVERY", 2)  # private: few batches
    monkeypatch.setattr(log, "FULL_EVERY", 4)
    monkeypatch.setattr(retention, "FULL_EVERY", 4)


@pytest.fixture
def names_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name folders in the order in which they are claimed: members sort as their executors began."""
    monkeypatch.setattr(folder, "uuid", InOrder())


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query of two stores on two executors."""
    return World(tmp_path)
