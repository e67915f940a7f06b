"""What happens to the executors of a random schedule, and what operators ask meanwhile. Draws; does not check."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.aggregates import aggregate, count
from riffle_spark.protocol.operator import Operator, operator_of
from tests.kit.simulated.world import World, tails, totals

__all__ = ["Disturbances", "drawn_operators", "drawn_settings"]

MOST_EXECUTORS = 4


def drawn_settings(chance: random.Random) -> dict[str, Any]:
    """Draw how a query is kept elastic; half of them are plain."""
    if chance.random() < 0.3:
        return {}
    return {
        "num_standbys": chance.choice([0, 1, 1, 2]),
        "standby_mode": chance.choice(["replay", "replay", "snapshot_pointer"]),
        "acceptable_recovery_lag": chance.choice([0, 1, 5, 10_000]),
        "max_warmup_replicas": chance.choice([1, 2, 6]),
        "state_cleanup_delay": chance.choice([0, 0, 3, 600]),
        "scheduled_rebalance_max_delay": chance.choice([0, 3, 300]),
        "probing_rebalance_interval": chance.choice([1, 600]),
        "upkeep_bandwidth": chance.choice([1, 1_000, 50_000_000]),
    }


def drawn_operators(chance: random.Random) -> list[Operator]:
    """Draw the stores: sometimes with a cache beside them."""
    cache = replace(operator_of("seen", ["k"], aggregate(count=count()), (), totals().rows), durable=False)
    return [totals(), tails(), *([cache] if chance.random() < 0.2 else [])]


class Disturbances:
    """Executors join, leave, fall silent; operators drain, pin and change settings."""

    def __init__(self, world: World, chance: random.Random, say: Callable[[str], None]) -> None:
        self._world = world
        self._chance = chance
        self._say = say
        self._count = len(world.cluster.executors())

    def executors(self) -> None:
        """Let one go, with or without its disk, on purpose or not, and one come."""
        live = [executor.id for executor in self._world.cluster.executors()]
        if len(live) > 1 and self._chance.random() < 0.5:
            name = self._chance.choice(live)
            disk, planned = self._chance.random() < 0.4, self._chance.random() < 0.2
            fate = f"its disk {'too' if disk else 'stays'}{', as planned' if planned else ''}"
            self._say(f"executor {name} is lost, {fate}")
            self._world.cluster.lose(name, disk=disk, planned=planned)
        if len(live) < MOST_EXECUTORS:
            self._count += 1
            self._say(f"executor {self._count} joins")
            self._world.cluster.add(str(self._count), cores=self._chance.choice([1, 2]))

    def answers(self) -> None:
        """Let some executors answer no census and do no upkeep for now."""
        live = [executor.id for executor in self._world.cluster.executors()]
        cluster = self._world.cluster
        cluster.silent = {name for name in live if self._chance.random() < 0.3}
        cluster.stalled = {name for name in live if self._chance.random() < 0.3}
        self._say(f"silent: {sorted(cluster.silent)}, stalled: {sorted(cluster.stalled)}")

    def quiet(self) -> None:
        """Let everybody answer again, and time pass."""
        self._world.cluster.silent, self._world.cluster.stalled = set(), set()

    def time(self) -> None:
        """Let time pass: delays and intervals are over, or nearly."""
        seconds = self._chance.choice([1, 2, 5, 400])
        self._say(f"{seconds} s pass")
        self._world.clock.advance(seconds)

    def operator(self) -> None:
        """Ask for something; what cannot be is refused."""
        operations, chance = self._world.driver.operations, self._chance
        name = chance.choice([member.id for member in operations.members] or ["nobody"])
        group = chance.randrange(self._world.settings.key_groups)
        names = self._world.driver.ownership.groups.names
        of = names[group % len(names)]
        changes: dict[str, object] = {
            "num_standbys": chance.randrange(3), "acceptable_recovery_lag": chance.choice([0, 3, 10_000]),
        }  # fmt: skip
        what, ask = chance.choice(
            [
                (f"drain {name}", lambda: operations.drain(name)),
                (f"undrain {name}", lambda: operations.undrain(name)),
                (f"pin {group} to {name}", lambda: operations.pin(group, name, of)),
                (f"unpin {group}", lambda: operations.unpin(group, of)),
                ("rebalance", operations.request_rebalance),
                ("one slot less", operations.remove_worker),
                (f"reconfigure {changes}", lambda: operations.reconfigure(self._world.driver.settings, changes)),
            ]
        )
        self._say(what)
        with suppress(ConfigError):
            ask()
