"""Convert a driver's facts and its last batch report to readings of the metrics in ``metric_list``."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from riffle_spark.observe.metric_list import METRIC_BY_NAME, PREFIX, Metric
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts, MemberFacts, MemberStatus

_MS = 1000
_MIB = 1 << 20
_PLAIN_COUNTERS = tuple(metric for metric in METRIC_BY_NAME.values() if metric.kind == "counter" and not metric.labels)


@dataclass(frozen=True, slots=True)
class Reading:
    """A value of a metric. ``labels`` has the values of the labels, in the order of ``Metric.labels``."""

    metric: Metric
    labels: tuple[str, ...]
    value: int | float

    @property
    def sample(self) -> str:
        """The name and labels as Prometheus writes them, such as ``riffle_rows_total{store="totals"}``."""
        pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(self.metric.labels, self.labels, strict=True))
        text = ",".join(pairs)
        return f"{self.metric.name}{{{text}}}" if text else self.metric.name


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def readings(report: BatchReport | None, facts: DriverFacts) -> tuple[Reading, ...]:
    """Return the readings of all metrics that have a value, without duplicates.

    ``report`` is that of the last batch, ``None`` before the first.
    """
    return (
        *_counters(facts),
        *_of_query(facts),
        *_of_state(facts),
        *_of_members(facts),
        *(_of_report(report) if report is not None else ()),
    )


def _reading(name: str, value: int | float, *labels: str) -> Reading:
    """Return a reading of the gauge with this name, which is written without the prefix."""
    return Reading(METRIC_BY_NAME[PREFIX + name], labels, value)


def _counters(facts: DriverFacts) -> Iterator[Reading]:
    """Yield the readings of counters. A counter without labels is 0 before it counts, so that its growth is seen."""
    for metric in _PLAIN_COUNTERS:
        if metric.name.removeprefix(PREFIX).removesuffix("_total") not in facts.counters:
            yield Reading(metric, (), 0)
    for key, value in facts.counters.items():
        metric = METRIC_BY_NAME[f"{PREFIX}{key.partition('/')[0]}_total"]
        yield Reading(metric, tuple(key.split("/", len(metric.labels))[1:]), value)


def _of_query(facts: DriverFacts) -> Iterator[Reading]:
    yield _reading("facts_timestamp_seconds", facts.time_ms / _MS)
    yield _reading("running_batch_seconds", facts.batch_seconds)
    yield _reading("paused", 0 if facts.paused_since_ms is None else 1)
    if facts.disk_limit is not None:
        yield _reading("local_disk_limit_ratio", facts.disk_limit)
    yield _reading("epoch", facts.epoch)
    yield _reading("batch_version", facts.version)
    if facts.commit_ms is not None:
        yield _reading("last_commit_timestamp_seconds", facts.commit_ms / _MS)
    if facts.watermark_ms is not None:
        yield _reading("watermark_timestamp_seconds", facts.watermark_ms / _MS)
        yield _reading("watermark_delay_seconds", (facts.time_ms - facts.watermark_ms) / _MS)
    if facts.next_probe_seconds is not None:
        yield _reading("next_probe_seconds", facts.next_probe_seconds)
    for lag in facts.source:
        labels = (lag.topic, str(lag.partition))
        yield _reading("source_lag_records", lag.records, *labels)
        if lag.seconds is not None:
            yield _reading("source_lag_seconds", lag.seconds, *labels)


def _of_state(facts: DriverFacts) -> Iterator[Reading]:
    for store in facts.stores:
        yield _reading("state_rows", store.rows, store.store)
        yield _reading("state_bytes", store.bytes, store.store)
        yield _reading("state_chain_parts", store.chain_parts, store.store)


def _of_members(facts: DriverFacts) -> Iterator[Reading]:
    for state in get_args(MemberStatus):
        yield _reading("members", sum(member.state == state for member in facts.members), state)
    # An executor that came back under another folder is awaited and active: the active member counts.
    by_executor = {member.executor: member for member in sorted(facts.members, key=lambda m: m.state != "awaited")}
    for member in by_executor.values():
        yield from _of_member(member)


def _of_member(member: MemberFacts) -> Iterator[Reading]:
    executor = member.executor
    yield _reading("owned_key_groups", member.owned, executor)
    yield _reading("standby_key_groups", member.standbys, executor)
    yield _reading("warmup_key_groups", member.warmups, executor)
    yield _reading("copy_lag_records", member.lag_records, executor)
    yield _reading("copy_lag_growth_records", member.lag_trend, executor)
    yield _reading("warmup_remaining_bytes", member.warmup_bytes, executor)
    for name, value in (
        ("warmup_remaining_seconds", member.warmup_seconds),
        ("local_disk_used_ratio", member.disk_used),
        ("memory_used_ratio", member.memory_used),
        ("owned_state_rows", member.state_rows),
        ("owned_state_bytes", member.state_bytes),
    ):
        if value is not None:
            yield _reading(name, value, executor)


def _of_report(report: BatchReport) -> Iterator[Reading]:
    for phase, seconds in report.seconds.items():
        if phase == "total":
            yield _reading("last_batch_seconds", seconds)
        else:
            yield _reading("last_batch_phase_seconds", seconds, phase)
    if report.decision == "run":
        yield _reading("last_batch_rows", report.rows)
        yield _reading("worker_peak_memory_bytes", round(report.peak_memory_mb * _MIB))
