"""The ``config`` of a scenario file. Knows its names, and what each may be. Does not know clients, tasks or files.

A setting has the name that it has in ``AssignSettings`` or, so that other assignors can be fed the same, a neutral one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riffle_spark import setting_values as values
from riffle_spark.assign.model import AssignSettings
from riffle_spark.errors import ConfigError
from riffle_spark.names import check_known

__all__ = ["STRATEGIES", "settings_of"]

STRATEGIES: Final = ("none", "min_cost", "balance_subtopology")
_NEUTRAL: Final = {
    "num_standby": "num_standbys",
    "max_warmup": "max_warmup_replicas",
    "strategy": "rack_aware_assignment_strategy",
    "traffic_cost": "rack_aware_assignment_traffic_cost",
    "non_overlap_cost": "rack_aware_assignment_non_overlap_cost",
    "rack_aware_tags": "rack_aware_assignment_tags",
}


def _values_by_tag(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError('values by tag, such as {"zone": ["a", "b"]}')  # noqa: TRY004 - as every check
    return {str(tag): values.names(held) for tag, held in value.items()}


_CHECKS: Final[Mapping[str, values.Check]] = {
    "acceptable_recovery_lag": values.whole(0),
    "num_standbys": values.whole(0),
    "max_warmup_replicas": values.whole(1),
    "balance_band": values.share,
    "rack_aware_assignment_strategy": values.one_of(*STRATEGIES),
    "rack_aware_assignment_traffic_cost": values.whole(0),
    "rack_aware_assignment_non_overlap_cost": values.whole(0),
    "rack_aware_assignment_tags": values.names,
    "assignor": values.text,
    "include": values.pairs,
    "exclude": values.pairs,
    "forced_awareness": _values_by_tag,
    "rebalance_enable": values.one_of("all", "owners", "standbys", "none"),
    "allow_rebalance": values.one_of("all_owned", "always"),
    "instance_balance": values.number(0),
    "store_balance": values.number(0),
    "moves_at_once": values.whole(0),
}


def settings_of(config: Mapping[str, object], strategy: str | None = None) -> AssignSettings:
    """Return the settings of a file; ``strategy`` replaces the file's own. What is null stays the default.

    Raises ``ConfigError`` for an unknown name, one that is there twice, and a value that is not allowed.
    """
    check_known("setting", config, [*_CHECKS, *_NEUTRAL], source="config")
    found: dict[str, object] = {}
    for said, value in config.items():
        name = _NEUTRAL.get(said, said)
        if name in found:
            raise ConfigError(f"{said} and {name} are one setting", remedy="say one of them", where=f"config, {said}")
        if value is not None:
            found[name] = values.checked(said, value, _CHECKS[name], "config")
    if strategy is not None:
        found["rack_aware_assignment_strategy"] = strategy
    return AssignSettings(**found)  # type: ignore[arg-type]
