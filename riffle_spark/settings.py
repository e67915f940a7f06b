"""All settings, their defaults and where they came from. Knows names, ranges and sources. Does not know what they
steer.

Precedence: defaults < conf/riffle.toml < ``spark.riffle.*`` of the Spark configuration < code. Durations are seconds,
or text such as ``"10 min"``; shares are fractions, or text such as ``"20 %"``.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from riffle_spark.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["CONF_PREFIX", "Settings", "from_sources", "read_toml"]

CONF_PREFIX = "spark.riffle."
_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9.]+)\s*([a-z]*)\s*\Z")

Value = object
Check = Callable[[Value], Value]
"""Turns what a user wrote into the setting's value, or raises ``ValueError`` saying the range."""


def _whole(low: int, high: int | None = None) -> Check:
    allowed = f"a whole number from {low}" + (f" to {high}" if high is not None else " up")

    def check(value: Value) -> Value:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value) else value
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or number < low
            or (high is not None and number > high)
        ):
            raise ValueError(allowed)
        return number

    return check


def _seconds(low: float) -> Check:
    allowed = f"a duration of at least {low:g} s, as seconds or as text such as '10 min'"

    def check(value: Value) -> Value:
        number = _duration(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= low:
            raise ValueError(allowed)
        return float(number)

    return check


def _duration(text: str) -> float | None:
    found = _DURATION.match(text)
    unit = _UNITS.get(found[2] or "s") if found else None
    try:
        return float(found[1]) * unit if found and unit else None
    except ValueError:
        return None


def _number(low: float) -> Check:
    def check(value: Value) -> Value:
        try:
            number = float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            number = low - 1
        if isinstance(value, bool) or not number >= low:
            raise ValueError(f"a number of at least {low:g}")
        return number

    return check


def _share(value: Value) -> Value:
    try:
        number = float(value[:-1]) / 100 if isinstance(value, str) and value.endswith("%") else float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise ValueError("a share from 0 to 1, or text such as '20 %'")
    return number


def _one_of(*names: str) -> Check:
    def check(value: Value) -> Value:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return value

    return check


def _text(value: Value) -> Value:
    if not isinstance(value, str) or not value:
        raise ValueError("text that is not empty")
    return value


def _optional(check: Check) -> Check:
    return lambda value: None if value in (None, "") else check(value)


def _flag(value: Value) -> Value:
    words: dict[Value, bool] = {"true": True, "false": False, True: True, False: False}
    if isinstance(value, str):
        value = value.lower()
    if not isinstance(value, (str, bool)) or value not in words:
        raise ValueError("true or false")
    return words[value]


def _names(value: Value) -> Value:
    items = [v.strip() for v in value.split(",") if v.strip()] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(v, str) for v in items):
        raise ValueError("names, as a list or separated by commas")
    return tuple(items)


_CHECKS: dict[str, Check] = {
    "root": _optional(_text),
    "key_groups": _whole(1, 32_768),
    "dispatch": _one_of("key_group"),
    "acceptable_recovery_lag": _whole(0),
    "num_standbys": _whole(0),
    "standby_mode": _one_of("replay", "snapshot_pointer"),
    "max_warmup_replicas": _whole(1),
    "probing_rebalance_interval": _seconds(0.001),
    "scheduled_rebalance_max_delay": _seconds(0),
    "initial_rebalance_delay": _seconds(0),
    "balance_band": _share,
    "rack_aware_assignment_strategy": _one_of("none", "min_cost", "balance_subtopology"),
    "rack_aware_assignment_traffic_cost": _whole(0),
    "rack_aware_assignment_non_overlap_cost": _whole(0),
    "rack_aware_assignment_tags": _names,
    "assignor": _text,
    "local_dir": _optional(_text),
    "local_disk_limit": _share,
    "retained_versions": _whole(2),
    "retained_for": _seconds(0),
    "state_cleanup_delay": _seconds(0),
    "orphan_scan_interval": _seconds(1),
    "snapshot_chain_share": _number(0.1),
    "snapshot_chain_links": _whole(2),
    "deliver_after_commit": _flag,
    "batch_attempts": _whole(1, 20),
    "expected_executors": _whole(0),
    "report_file": _optional(_text),
    "s3_endpoint": _optional(_text),
    "s3_region": _optional(_text),
    "s3_connect_timeout": _seconds(0.1),
    "s3_read_timeout": _seconds(0.1),
    "s3_max_attempts": _whole(1, 20),
    "s3_max_connections": _whole(1, 1000),
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
        configuration.
        """
        self = object.__new__(cls)
        object.__setattr__(self, "_given", tuple(given))
        return self

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, _checked(name, getattr(self, name), check, "code"))

    def given(self) -> dict[str, object]:
        """Return the settings that were said when this was made, validated."""
        names: tuple[str, ...] = getattr(self, "_given", ())
        return {name: getattr(self, name) for name in names}


def _checked(name: str, value: Value, check: Check, source: str) -> Value:
    try:
        return check(value)
    except ValueError as error:
        raise ConfigError(
            f"{name} = {value!r} is not allowed: it must be {error}", remedy=f"correct it in {source}", where=name
        ) from None


def _known(name: str, source: str) -> str:
    if name in _CHECKS:
        return name
    near = difflib.get_close_matches(name, _CHECKS, n=1, cutoff=0)
    raise ConfigError(
        f"there is no setting {name!r}", remedy=f"did you mean {near[0]!r}? Correct it in {source}", where=name
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
    return {_known(name, str(path)): _checked(name, value, _CHECKS[name], str(path)) for name, value in table.items()}


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
    values: dict[str, object] = dict(read_toml(path)) if path is not None and (chosen or path.exists()) else {}
    for key, value in sorted(named.items()):
        if key.startswith(CONF_PREFIX):
            name = _known(key.removeprefix(CONF_PREFIX), f"the Spark configuration ({key})")
            values[name] = _checked(name, value, _CHECKS[name], f"the Spark configuration ({key})")
    values.update(code.given() if code else {})
    return Settings(**values)  # type: ignore[arg-type]
