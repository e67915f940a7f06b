"""Run exporters in threads of their own.

Theory of operation.

1. After each batch, and about once a second while the query is idle, the batch loop calls ``Exporters.publish``. It
   puts the facts into a queue for each exporter and returns at once.
2. Each exporter has a thread of its own. So an exporter that hangs delays neither a batch nor another exporter.
3. A queue holds the newest batches. If an exporter is too slow, the oldest of them is dropped. Counters are sums since
   the start of the driver, so a dropped batch loses no count.
4. The first failure of an exporter is a warning, later ones are logged for debugging. An exporter that hangs gets one
   warning, too.
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

from riffle_spark.observe.readings import Reading, readings
from riffle_spark.protocol.batch.batch_report import BatchReport
from riffle_spark.protocol.facts import DriverFacts

_logger = logging.getLogger("riffle_spark")
_QUEUE_LENGTH: Final = 64
_HANGS_SECONDS: Final = 30.0
_EXIT_SECONDS: Final = 5.0
"""How long the end of the process waits for exporters of queries that were not stopped."""


class Exporter(Protocol):
    """Sends facts and readings to one place. Its methods are called on one thread. They may block and raise."""

    @property
    def name(self) -> str:
        """The name of the exporter in warnings, such as ``report_file``."""
        ...

    def export(self, report: BatchReport | None, facts: DriverFacts, readings: Sequence[Reading]) -> None:
        """Send the figures of one moment.

        ``report`` is the batch that just ended, ``None`` if the query is idle or a batch runs. ``readings`` include
        those of the last batch in any case.
        """
        ...

    def close(self) -> None:
        """Send the waiting figures, and free all resources. Called once, after the last ``export``."""
        ...


@dataclass(frozen=True)
class _Moment:
    """The facts of one moment, and the last report. Readings are made once, on the thread of an exporter."""

    report: BatchReport | None
    last_report: BatchReport | None
    facts: DriverFacts

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        return readings(self.last_report, self.facts)


class Exporters:
    """Passes facts to all exporters of a query."""

    def __init__(self, exporters: Sequence[Exporter], seconds: Callable[[], float]) -> None:
        """Create them without a thread. The first ``publish`` starts the threads.

        ``seconds`` returns the seconds of a monotonic clock.
        """
        self._outlets = [_Outlet(exporter, seconds) for exporter in exporters]
        self._seconds = seconds
        self._last_moment: _Moment | None = None
        if exporters:
            atexit.register(self.close, _EXIT_SECONDS)

    def publish(self, report: BatchReport | None, facts: DriverFacts) -> None:
        """Pass facts to all exporters. Never blocks, and never raises. ``Exporter.export`` describes ``report``."""
        last_report = report or (self._last_moment.last_report if self._last_moment is not None else None)
        self._last_moment = _Moment(report, last_report, facts)
        for outlet in self._outlets:
            outlet.put(self._last_moment)

    def publish_again(self, time_ms: int, batch_seconds: float) -> None:
        """Pass the last facts again as of ``time_ms``, because a batch has run for ``batch_seconds``.

        Do nothing if there are no last facts.
        """
        if self._last_moment is not None:
            self.publish(None, replace(self._last_moment.facts, time_ms=time_ms, batch_seconds=batch_seconds))

    def close(self, seconds: float) -> None:
        """Let the exporters send the waiting figures, and close them. Wait at most ``seconds`` for all. Idempotent."""
        atexit.unregister(self.close)
        deadline = self._seconds() + seconds
        for outlet in self._outlets:
            outlet.finish()
        for outlet in self._outlets:
            outlet.wait(max(0.0, deadline - self._seconds()))


class _Outlet:
    """An exporter with its queue and its thread."""

    def __init__(self, exporter: Exporter, seconds: Callable[[], float]) -> None:
        self._exporter = exporter
        self._seconds = seconds
        self._waiting: deque[_Moment] = deque(maxlen=_QUEUE_LENGTH)
        self._changed = threading.Condition()
        self._busy_since: float | None = None
        self._is_closing = False
        self._has_failed = False
        self._has_hung = False
        self._thread: threading.Thread | None = None

    def put(self, moment: _Moment) -> None:
        """Add a moment to the queue. Warn once if the exporter hangs."""
        with self._changed:
            if self._is_closing:
                return
            if len(self._waiting) == _QUEUE_LENGTH:
                self._make_room()
            self._waiting.append(moment)
            if self._thread is None:
                self._start()
            self._changed.notify_all()
            busy_since = self._busy_since
        if busy_since is not None and self._seconds() - busy_since > _HANGS_SECONDS and not self._has_hung:
            self._has_hung = True
            # Cause: The place that it writes to does not answer. Batches are not delayed.
            _logger.warning(
                "[RIFFLE-1260] The exporter %s has not ended for %g s. It exports nothing until then.\n"
                "  What to do: Check that the driver reaches the place that it writes to.",
                self._exporter.name,
                _HANGS_SECONDS,
            )

    def _start(self) -> None:
        """Start the thread. If the system has no thread left, report it: the next moment tries again."""
        thread = threading.Thread(target=self._run, name="riffle-exporter", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._report(error)
        else:
            self._thread = thread

    def _make_room(self) -> None:
        """Drop the oldest moment without a report, else the oldest."""
        oldest = next((number for number, moment in enumerate(self._waiting) if moment.report is None), 0)
        del self._waiting[oldest]

    def finish(self) -> None:
        """Let the thread end after the waiting moments."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the thread for at most ``seconds``."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (moment := self._next()) is not None:
            try:
                self._exporter.export(moment.report, moment.facts, moment.readings)
            except BaseException as error:  # noqa: BLE001 - an exporter never fails a query, nor ends its thread
                self._report(error)
            with self._changed:
                self._busy_since = None
        try:
            self._exporter.close()
        except BaseException as error:  # noqa: BLE001 - the query has ended
            self._report(error)

    def _next(self) -> _Moment | None:
        """Wait for the next moment. Return ``None`` after ``finish``, once no moment waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            if not self._waiting:
                return None
            self._busy_since = self._seconds()
            return self._waiting.popleft()

    def _report(self, error: BaseException) -> None:
        """Log a failure: the first as a warning, later ones for debugging."""
        if self._has_failed:
            _logger.debug("The exporter %s failed again: %s", self._exporter.name, error)
            return
        self._has_failed = True
        # Cause: The error names it. Batches are not affected.
        _logger.warning(
            "[RIFFLE-1261] The exporter %s failed: %s: %s\n"
            "  What to do: Remove the cause. It is tried again after each batch; further failures are logged at level "
            "DEBUG.",
            self._exporter.name,
            type(error).__name__,
            error,
        )
