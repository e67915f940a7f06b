"""List every metric: its name, kind, unit, labels and meaning.

``docs/metrics.md`` is generated from this list (`./run reference`). ``readings`` gives the values. Names follow the
conventions of Prometheus: base units, and ``_total`` for counters. No label has keys or values of user data, and none
has key-groups, so the number of series is bounded (``LABELS``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "riffle_"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        name: its name, as in Prometheus.
        kind: a ``counter`` only grows, and starts at zero with the driver's process. A ``gauge`` has a present value.
        unit: the unit of its values: ``seconds``, ``bytes``, ``ratio`` (0 to 1), ``dollars``, or what it counts.
        labels: the names of its labels. ``LABELS`` describes them.
        meaning: what it measures, as a phrase without a full stop.
        source: the KIP or the design that asks for it.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    labels: tuple[str, ...]
    meaning: str
    source: str


LABELS: Final = {
    "by": "`batch`: slots and driver during batches; `upkeep`: background work; `status`: the driver's status object",
    "decision": "`run`, or `repeat` for a batch that was already committed",
    "executor": "Spark's id of an executor that is a member or is awaited. Series of other executors end",
    "id": "the id of a warning ([errors](errors.md)), only of warnings that occurred",
    "kind": "`put get head list delete`",
    "outcome": "`hit`: no fetch; `warm`: deltas were fetched; `cold`: the whole state was fetched",
    "partition": "a partition of a topic that the query reads",
    "phase": "`enter assign run deliver commit upkeep` ([architecture](architecture.md))",
    "reason": "the goal that the move improves ([assignor](assignor.md)): 12, and a user's own",
    "role": "`owner standby warmup`",
    "state": "`active drained quarantined awaited`",
    "step": "`decode user_code state commit`",
    "store": "a store of the query",
    "topic": "a topic that the query reads",
}
"""The values of each label. They bound the number of series."""

_SPARK: Final = "Spark's StreamingQueryProgress"
_KAFKA: Final = "Kafka's consumer lag"
_KIP_441: Final = "KIP-441"
_KIP_869: Final = "KIP-869"
_RIFFLE: Final = "Riffle"
_RECORDS: Final = "the log's exactly-once commit"
_STORE: Final = "the price of object stores"


def _counter(name: str, unit: str, meaning: str, source: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", "counter", unit, labels, meaning, source)


def _gauge(name: str, unit: str, meaning: str, source: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", "gauge", unit, labels, meaning, source)


SECTIONS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "Batches": (
        _counter("batches", "batches", "batches that ended without an error", _SPARK, "decision"),
        _counter("failed_batches", "batches", "batches that ended with an error", _SPARK),
        _counter("batch_seconds", "seconds", "time of all batches", _SPARK),
        _counter("batch_phase_seconds", "seconds", "time of all batches by phase", _SPARK, "phase"),
        _gauge("last_batch_seconds", "seconds", "time of the last batch", _SPARK),
        _gauge("last_batch_phase_seconds", "seconds", "time of the last batch by phase", _SPARK, "phase"),
        _gauge("last_batch_rows", "rows", "input rows of the last batch, in all stores", _SPARK),
        _gauge("running_batch_seconds", "seconds", "how long the current batch has run, 0 if none runs", _RECORDS),
        _gauge("batch_version", "batch id", "the newest committed batch", _RECORDS),
        _gauge("last_commit_timestamp_seconds", "seconds", "when the newest batch was committed, since 1970", _RECORDS),
        _gauge("facts_timestamp_seconds", "seconds", "when these values were collected, since 1970", _RECORDS),
        _gauge("paused", "queries", "1 while an operator holds the query, else 0", _RIFFLE),
        _gauge("epoch", "claims", "the number of the driver's claim; it grows with each start", _RECORDS),
        _counter("slots", "slots", "slots that ran", _RIFFLE),
        _counter(
            "misplaced_slots", "slots", "slots that Spark ran on another executor than the driver asked for", _RIFFLE
        ),
        _counter(
            "lost_plans", "plans", "kept plans that had to be made again although the columns were the same", _RIFFLE
        ),
    ),
    "Rows": (
        _counter("rows", "rows", "input rows, with late and dead ones", _SPARK, "store"),
        _counter("keys", "keys", "distinct keys per batch, summed over batches", _SPARK, "store"),
        _counter("output_rows", "rows", "rows for the sink", _SPARK, "store"),
        _counter("late_rows", "rows", "rows that were dropped because of the watermark", _SPARK, "store"),
        _counter("dead_rows", "rows", "rows on which the user's function failed (dead letters)", _RIFFLE, "store"),
        _counter("fired_timers", "timers", "timers that were due", _SPARK, "store"),
        _counter("expired_elements", "elements", "elements of state or keys that expired", _SPARK, "store"),
    ),
    "State": (
        _gauge(
            "state_rows",
            "rows",
            "state rows of a store; an upper bound if an earlier version wrote it first, or its variables have changed",
            _SPARK,
            "store",
        ),
        _gauge(
            "state_bytes", "bytes", "bytes of the snapshots and deltas of a store that the log lists", _SPARK, "store"
        ),
        _gauge(
            "state_chain_parts", "deltas", "deltas of a store since the snapshots of its key-groups", _RIFFLE, "store"
        ),
        _counter("snapshots", "snapshots", "snapshots that a commit listed", _RIFFLE),
    ),
    "Time and sources": (
        _gauge("watermark_timestamp_seconds", "seconds", "the watermark after the newest batch, since 1970", _SPARK),
        _gauge("watermark_delay_seconds", "seconds", "how far the watermark is behind the clock", _SPARK),
        _gauge(
            "source_lag_records",
            "records",
            "records between the end of the newest committed batch and the newest offset that Spark has seen",
            _KAFKA,
            "topic",
            "partition",
        ),
        _gauge(
            "source_lag_seconds",
            "seconds",
            "time since the driver first saw an offset beyond the newest committed batch, 0 if it has seen none. It is "
            "at most the age of the oldest unread record",
            _KAFKA,
            "topic",
            "partition",
        ),
    ),
    "Members and their copies": (
        _gauge("members", "members", "members by state", _KIP_441, "state"),
        _gauge("owned_key_groups", "key-groups", "key-groups that a member owns", _KIP_441, "executor"),
        _gauge(
            "owned_state_rows",
            "rows",
            "rows in the snapshots and deltas of its owned key-groups, at most 30 s old; a key counts once for each",
            _RIFFLE,
            "executor",
        ),
        _gauge("owned_state_bytes", "bytes", "their bytes in the object store, at most 30 s old", _RIFFLE, "executor"),
        _gauge("standby_key_groups", "key-groups", "standbys that a member keeps", _KIP_441, "executor"),
        _gauge("warmup_key_groups", "key-groups", "copies that a member warms up", _KIP_441, "executor"),
        _gauge(
            "copy_lag_records", "records", "changed records that its standbys and warm-ups lack", _KIP_441, "executor"
        ),
        _gauge("copy_lag_growth_records", "records", "growth of that lag over ten batches", _KIP_441, "executor"),
        _gauge("warmup_remaining_bytes", "bytes", "bytes that its warm-ups still have to fetch", _KIP_441, "executor"),
        _gauge(
            "warmup_remaining_seconds",
            "seconds",
            "estimated time until its warm-ups have caught up, at the speed of the last minute; absent if they fetched "
            "nothing in it",
            _KIP_441,
            "executor",
        ),
        _gauge("local_disk_used_ratio", "ratio", "share of its local disk in use", _RIFFLE, "executor"),
        _gauge(
            "local_disk_limit_ratio", "ratio", "the share of a local disk beyond which it gets no new copies", _RIFFLE
        ),
        _gauge("memory_used_ratio", "ratio", "share of its memory that its Python workers use", _RIFFLE, "executor"),
        _gauge(
            "worker_peak_memory_bytes", "bytes", "largest peak memory of a Python worker in the last batch", _RIFFLE
        ),
        _counter("executor_seconds", "seconds", "time of its slots by step", _RIFFLE, "step", "executor"),
    ),
    "Moves": (
        _counter(
            "moves", "moves", "owners, standbys and warm-ups that were placed or moved", _KIP_441, "role", "reason"
        ),
        _counter("probing_rebalances", "probes", "probing rebalances that ran", _KIP_441),
        _counter("skipped_probing_rebalances", "probes", "probes that were not needed", _KIP_441),
        _gauge(
            "next_probe_seconds", "seconds", "time to the next probing rebalance; absent if none is needed", _KIP_441
        ),
    ),
    "Copies that were fetched": (
        _counter(
            "copy_uses",
            "copies",
            "local copies that slots used: cache hits (`hit`) and misses, which are warm or cold restores",
            _KIP_869,
            "outcome",
        ),
        _counter(
            "restore_seconds",
            "seconds",
            "time of slots that restored copies, to bring copies up to date; `cold` if one was fetched as a whole",
            _KIP_869,
            "outcome",
        ),
        _counter("upkeep_restores", "copies", "copies that upkeep fetched as a whole, such as new standbys", _KIP_869),
        _counter("folds", "deltas", "deltas that were added to copies", _RIFFLE, "by"),
        _counter("fetched_bytes", "bytes", "bytes that were fetched from the object store", _STORE, "by"),
        _counter(
            "fetched_snapshot_bytes", "bytes", "those of them that are of snapshots (cold restores)", _STORE, "by"
        ),
        _counter("sealed_bytes", "bytes", "bytes of sealed deltas", _STORE),
    ),
    "Requests": (
        _counter("requests", "requests", "requests to the object store, each retry included", _STORE, "by", "kind"),
        _counter(
            "requests_price_dollars",
            "dollars",
            "estimated price of these requests, at the list price of S3 Standard in us-east-1; storage and traffic are "
            "not included; 0 for a root on file://",
            _STORE,
        ),
    ),
    "Failures": (
        _counter("batch_runs", "runs", "runs of the slots of a batch", _RECORDS),
        _counter("batch_retries", "runs", "runs of the slots of a batch after its first", _RECORDS),
        _counter("misplaced_runs", "runs", "runs that ended because a slot had no copy and a standby had one", _RIFFLE),
        _counter("fencings", "events", "how often a newer driver took over from this one", _RECORDS),
        _counter("upkeep_failures", "failures", "failures of upkeep; each is retried", _RIFFLE),
        _counter("warnings", "warnings", "warnings in batch reports", _RIFFLE, "id"),
    ),
}
"""Every metric, by topic. All of them have the query's id and name as attributes of the exporter."""
METRICS: Final = tuple(metric for metrics in SECTIONS.values() for metric in metrics)
METRIC_BY_NAME: Final = {metric.name: metric for metric in METRICS}
