"""Kinds of queries, each with its batches and what plain Python computes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from riffle_spark.process.blocks.aggregates import aggregate, count
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.log.record import Record
from tests.kit.simulated.alarms import Alarms, AlarmsOracle
from tests.kit.simulated.event_rows import BatchTimes, EventOracle, drawn_events, event_operators
from tests.kit.simulated.world import ROWS, Oracle, drawn_batch, tails, totals

__all__ = ["JOBS", "Drawn", "Job", "same"]

BATCH_MS = 1_000
"""So much later than the one before is each batch, as ``World.incoming`` has it."""
Rows = list[dict[str, object]]
State = Mapping[object, tuple[object, ...]]


class Drawn(random.Random):
    """The chance that draws a job. Each batch has its own, by the line of history that it was run on first."""

    def __init__(self, seed: int, origins: Sequence[int]) -> None:
        super().__init__(seed)
        self._seed, self._origins = seed, origins

    def of(self, version: int) -> random.Random:
        """Return what draws a batch."""
        return random.Random(f"{self._seed}/{self._origins[version]}/{version}")


@dataclass(frozen=True)
class Job:
    """One query. ``contents`` has each durable store's state after each batch, ``outputs`` what its sink should get of
    it. The last of the ``batches`` is for the end, when nothing is disturbed any more. ``incoming`` is what the source
    says of each batch, ``times`` what must be known of it. Times are not looked at where there are none.
    """

    operators: Sequence[Operator]
    batches: Sequence[pa.Table]
    contents: Sequence[Mapping[str, State]]
    outputs: Sequence[Mapping[str, Rows]]
    settings: Mapping[str, object] = field(default_factory=dict)
    incoming: Mapping[str, object] = field(default_factory=dict)
    absent: Mapping[str, range] = field(default_factory=dict)
    times: Sequence[BatchTimes] = ()

    def operators_of(self, version: int) -> list[Operator]:
        """Return the operators that a batch is run with: some join the query late, or pause, as ``absent`` says."""
        return [one for one in self.operators if version not in self.absent.get(one.store, ())]

    def check(self, report: BatchReport) -> None:
        """Compare what a batch tells of its rows and times with ``times``."""
        if report.decision == "run" and self.times:
            wanted, told = self.times[report.version], (report.late_rows, report.timers_fired, report.expired)
            found = BatchTimes(*told, wanted.watermark_ms, wanted.late_watermark_ms)
            same(found, wanted, f"what batch {report.version} tells")

    def check_records(self, records: Iterable[Record]) -> None:
        """Compare the watermarks that batches have committed with ``times``."""
        for record in [one for one in records if one.kind == "batch" and self.times]:
            wanted = self.times[record.version]
            found = replace(wanted, watermark_ms=record.watermark_ms, late_watermark_ms=record.late_watermark_ms)
            same(found, wanted, f"the record of batch {record.version}")

    def check_delivery(self, store: str, rows: Rows, version: int) -> None:
        """Compare what a sink gets of a batch with ``outputs``; what a cache tells depends on what it lost."""
        if store in self.outputs[version]:
            wanted = sorted(self.outputs[version][store], key=repr)
            same(sorted(rows, key=repr), wanted, f"the sink of {store}, batch {version}")


def same(found: object, wanted: object, what: str) -> None:
    """Raise if something is not what it should be."""
    assert found == wanted, f"{what} is {found}, not {wanted}"


def columns_of_keys(chance: Drawn, batches: int) -> Job:
    """Draw running totals, a function for which order matters, and sometimes a cache beside them."""
    operators = [totals(), tails()]
    if chance.random() < 0.3:
        operators.append(
            replace(operator_of("seen", ["k"], aggregate(count=count()), (), totals().rows), durable=False)
        )
    rows = [drawn_batch(chance.of(version), version) for version in range(batches)]
    oracle, contents, outputs = Oracle(), list[Mapping[str, State]](), list[Mapping[str, Rows]]()
    for batch in rows:
        oracle.feed(batch)
        now: dict[str, State] = {
            "totals": dict(oracle.totals.items()), "tails": {key: (list(last),) for key, last in oracle.tails.items()},
        }  # fmt: skip
        touched = set(batch["k"].to_pylist())
        columns = {"totals": ("k", "count", "total"), "tails": ("k", "last")}
        outputs.append(
            {
                store: [dict(zip(names, (key, *now[store][key]), strict=True)) for key in touched if key in now[store]]
                for store, names in columns.items()
            }
        )
        contents.append(now)
    return Job(operators, rows, contents, outputs)


def sealed_columns(chance: Drawn, batches: int) -> Job:
    """Draw the same, delivered after the commit."""
    return replace(columns_of_keys(chance, batches), settings={"deliver_after_commit": True})


def timers(chance: Drawn, batches: int) -> Job:
    """Draw a processor with timers by the clock and values that live for a while."""
    operator = operator_of("alarms", ["k"], Alarms(), ("at",), ROWS)
    rows, oracle = [drawn_batch(chance.of(version), version) for version in range(batches)], AlarmsOracle()
    contents, outputs, times = list[Mapping[str, State]](), list[Mapping[str, Rows]](), list[BatchTimes]()
    for version, batch in enumerate(rows):
        now_ms = BATCH_MS * version
        in_order = sorted(batch.to_pylist(), key=lambda row: row["at"])
        outputs.append({"alarms": oracle.feed([(row["k"], row["v"], now_ms) for row in in_order], now_ms, [now_ms])})
        contents.append({"alarms": oracle.state()})
        times.append(BatchTimes(0, oracle.fired, oracle.expired))
    return Job([operator], rows, contents, outputs, times=times)


def events(chance: Drawn, batches: int) -> Job:
    """Draw what closes by event time: counts, de-duplication and timers, of which some join the query late or pause."""
    operators = chance.sample(event_operators(), chance.choice([1, 2, 3]))
    policy, last_pass = chance.choice(["min", "min", "max"]), chance.random() < 0.25
    absences = [range(0), range(batches // 2), range(batches // 2, batches // 2 + 1)]
    absent = {one.store: chance.choice(absences) for one in operators[1:]}
    incoming = {"watermark_policy": policy, "available_now": last_pass}
    job = Job(operators, [drawn_events(chance.of(version), version, 20_000) for version in range(batches)], [], [])
    job = replace(job, incoming=incoming, absent=absent)
    oracle, named = EventOracle(policy, last_pass=last_pass), [one.store for one in operators]
    contents, outputs, times = list[Mapping[str, State]](), list[Mapping[str, Rows]](), list[BatchTimes]()
    for version, batch in enumerate(job.batches):
        told = oracle.feed([one.store for one in job.operators_of(version)], batch)
        outputs.append({store: told.get(store, []) for store in named})
        contents.append({store: held for store, held in oracle.state().items() if store in named})
        times.append(oracle.times)
    return replace(job, contents=contents, outputs=outputs, times=times)


def sealed_events(chance: Drawn, batches: int) -> Job:
    """Draw the same, delivered after the commit."""
    return replace(events(chance, batches), settings={"deliver_after_commit": True})


JOBS: Mapping[str, Callable[[Drawn, int], Job]] = {
    "columns": columns_of_keys, "sealed": sealed_columns, "timers": timers, "events": events,
    "sealed events": sealed_events,
}  # fmt: skip
