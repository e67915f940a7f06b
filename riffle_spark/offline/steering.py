"""Make requests to a running query through the mailbox in its root, and read the answers in its log."""

import getpass
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.observe.units import show_duration
from riffle_spark.offline.root_status import RootStatus, read_status
from riffle_spark.offline.running_log import open_running_log
from riffle_spark.protocol.batch.mailbox import (
    Answer,
    MailboxRequest,
    add_request,
    last_number,
    read_mailbox,
)
from riffle_spark.protocol.batch.stored_requests import StoredRequests, read_requests
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

_LOOK_SECONDS = 0.5
OF_DRIVERS = ("claim", "batch", "orders")
"""Kinds of records that drivers write."""


@dataclass(frozen=True, slots=True)
class ListedRequest:
    """A request and its answer, ``None`` if there is none or it is too old to be stored.

    ``state`` is that of the answer, else ``pending``, or ``answered`` if a later request has an answer.
    """

    request: MailboxRequest
    state: str
    answer: Answer | None = None

    def to_json(self) -> dict[str, object]:
        """Return the request, its state and its answer as one JSON object. Times are milliseconds since the epoch."""
        answer = self.answer
        return {
            **asdict(self.request),
            "arguments": self.request.shown_arguments,
            "state": self.state,
            "answered_ms": answer.time_ms if answer else None,
            "error_id": answer.error_id if answer else "",
            "text": answer.text if answer else "",
        }


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The copies that a member still has after a request to drain it was applied.

    Attributes:
        owned: key-groups that it owns.
        standbys: standbys that it keeps.
        warmups: copies that it warms up.
        is_drained: whether the drain is in effect. A later request may have ended it.
        stopped: why nothing moves any more, empty if the query runs.
    """

    owned: int
    standbys: int
    warmups: int
    is_drained: bool = True
    stopped: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether the member has no copy that is needed."""
        return not (self.owned or self.standbys or self.warmups)


class Mailroom:
    """The mailbox of the query below a root, as commands see it.

    ``root`` may also be a shared root with one query. Raises ``ConfigError`` if there is no log.
    """

    def __init__(self, root: str, options: StoreOptions | None = None) -> None:
        """Open the log below the root: sends a LIST and a few GETs."""
        self._options = options or StoreOptions()
        self.root = only_root(root, self._options)
        self._objects: ObjectStore = open_store(self.root, self._options)
        self._log, self._tail = open_running_log(self._objects, self.root)

    @property
    def tail(self) -> Record:
        """The newest record that was read."""
        return self._tail

    def _current_requests(self) -> StoredRequests:
        """Return the operator requests in the newest record."""
        for record in self._log.records_after(self._tail.sequence):
            self._tail = record
        return read_requests(self._tail.orders)

    def post(self, command: str, arguments: Mapping[str, object], expires_seconds: float) -> MailboxRequest:
        """Add a request, which expires after ``expires_seconds``. Return it with its number.

        Raises ``ConfigError`` if the driver does not read requests, or too many have no answer.
        """
        if not self._current_requests().control:
            raise ConfigError(
                "The driver of this query does not read requests, as of its newest record.",
                remedy="Start the query with the setting control = on, and retry after its first batch.",
                where=self.root,
                id="RIFFLE-1358",
            )
        now_ms = time.time_ns() // 1_000_000
        request = MailboxRequest(
            number=0,
            id=uuid.uuid4().hex,
            command=command,
            arguments=dict(arguments),
            user=user_name(),
            host=socket.gethostname(),
            time_ms=now_ms,
            expires_ms=now_ms + round(expires_seconds * 1000),
        )
        return add_request(self._objects, request, lambda: last_number(self._current_requests().answers))

    def wait(self, request: MailboxRequest, seconds: float) -> ListedRequest:
        """Wait up to ``seconds`` for the answer to a request. Return the request, ``pending`` if there is none."""
        deadline = time.monotonic() + seconds
        while True:
            listed = _listed(request, self._current_requests().answers)
            if listed.state != "pending" or time.monotonic() >= deadline:
                return listed
            time.sleep(_LOOK_SECONDS)

    def describe_stop(self, state: RootStatus | None = None) -> str:
        """Return why the query answers no requests now, as its status shows it. Empty if it runs or has no status.

        ``state`` is the status. If it is missing, this reads it.
        """
        try:
            state = state or read_status(self.root, self._options)
        except CorruptStateError:
            return ""
        has_started = state.record.epoch > state.facts.epoch and state.record.kind in OF_DRIVERS
        if has_started or state.status_age is None:
            return ""
        if state.health == "stopped":
            return f"The query stopped {show_duration(state.status_age)} ago."
        if state.health == "failed":
            return state.problem or ""
        if state.health == "silent":
            return f"The driver has not written its status for {show_duration(state.status_age)}."
        return ""

    def drain_progress(self, drain: ListedRequest) -> DrainProgress | None:
        """Return the progress of an applied drain, ``None`` if nothing newer than the answer is known yet.

        It is read from the status. If there is no status, it is read from the newest record. An idle query writes no
        records.
        """
        state = read_status(self.root, self._options)
        stopped = self.describe_stop(state)
        if state.status is not None and state.facts.answered < drain.request.number and not stopped:
            return None
        name = drain.request.arguments["member"]
        member = next(
            (candidate for candidate in state.facts.members if name in (candidate.id, candidate.executor)), None
        )
        drained = read_requests(state.record.orders).drained
        if member is None:  # it has left the query
            return DrainProgress(0, 0, 0, stopped=stopped)
        is_drained = member.id in drained or member.executor in drained
        return DrainProgress(member.owned, member.standbys, member.warmups, is_drained, stopped)

    def watch_drain(self, drain: ListedRequest, seconds: float) -> Iterator[DrainProgress]:
        """Yield the progress of an applied drain, at first and after each change.

        Stop once the member is empty, the drain has ended, the query has stopped, or ``seconds`` have passed.
        """
        deadline = time.monotonic() + seconds
        previous = None
        while True:
            progress = self.drain_progress(drain)
            if progress is not None:
                if progress != previous:
                    yield progress
                if progress.is_empty or progress.stopped or not progress.is_drained:
                    return
                previous = progress
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)

    def requests(self) -> list[ListedRequest]:
        """Return the requests in the mailbox with their answers, oldest first. Raises ``ConfigError``."""
        mailbox, _ = read_mailbox(self._objects)
        answers = self._current_requests().answers
        return [_listed(request, answers) for request in mailbox.requests]


def _listed(request: MailboxRequest, answers: tuple[Answer, ...]) -> ListedRequest:
    """Return a request with its answer."""
    answer = next((candidate for candidate in answers if candidate.number == request.number), None)
    if answer is not None:
        return ListedRequest(request, answer.state, answer)
    return ListedRequest(request, "answered" if request.number <= last_number(answers) else "pending")


def user_name() -> str:
    """Return the name of the user that runs this process, empty if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
