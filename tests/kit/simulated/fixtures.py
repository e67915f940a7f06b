"""Fixtures for the tests of the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from riffle_spark.protocol.upkeep import retention, upkeep
from riffle_spark.state.copies import folder
from riffle_spark.state.log import log
from riffle_spark.state.restore import stack_parts
from tests.kit.simulated.elastic_world import InOrder
from tests.kit.simulated.switched_state import filled
from tests.kit.simulated.world import Oracle, States, World, two_stores


@pytest.fixture
def short_cycles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete orphans after every other record, of any age, and write a full record every four records.

    So short schedules have many of both. Schedules with odd seeds also merge stacks as soon as they have three parts.
    """
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("seed", 0) % 2:
        monkeypatch.setattr(stack_parts, "_PARTS_MAX", 2)  # private: small state
    monkeypatch.setattr(upkeep, "_SWEEP_RECORDS", 2)  # private: few batches
    trusted_for(0.0, monkeypatch)
    full_record_every(4, monkeypatch)


def trusted_for(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Set the seconds after which a driver checks its newest record again. Sweeps wait twice as long."""
    for module in (log, upkeep):
        patch.setattr(module, "SURE_SECONDS", seconds)


def full_record_every(records: int, patch: pytest.MonkeyPatch) -> None:
    """Set the distance of full records. With a small one, a few batches make a log with several full records."""
    for module in (log, retention):
        patch.setattr(module, "FULL_EVERY", records)


@pytest.fixture
def nothing_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow sweeps of records that were just written."""
    trusted_for(0.0, monkeypatch)


@pytest.fixture
def names_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name folders in the order in which they are claimed.

    Members then sort in the order in which executors started.
    """
    monkeypatch.setattr(folder, "uuid", InOrder())


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A query with one store on two executors."""
    return World(tmp_path)


@pytest.fixture
def two_store_world(tmp_path: Path) -> World:
    """A query with two stores on two executors."""
    return World(tmp_path, operators=two_stores())


@pytest.fixture
def filled_world(tmp_path: Path) -> tuple[World, Oracle]:
    """A query with snapshots, chains and deleted keys, and an oracle with its expected state."""
    return filled(tmp_path)


@pytest.fixture
def oracle(filled_world: tuple[World, Oracle]) -> Oracle:
    """The oracle with the expected state of ``filled_world``."""
    return filled_world[1]


@pytest.fixture
def states() -> States:
    """The expected state after each batch, which ``feed_six_keys`` fills."""
    return {}
