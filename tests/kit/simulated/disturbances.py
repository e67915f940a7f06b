"""Draw the settings of a query with a random schedule, and the requests of its operators."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from riffle_spark.errors import ConfigError
from tests.kit.simulated.world import World

__all__ = ["Disturbances", "drawn_settings"]


def drawn_settings(chance: random.Random) -> dict[str, Any]:
    """Draw settings for standbys and rebalancing. Three of ten draws keep the defaults."""
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


class Disturbances:
    """Sends random requests of operators: drains, pins, and changed settings."""

    def __init__(self, world: World, chance: random.Random, say: Callable[[str], None]) -> None:
        self._world = world
        self._chance = chance
        self._say = say

    def operator(self) -> None:
        """Send one random request. The query may refuse it."""
        operations = self._world.driver.operations
        chance = self._chance
        name = chance.choice([member.id for member in operations.members] or ["nobody"])
        group = chance.randrange(self._world.settings.key_groups)
        names = self._world.driver.ownership.placement.groups.names
        of = names[group % len(names)]
        changes: dict[str, object] = {
            "num_standbys": chance.randrange(3),
            "acceptable_recovery_lag": chance.choice([0, 3, 10_000]),
        }
        request, ask = chance.choice(
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
        self._say(request)
        with suppress(ConfigError):
            ask()
