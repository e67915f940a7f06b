"""A census that was taken before an executor's disk refused does not end its time aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from riffle_spark.protocol.ownership.discovery import Discovery
from riffle_spark.protocol.ownership.membership import Membership
from riffle_spark.protocol.ownership.reported_copies import ReportedCopies
from riffle_spark.settings import Settings
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.testing import InlineBackground, SimCluster, home_of


def test_a_late_census_does_not_end_the_quarantine_of_its_executor(tmp_path: Path) -> None:
    """An executor runs a slot before its census arrives, and its disk refuses. It joins only after its time aside and
    another census.
    """
    cluster = SimCluster(home_of("memory://late", tmp_path), MemoryStore("late"))
    background = InlineBackground(deferred=True)
    discovery = Discovery(Settings(), cluster, background, lambda _: {})
    members, copies = Membership(), ReportedCopies()
    home = replace(cluster.home, live=frozenset({"app/1", "app/2"}))

    def live(now: float) -> set[str]:
        discovery.update_members(cluster.executors(), members, copies, home, now)
        return {living.executor.id for living in members.live.values()}

    cluster.add("1")
    assert live(0) == {"1"}
    cluster.add("2")
    assert live(1) == {"1"}
    discovery.set_aside("2", "it is full", 2)
    background.run()
    assert live(3) == {"1"}
    assert live(60) == {"1"}
    background.run()
    assert live(61) == {"1", "2"}, "a second census succeeded"
