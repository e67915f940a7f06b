"""The calls of S3, GCS and Azure: their limits, their repeats, and reads of bodies that may be interrupted.

A repeat of a conditional put may find the bytes of its own first request. Then ``put_if_absent`` returns ``False``, and
the caller reads the object. If the repeat is refused, it is unknown whether the object exists.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError
from riffle_spark.printable import escape_unprintable
from riffle_spark.state.objects import store
from riffle_spark.state.objects.answers import Action
from riffle_spark.state.objects.options import StoreOptions

_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 5.0
_PAUSE_DOUBLINGS_MAX: Final = 10
_WARNING_PERIOD_SECONDS: Final = 30.0
_logger = logging.getLogger("riffle_spark")

_Client = TypeVar("_Client")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class Patience:
    """Limits how long a call is repeated: ``max_attempts`` requests, then until ``s3_patience`` ends.

    Both limits start again after each partial success.
    """

    def __init__(self, options: StoreOptions) -> None:
        self._seconds = options.patience_seconds
        self.restart()

    def restart(self) -> None:
        """Begin again: the call has made progress."""
        self.sent = 0
        self.has_looked_up = False
        self.definite = 0
        """Number of requests with an answer that proves that nothing was changed."""
        self._started = time.monotonic()

    @property
    def is_unclear(self) -> bool:
        """Whether a request may have taken effect although no answer confirmed it."""
        return self.sent > self.definite

    def has_ended(self) -> bool:
        """Return whether ``s3_patience`` is over."""
        return time.monotonic() - self._started >= self._seconds


@dataclass(frozen=True, slots=True)
class Failure:
    """The action after a failed request, and the error to raise if this action does not help.

    ``cause`` is ``None`` if it could repeat credentials.
    """

    action: Action
    error: RiffleError
    cause: Exception | None = None


class BodyInterrupted(Exception):
    """A body ended early. The text names the cause."""


class Body(Protocol):
    """The body of an answer."""

    def read(self, size: int | None = None) -> bytes:
        """Return at most ``size`` bytes, none at the end. Raises ``BodyInterrupted``."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...


class RemoteStore(ABC, Generic[_Client, _Request, _Answer]):
    """A store below a prefix of a bucket or container. It sends nothing before its first call."""

    def __init__(self, bucket: str, prefix: str, options: StoreOptions) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.options = options
        self.requests = store.RequestCounts()
        self._warned_at = -_WARNING_PERIOD_SECONDS

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether the object exists, with one request."""

    @abstractmethod
    def _client(self) -> _Client:
        """Return this process's client."""

    @abstractmethod
    def _forget(self, client: _Client) -> None:
        """Make the next call create a new client with newly read credentials, unless another thread has done so."""

    @abstractmethod
    def _send(self, client: _Client, request: _Request, patience: Patience) -> "_Answer | Failure":
        """Send a request, add the number of requests to ``patience``, and return the answer or the failure."""

    @abstractmethod
    def _body(self, name: str, start: int, length: int | None, patience: Patience) -> Body | bytes | None:
        """Request a range. Return ``None`` if the object is absent, no bytes if the range starts at its end or later.

        Raises ``ConfigError`` if the server ignores ranges and returns the whole object.
        """

    @abstractmethod
    def _tagged_body(self, name: str, tag: str, patience: Patience) -> tuple[str, Body | None] | None:
        """Request the object unless it has ``tag``. Return its tag and body; no body if the tag is unchanged.

        Return ``None`` if the object is absent.
        """

    @abstractmethod
    def _unavailable(self, operation: str, patience: Patience, reason: str) -> UnavailableError:
        """Return the error for a call that failed after all its attempts."""

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return a range of the object, or ``None`` if it does not exist. An interrupted body is requested again."""
        store.check_range(start, length)
        if length == 0:
            return b"" if self.exists(name) else None
        patience = Patience(self.options)
        while True:
            body = self._body(name, start, length, patience)
            if body is None or isinstance(body, bytes):
                return body
            try:
                return body.read()
            except BodyInterrupted as error:
                self._wait(patience, self._unavailable("get_object", patience, str(error)))

    def get_if_changed(self, name: str, tag: str = "") -> store.TaggedObject | None:
        """Return the object with its tag, without its bytes if it still has ``tag``; ``None`` if it does not exist."""
        patience = Patience(self.options)
        while True:
            answer = self._tagged_body(name, tag, patience)
            if answer is None:
                return None
            new_tag, body = answer
            if body is None:
                return store.TaggedObject(None, tag)
            try:
                data = body.read()
            except BodyInterrupted as error:
                self._wait(patience, self._unavailable("get_object", patience, str(error)))
            else:  # a server may ignore the condition of the read
                return store.TaggedObject(None if new_tag and new_tag == tag else data, new_tag)

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """Pass a range of the object to ``write`` in pieces. Return its length, or ``None`` without an object."""
        store.check_range(start, length)
        if length == 0:
            return 0 if self.exists(name) else None
        done = 0
        patience = Patience(self.options)
        while True:
            body = self._body(name, start + done, length - done, patience)
            if body is None or isinstance(body, bytes):
                return None if body is None else done
            try:
                while piece := body.read(store.PIECE_BYTES):
                    write(piece)
                    done += len(piece)
                    patience.restart()
            except BodyInterrupted as error:
                self._wait(patience, self._unavailable("get_object", patience, str(error)))
            else:
                return done
            finally:
                body.close()

    def _exchange(self, request: _Request, patience: Patience) -> _Answer:
        """Send a request, and repeat it as the table of answers prescribes. Return an answer for the caller."""
        has_fresh_credentials = False
        while True:
            client = self._client()
            sent_before = patience.sent
            reply = self._send(client, request, patience)
            if not isinstance(reply, Failure):
                return reply
            if reply.action is Action.FRESH_CREDENTIALS and not has_fresh_credentials:
                has_fresh_credentials = True
                self._forget(client)
                continue
            if reply.action is not Action.AGAIN:
                self._forget(client)  # the next call reads corrected credentials
                raise reply.error
            if patience.sent == sent_before:  # nothing was sent, so a repeat fails in the same way
                raise reply.error from reply.cause
            self._wait(patience, reply.error, reply.cause)

    def _exchange_put(self, request: _Request) -> _Answer:
        """Send a conditional put. Raises ``UnavailableError`` if it is unknown whether the object was written.

        That is so if a request had no definite answer and its repeat was refused.
        """
        patience = Patience(self.options)
        try:
            return self._exchange(request, patience)
        except ConfigError as error:
            if not patience.is_unclear:
                raise
            # Cause: The first request may have written the object although its answer was lost.
            raise UnavailableError(
                f"put_object had no answer, and its repeat failed: {error.problem}",
                remedy=error.remedy,
                where=error.where,
                id="RIFFLE-0443",
            ) from error

    def _wait(self, patience: Patience, error: RiffleError, cause: Exception | None = None) -> None:
        """Pause before the next request. Raise ``error`` if patience has ended."""
        if patience.sent >= self.options.max_attempts:
            if patience.has_ended():
                raise error from cause
            self._warn_of_waiting(error)
        doublings = min(patience.sent, _PAUSE_DOUBLINGS_MAX)
        time.sleep(min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2**doublings))

    def _warn_of_waiting(self, error: RiffleError) -> None:
        """Warn at most every 30 s that calls are repeated, so that the log shows why a query makes no progress."""
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_PERIOD_SECONDS:
            self._warned_at = now
            seconds = self.options.patience_seconds
            # Cause: The store does not answer, or asks for fewer requests.
            _logger.warning(
                "[RIFFLE-0444] A call to the object store is repeated until %g s after its start or last progress "
                "(s3_patience), then it fails: %s [%s]\n"
                "  What to do: Do nothing if the store recovers by then. For longer outages raise s3_patience.",
                seconds,
                escape_unprintable(error.problem),
                escape_unprintable(error.where),
            )
