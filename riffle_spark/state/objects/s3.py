"""Objects in an S3 bucket. Knows S3's calls and what they answer. Does not know any object's meaning.

Theory of operation. A put carries ``If-None-Match: *``: 412 means that the name is taken, 409 that another put of it is
under way and this one must be sent again. botocore itself repeats a request after a lost connection, a time-out or a
5xx answer, and then a 412 may be the answer to our own first try: ``put_if_absent`` says ``False``, and the caller
reads the object to know.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import cast

import urllib3.exceptions
from botocore import exceptions as boto_errors
from botocore.response import StreamingBody

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError
from riffle_spark.state.objects import s3_client, store

__all__ = ["Body", "BrokenOff", "S3Store"]

Answer = Mapping[str, object]
_OWN_KEY = "aws/s3"
_DELETE_AT_ONCE = 1000
_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_DOUBLINGS = 10
_SAID_EACH_SECONDS = 30.0
_logger = logging.getLogger("riffle_spark")
_NO_CREDENTIALS = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.ProfileNotFound,
    boto_errors.NoAuthTokenError,
    boto_errors.SSOError,
)
_NO_ANSWER = (boto_errors.ConnectionError, boto_errors.HTTPClientError, urllib3.exceptions.HTTPError)


class S3Store:
    """A store below ``s3://bucket/prefix``. Pickles to these three arguments; sends nothing before its first call."""

    def __init__(self, bucket: str, prefix: str, options: store.StoreOptions) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.options = options
        self.requests = store.RequestCounts()
        self._said_at = -_SAID_EACH_SECONDS

    def __reduce__(self) -> "tuple[type[S3Store], tuple[str, str, store.StoreOptions]]":
        return S3Store, (self.bucket, self.prefix.rstrip("/"), self.options)

    def __repr__(self) -> str:
        at = f", {self.options.s3_endpoint!r}" if self.options.s3_endpoint else ""
        return f"S3Store({self.bucket!r}, {self.prefix.rstrip('/')!r}{at})"

    @property
    def _encryption(self) -> dict[str, object]:
        """What a put says of the key that the server is to encrypt with."""
        key = self.options.s3_kms_key
        if key is None:
            return {}
        named = {} if key == _OWN_KEY else {"SSEKMSKeyId": key}
        return {"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": True, **named}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``. ``False`` after a request that was repeated may be our own success."""
        key = self.prefix + store.check_name(name)
        for attempt in self._tries():
            times = attempt
            told = {"Key": key, "Body": data, "IfNoneMatch": "*", **self._encryption}
            answer = self._call("put_object", told, (409, 412))
            if _status(answer) != 409:
                return _status(answer) != 412
        raise s3_client.unavailable(self._named("put_object", times), "409 other puts of it are under way")

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``. A body that breaks off is asked for again."""
        store.check_range(start, length)
        if length == 0:
            return b"" if self.exists(name) else None
        trouble = ""
        for attempt in self._tries():
            times = attempt
            body = self._body(name, start, length)
            if not isinstance(body, Body):
                return body
            try:
                return body.read()
            except BrokenOff as error:
                trouble = str(error)
        raise s3_client.unavailable(self._named("get_object", times), trouble)

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``. A body that breaks off is asked for again from there."""
        store.check_range(start, length)
        if length == 0:
            return 0 if self.exists(name) else None
        done, trouble = 0, ""
        for attempt in self._tries():
            times = attempt
            body = self._body(name, start + done, length - done)
            if not isinstance(body, Body):
                return None if body is None else done
            try:
                for piece in body.pieces():
                    write(piece)
                    done += len(piece)
            except BrokenOff as error:
                trouble = str(error)
            else:
                return done
        raise s3_client.unavailable(self._named("get_object", times), trouble)

    def _body(self, name: str, start: int, length: int | None) -> "Body | bytes | None":
        """Ask for a range: ``None`` if there is no such object, no bytes if the range begins at its end or later."""
        ranged = {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"} if start or length else {}
        answer = self._call("get_object", {"Key": self.prefix + store.check_name(name), **ranged}, (404, 416))
        if _status(answer) in {404, 416}:
            return None if _status(answer) == 404 else b""
        stream = cast("StreamingBody", answer["Body"])
        return Body(stream, start, length, is_whole=bool(ranged) and _status(answer) == 200)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``. A missing bucket looks like a missing object here: S3 does not tell."""
        return _status(self._call("head_object", {"Key": self.prefix + store.check_name(name)}, (404,))) != 404

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``. Markers of empty folders, which S3 consoles make, are left out."""
        names: list[str] = []
        more: dict[str, str] = {}
        while True:
            answer = self._call("list_objects_v2", {"Prefix": self.prefix + store.check_prefix(prefix), **more})
            found = cast("list[dict[str, str]]", answer.get("Contents", []))
            names += (entry["Key"][len(self.prefix) :] for entry in found if not entry["Key"].endswith("/"))
            if not answer.get("IsTruncated"):
                return sorted(names)
            more = {"ContinuationToken": cast("str", answer["NextContinuationToken"])}

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        keys = list(dict.fromkeys(self.prefix + store.check_name(name) for name in names))
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            self._delete(keys[first : first + _DELETE_AT_ONCE])

    def _delete(self, keys: Sequence[str]) -> None:
        code = ""
        for attempt in self._tries():
            times = attempt
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._call("delete_objects", {"Delete": wanted})
            failed = cast("list[dict[str, str]]", answer.get("Errors", []))
            failed = [entry for entry in failed if entry.get("Code") != "NoSuchKey"]
            if not failed:
                return
            for entry in failed:
                code = entry.get("Code", "")
                if not s3_client.is_transient(code, 0):
                    status = 403 if code == "AccessDenied" else 400
                    raise s3_client.refused(self._named("delete_objects"), code, status, entry.get("Message", ""))
            keys = [entry["Key"] for entry in failed]
        raise s3_client.unavailable(self._named("delete_objects", times), code)

    def _call(self, operation: str, parameters: Mapping[str, object], expected: tuple[int, ...] = ()) -> Answer:
        """Send one request, repeated where that may help; return the answer if it is a success or ``expected``."""
        s3_client.SENDING.requests, s3_client.SENDING.sent = self.requests, 0
        began = time.monotonic()
        while True:
            before = s3_client.SENDING.sent
            try:
                return self._sent(operation, parameters, expected)
            except UnavailableError as error:
                # botocore repeats by itself, but not once the quota of repeats is spent that all calls of a process
                # share: in an outage the first calls would have all of it, and the others one try each.
                sent = s3_client.SENDING.sent
                if sent == before or (sent >= self.options.s3_max_attempts and not self._is_patient(began)):
                    raise
                if sent >= self.options.s3_max_attempts:
                    self._say_that_it_waits(error)
            time.sleep(min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** min(sent, _DOUBLINGS)))

    def _say_that_it_waits(self, error: UnavailableError) -> None:
        """Warn, not with each call that waits: whoever looks at a query that stands still has to find why."""
        now = time.monotonic()
        if now - self._said_at >= _SAID_EACH_SECONDS:
            self._said_at = now
            _logger.warning("%s; it is tried again for %g s (s3_patience)", error, self.options.s3_patience_seconds)

    def _is_patient(self, began: float) -> bool:
        return time.monotonic() - began < self.options.s3_patience_seconds

    def _tries(self) -> Iterator[int]:
        """Yield the numbers of tries from 1 on, each after a pause: as many as a call has, and more while that takes no
        longer than patience lasts.
        """
        began = time.monotonic()
        for attempt in itertools.count():
            if attempt >= self.options.s3_max_attempts and not self._is_patient(began):
                return
            _pause(attempt)
            yield attempt + 1

    def _sent(self, operation: str, parameters: Mapping[str, object], expected: tuple[int, ...]) -> Answer:
        client = s3_client.client_of(self.options)
        try:
            return cast("Answer", getattr(client, operation)(Bucket=self.bucket, **parameters))
        except boto_errors.ClientError as error:
            answer = cast("Answer", error.response)
            if _status(answer) in expected and error.response["Error"]["Code"] != "NoSuchBucket":
                return answer
            problem = self._refusal(operation, error)
        except (boto_errors.BotoCoreError, urllib3.exceptions.HTTPError) as error:
            problem = self._failure(operation, error)
            if isinstance(problem, UnavailableError):
                raise problem from error
        if not isinstance(problem, UnavailableError):
            # The client goes too, so that corrected credentials are found.
            s3_client.forget_client(self.options)
        raise problem from None  # The cause does not come with it, lest it repeats wrong ones.

    def _refusal(self, operation: str, error: boto_errors.ClientError) -> RiffleError:
        fields = error.response["Error"]
        status = _status(cast("Answer", error.response))
        return s3_client.refused(
            self._named(operation, s3_client.SENDING.sent), fields.get("Code", ""), status, fields.get("Message", "")
        )

    def _failure(self, operation: str, error: Exception) -> RiffleError:
        call = self._named(operation, s3_client.SENDING.sent)
        if isinstance(error, _NO_CREDENTIALS):
            return s3_client.no_credentials(call, type(error).__name__)
        if isinstance(error, boto_errors.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return s3_client.untrusted(call)
        if isinstance(error, _NO_ANSWER):
            return s3_client.unavailable(call, type(error).__name__)
        remedy = "check `root`, `s3_endpoint` and `s3_region`"
        return ConfigError(f"{operation} cannot be sent: {error}", remedy=remedy, where=call.where)

    def _named(self, operation: str, attempts: int = 1) -> s3_client.Call:
        endpoint = s3_client.client_of(self.options).meta.endpoint_url
        return s3_client.Call(operation, endpoint, self.bucket, attempts)


def _status(answer: Answer) -> int:
    return cast("dict[str, int]", answer["ResponseMetadata"])["HTTPStatusCode"]


def _pause(attempt: int) -> None:
    """Wait before another try: not before the first, then twice as long each time, a second at most."""
    if attempt:
        time.sleep(min(1.0, _PAUSE_SECONDS * 2 ** min(attempt, _DOUBLINGS)))


class BrokenOff(Exception):
    """A body ended before its time; the text says how."""


class Body:
    """What was asked for from ``start``. ``is_whole``: the server knows no ranges, and gives the object."""

    def __init__(self, stream: StreamingBody, start: int, length: int | None, *, is_whole: bool) -> None:
        self._stream = stream
        self._wanted = slice(start, None if length is None else start + length) if is_whole else None

    def read(self) -> bytes:
        """Return all of it. Raises ``BrokenOff``."""
        with _raising_broken_off():
            data: bytes = self._stream.read()
        return data if self._wanted is None else data[self._wanted]

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces of ``PIECE_BYTES`` at most. Raises ``BrokenOff``, after what came."""
        if self._wanted is not None:
            yield from filter(None, [self.read()])
            return
        with closing(self._stream):
            while piece := self._piece():
                yield piece

    def _piece(self) -> bytes:
        with _raising_broken_off():
            piece: bytes = self._stream.read(store.PIECE_BYTES)
            return piece


@contextmanager
def _raising_broken_off() -> Iterator[None]:
    try:
        yield
    except (boto_errors.BotoCoreError, urllib3.exceptions.HTTPError) as error:
        raise BrokenOff(f"the body broke off ({type(error).__name__})") from error
