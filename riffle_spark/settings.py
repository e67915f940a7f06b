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
from riffle_spark.removed_settings import check_not_removed
from riffle_spark.setting_values import names, one_of, optional, seconds, setting, share, text, unset_or, whole
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
    "Settings",
    "check_names",
    "from_sources",
    "hasty",
    "read_toml",
]

CONF_PREFIX = "spark.riffle."
DISPATCHES: Final = ("key_group", "partition", "hashed")
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
        "folder", fixed="with the state", example="s3://my-bucket/state/totals", section="Where state is kept",
        users=("every job: it has no default", "a team that moves a query to another bucket"))
    root_file_mode: str | None = setting(
        None, optional(values.file_mode),
        "the mode of files below a `file://` root. Users who may read a file may also enter its folder. Not set: the "
        "umask decides", example="0640",
        users=("clusters on NFS or HPC storage where another account reads the root",
               "hosts with an umask that hides files from a backup account"))
    s3_endpoint: str | None = setting(
        None, unset_or(text.of("URL")),
        "an S3-compatible server, with conditional puts (`If-None-Match`); not set: AWS, empty: refused", example="http://127.0.0.1:9000",
        users=("users of MinIO, Ceph or another S3-compatible server", "networks with a VPC endpoint of their own"))
    s3_region: str | None = setting(
        None, optional(text.of("text")),
        "the region of the bucket; not set: what AWS's environment and files say", example="eu-central-1",
        users=("executors without AWS_REGION in their environment",
               "jobs whose bucket is in another region than the cluster"))
    s3_kms_key: str | None = setting(
        None, unset_or(text.of("key id or ARN")),
        "encrypt what is put with this key (SSE-KMS), `aws/s3` for the account's own; not set: as the bucket says, "
        "empty: refused",
        example="arn:aws:kms:eu-central-1:111122223333:key/1234abcd",
        users=("accounts that must encrypt with a key of their own",
               "teams that share a bucket and separate access by key"))
    s3_server_side_encryption: str | None = setting(
        None, unset_or(one_of("AES256", "aws:kms")),
        "the encryption header of every put, for buckets whose policy demands it: `AES256` (SSE-S3), or `aws:kms` "
        "with the account's own key; not set: as `s3_kms_key` and the bucket say, empty: refused", example="AES256",
        users=("buckets whose policy demands the header AES256",
               "buckets whose policy demands aws:kms with the account's own key"))
    s3_requester_pays: bool = setting(
        False, values.flag, "every request says that the requester pays, for buckets that demand it",
        users=("jobs that keep state in a requester-pays bucket",
               "teams whose storage account charges each client account"))
    s3_patience: float = setting(
        60.0, seconds(0.0),
        "how long a call is sent again, also beyond its 4 attempts, while the server does not answer or is busy: an "
        "outage that ends by then fails no batch",
        users=("on-premises stores with restarts of minutes: raise it",
               "jobs with a strict deadline per batch: lower it"))
    local_dir: str | None = setting(
        None, optional(values.folder),
        "copies of the state, one folder an executor, on a local disk; network file systems are refused. Not set: what "
        "`SPARK_LOCAL_DIRS` names on the executor", example="/mnt/nvme/riffle",
        users=("hosts with a fast disk that SPARK_LOCAL_DIRS does not name",
               "pods with a volume that outlives the executor"))
    encryption_keys: str | None = setting(
        None, unset_or(text.of("`file:/path` or `env:NAME`")),
        "where driver and executors find the [keys](operations.md#encryption) that deltas, snapshots and local copies "
        "are encrypted with; not set: they are not, empty: refused", example="file:/run/secrets/riffle-keys",
        users=("jobs with personal data that may not be stored in the clear", "teams that rotate keys on a schedule"))

    accept: tuple[str, ...] = setting(
        (), names, "names of stores and results that continue although [the job was "
        "changed](operations.md#change-a-job-between-two-runs). Remove a name once a batch is committed",
        example=["totals"],
        users=("a developer who changed a job on purpose, once per change",
               "an operator who continues a query after a store was left out"))

    key_groups: int = setting(
        128, whole(1, 32_768), "how many parts the key space has; another number than the stored one is refused. Under "
        "four for each slot is a warning", fixed="[by a procedure](dispatch.md#another-number-of-key-groups)",
        section="Keys",
        users=("clusters with more than 32 task slots: raise it before the first batch",
               "small jobs of one or two slots that want fewer objects: lower it"))
    dispatch: str = setting(
        "key_group", one_of(*DISPATCHES),
        "how rows find their slot: by key, or by the (topic, partition) that they come from",
        fixed="[by a procedure](dispatch.md)",
        users=("one topic per tenant, whose state has to stay apart",
               "jobs whose Kafka partitions are already by key, to save the shuffle"))

    assignor: str | Callable[..., object] = setting(  # noqa: RUF009 - as all of them
        "high_availability", replace(values.function, words="`high_availability`, `sticky`, `hash`, or the dotted path "
        "of your own; in code also a function or class"),
        "who decides about owners; where [your own](own-assignor.md) raises or answers what cannot be, a warning says "
        "so, and the last assignment stays", of_assignment=True, section="Who owns what",
        users=("teams with rules of placement of their own", "users of fixed clusters without moves: sticky or hash"))
    acceptable_recovery_lag: int = setting(
        10_000, whole(0).of("records"), "a copy this many changed records behind still counts as caught up",
        live=True, of_assignment=True,
        users=("queries with fast changing state: raise it so that standbys count as caught up",
               "queries that need short catch-up after a move: lower it"))
    num_standbys: int = setting(
        0, whole(0), "spare copies of each key-group on other members; production queries should use 1",
        live=True, of_assignment=True,
        users=("production queries that must survive a lost executor without a restore",
               "clusters of spot instances: 2 copies"))
    standby_mode: str = setting(
        "replay", one_of("replay", "snapshot_pointer"),
        "spare copies follow every change, or only know which snapshot to fetch", of_assignment=True,
        users=("clusters with small disks that only want to know the snapshot",
               "queries with large state and rare losses"))
    max_warmup_replicas: int = setting(
        2, whole(1), "copies that warm up at once in order to move", live=True, of_assignment=True,
        users=("operators who scale out quickly: raise it", "clusters with a narrow network: lower it"))
    probing_rebalance_interval: float = setting(
        600.0, seconds(0.001), "warm-ups are looked after when all are warm, and after this time if one is; below "
        "1 min, as in tests, a warning says so", live=True, of_assignment=True,
        users=("tests and demos, which want moves within seconds",
               "large states whose warm-ups take longer than ten minutes"))
    scheduled_rebalance_max_delay: float = setting(
        300.0, seconds(0), "how long a lost member's key-groups wait for it before they are assigned for good; lost "
        "standbys are replaced at once", live=True, of_assignment=True,
        users=("rolling restarts that take longer than five minutes", "clusters whose lost executors never return: 0"))
    balance_band: float = setting(
        0.2, share, "measured work per slot within this share of the mean moves nothing", live=True, of_assignment=True,
        users=("queries with skewed keys that move too often: raise it", "clusters close to their capacity: lower it"))
    store_groups: tuple[tuple[str, str], ...] = setting(
        (), values.groups, "the [co-location group](assignor.md#several-groups-in-a-query) of a store, where it is not "
        "that of all others: stores of one group have one owner a key-group", example=["models=heavy"],
        users=("queries in which one heavy store needs other owners than the rest",
               "teams that isolate a memory-hungry model"))
    include: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "only members with one of these attributes own or keep anything in the end; `id` and `rack` are attributes, "
        "too. Where no live member has one, all count, and a warning says so",
        live=True, of_assignment=True, example=["disk=ssd"],
        users=("clusters in which only some hosts have a fast disk",
               "tests of new hardware with a part of the members"))
    exclude: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("rack=a").of("`tag=value`"),
        "members with one of these attributes give everything away, warm, as if drained",
        live=True, of_assignment=True, example=["rack=c"],
        users=("operators who empty a rack before maintenance", "operators who suspect a host"))
    rebalance_enable: str = setting(
        "all", one_of("all", "owners", "standbys", "none"), "what may move to be better placed; what has no owner is "
        "always placed, and pins and drains are obeyed", live=True, of_assignment=True,
        users=("operators who freeze moves during an incident", "maintenance windows in which only standbys may move"))

    rack_aware_assignment_strategy: str = setting(
        "none", one_of("none", "min_cost", "balance_subtopology", also=_OTHERS_STRATEGIES),
        "whether racks decide, and whether before or after the spread of groups; `balanced_min_cost` is another name "
        "of `balance_subtopology`, `min_traffic` of `min_cost`", live=True, of_assignment=True,
        section="Racks and tags",
        users=("clusters over several zones that pay for traffic between them",
               "Kafka clusters with followers that serve reads in each rack"))
    rack_aware_assignment_traffic_cost: int = setting(
        10, whole(0), "what a row that is read across racks costs", live=True, of_assignment=True,
        users=("clusters with expensive traffic between zones: raise it",
               "configurations taken over from Kafka Streams"))
    rack_aware_assignment_non_overlap_cost: int = setting(
        1, whole(0), "what a move costs beside the traffic", live=True, of_assignment=True,
        users=("queries with large state that should hardly move: raise it",
               "configurations taken over from Kafka Streams"))
    rack_aware_assignment_tags: tuple[str, ...] = setting(
        (), names, "standbys are spread over the values of these tags first", live=True, of_assignment=True,
        example=["zone"],
        users=("clusters over several zones that must survive the loss of one",
               "clusters with several power domains in one rack"))
    forced_awareness: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        (), values.values_by_tag, "values that a tag should have: copies of a key-group are spread over all of them, "
        "and what belongs to a value without a member stays unassigned, with a warning", live=True, of_assignment=True,
        example=["zone=a", "zone=b"],
        users=("clusters whose zone may be empty for a while and must not be filled from others",
               "operators who plan the room for a zone that returns"))
    member_racks: tuple[tuple[str, str], ...] = setting(
        (), values.pairs_such_as("10.0.1.*=rack-a").of("`pattern=rack`"),
        "racks of hosts; the first pattern that fits counts, upper and lower case are "
        "one", example=["10.0.1.*=rack-a", "10.0.2.*=rack-b"],
        users=("on-premises clusters whose host names or addresses encode the rack",
               "YARN clusters, which give all executors the same environment"))

    local_disk_limit: float = setting(
        0.8, share, "nothing new is placed on a member whose disk is fuller, and no standby or warm-up is begun there; "
        "what has to be refused is a warning. Half-way from here to 100 % a disk is emptied by degrees, "
        "`max_warmup_replicas` key-groups at a time; three quarters of the way standbys and warm-ups go at once",
        live=True, section="Copies on local disks",
        users=("hosts that share the disk with other services: lower it", "dedicated state disks: raise it"))
    local_memory_limit: float = setting(
        0.9, share, "nothing new is placed on a member whose Python workers take more of the memory that they have or "
        "could have; half-way from here to 100 % it gives up what it owns by degrees", live=True,
        users=("pods with a hard memory limit: lower it", "hosts without other programs: raise it"))
    state_cleanup_delay: float = setting(
        600.0, seconds(0), "how long copies stay that the assignment needs no more", live=True,
        users=("clusters with small disks: lower it", "clusters whose executors come and go within the hour: raise it"))
    folder_cleanup_delay: float = setting(
        86_400.0, seconds(0), "how long the folder of a dead executor is kept, so that a new executor can use it",
        users=("hosts with persistent disks and pauses of days: raise it",
               "hosts that many applications share: lower it"))
    upkeep_bandwidth: int = setting(
        50_000_000, whole(0).of("bytes a second"),
        "what an executor fetches beside the batches at most; 0 for no bound", live=True,
        users=("networks that batches need for themselves: lower it",
               "clusters with 10 Gbit/s and large standbys: raise it"))
    upkeep_timeout: float = setting(
        60.0, seconds(1), "how much longer than its second a piece of upkeep, or a census, may run before it is [given "
        "up](operations.md#upkeep-that-does-not-end)", live=True,
        users=("hosts with slow disks whose pieces are given up: raise it",
               "clusters that must notice a hanging disk soon: lower it"))

    batch_attempts: int = setting(
        4, whole(1, 20), "how often one batch is run when it loses its place or a block or a disk refuses, before that "
        "is the query's failure", section="Batches",
        users=("clusters of spot instances that lose several executors in a batch: raise it",
               "tests that must fail at the first loss: 1"))
    deliver_after_commit: bool = setting(
        False, values.flag, "exact output even of [functions that differ from run to "
        "run](sinks.md#functions-that-differ-from-run-to-run), at the price of writing it beside the state",
        users=("jobs with random numbers or clocks in their function", "jobs that call services whose answers change"))
    initial_rebalance_delay: float = setting(
        30.0, seconds(0), "how long a start waits for the expected executors; and for any executor at all",
        users=("clusters that take minutes to start all executors: raise it", "local runs and tests: 0"))
    expected_executors: int = setting(
        0, whole(0), "how many executors a start waits for; 0: as many as `spark.executor.instances` says, else one",
        users=("dynamic allocation, where Spark names no number",
               "jobs that should start before all executors are there"))
    report_file: str | None = setting(
        None, optional(text.of("path on the driver")), "append each `BatchReport` as a line of JSON",
        example="/var/log/riffle/totals.jsonl",
        users=("jobs without code of their own for reports, such as wrapped queries",
               "benchmarks and tests that read the reports"))

    snapshot_chain_links: int = setting(
        32, whole(2), "a snapshot is also due when these changes are this many; spread over key-groups, down to about "
        "half of it", section="What is kept, and for how long",
        users=("queries that must restore quickly: lower it", "stores with expensive puts: raise it"))
    retained_versions: int = setting(
        100, whole(2).of("records"), "records that can be rolled back to; a snapshot is also due when the oldest "
        "change is this many versions old", live=True,
        users=("teams that must be able to roll back far: raise it", "large states with costly storage: lower it"))
    retained_for: float = setting(
        3600.0, seconds(0), "younger records are kept, however many; those of two minutes always are", live=True,
        users=("teams that notice errors only after a day: raise it", "queries of which no rollback is needed: 0"))
    orphan_scan_interval: float = setting(
        86_400.0, seconds(1), "how often a LIST looks for objects that nothing lists; also once after each start",
        users=("buckets with millions of objects, where a LIST is expensive: raise it",
               "clusters with frequent crashes: lower it"))
    # fmt: on

    def __new__(cls, /, **given: object) -> "Settings":
        """Remember what was said, even where it equals the default: it must win over files and the Spark
        configuration. Raises ``ConfigError`` for a name that no setting has.
        """
        check_names(given, "code")
        self = object.__new__(cls)
        object.__setattr__(self, "_given", tuple(given))
        return self

    @property
    def local_disk_high(self) -> float:
        """Return from which share on a disk is emptied by degrees: half-way from ``local_disk_limit`` to 1."""
        return (1 + self.local_disk_limit) / 2

    @property
    def local_disk_flood(self) -> float:
        """Return from which share on a disk keeps only what its member owns: three quarters of the way to 1."""
        return (3 + self.local_disk_limit) / 4

    @property
    def local_memory_high(self) -> float:
        """Return from which share on a member gives up key-groups: half-way from ``local_memory_limit`` to 1."""
        return (1 + self.local_memory_limit) / 2

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
    name = "rack_aware_assignment_strategy"
    strategy = settings.rack_aware_assignment_strategy
    if strategy != "none":
        remedy = f"Run pip install 'scipy>=1.11' for the driver's Python, or leave {name} at its default."
        check_importable("scipy.optimize", f"{name} = {strategy}", remedy, where=name)


def check_names(said: Iterable[str], source: str) -> None:
    """Raise ``ConfigError`` for a name that no setting has, with the nearest one, or with what replaces it."""
    check_not_removed(said, source)
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
            f"cannot read settings: {error}", remedy="correct the file or its path", where=str(path), id="RIFFLE-0250"
        ) from None
    table = body.get("riffle", body)
    beside = sorted(LINES.keys() & body.keys()) if table is not body else []
    if beside or not isinstance(table, dict):
        raise ConfigError(
            f"{beside[0]} stands beside the table [riffle], where nobody reads it" if beside else "riffle is no table",
            remedy="write all settings into the table [riffle], or all at the top level",
            where=str(path),
            id="RIFFLE-0251",
        )
    check_not_removed(table, str(path))
    check_known("setting", table, [*LINES, *(["riffle"] if table is body else [])], source=str(path))
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
    ours = sorted(key for key in named if key.startswith(CONF_PREFIX))
    check_not_removed((key.removeprefix(CONF_PREFIX) for key in ours), "the Spark configuration", CONF_PREFIX)
    for key, value in sorted(named.items()):
        if key.startswith(CONF_PREFIX):
            name, source = key.removeprefix(CONF_PREFIX), f"the Spark configuration ({key})"
            check_names([name], source)
            found[name] = _checked(name, value, source)
    found.update(code.given() if code else {})
    return Settings(**found)  # type: ignore[arg-type]
