"""All settings, each in one line, and where they came from. Knows names, ranges and sources. Does not know what they
steer.

A line of ``Settings`` says all there is to say of a setting; checks, liveness, the reference page and the example file
are made of it. Precedence: defaults < conf/riffle.toml < ``spark.riffle.*`` of the Spark configuration < code.
Durations are seconds, or text such as ``"10 min"``; shares are fractions, or text such as ``"20 %"``.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, TypeVar

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError
from riffle_spark.setting_values import flag, names, number, one_of, optional, pairs, seconds, share, text, whole
from riffle_spark.unknown_names import check_known

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "CONF_PREFIX",
    "DISPATCHES",
    "LINES",
    "LIVE",
    "SettingLine",
    "Settings",
    "check_names",
    "from_sources",
    "hasty",
    "read_toml",
]

CONF_PREFIX = "spark.riffle."
DISPATCHES: Final = ("key_group", "partition", "hashed")
_SHORTEST_PROBING_SECONDS = 60.0
_Default = TypeVar("_Default")


@dataclass(frozen=True, slots=True)
class SettingLine:
    """What one setting is, beside its name. ``meaning`` is Markdown as in docs/configuration.md, which ``./run
    reference`` writes from these lines.

    ``live`` settings can change while a query runs; the others take a restart, or what ``fixed`` says. Those with
    ``of_assignment`` have no effect where hashes name the owners. ``example`` is shown where the default says nothing;
    ``section`` is the heading of this setting and of those after it.
    """

    default: object
    allowed: values.Range
    meaning: str
    live: bool
    of_assignment: bool
    fixed: str
    example: object
    section: str


def setting(
    default: _Default, allowed: values.Range, meaning: str, *, live: bool = False, of_assignment: bool = False,
    fixed: str = "", example: object = None, section: str = "",
) -> _Default:  # fmt: skip
    """Return the field of ``Settings`` that one line declares."""
    line = SettingLine(default, allowed, meaning, live, of_assignment, fixed, example, section)
    return field(default=default, metadata={"line": line})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, validated. Make one with keyword arguments; what is not given stays the default.

    ``root`` is where state is kept: ``s3://bucket/prefix`` or ``file:///path``. A wrong value raises ``ConfigError``
    that names the setting, the value, the range and where it came from. Units: seconds, records, shares of one.

    >>> Settings(root="file:///tmp/state", probing_rebalance_interval="5 min").probing_rebalance_interval
    300.0
    """

    # Default, range, meaning. The order is that of the reference page and of conf/riffle.toml: ./run reference.
    # fmt: off
    root: str | None = setting(
        None, optional(text.of("`s3://bucket/prefix` or `file:///path`")),
        "where state is; one root a query. Must be set somewhere. `file://` only where all executors see the same "
        "folder", fixed="with the state", example="s3://my-bucket/state/totals", section="Where state is kept")
    s3_endpoint: str | None = setting(
        None, optional(text.of("URL")),
        "an S3-compatible server, with conditional puts (`If-None-Match`); not set: AWS", example="http://127.0.0.1:9000")
    s3_region: str | None = setting(
        None, optional(text.of("text")),
        "the region of the bucket; not set: what AWS's environment and files say", example="eu-central-1")
    s3_connect_timeout: float = setting(5.0, seconds(0.1), "how long a new connection to the server may take")
    s3_read_timeout: float = setting(20.0, seconds(0.1), "how long the server may be silent within a call")
    s3_max_attempts: int = setting(4, whole(1, 20), "how often one call is sent in all")
    s3_max_connections: int = setting(16, whole(1, 1000), "connections kept open, a process")
    local_dir: str | None = setting(
        None, optional(text.of("folder on each executor")),
        "copies of the state, one folder an executor, on a local disk; network file systems are refused. Not set: what "
        "`SPARK_LOCAL_DIRS` names on the executor", example="/mnt/nvme/riffle")

    key_groups: int = setting(
        128, whole(1, 32_768), "how many parts the key space has; another number than the stored one is refused. Under "
        "four for each slot is a warning", fixed="[by a procedure](dispatch.md#another-number-of-key-groups)",
        section="Keys")
    dispatch: str = setting(
        "key_group", one_of(*DISPATCHES),
        "how rows find their slot: by key, or by the (topic, partition) that they come from",
        fixed="[by a procedure](dispatch.md)")
    dispatch_columns: tuple[str, ...] = setting(
        ("topic", "partition"), names,
        "the two columns with a row's topic and partition, for `partition` and `hashed`")

    assignor: str = setting(
        "high_availability", text.of("`high_availability`, `sticky`, `hash`, or the dotted path of your own"),
        "who decides about owners; where [your own](assignor.md#your-own-assignor) raises or answers what cannot be, a "
        "warning says so, and the last assignment stays", of_assignment=True, section="Who owns what")
    acceptable_recovery_lag: int = setting(
        10_000, whole(0).of("records"), "a copy this many changed records behind still counts as caught up",
        live=True, of_assignment=True)
    num_standbys: int = setting(
        0, whole(0), "spare copies of each key-group on other members; 1 is the sane value in production",
        live=True, of_assignment=True)
    standby_mode: str = setting(
        "replay", one_of("replay", "snapshot_pointer"),
        "spare copies follow every change, or only know which snapshot to fetch", of_assignment=True)
    max_warmup_replicas: int = setting(
        2, whole(1), "copies that warm up at once in order to move", live=True, of_assignment=True)
    probing_rebalance_interval: float = setting(
        600.0, seconds(0.001), "warm-ups are looked after when all are warm, and after this time if one is; below "
        "1 min, as in tests, a warning says so", live=True, of_assignment=True)
    scheduled_rebalance_max_delay: float = setting(
        300.0, seconds(0), "how long a lost member is waited for before others warm up in its place",
        live=True, of_assignment=True)
    balance_band: float = setting(
        0.2, share, "measured work per slot within this share of the mean moves nothing", live=True, of_assignment=True)

    rack_aware_assignment_strategy: str = setting(
        "none", one_of("none", "min_cost", "balance_subtopology"),
        "whether racks decide, and whether before or after balance", live=True, of_assignment=True,
        section="Racks and tags")
    rack_aware_assignment_traffic_cost: int = setting(
        10, whole(0), "what a row that is read across racks costs", live=True, of_assignment=True)
    rack_aware_assignment_non_overlap_cost: int = setting(
        1, whole(0), "what a move costs beside the traffic", live=True, of_assignment=True)
    rack_aware_assignment_tags: tuple[str, ...] = setting(
        (), names, "standbys are spread over the values of these tags first", live=True, of_assignment=True,
        example=["zone"])
    member_racks: tuple[tuple[str, str], ...] = setting(
        (), pairs.of("`pattern=rack`"), "racks of hosts; the first pattern that fits counts, upper and lower case are "
        "one", example=["10.0.1.*=rack-a", "10.0.2.*=rack-b"])
    topology_script: str | None = setting(
        None, optional(text.of("path on the driver")), "a program as Hadoop's `net.topology.script.file.name`, asked "
        "where no pattern fits", example="/etc/hadoop/topology.sh")
    ec2_metadata: bool = setting(
        False, flag, "ask the instance metadata service for the zone where nothing else tells; at most a second")

    local_disk_limit: float = setting(
        0.8, share, "nothing new is placed on a member whose disk is fuller, and no standby or warm-up is begun there; "
        "what has to be refused is a warning", live=True, section="Copies on local disks")
    local_disk_high: float = setting(
        0.9, share, "a member whose disk is fuller is emptied by degrees, `max_warmup_replicas` key-groups at a time, "
        "until it is below", live=True)
    local_disk_flood: float = setting(
        0.95, share, "on a disk that is fuller nothing is kept but what its member owns: standbys and warm-ups go at "
        "once", live=True)
    state_cleanup_delay: float = setting(
        600.0, seconds(0), "how long copies stay that the assignment needs no more", live=True)
    folder_cleanup_delay: float = setting(
        86_400.0, seconds(0), "how long folders of dead executors stay for somebody to take them up")
    upkeep_bandwidth: int = setting(
        50_000_000, whole(0).of("bytes a second"),
        "what an executor fetches beside the batches at most; 0 for no bound", live=True)
    upkeep_timeout: float = setting(
        60.0, seconds(1), "how much longer than its second a piece of upkeep, or a census, may run before it is [given "
        "up](operations.md#upkeep-that-does-not-end)", live=True)

    batch_attempts: int = setting(
        4, whole(1, 20), "how often one batch is run when it loses its place or a block or a disk refuses, before that "
        "is the query's failure", section="Batches")
    deliver_after_commit: bool = setting(
        False, flag, "exact output even of [functions that differ from run to "
        "run](sinks.md#functions-that-differ-from-run-to-run), at the price of writing it beside the state")
    initial_rebalance_delay: float = setting(
        30.0, seconds(0), "how long a start waits for the expected executors; and for any executor at all")
    expected_executors: int = setting(
        0, whole(0), "how many executors a start waits for; 0: as many as `spark.executor.instances` says, else one")
    report_file: str | None = setting(
        None, optional(text.of("path on the driver")), "append each `BatchReport` as a line of JSON",
        example="/var/log/riffle/totals.jsonl")

    snapshot_chain_share: float = setting(
        2.0, number(0.1), "a snapshot is due when the changes after the last one exceed this multiple of its bytes "
        "(and 256 KiB)", section="What is kept, and for how long")
    snapshot_chain_links: int = setting(
        32, whole(2), "a snapshot is also due when these changes are this many; spread over key-groups, down to about "
        "half of it")
    retained_versions: int = setting(
        100, whole(2).of("records"), "records that can be rolled back to; a snapshot is also due when the oldest "
        "change is this many versions old", live=True)
    retained_for: float = setting(3600.0, seconds(0), "younger records are kept, however many", live=True)
    orphan_scan_interval: float = setting(
        86_400.0, seconds(1), "how often a LIST looks for objects that nothing lists; also once after each start")
    # fmt: on

    def __new__(cls, **given: object) -> "Settings":
        """Remember what was said, even where it equals the default: it must win over files and the Spark
        configuration. Raises ``ConfigError`` for a name that no setting has.
        """
        check_names(given, "code")
        self = object.__new__(cls)
        object.__setattr__(self, "_given", tuple(given))
        return self

    def __post_init__(self) -> None:
        for name in LINES:
            object.__setattr__(self, name, _checked(name, getattr(self, name), "code"))

    def given(self) -> dict[str, object]:
        """Return the settings that were said when this was made, validated."""
        said: tuple[str, ...] = getattr(self, "_given", ())
        return {name: getattr(self, name) for name in said}

    def but(self, **changes: object) -> "Settings":
        """Return these settings with some changed; said are then those said before and the changed ones.

        ``dataclasses.replace`` would say every setting, and so shut out files and the Spark configuration.

        >>> Settings(key_groups=16).but(batch_attempts=2).given()
        {'key_groups': 16, 'batch_attempts': 2}
        """
        return Settings(**{**self.given(), **changes})  # type: ignore[arg-type]


LINES: Final[Mapping[str, SettingLine]] = {each.name: each.metadata["line"] for each in fields(Settings)}
"""All settings, in order."""
LIVE: Final = frozenset(name for name, line in LINES.items() if line.live)
"""Settings that can change while a query runs; the others take a restart, and some never change."""


def _checked(name: str, value: object, source: str) -> object:
    return values.checked(name, value, LINES[name].allowed, remedy=f"correct it in {source}", where=name)


def check_names(said: Iterable[str], source: str) -> None:
    """Raise ``ConfigError`` for a name that no setting has, with the nearest that one has."""
    check_known("setting", said, LINES, source=source)


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
    beside = sorted(LINES.keys() & body.keys()) if table is not body else []
    if beside or not isinstance(table, dict):
        raise ConfigError(
            f"{beside[0]} stands beside the table [riffle], where nobody reads it" if beside else "riffle is no table",
            remedy="write all settings into the table [riffle], or all at the top level",
            where=str(path),
        )
    check_names(table, str(path))
    return {name: _checked(name, value, str(path)) for name, value in table.items()}


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
            found[name] = _checked(name, value, source)
    found.update(code.given() if code else {})
    return Settings(**found)  # type: ignore[arg-type]
