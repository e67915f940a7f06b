"""All settings: their names, ranges and defaults, and the sources that they are read from.

Each field of ``Settings`` declares one setting. The constructor's signature, validation, the list of live settings,
docs/configuration.md and conf/riffle.toml are derived from these declarations. Precedence: defaults < conf/riffle.toml
< ``spark.riffle.*`` of the Spark configuration < code. Durations are seconds or text such as ``"10 min"``. Shares are
fractions or text such as ``"20 %"``.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, TypeAlias, get_args

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.removed_settings import check_not_removed
from riffle_spark.setting_values import Setting, names, one_of, optional, seconds, share, text, unset_or, whole
from riffle_spark.unknown_names import check_known

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONF_PREFIX = "spark.riffle."
DISPATCHES: Final = ("key_group", "partition", "hashed")
_SHORTEST_PROBING_SECONDS = 60.0
_STRATEGY_SYNONYMS: Final = {"NONE": "none", "min_traffic": "min_cost", "balanced_min_cost": "balance_subtopology"}
"""The names of these strategies in KIP-925 and Kafka."""


_OptionalText: TypeAlias = Setting[str | None, str | None]
_Word: TypeAlias = Setting[str, str]
_Flag: TypeAlias = Setting[bool, bool]
_Integer: TypeAlias = Setting[int, int]
_Duration: TypeAlias = Setting[float, float | str]
_Share: TypeAlias = Setting[float, float | str]
_Names: TypeAlias = Setting[tuple[str, ...], str | Sequence[str]]
_Pairs: TypeAlias = Setting[
    tuple[tuple[str, str], ...], str | Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, str]
]
_ValuesByTag: TypeAlias = Setting[
    tuple[tuple[str, tuple[str, ...]], ...],
    str | Sequence[str] | Sequence[tuple[str, Sequence[str]]] | Mapping[str, str | Sequence[str]],
]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of a query, validated. Settings that are not passed keep their default.

    docs/configuration.md lists each setting with its unit, range and meaning. ``root`` (``s3://bucket/prefix`` or
    ``file:///path``) is where the state is stored. Units are seconds, records, bytes, and shares of one.

    Raises ``ConfigError`` for an unknown name or a value outside its range. The error names the setting, the value, the
    range and the source.

    >>> Settings(root="file:///tmp/state", probing_rebalance_interval="5 min").probing_rebalance_interval
    300.0
    """

    # Default, range, meaning. docs/configuration.md and conf/riffle.toml list them in this order: ./run reference.
    # fmt: off
    root: _OptionalText = Setting(
        None, optional(text.of("`s3://`, `gs://`, `abfss://` or `file://` URL")),
        "where the state is stored. Each query needs its own root. Required. Use `file://` only if all executors share "
        "this folder", fixed="with the state", example="s3://my-bucket/state/totals", section="Where state is kept")
    root_file_mode: Setting[str | None, str | int | None] = Setting(
        None, optional(values.file_mode),
        "the mode of files below a `file://` root. Users who may read a file may also enter its folder. Not set: the "
        "umask decides", example="0640")
    s3_endpoint: _OptionalText = Setting(
        None, unset_or(text.of("URL")),
        "the URL of an S3-compatible server. It must support conditional puts (`If-None-Match`). Not set: AWS. Empty: "
        "refused", example="http://127.0.0.1:9000")
    s3_region: _OptionalText = Setting(
        None, optional(text.of("text")),
        "the region of the bucket. Not set: the region in AWS's environment variables and files",
        example="eu-central-1")
    s3_kms_key: _OptionalText = Setting(
        None, unset_or(text.of("key id or ARN")),
        "the KMS key that encrypts every put (SSE-KMS), or `aws/s3` for the account's own key. Not set: the bucket's "
        "default. Empty: refused",
        example="arn:aws:kms:eu-central-1:111122223333:key/1234abcd")
    s3_server_side_encryption: _OptionalText = Setting(
        None, unset_or(one_of("AES256", "aws:kms")),
        "the encryption header of every put, for buckets whose policy demands it: `AES256` (SSE-S3), or `aws:kms` "
        "with the account's own key. Not set: `s3_kms_key` and the bucket decide. Empty: refused", example="AES256")
    s3_requester_pays: _Flag = Setting(
        False, values.flag, "adds the requester-pays header to every request")
    gcs_endpoint: _OptionalText = Setting(
        None, unset_or(text.of("URL")),
        "the URL of Google Cloud Storage, for a private endpoint. Not set: https://storage.googleapis.com. Empty: "
        "refused",
        example="https://storage-riffle.p.googleapis.com")
    azure_endpoint: _OptionalText = Setting(
        None, unset_or(text.of("URL")),
        "the URL of the storage account's Blob service, for a private endpoint. Not set: the account in `root`. Empty: "
        "refused", example="https://account.privatelink.blob.core.windows.net")
    s3_patience: _Duration = Setting(
        60.0, seconds(0.0),
        "how long a call to any object store is retried, beyond its 4 attempts, while the server does not answer or is "
        "busy. An outage that is shorter fails no batch")
    local_dir: _OptionalText = Setting(
        None, optional(values.folder),
        "the folder for copies of the state, on a local disk of each executor. Network file systems are refused. Not "
        "set: the folders in the executor's `SPARK_LOCAL_DIRS`", example="/mnt/nvme/riffle")
    encryption_keys: _OptionalText = Setting(
        None, unset_or(text.of("`file:/path` or `env:NAME`")),
        "where driver and executors read the [keys](operations.md#encryption) that encrypt deltas, snapshots and local "
        "copies. Not set: no encryption. Empty: refused", example="file:/run/secrets/riffle-keys")

    accept: _Names = Setting(
        (), names, "names of stores and results that continue although [the job was "
        "changed](operations.md#change-a-job-between-two-runs). Remove a name after the next committed batch",
        example=["totals"])

    key_groups: _Integer = Setting(
        128, whole(1, 32_768), "the number of key-groups. Another number than the stored one is refused. Fewer than "
        "four per slot cause a warning", fixed="[by a procedure](dispatch.md#change-the-number-of-key-groups)",
        section="Keys")
    dispatch: _Word = Setting(
        "key_group", one_of(*DISPATCHES),
        "how rows are routed to slots: by key, or by the (topic, partition) that they were read from",
        fixed="[by a procedure](dispatch.md)")

    assignor: Setting[str | Callable[..., object], str | Callable[..., object]] = Setting(
        "high_availability", replace(values.function, words="`high_availability`, `sticky`, `hash`, or the dotted path "
        "of your own; in code also a function or class"),
        "which assignor chooses the owners. If [your own](own-assignor.md) assignor raises an error or returns an "
        "invalid assignment, the last assignment stays, and a warning reports the error",
        of_assignment=True, section="Who owns what")
    acceptable_recovery_lag: _Integer = Setting(
        10_000, whole(0).of("records"), "a copy that is at most this many changed records behind counts as caught up",
        live=True, of_assignment=True)
    num_standbys: _Integer = Setting(
        0, whole(0), "the number of spare copies of each key-group on other members. Use 1 in production",
        live=True, of_assignment=True)
    standby_mode: _Word = Setting(
        "replay", one_of("replay", "snapshot_pointer"),
        "whether spare copies apply every change, or only store which snapshot to fetch", of_assignment=True)
    max_warmup_replicas: _Integer = Setting(
        2, whole(1), "how many copies may warm up at the same time", live=True, of_assignment=True)
    probing_rebalance_interval: _Duration = Setting(
        600.0, seconds(0.001), "how often a new assignment is computed while some warm-ups have caught up and others "
        "have not. If all have caught up, it is computed at once. A value below 1 min, as in tests, causes a warning",
        live=True, of_assignment=True)
    scheduled_rebalance_max_delay: _Duration = Setting(
        300.0, seconds(0), "how long the key-groups of a lost member wait for its return before other members own them "
        "for good. Lost standbys are replaced at once", live=True, of_assignment=True)
    balance_band: _Share = Setting(
        0.2, share, "nothing moves if each member's measured work per slot is within this share of the mean",
        live=True, of_assignment=True)
    store_groups: _Pairs = Setting(
        (), values.groups, "the [co-location group](assignor.md#several-groups-in-a-query) of a store. All other "
        "stores are in one group. The stores of a group have the same owner per key-group", example=["models=heavy"])
    include: _Pairs = Setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "only members with one of these attributes own key-groups or keep copies, once the moves to them have ended. "
        "`id` and `rack` are attributes, too. If no live member matches, all members count, with a warning",
        live=True, of_assignment=True, example=["disk=ssd"])
    exclude: _Pairs = Setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "members with one of these attributes are drained: other members warm up and take over their key-groups",
        live=True, of_assignment=True, example=["rack=c"])
    rebalance_enable: _Word = Setting(
        "all", one_of("all", "owners", "standbys", "none"), "which copies may move to be placed better. Key-groups "
        "without an owner are always placed. Pins and drains always apply", live=True, of_assignment=True)

    rack_aware_assignment_strategy: _Word = Setting(
        "none", one_of("none", "min_cost", "balance_subtopology", also=_STRATEGY_SYNONYMS),
        "whether racks influence the assignment, before (`min_cost`) or after (`balance_subtopology`) the spread of "
        "groups. `min_traffic` and `balanced_min_cost` are synonyms", live=True, of_assignment=True,
        section="Racks and tags")
    rack_aware_assignment_traffic_cost: _Integer = Setting(
        10, whole(0), "the cost of a row that is read across racks", live=True, of_assignment=True)
    rack_aware_assignment_non_overlap_cost: _Integer = Setting(
        1, whole(0), "the cost of a move, in addition to the traffic", live=True, of_assignment=True)
    rack_aware_assignment_tags: _Names = Setting(
        (), names, "standbys are spread over the values of these tags first", live=True, of_assignment=True,
        example=["zone"])
    forced_awareness: _ValuesByTag = Setting(
        (), values.values_by_tag, "the values that a tag should have. The copies of a key-group are spread over all "
        "these values. Standbys for a value without a member stay unassigned, with a warning",
        live=True, of_assignment=True, example=["zone=a", "zone=b"])
    member_racks: _Pairs = Setting(
        (), values.pairs_such_as("10.0.1.*=rack-a").of("`pattern=rack`"),
        "the racks of hosts. The first pattern that matches counts. Case is ignored",
        example=["10.0.1.*=rack-a", "10.0.2.*=rack-b"])

    local_disk_limit: _Share = Setting(
        0.8, share, "a member whose disk is fuller gets no new key-groups, standbys or warm-ups. If this prevents a "
        "placement, a warning says so. Half-way from this limit to 100 %, key-groups leave the member, "
        "`max_warmup_replicas` at a time. At three quarters of the way, its standbys and warm-ups are removed at once",
        live=True, section="Copies on local disks")
    local_memory_limit: _Share = Setting(
        0.9, share, "a member whose Python workers use a larger share of their memory gets no new key-groups. Half-way "
        "from this limit to 100 %, key-groups leave the member step by step", live=True)
    state_cleanup_delay: _Duration = Setting(
        600.0, seconds(0), "how long copies are kept that no assignment needs", live=True)
    folder_cleanup_delay: _Duration = Setting(
        86_400.0, seconds(0), "how long the folder of a dead executor is kept, so that a new executor can use it")
    upkeep_bandwidth: _Integer = Setting(
        50_000_000, whole(0).of("bytes a second"),
        "how many bytes per second an executor fetches in the background at most. 0: no limit", live=True)
    upkeep_timeout: _Duration = Setting(
        60.0, seconds(1), "a piece of upkeep or a census is planned to take 1 s. The driver [cancels "
        "it](operations.md#upkeep-that-does-not-end) if it takes longer than planned by this time", live=True)

    batch_attempts: _Integer = Setting(
        4, whole(1, 20), "how often a batch runs at most before the query fails. A batch runs again if an executor "
        "without copies got a slot, if Spark lost a block, or if a local disk refuses", section="Batches")
    deliver_after_commit: _Flag = Setting(
        False, values.flag, "the output is stored with the state and delivered after the commit, so it is exact even "
        "for [functions that differ from run to run](sinks.md#functions-that-differ-from-run-to-run)")
    control: _Word = Setting(
        "off", one_of("off", "on"), "whether the driver applies [requests from outside](operations.md"
        "#steer-a-running-query), such as `riffle drain`. It then sends one GET per batch, and one per second while "
        "idle. Everyone who may write below `root` can make requests", live=True)
    initial_rebalance_delay: _Duration = Setting(
        30.0, seconds(0), "how long a start waits for the expected executors, and for any executor at all")
    expected_executors: _Integer = Setting(
        0, whole(0), "how many executors a start waits for. 0: as many as `spark.executor.instances`, or one")
    report_file: _OptionalText = Setting(
        None, optional(text.of("path on the driver")), "append each `BatchReport` with its [metrics](metrics.md) to "
        "this file as a line of JSON",
        example="/var/log/riffle/totals.jsonl")
    status_interval: _Duration = Setting(
        60.0, seconds(0), "how often the driver writes [its status](commands.md#status) to the root, also while idle: "
        "one PUT each time. `riffle status` reads it. 0: never")
    status_page: _Flag = Setting(
        False, values.flag, "the driver writes [a page that shows its status](status-page.md) to `status.html` in the "
        "root, whenever it writes its status: one more PUT each time")
    otlp_endpoint: _OptionalText = Setting(
        None, unset_or(text.of("URL, or `env`")),
        "where the driver sends [metrics and traces](monitoring.md#opentelemetry): the base URL of an OTLP/HTTP "
        "receiver, or `env` for that of the variables `OTEL_EXPORTER_OTLP_*`. Needs the extra `otel`. Not set: "
        "nothing is sent. Empty: refused", example="http://127.0.0.1:4318")
    otlp_signals: _Word = Setting(
        "all", one_of("all", "metrics", "traces"), "what is sent to `otlp_endpoint`. Prometheus, for example, accepts "
        "only `metrics`")

    snapshot_chain_links: _Integer = Setting(
        64, whole(2), "the largest number of deltas and merged deltas after the snapshot of a key-group. With 16 or "
        "more, a quarter of this number of deltas, at most 16, are merged into one. With less than 16, deltas are not "
        "merged, and a snapshot is due after about half of this number to all of it",
        section="What is kept, and for how long")
    retained_versions: _Integer = Setting(
        100, whole(2).of("records"), "how many records a rollback can return to. Deltas that are this many versions "
        "old are merged, or replaced by a snapshot if deltas are not merged", live=True)
    retained_for: _Duration = Setting(
        3600.0, seconds(0), "records that are younger than this are kept, however many there are. Records of the last "
        "two minutes are always kept",
        live=True)
    orphan_scan_interval: _Duration = Setting(
        86_400.0, seconds(1), "how often a LIST searches for objects that no record lists. It also runs once after "
        "each start")
    # fmt: on

    def __new__(cls, /, **explicit: object) -> "Settings":
        """Store the names of passed settings: they override files and the Spark configuration even if they equal the
        default. Raises ``ConfigError`` for an unknown name.
        """
        check_names(explicit, "code")
        self = object.__new__(cls)
        object.__setattr__(self, "_explicit", tuple(explicit))
        return self

    def __post_init__(self) -> None:
        for name in SETTING_LINES:
            object.__setattr__(self, name, _checked(name, getattr(self, name), "code"))
        _check_packages(self)

    @property
    def local_disk_high(self) -> float:
        """The used share at which key-groups start to leave a disk: half-way from ``local_disk_limit`` to 1."""
        return (1 + self.local_disk_limit) / 2

    @property
    def local_disk_flood(self) -> float:
        """The used share at which a disk keeps only owned copies: three quarters from ``local_disk_limit`` to 1."""
        return (3 + self.local_disk_limit) / 4

    @property
    def local_memory_high(self) -> float:
        """The used share at which key-groups start to leave a member: half-way from ``local_memory_limit`` to 1."""
        return (1 + self.local_memory_limit) / 2

    def given(self) -> dict[str, object]:
        """Return the settings that were passed explicitly, validated."""
        explicit: tuple[str, ...] = getattr(self, "_explicit", ())
        return {name: getattr(self, name) for name in explicit}

    def but(self, /, **changes: object) -> "Settings":
        """Return these settings with changes. Raises ``ConfigError`` as the constructor does.

        Only settings that were passed before or are changed now count as explicit. ``dataclasses.replace`` would make
        all of them explicit, so that files and the Spark configuration had no effect.

        >>> Settings(key_groups=16).but(batch_attempts=2).given()
        {'key_groups': 16, 'batch_attempts': 2}
        """
        return Settings(**{**self.given(), **changes})  # type: ignore[arg-type]


AnySetting: TypeAlias = Setting[object, object]
SETTING_LINES: Final[Mapping[str, AnySetting]] = {field.name: vars(Settings)[field.name] for field in fields(Settings)}
"""The declaration of each setting, in order."""
Settings.__init__.__annotations__.update({field.name: get_args(field.type)[1] for field in fields(Settings)})
# help() shows each setting with the types that the constructor accepts, and its default.
Settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [parameter for parameter in inspect.signature(Settings.__init__).parameters.values() if parameter.name != "self"]
)
LIVE: Final = frozenset(name for name, line in SETTING_LINES.items() if line.live)
"""The settings that can change while a query runs."""


def _checked(name: str, value: object, source: str) -> object:
    return values.checked(name, value, SETTING_LINES[name].allowed, remedy=f"Correct it in {source}.", where=name)


def _check_packages(settings: Settings) -> None:
    """Refuse settings that need SciPy if it is not installed. Otherwise a running query would fail."""
    name = "rack_aware_assignment_strategy"
    strategy = settings.rack_aware_assignment_strategy
    if strategy != "none":
        alternative = f" for the driver's Python, or leave {name} at its default"
        check_importable("scipy.optimize", f"{name} = {strategy}", "scipy>=1.11", alternative, where=name)


def check_names(setting_names: Iterable[str], source: str) -> None:
    """Raise ``ConfigError`` for an unknown or removed setting."""
    check_not_removed(setting_names, source)
    check_known("setting", setting_names, SETTING_LINES, source=source)


def short_interval_warnings(settings: Settings) -> tuple[str, ...]:
    """Return a warning if ``probing_rebalance_interval`` is shorter than a production query needs."""
    interval = settings.probing_rebalance_interval
    if interval >= _SHORTEST_PROBING_SECONDS:
        return ()
    return (
        f"[RIFFLE-0950] probing_rebalance_interval = {interval:g} s is only suitable for tests. Use at least 1 min: "
        "copies need longer to warm up.",
    )


def read_toml(path: Path) -> dict[str, object]:
    """Return the settings of a TOML file: its ``[riffle]`` table, or its top level.

    Raises ``ConfigError`` if the file cannot be read, is not TOML, or has unknown names or wrong values.
    """
    try:
        body = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"Cannot read settings: {error}.", remedy="Correct the file or its path.", where=str(path), id="RIFFLE-0250"
        ) from None
    table = body.get("riffle", body)
    if not isinstance(table, dict):
        raise _misplaced_settings("riffle is not a table.", path)
    if outside := sorted(SETTING_LINES.keys() & body.keys()) if table is not body else []:
        raise _misplaced_settings(f"Setting {outside[0]} is outside the table [riffle] and would be ignored.", path)
    check_not_removed(table, str(path))
    tables = ["riffle"] if table is body else []
    check_known("setting", table, [*SETTING_LINES, *tables], source=str(path))
    return {name: _checked(name, value, str(path)) for name, value in table.items()}


def _misplaced_settings(problem: str, path: Path) -> ConfigError:
    remedy = "Write all settings into the table [riffle], or all at the top level."
    return ConfigError(problem, remedy=remedy, where=str(path), id="RIFFLE-0251")


def from_sources(
    code: Settings | None = None, conf: Mapping[str, str] | None = None, toml: Path | None = None
) -> Settings:
    """Return the settings in effect: defaults < ``toml`` < ``conf`` (keys ``spark.riffle.*``) < ``code``.

    ``spark.riffle.conf_file`` in ``conf`` names another TOML file. It must exist. ``toml`` may be missing. Raises
    ``ConfigError`` for unknown names and wrong values.
    """
    conf_values = {
        key.removeprefix(CONF_PREFIX): value for key, value in (conf or {}).items() if key.startswith(CONF_PREFIX)
    }
    conf_file = conf_values.pop("conf_file", None)
    path = Path(conf_file) if conf_file else toml
    merged: dict[str, object] = {}
    if path is not None and (conf_file or path.exists()):
        merged.update(read_toml(path))
    check_not_removed(sorted(conf_values), "the Spark configuration", CONF_PREFIX)
    for name, value in sorted(conf_values.items()):
        source = f"the Spark configuration ({CONF_PREFIX}{name})"
        check_known("setting", [name], SETTING_LINES, source=source)
        merged[name] = _checked(name, value, source)
    merged.update(code.given() if code else {})
    return Settings(**merged)  # type: ignore[arg-type]
