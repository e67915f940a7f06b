"""All settings, their defaults and where they came from. Knows names, ranges and sources. Does not know what they
steer.

Precedence: defaults < conf/riffle.toml < ``spark.riffle.*`` of the Spark configuration < code. Durations are seconds,
or text such as ``"10 min"``; shares are fractions, or text such as ``"20 %"``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError
from riffle_spark.names import check_known

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CONF_PREFIX", "LIVE", "Settings", "check_names", "from_sources", "hasty", "read_toml"]

CONF_PREFIX = "spark.riffle."
LIVE = frozenset(
    {
        "acceptable_recovery_lag", "num_standbys", "max_warmup_replicas", "probing_rebalance_interval",
        "scheduled_rebalance_max_delay", "balance_band", "rack_aware_assignment_strategy",
        "rack_aware_assignment_traffic_cost", "rack_aware_assignment_non_overlap_cost", "rack_aware_assignment_tags",
        "retained_versions", "retained_for", "state_cleanup_delay", "upkeep_bandwidth", "upkeep_timeout",
    }
)  # fmt: skip
"""Settings that can change while a query runs; the others take a restart, and some never change."""
_SHORTEST_PROBING_SECONDS = 60.0
_CHECKS: dict[str, values.Check] = {
    "root": values.optional(values.text),
    "key_groups": values.whole(1, 32_768),
    "dispatch": values.one_of("key_group", "partition", "hashed"),
    "dispatch_columns": values.names,
    "acceptable_recovery_lag": values.whole(0),
    "num_standbys": values.whole(0),
    "standby_mode": values.one_of("replay", "snapshot_pointer"),
    "max_warmup_replicas": values.whole(1),
    "probing_rebalance_interval": values.seconds(0.001),
    "scheduled_rebalance_max_delay": values.seconds(0),
    "initial_rebalance_delay": values.seconds(0),
    "balance_band": values.share,
    "rack_aware_assignment_strategy": values.one_of("none", "min_cost", "balance_subtopology"),
    "rack_aware_assignment_traffic_cost": values.whole(0),
    "rack_aware_assignment_non_overlap_cost": values.whole(0),
    "rack_aware_assignment_tags": values.names,
    "assignor": values.text,
    "local_dir": values.optional(values.text),
    "local_disk_limit": values.share,
    "retained_versions": values.whole(2),
    "retained_for": values.seconds(0),
    "state_cleanup_delay": values.seconds(0),
    "folder_cleanup_delay": values.seconds(0),
    "upkeep_bandwidth": values.whole(0),
    "upkeep_timeout": values.seconds(1),
    "member_racks": values.pairs,
    "topology_script": values.optional(values.text),
    "ec2_metadata": values.flag,
    "orphan_scan_interval": values.seconds(1),
    "snapshot_chain_share": values.number(0.1),
    "snapshot_chain_links": values.whole(2),
    "deliver_after_commit": values.flag,
    "batch_attempts": values.whole(1, 20),
    "expected_executors": values.whole(0),
    "report_file": values.optional(values.text),
    "s3_endpoint": values.optional(values.text),
    "s3_region": values.optional(values.text),
    "s3_connect_timeout": values.seconds(0.1),
    "s3_read_timeout": values.seconds(0.1),
    "s3_max_attempts": values.whole(1, 20),
    "s3_max_connections": values.whole(1, 1000),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, validated. Make one with keyword arguments; what is not given stays the default.

    ``root`` is where state is kept: ``s3://bucket/prefix`` or ``file:///path``. A wrong value raises ``ConfigError``
    that names the setting, the value, the range and where it came from. Units: seconds, records, shares of one.

    >>> Settings(root="file:///tmp/state", probing_rebalance_interval="5 min").probing_rebalance_interval
    300.0
    """

    root: str | None = None
    key_groups: int = 128
    dispatch: str = "key_group"
    dispatch_columns: tuple[str, ...] = ("topic", "partition")
    acceptable_recovery_lag: int = 10_000
    num_standbys: int = 0
    standby_mode: str = "replay"
    max_warmup_replicas: int = 2
    probing_rebalance_interval: float = 600.0
    scheduled_rebalance_max_delay: float = 300.0
    initial_rebalance_delay: float = 30.0
    balance_band: float = 0.2
    rack_aware_assignment_strategy: str = "none"
    rack_aware_assignment_traffic_cost: int = 10
    rack_aware_assignment_non_overlap_cost: int = 1
    rack_aware_assignment_tags: tuple[str, ...] = ()
    assignor: str = "high_availability"
    local_dir: str | None = None
    local_disk_limit: float = 0.8
    retained_versions: int = 100
    retained_for: float = 3600.0
    state_cleanup_delay: float = 600.0
    folder_cleanup_delay: float = 86_400.0
    upkeep_bandwidth: int = 50_000_000
    upkeep_timeout: float = 60.0
    member_racks: tuple[tuple[str, str], ...] = ()
    topology_script: str | None = None
    ec2_metadata: bool = False
    orphan_scan_interval: float = 86_400.0
    snapshot_chain_share: float = 2.0
    snapshot_chain_links: int = 32
    deliver_after_commit: bool = False
    batch_attempts: int = 4
    expected_executors: int = 0
    report_file: str | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_connect_timeout: float = 5.0
    s3_read_timeout: float = 20.0
    s3_max_attempts: int = 4
    s3_max_connections: int = 16

    def __new__(cls, **given: object) -> Settings:
        """Remember what was said, even where it equals the default: it must win over files and the Spark
        configuration. Raises ``ConfigError`` for a name that no setting has.
        """
        check_names(given, "code")
        self = object.__new__(cls)
        object.__setattr__(self, "_given", tuple(given))
        return self

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, values.checked(name, getattr(self, name), check, "code"))

    def given(self) -> dict[str, object]:
        """Return the settings that were said when this was made, validated."""
        names: tuple[str, ...] = getattr(self, "_given", ())
        return {name: getattr(self, name) for name in names}

    def but(self, **changes: object) -> Settings:
        """Return these settings with some changed; said are then those said before and the changed ones.

        ``dataclasses.replace`` would say every setting, and so shut out files and the Spark configuration.

        >>> Settings(key_groups=16).but(batch_attempts=2).given()
        {'key_groups': 16, 'batch_attempts': 2}
        """
        return Settings(**{**self.given(), **changes})  # type: ignore[arg-type]


def check_names(names: Iterable[str], source: str) -> None:
    """Raise ``ConfigError`` for a name that no setting has, with the nearest that one has."""
    check_known("setting", names, _CHECKS, source=source)


def hasty(settings: Settings) -> tuple[str, ...]:
    """Return a warning for each setting that is shorter than is good for a query that runs for long."""
    interval = settings.probing_rebalance_interval
    if interval >= _SHORTEST_PROBING_SECONDS:
        return ()
    return (
        f"probing_rebalance_interval = {interval:g} s is for tests: below a minute, the assignment is looked at anew "
        "more often than copies warm up",
    )


def read_toml(path: Path) -> dict[str, object]:
    """Return the settings of a TOML file: its top level, or its ``[riffle]`` table. Raises ``ConfigError`` if it is
    not TOML.
    """
    try:
        body = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"cannot read settings: {error}", remedy="correct the file or its path", where=str(path)
        ) from None
    table = body.get("riffle", body)
    beside = sorted(_CHECKS.keys() & body.keys()) if table is not body else []
    if beside or not isinstance(table, dict):
        raise ConfigError(
            f"{beside[0]} stands beside the table [riffle], where nobody reads it" if beside else "riffle is no table",
            remedy="write all settings into the table [riffle], or all at the top level",
            where=str(path),
        )
    check_names(table, str(path))
    return {name: values.checked(name, value, _CHECKS[name], str(path)) for name, value in table.items()}


def from_sources(
    code: Settings | None = None, conf: Mapping[str, str] | None = None, toml: Path | None = None
) -> Settings:
    """Return the settings in force: defaults < ``toml`` < ``conf`` (keys ``spark.riffle.*``) < ``code``.

    ``spark.riffle.conf_file`` in ``conf`` names another TOML file. Raises ``ConfigError`` for unknown names and wrong
    values.
    """
    named = dict(conf or {})
    chosen = named.pop(f"{CONF_PREFIX}conf_file", None)
    path = Path(chosen) if chosen else toml
    found: dict[str, object] = dict(read_toml(path)) if path is not None and (chosen or path.exists()) else {}
    for key, value in sorted(named.items()):
        if key.startswith(CONF_PREFIX):
            name, source = key.removeprefix(CONF_PREFIX), f"the Spark configuration ({key})"
            check_names([name], source)
            found[name] = values.checked(name, value, _CHECKS[name], source)
    found.update(code.given() if code else {})
    return Settings(**found)  # type: ignore[arg-type]
