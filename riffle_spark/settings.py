"""All settings, each in one line, and where they came from. Knows names, ranges and sources. Does not know what they
steer.

A line of ``Settings`` says all there is to say of a setting; checks, liveness, the reference page and the example file
are made of it. Precedence: defaults < conf/riffle.toml < ``spark.riffle.*`` of the Spark configuration < code.
Durations are seconds, or text such as ``"10 min"``; shares are fractions, or text such as ``"20 %"``.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.setting_values import names, number, one_of, optional, seconds, setting, share, text, unset_or, whole
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
    "MARKS",
    "Settings",
    "check_names",
    "from_sources",
    "hasty",
    "read_toml",
]

CONF_PREFIX = "spark.riffle."
DISPATCHES: Final = ("key_group", "partition", "hashed")
MARKS: Final = (
    ("local_disk_limit", "local_disk_high", "local_disk_flood"), ("local_memory_limit", "local_memory_high"),
)  # fmt: skip
_SHORTEST_PROBING_SECONDS = 60.0
_OTHERS_STRATEGIES: Final = {"NONE": "none", "min_traffic": "min_cost", "balanced_min_cost": "balance_subtopology"}
"""KIP-925's own names."""


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
    root_file_mode: str | None = setting(
        None, optional(values.file_mode),
        "the mode of files below a `file://` root. Users who may read a file may also enter its folder. Not set: the "
        "umask decides", example="0640")
    s3_endpoint: str | None = setting(
        None, unset_or(text.of("URL")),
        "an S3-compatible server, with conditional puts (`If-None-Match`); not set: AWS, empty: refused", example="http://127.0.0.1:9000")
    s3_region: str | None = setting(
        None, optional(text.of("text")),
        "the region of the bucket; not set: what AWS's environment and files say", example="eu-central-1")
    s3_kms_key: str | None = setting(
        None, unset_or(text.of("key id or ARN")),
        "encrypt what is put with this key (SSE-KMS), `aws/s3` for the account's own; not set: as the bucket says, "
        "empty: refused",
        example="arn:aws:kms:eu-central-1:111122223333:key/1234abcd")
    s3_server_side_encryption: str | None = setting(
        None, unset_or(one_of("AES256", "aws:kms")),
        "the encryption header of every put, for buckets whose policy demands it: `AES256` (SSE-S3), or `aws:kms` "
        "with the account's own key; not set: as `s3_kms_key` and the bucket say, empty: refused", example="AES256")
    s3_requester_pays: bool = setting(
        False, values.flag, "every request says that the requester pays, for buckets that demand it")
    s3_connect_timeout: float = setting(5.0, seconds(0.1), "how long a new connection to the server may take")
    s3_read_timeout: float = setting(20.0, seconds(0.1), "how long the server may be silent within a call")
    s3_max_attempts: int = setting(4, whole(1, 20), "how often one call is sent in all")
    s3_patience: float = setting(
        60.0, seconds(0.0),
        "how long a call is sent again, also beyond `s3_max_attempts`, while the server does not answer or is busy: an "
        "outage that ends by then fails no batch")
    s3_max_connections: int = setting(16, whole(1, 1000), "connections kept open, a process")
    local_dir: str | None = setting(
        None, optional(values.folder),
        "copies of the state, one folder an executor, on a local disk; network file systems are refused. Not set: what "
        "`SPARK_LOCAL_DIRS` names on the executor", example="/mnt/nvme/riffle")
    encryption_keys: str | None = setting(
        None, unset_or(text.of("`file:/path` or `env:NAME`")),
        "where driver and executors find the [keys](operations.md#encryption) that deltas, snapshots and local copies "
        "are encrypted with; not set: they are not, empty: refused", example="file:/run/secrets/riffle-keys")

    accept: tuple[str, ...] = setting(
        (), names, "names of stores and results that continue although [the job was "
        "changed](operations.md#change-a-job-between-two-runs). Remove a name once a batch is committed",
        example=["totals"])

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

    assignor: str | Callable[..., object] = setting(  # noqa: RUF009 - as all of them
        "high_availability", replace(values.function, words="`high_availability`, `sticky`, `hash`, or the dotted path "
        "of your own; in code also a function or class"),
        "who decides about owners; where [your own](own-assignor.md) raises or answers what cannot be, a warning says "
        "so, and the last assignment stays", of_assignment=True, section="Who owns what")
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
        300.0, seconds(0), "how long a lost member's key-groups wait for it before they are assigned for good; lost "
        "standbys are replaced at once", live=True, of_assignment=True)
    balance_band: float = setting(
        0.2, share, "measured work per slot within this share of the mean moves nothing", live=True, of_assignment=True)
    store_weights: tuple[tuple[str, float], ...] = setting(
        (), values.weights, "what a changed row of a store counts as work, where a query has several stores; 1 where "
        "nothing is said", of_assignment=True, example=["totals=1", "models=20"])
    store_groups: tuple[tuple[str, str], ...] = setting(
        (), values.groups, "the [co-location group](assignor.md#several-groups-in-a-query) of a store, where it is not "
        "that of all others: stores of one group have one owner a key-group", example=["models=heavy"])
    include: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "only members with one of these attributes own or keep anything in the end; `id` and `rack` are attributes, "
        "too. Where no live member has one, all count, and a warning says so",
        live=True, of_assignment=True, example=["disk=ssd"])
    exclude: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "members with one of these attributes give everything away, warm, as if drained",
        live=True, of_assignment=True, example=["rack=c"])
    rebalance_enable: str = setting(
        "all", one_of("all", "owners", "standbys", "none"), "what may move to be better placed; what has no owner is "
        "always placed, and pins and drains are obeyed", live=True, of_assignment=True)
    allow_rebalance: str = setting(
        "all_owned", one_of("all_owned", "always"), "whether others may move while a key-group has no owner",
        live=True, of_assignment=True)
    moves_at_once: int | None = setting(
        None, optional(whole(0)), "how many owners one assignment moves at most of those that nothing forces; not set: "
        "no bound", live=True, of_assignment=True, example=2)
    instance_balance: float = setting(
        0.45, number(0, 100), "what a key-group too many on a member weighs, a hundred times as much as the same "
        "`store_balance`; 0 switches it off", live=True, of_assignment=True)
    store_balance: float = setting(
        0.55, number(0, 100), "what a key-group of one group too many on a member weighs; 0 switches it off, and lets "
        "the fewest owners move", live=True, of_assignment=True)
    user_cost: str | Callable[..., object] | None = setting(  # noqa: RUF009 - as all of them
        None, optional(values.function), "your own [cost of a key-group on a "
        "member](own-assignor.md#a-cost-of-your-own), a whole number or `None` for not there; counts where balance "
        "leaves a choice", of_assignment=True,
        example="my_module.cost")
    goals: tuple[str | Callable[..., object], ...] = setting(
        (), values.goals, "[goals in your own order](own-assignor.md#goals-in-an-order): `memory`, `balance`, "
        "`spread`, `rack`, `user`, and functions of your own or their dotted paths; those that are not named follow. "
        "None: the assignor's own order", of_assignment=True, example=["memory", "my_module.tenants_apart"])
    hard_goals: tuple[str, ...] = setting(
        (), names, "those of `goals` without which no owner moves; a function's is its name", of_assignment=True,
        example=["memory"])

    rack_aware_assignment_strategy: str = setting(
        "none", one_of("none", "min_cost", "balance_subtopology", also=_OTHERS_STRATEGIES),
        "whether racks decide, and whether before or after the spread of groups; `balanced_min_cost` is another name "
        "of `balance_subtopology`, `min_traffic` of `min_cost`", live=True, of_assignment=True,
        section="Racks and tags")
    rack_aware_assignment_traffic_cost: int = setting(
        10, whole(0), "what a row that is read across racks costs", live=True, of_assignment=True)
    rack_aware_assignment_non_overlap_cost: int = setting(
        1, whole(0), "what a move costs beside the traffic", live=True, of_assignment=True)
    rack_aware_assignment_tags: tuple[str, ...] = setting(
        (), names, "standbys are spread over the values of these tags first", live=True, of_assignment=True,
        example=["zone"])
    forced_awareness: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        (), values.values_by_tag, "values that a tag should have: copies of a key-group are spread over all of them, "
        "and what belongs to a value without a member stays unassigned, with a warning", live=True, of_assignment=True,
        example=["zone=a", "zone=b"])
    member_racks: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("10.0.1.*=rack-a").of("`pattern=rack`"),
        "racks of hosts; the first pattern that fits counts, upper and lower case are "
        "one", example=["10.0.1.*=rack-a", "10.0.2.*=rack-b"])
    topology_script: str | None = setting(
        None, optional(text.of("path on the driver")), "a program as Hadoop's `net.topology.script.file.name`, asked "
        "where no pattern fits", example="/etc/hadoop/topology.sh")
    ec2_metadata: bool = setting(
        False, values.flag, "ask the instance metadata service for the zone where nothing else tells; at most a second")

    local_disk_limit: float = setting(
        0.8, share, "nothing new is placed on a member whose disk is fuller, and no standby or warm-up is begun there; "
        "what has to be refused is a warning", live=True, section="Copies on local disks")
    local_disk_high: float = setting(
        0.9, share, "a member whose disk is fuller is emptied by degrees, `max_warmup_replicas` key-groups at a time, "
        "until it is below", live=True)
    local_disk_flood: float = setting(
        0.95, share, "on a disk that is fuller nothing is kept but what its member owns: standbys and warm-ups go at "
        "once", live=True)
    local_memory_limit: float = setting(
        0.9, share, "nothing new is placed on a member whose Python workers take more of the memory that they have or "
        "could have", live=True)
    local_memory_high: float = setting(
        0.95, share, "a member whose Python workers take more of it gives up what it owns by degrees, as on a full "
        "disk", live=True)
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
        False, values.flag, "exact output even of [functions that differ from run to "
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
    retained_for: float = setting(
        3600.0, seconds(0), "younger records are kept, however many; those of two minutes always are", live=True)
    orphan_scan_interval: float = setting(
        86_400.0, seconds(1), "how often a LIST looks for objects that nothing lists; also once after each start")
    # fmt: on

    def __new__(cls, /, **given: object) -> "Settings":
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
        _check_packages(self)

    def given(self) -> dict[str, object]:
        """Return the settings that were said when this was made, validated."""
        said: tuple[str, ...] = getattr(self, "_given", ())
        return {name: getattr(self, name) for name in said}

    def but(self, /, **changes: object) -> "Settings":
        """Return these settings with some changed; said are then those said before and the changed ones.

        ``dataclasses.replace`` would say every setting, and so shut out files and the Spark configuration.

        >>> Settings(key_groups=16).but(batch_attempts=2).given()
        {'key_groups': 16, 'batch_attempts': 2}
        """
        return Settings(**{**self.given(), **changes})  # type: ignore[arg-type]


LINES: Final[Mapping[str, values.SettingLine]] = {each.name: each.metadata["line"] for each in fields(Settings)}
"""All settings, in order."""
LIVE: Final = frozenset(name for name, line in LINES.items() if line.live)
"""Settings that can change while a query runs; the others take a restart, and some never change."""


def _checked(name: str, value: object, source: str) -> object:
    return values.checked(name, value, LINES[name].allowed, remedy=f"correct it in {source}", where=name)


def _check_packages(settings: Settings) -> None:
    """Refuse settings that need SciPy if it is not installed. Otherwise a query would fail when it chooses owners."""
    strategy = settings.rack_aware_assignment_strategy
    needing = {"rack_aware_assignment_strategy": strategy} if strategy != "none" else {}
    if settings.user_cost is not None:
        needing["user_cost"] = str(settings.user_cost)
    for name, value in needing.items():
        remedy = f"Run pip install 'scipy>=1.11' for the driver's Python, or leave {name} at its default."
        check_importable("scipy.optimize", f"{name} = {value}", remedy, where=name)


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
    except (OSError, ValueError, RecursionError) as error:
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
    check_known("setting", table, [*LINES, *(["riffle"] if table is body else [])], source=str(path))
    return {name: _checked(name, value, str(path)) for name, value in table.items()}


def from_sources(
    code: Settings | None = None, conf: Mapping[str, str] | None = None, toml: Path | None = None
) -> Settings:
    """Return the settings in force: defaults < ``toml`` < ``conf`` (keys ``spark.riffle.*``) < ``code``.

    ``spark.riffle.conf_file`` in ``conf`` names another TOML file. Raises ``ConfigError`` for unknown names, wrong
    values and ``MARKS`` that do not rise.
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
    settings = Settings(**found)  # type: ignore[arg-type]
    values.check_rising(settings, MARKS)
    return settings
