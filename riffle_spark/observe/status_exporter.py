"""Write the status of a query below its root (docs/formats.md).

Theory of operation.

1. The exporter collects the last batches, moves and warnings from the reports. At most once per interval it writes
   them with the newest facts, also while the query is idle, and once more when the query stops or fails. After an
   answer to an operator's request, after a pause begins or ends, and while a drained member loses copies, it writes at
   most once a second, so that the operator sees the effect at once.
2. A write is one conditional PUT with the tag that the write before returned. The first write, and one after another
   process has written, reads the object before. If the stored status has a higher epoch and was written since this
   driver started, a newer driver has taken over, and nothing is written. An older status of another log is replaced.
3. If another process writes between the two requests, the write is skipped until the next interval.
4. With ``status_page``, the driver that wrote the status also writes ``status.html`` in the same way.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from riffle_spark.errors import CorruptStateError
from riffle_spark.observe.page import page_of
from riffle_spark.observe.readings import Reading
from riffle_spark.observe.status import (
    BATCHES_MAX,
    ENDED,
    MOVES_MAX,
    WARNINGS_MAX,
    BatchSummary,
    MoveSummary,
    RequestSummary,
    State,
    Status,
    WarningSummary,
    decode,
    encode,
)
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts
from riffle_spark.settings import Settings
from riffle_spark.state.log.paths import STATUS, STATUS_PAGE
from riffle_spark.state.objects.store import ObjectStore, sent_since

_RUNNING_MS: Final = 10_000
"""The time after a batch during which a query counts as running."""
_STEERED_MS: Final = 1_000
"""The least time between two writes of changes that operators requested."""
_SECOND_MS: Final = 1000
_REQUESTS_MS: Final = 600_000
"""The period whose requests are shown."""
_WARNING: Final = re.compile(r"\[(RIFFLE-\d{4})\] (.*)", re.DOTALL)
_QUOTES_ROWS: Final = frozenset({"RIFFLE-0809", "RIFFLE-0760"})
"""Warnings that quote errors of users' functions, which may contain data. Only their first clause is kept."""
_SHOWN_SETTINGS: Final = (
    "dispatch",
    "key_groups",
    "num_standbys",
    "standby_mode",
    "max_warmup_replicas",
    "acceptable_recovery_lag",
    "probing_rebalance_interval",
    "scheduled_rebalance_max_delay",
    "rack_aware_assignment_strategy",
    "batch_attempts",
    "deliver_after_commit",
    "retained_versions",
    "retained_for",
    "local_disk_limit",
    "local_memory_limit",
    "control",
    "status_interval",
)
"""The settings that an operator needs to read a status. None of them is a secret."""


_Steering: TypeAlias = tuple[int, int | None, tuple[tuple[str, int, int, int], ...]]


def _steering(facts: DriverFacts) -> _Steering:
    """Return the values that operators change: the newest answer, the pause, and the copies of drained members."""
    drained = (member for member in facts.members if member.state == "drained")
    return (
        facts.answered,
        facts.paused_since_ms,
        tuple((each.id, each.owned, each.standbys, each.warmups) for each in drained),
    )


class StatusHistory:
    """Collects the last batches and warnings for a status."""

    def __init__(self) -> None:
        """Create an empty history."""
        self._batches: deque[BatchSummary] = deque(maxlen=BATCHES_MAX)
        self._warnings: deque[WarningSummary] = deque(maxlen=WARNINGS_MAX)
        self._requests: deque[tuple[int, Counter[str]]] = deque()
        """The requests since the driver started, by kind, at some times of the last ten minutes, oldest first."""

    def _recent_requests(self, facts: DriverFacts) -> RequestSummary | None:
        """Return the requests since the oldest stored time, and store the present ones."""
        counts: Counter[str] = Counter()
        for name, count in facts.counters.items():
            if name.startswith("requests/"):
                counts[name.rpartition("/")[2]] += int(count)
        while len(self._requests) > 1 and self._requests[1][0] <= facts.time_ms - _REQUESTS_MS:
            self._requests.popleft()
        if self._requests and self._requests[0][0] > facts.time_ms:
            self._requests.clear()  # the clock was set back
        self._requests.append((facts.time_ms, counts))
        first_ms, first = self._requests[0]
        if facts.time_ms - first_ms < _SECOND_MS:
            return None
        return RequestSummary((facts.time_ms - first_ms) / 1000, dict(counts - first))

    def add(self, report: BatchReport, facts: DriverFacts) -> None:
        """Add a batch that ended, given the facts after it. A repeat adds only its warnings."""
        self._warnings.extend(_warning(text, facts.time_ms) for text in report.warnings)
        if report.decision != "run":
            return
        lag = sum(partition.records for partition in facts.source) if facts.source else None
        time_ms = facts.commit_ms or facts.time_ms
        self._batches.append(BatchSummary(report.version, time_ms, report.rows, dict(report.seconds), lag))

    def status(
        self, facts: DriverFacts, state: State, settings: Settings, moves: Sequence[MoveSummary], product: str
    ) -> Status:
        """Return the status with these facts, settings and moves."""
        return Status(
            facts,
            state,
            product,
            settings.status_interval,
            tuple(self._batches),
            tuple(moves[-MOVES_MAX:]),
            tuple(self._warnings),
            {name: str(getattr(settings, name)) for name in _SHOWN_SETTINGS},
            self._recent_requests(facts),
        )


def _warning(text: str, time_ms: int) -> WarningSummary:
    """Return a warning without its remedy, and without data of users."""
    match = _WARNING.fullmatch(text)
    warning_id, body = (match[1], match[2]) if match else ("", text)
    body = body.split("\n", 1)[0]
    if warning_id in _QUOTES_ROWS:
        body = body.split(". ", 1)[0].split(": ", 1)[0].rstrip(".") + "."
    return WarningSummary(time_ms, warning_id, body)


class StatusExporter:
    """Writes ``status.json`` and its page below the root. Implements ``observe.export.Exporter``."""

    name = "status"

    def __init__(
        self,
        objects: ObjectStore,
        settings: Callable[[], Settings],
        moves: Callable[[], Sequence[MoveSummary]],
        product: str,
        count_requests: Callable[[Mapping[str, int]], None],
    ) -> None:
        """Create the exporter of a query. Sends no request.

        ``objects`` is a store below the root that nothing else uses. ``settings`` returns the settings in effect,
        ``moves`` the newest moves, oldest first. ``product`` is the version of riffle_spark. ``count_requests`` is
        called with the requests of each write by kind.
        """
        self._objects = objects
        self._settings = settings
        self._moves = moves
        self._product = product
        self._count_requests = count_requests
        self._history = StatusHistory()
        self._facts: DriverFacts | None = None
        self._started_ms = 0
        self._tags: dict[str, str] = {}
        """The tags of the objects that this exporter wrote last."""
        self._tried_ms: int | None = None
        self._tried_steering: _Steering = (0, None, ())
        self._batch_ms = 0
        self._has_ended = False
        """Whether the last write was that of an ended query."""

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:  # noqa: ARG002
        """Write the status if the interval has passed, or if the query has failed. Raises errors of the store."""
        if self._facts is None:
            self._started_ms = facts.time_ms
        self._facts = facts
        if report is not None:
            self._batch_ms = facts.time_ms
            self._history.add(report, facts)
        state = self._state(facts)
        passed_ms = None if self._tried_ms is None else abs(facts.time_ms - self._tried_ms)
        is_steered = _steering(facts) != self._tried_steering
        interval_ms = self._settings().status_interval * 1000
        is_due = passed_ms is None or passed_ms >= (min(_STEERED_MS, interval_ms) if is_steered else interval_ms)
        if is_due or (state in ENDED and not self._has_ended):
            self._write(facts, state)

    def _state(self, facts: DriverFacts) -> State:
        """Return the state of a query that has not stopped."""
        if facts.failure is not None:
            return "failed"
        if facts.batch_seconds > 0:
            return "running"
        if facts.paused_since_ms is not None:
            return "paused"
        return "running" if facts.time_ms - self._batch_ms < _RUNNING_MS else "idle"

    def close(self) -> None:
        """Write the status of the ended query, unless that was written. Raises errors of the store."""
        if self._facts is not None and not self._has_ended:
            self._write(self._facts, "stopped" if self._facts.failure is None else "failed")
        self._facts = None

    def _write(self, facts: DriverFacts, state: State) -> None:
        """Write a status unless a newer driver has written its own."""
        self._tried_ms = facts.time_ms
        if state in ENDED:  # ``stop`` pauses the query first, and a restart ends each pause
            facts = replace(facts, paused_since_ms=None)
        settings = self._settings()
        self._tried_steering = _steering(facts)
        before = dict(self._objects.requests)
        try:
            status = self._history.status(facts, state, settings, self._moves(), self._product)
            is_written = self._replace(STATUS, encode(status), lambda data: self._is_newer(data, facts))
            if is_written and settings.status_page:
                self._replace(STATUS_PAGE, page_of(status).encode(), lambda _: False)
            self._has_ended = state in ENDED
        finally:
            self._count_requests(sent_since(before, self._objects.requests))

    def _replace(self, name: str, data: bytes, is_newer: Callable[[bytes], bool]) -> bool:
        """Write an object. Return whether it was written.

        If another process has written it since this one, it is read first, and kept if ``is_newer`` returns true for
        its bytes.
        """
        tag = self._tags.pop(name, "")  # after an error the object is unknown
        replaced_object = self._objects.replace_if_unchanged(name, data, tag) if tag else None
        if replaced_object is None:
            stored_object = self._objects.get_if_changed(name)
            if stored_object is None:
                return self._objects.put_if_absent(name, data)
            if stored_object.data is not None and is_newer(stored_object.data):
                return False
            replaced_object = self._objects.replace_if_unchanged(name, data, stored_object.tag)
        if replaced_object is not None:
            self._tags[name] = replaced_object.tag
        return replaced_object is not None

    def _is_newer(self, data: bytes, facts: DriverFacts) -> bool:
        """Return whether a newer driver wrote this status. A damaged status is replaced."""
        try:
            stored_facts = decode(data).facts
        except CorruptStateError:
            return False
        return stored_facts.epoch > facts.epoch and stored_facts.time_ms >= self._started_ms
