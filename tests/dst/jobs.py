"""The kinds of queries, each with its batches and with the results that plain Python computes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.batch.initial import with_initial_state
from riffle_spark.protocol.operator import Operator, operator_of
from riffle_spark.state.log.record import Record
from tests.dst.dispatched import Dealt
from tests.kit.simulated.alarms import Alarms, AlarmsOracle
from tests.kit.simulated.event_rows import BatchTimes, EventOracle, drawn_events, event_operators
from tests.kit.simulated.world import ROWS, Oracle, drawn_batch, tails, totals

__all__ = ["JOBS", "Drawn", "Job", "same"]

BATCH_MS = 1_000
"""The time between batches, as in ``World.incoming``."""
Rows = list[dict[str, object]]
State = Mapping[object, tuple[object, ...]]


class Drawn(random.Random):
    """The random numbers of a job. Each batch has its own, which depend on the line of history that ran it first."""

    def __init__(self, seed: int, origins: Sequence[int]) -> None:
        super().__init__(f"{seed}/job")  # the kind of job is drawn from the plain seed
        self._seed = seed
        self._origins = origins
        self._keys = random.Random(f"{seed}/keys").choice([12, 60])

    def of(self, version: int) -> random.Random:
        """Return the random numbers of a batch."""
        return random.Random(f"{self._seed}/{self._origins[version]}/{version}")

    def rows(self, version: int) -> pa.Table:
        """Return the random rows of a batch."""
        return drawn_batch(self.of(version), version, self._keys)


@dataclass(frozen=True)
class Job:
    """One query with its expected results.

    ``contents`` has the state of each durable store after each batch, ``outputs`` the rows for its sink. The last two
    of the ``batches`` are for the end, when there are no more faults. ``incoming`` are the source's facts of each
    batch. ``times`` has the expected times of each batch, and is not compared if it is empty. ``initial`` is the named
    initial state of ``alarms`` that each batch is run with. A cache may be lost at any batch: for each batch,
    ``caches`` has the possible rows for its sink, one for each batch with which the cache may have started.
    """

    operators: Sequence[Operator]
    batches: Sequence[pa.Table]
    contents: Sequence[Mapping[str, State]]
    outputs: Sequence[Mapping[str, Rows]]
    settings: Mapping[str, object] = field(default_factory=dict)
    incoming: Mapping[str, object] = field(default_factory=dict)
    absent: Mapping[str, Collection[int]] = field(default_factory=dict)
    times: Sequence[BatchTimes] = ()
    initial: Sequence[tuple[str, pa.Table]] = ()
    caches: Mapping[str, Sequence[Sequence[Rows]]] = field(default_factory=dict)

    def operators_of(self, version: int) -> list[Operator]:
        """Return the operators of a batch. Some join the query late or pause, as in ``absent``."""
        present = [operator for operator in self.operators if version not in self.absent.get(operator.store, ())]
        if self.initial:
            name, rows = self.initial[version]
            present = [
                with_initial_state(operator, rows.schema, name) if operator.store == "alarms" else operator
                for operator in present
            ]
        return present

    def initial_of(self, version: int) -> dict[str, pa.Table]:
        """Return the initial state of each store that a batch is run with."""
        return {"alarms": self.initial[version][1]} if self.initial else {}

    def check(self, report: BatchReport) -> None:
        """Compare the report of a batch with ``times``."""
        if report.decision == "run" and self.times:
            expected = self.times[report.version]
            counts = (report.late_rows, report.timers_fired, report.expired)
            batch_times = BatchTimes(*counts, expected.watermark_ms, expected.late_watermark_ms)
            same(batch_times, expected, f"the report of batch {report.version}")

    def check_records(self, records: Iterable[Record]) -> None:
        """Compare the watermarks of committed batches with ``times``."""
        for record in [record for record in records if record.kind == "batch" and self.times]:
            expected = self.times[record.version]
            actual = replace(expected, watermark_ms=record.watermark_ms, late_watermark_ms=record.late_watermark_ms)
            same(actual, expected, f"the record of batch {record.version}")

    def check_delivery(self, store: str, rows: Rows, version: int, dealings: Sequence[Dealt]) -> None:
        """Compare the rows that a sink receives for a batch with ``outputs``.

        The rows of each key-group of a cache must be possible by ``caches``, with one of ``dealings``, because a
        key-group is lost as a whole.
        """
        if store in self.outputs[version]:
            expected = sorted(self.outputs[version][store], key=repr)
            same(sorted(rows, key=repr), expected, f"the sink of {store}, batch {version}")
        elif store in self.caches:
            wrong = [_told_astray(rows, self.caches[store][version], dealt) for dealt in dealings]
            assert not all(wrong), f"the sink of the cache {store}, batch {version}, {wrong[0]}"


def _told_astray(rows: Rows, allowed: Sequence[Rows], dealt: Dealt) -> str:
    """Return the problem of a key-group whose rows are not possible after any allowed loss, or an empty text."""
    actual = _by_key_group(rows, dealt)
    alternatives = [_by_key_group(rows, dealt) for rows in allowed]
    for group in sorted({*actual, *(group for alternative in alternatives for group in alternative)}):
        options = [groups.get(group, []) for groups in alternatives]
        if actual.get(group, []) not in options:
            return f"key-group {group} is {actual.get(group)}, not one of {options}"
    return ""


def _by_key_group(rows: Rows, dealt: Dealt) -> dict[int, Rows]:
    """Return the rows of each key-group in a fixed order."""
    groups = dealt.of([row["k"] for row in rows])
    by_group: dict[int, Rows] = {}
    for group, row in sorted(zip(groups, rows, strict=True), key=repr):
        by_group.setdefault(group, []).append(row)
    return by_group


def same(actual: object, expected: object, label: str) -> None:
    """Raise an error if a value differs from the expected one."""
    assert actual == expected, f"{label} is {actual}, not {expected}"


def columns_of_keys(chance: Drawn, batches: int) -> Job:
    """Return running totals, a function that depends on the order of rows, and their expected results."""
    operators = [totals(), tails()]
    rows = [chance.rows(version) for version in range(batches)]
    oracle = Oracle()
    contents = list[Mapping[str, State]]()
    outputs = list[Mapping[str, Rows]]()
    for batch in rows:
        oracle.feed(batch)
        states: dict[str, State] = {
            "totals": dict(oracle.totals.items()),
            "tails": {key: (list(last),) for key, last in oracle.tails.items()},
        }
        touched = set(batch["k"].to_pylist())
        columns = {"totals": ("k", "count", "total"), "tails": ("k", "last")}
        outputs.append(
            {
                store: [
                    dict(zip(names, (key, *states[store][key]), strict=True)) for key in touched if key in states[store]
                ]
                for store, names in columns.items()
            }
        )
        contents.append(states)
    return Job(operators, rows, contents, outputs)


def caches(chance: Drawn, batches: int) -> Job:
    """Return running totals with two caches: counts, and a processor with timers."""
    seen_operator = operator_of("seen", ["k"], aggregate(count=count()), (), ROWS)
    alarms = operator_of("alarms", ["k"], Alarms(), ("at",), ROWS)
    job = columns_of_keys(chance, batches)
    allowed: dict[str, list[list[Rows]]] = {store: [[] for _ in range(batches)] for store in ("seen", "alarms")}
    for begin in range(batches):
        counts = Counter[str]()
        oracle = AlarmsOracle()
        for version in range(begin, batches):
            keys = job.batches[version]["k"].to_pylist()
            counts.update(keys)
            allowed["seen"][version].append([{"k": key, "count": counts[key]} for key in sorted(set(keys))])
            allowed["alarms"][version].append(_rung(oracle, job.batches[version], version))
    operators = [totals(), *(replace(operator, durable=False) for operator in (seen_operator, alarms))]
    outputs = [{"totals": of_batch["totals"]} for of_batch in job.outputs]
    contents = [{"totals": of_batch["totals"]} for of_batch in job.contents]
    settings = {"deliver_after_commit": chance.random() < 0.4}
    return replace(job, operators=operators, outputs=outputs, contents=contents, caches=allowed, settings=settings)


def _rung(oracle: AlarmsOracle, batch: pa.Table, version: int) -> Rows:
    """Feed a batch to the model of processing-time timers. Return its output."""
    now_ms = BATCH_MS * version
    in_order = sorted(batch.to_pylist(), key=lambda row: row["at"])
    return oracle.feed([(row["k"], row["v"], now_ms) for row in in_order], now_ms, [now_ms])


def sealed_columns(chance: Drawn, batches: int) -> Job:
    """Return columns of keys whose output is delivered after the commit."""
    return replace(columns_of_keys(chance, batches), settings={"deliver_after_commit": True})


def timers(chance: Drawn, batches: int) -> Job:
    """Return a processor with processing-time timers and values with a TTL.

    Sometimes the processor gets one of two initial states, or an initial state when it joins the query.
    """
    operator = operator_of("alarms", ["k"], Alarms(), ("at",), ROWS)
    oracle = AlarmsOracle()
    rows = [chance.rows(version) for version in range(batches)]
    named = chance.choice([[], ["first", "second"], [USUAL_INITIAL]])
    states = {name: _initial_state(chance) for name in named}
    initial = [(name, states[name]) for name in chance.choices(named, k=batches)] if named else []
    begins = chance.choice([1, 2]) if named == [USUAL_INITIAL] else 0
    columns = columns_of_keys(chance, batches)
    job = Job(
        [*columns.operators[: begins and 1], operator], rows, [], [], initial=initial, absent={"alarms": range(begins)}
    )
    contents = list[Mapping[str, State]]()
    outputs = list[Mapping[str, Rows]]()
    times = list[BatchTimes]()
    stores = [operator.store for operator in job.operators[:-1]]
    for version, batch in enumerate(rows):
        rung = list[dict[str, object]]()
        known_keys = {name for name, _ in initial[begins:version]}
        if version >= begins:
            if initial and initial[version][0] not in known_keys:
                oracle.give(zip(*initial[version][1].to_pydict().values(), strict=True))
            rung = _rung(oracle, batch, version)
        outputs.append({"alarms": rung, **{store: columns.outputs[version][store] for store in stores}})
        contents.append({"alarms": oracle.state(), **{store: columns.contents[version][store] for store in stores}})
        times.append(BatchTimes(0, oracle.fired, oracle.expired))
    return replace(job, contents=contents, outputs=outputs, times=times)


def _initial_state(chance: Drawn) -> pa.Table:
    keys = [f"key-{n}" for n in chance.sample(range(14), 5)]
    sums = chance.choices(range(1, 9), k=5)
    return pa.table([keys, sums], pa.schema([("k", pa.string()), ("n", pa.int64())]))


def events(chance: Drawn, batches: int) -> Job:
    """Return operators by event time: counts, de-duplication and timers. Some join the query late or pause."""
    operators = chance.sample(event_operators(), chance.choice([1, 2, 3]))
    policy = chance.choice(["min", "min", "max"])
    last_pass = chance.random() < 0.25
    now_and_then = [version for version in range(batches) if chance.random() < 0.3]
    absences = [range(0), range(batches // 2), range(batches // 2, batches // 2 + 1), now_and_then]
    absent = {operator.store: chance.choice(absences) for operator in operators[1:]}
    incoming = {"watermark_policy": policy, "available_now": last_pass}
    job = Job(operators, [drawn_events(chance.of(version), version, 20_000) for version in range(batches)], [], [])
    job = replace(job, incoming=incoming, absent=absent)
    oracle = EventOracle(policy, last_pass=last_pass)
    named = [operator.store for operator in operators]
    contents = list[Mapping[str, State]]()
    outputs = list[Mapping[str, Rows]]()
    times = list[BatchTimes]()
    for version, batch in enumerate(job.batches):
        fed_times = oracle.feed([operator.store for operator in job.operators_of(version)], batch)
        outputs.append({store: fed_times.get(store, []) for store in named})
        contents.append({store: state for store, state in oracle.state().items() if store in named})
        times.append(oracle.times)
    return replace(job, contents=contents, outputs=outputs, times=times, settings={"accept": tuple(absent)})


def sealed_events(chance: Drawn, batches: int) -> Job:
    """Return operators by event time whose output is delivered after the commit."""
    job = events(chance, batches)
    return replace(job, settings={**job.settings, "deliver_after_commit": True})


def partitions(chance: Drawn, batches: int) -> Job:
    """Return another job with dispatch by partition. Rows of an initial state have no partition, so it has none."""
    draw = chance.choice([columns_of_keys, sealed_columns, caches, timers, events, sealed_events])
    job = draw(chance, batches)
    while job.initial:
        job = draw(chance, batches)
    return replace(job, settings={**job.settings, "dispatch": chance.choice(["partition", "hashed"])})


JOBS: Mapping[str, Callable[[Drawn, int], Job]] = {
    "columns": columns_of_keys,
    "sealed": sealed_columns,
    "caches": caches,
    "timers": timers,
    "events": events,
    "sealed events": sealed_events,
    "partitions": partitions,
}
