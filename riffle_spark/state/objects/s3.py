"""Objects in an S3 bucket.

Theory of operation. A put carries ``If-None-Match: *``: 412 means that the name is taken, 409 that another put of it is
under way and this one must be sent again. botocore itself repeats a request after a lost connection, a time-out or a
5xx answer, and then a 412 may be the answer to our own first try: ``put_if_absent`` says ``False``, and the caller
reads the object to know. ``s3_answers`` lists what every other answer means.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import cast

import urllib3.exceptions
from botocore import exceptions as boto_errors
from botocore.client import BaseClient
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError
from riffle_spark.state.objects import s3_client, store
from riffle_spark.state.objects.s3_answers import Action, Rule, is_definite, rule_of

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
_OF_CALLERS = frozenset({Action.ANSWER, Action.DELETE_ONE_BY_ONE, Action.ASK_WHAT_IS_LEFT})
_IS_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
_NO_ANSWER = (boto_errors.ConnectionError, boto_errors.HTTPClientError, urllib3.exceptions.HTTPError)


class S3Store:
    """A store below ``s3://bucket/prefix``. Pickles to these three arguments; sends nothing before its first call."""

    def __init__(self, bucket: str, prefix: str, options: store.StoreOptions) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.options = options
        self.requests = store.RequestCounts()
        self._said_at = -_SAID_EACH_SECONDS
        self._deletes_one_by_one = False

    def __reduce__(self) -> "tuple[type[S3Store], tuple[str, str, store.StoreOptions]]":
        return S3Store, (self.bucket, self.prefix.rstrip("/"), self.options)

    def __repr__(self) -> str:
        at = f", {self.options.s3_endpoint!r}" if self.options.s3_endpoint else ""
        return f"S3Store({self.bucket!r}, {self.prefix.rstrip('/')!r}{at})"

    @property
    def _encryption(self) -> dict[str, object]:
        """Return the arguments of a put that name the server's encryption."""
        key = self.options.s3_kms_key
        if key is None:
            algorithm = self.options.s3_server_side_encryption
            return {} if algorithm is None else {"ServerSideEncryption": algorithm}
        named = {} if key == _OWN_KEY else {"SSEKMSKeyId": key}
        return {"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": True, **named}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See ``ObjectStore.put_if_absent``. ``False`` after a repeated request may mean that the first one succeeded.
        For the same reason a refusal after a request without a definite answer is an ``UnavailableError``.
        """
        key, patience = self.prefix + store.check_name(name), _Patience(self.options)
        wanted = {"Key": key, "Body": data, "ContentMD5": s3_client.content_md5(data), "IfNoneMatch": "*"}
        try:
            answer = self._call("put_object", {**wanted, **self._encryption}, patience)
        except ConfigError as error:
            if not patience.is_unclear:
                raise
            problem = f"put_object had no answer, and then: {error.problem}"
            raise UnavailableError(problem, remedy=error.remedy, where=error.where, id="RIFFLE-0443") from error
        return _status(answer) < 300

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """See ``ObjectStore.get``. A body that breaks off is asked for again."""
        store.check_range(start, length)
        if length == 0:
            return b"" if self.exists(name) else None
        patience = _Patience(self.options)
        while True:
            body = self._body(name, start, length, patience)
            if not isinstance(body, Body):
                return body
            try:
                return body.read()
            except BrokenOff as error:
                self._wait(patience, self._unavailable("get_object", patience, str(error)))

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """See ``ObjectStore.copy_to``. A body that breaks off is asked for again from there."""
        store.check_range(start, length)
        if length == 0:
            return 0 if self.exists(name) else None
        done, patience = 0, _Patience(self.options)
        while True:
            body = self._body(name, start + done, length - done, patience)
            if not isinstance(body, Body):
                return None if body is None else done
            try:
                for piece in body.pieces():
                    write(piece)
                    done += len(piece)
                    patience.begin_anew()
            except BrokenOff as error:
                self._wait(patience, self._unavailable("get_object", patience, str(error)))
            else:
                return done

    def _body(self, name: str, start: int, length: int | None, patience: "_Patience") -> "Body | bytes | None":
        """Ask for a range: ``None`` if there is no such object, no bytes if the range begins at its end or later."""
        ranged = {"Range": f"bytes={start}-{'' if length is None else start + length - 1}"} if start or length else {}
        answer = self._call("get_object", {"Key": self.prefix + store.check_name(name), **ranged}, patience)
        if _status(answer) in {404, 416}:
            return None if _status(answer) == 404 else b""
        stream = cast("StreamingBody", answer["Body"])
        return Body(stream, start, length, is_whole=bool(ranged) and _status(answer) == 200)

    def exists(self, name: str) -> bool:
        """See ``ObjectStore.exists``. A missing bucket looks like a missing object here: S3 does not tell."""
        return self._is_there(self.prefix + store.check_name(name))

    def _is_there(self, key: str) -> bool:
        return _status(self._call("head_object", {"Key": key}, _Patience(self.options))) != 404

    def list(self, prefix: str) -> list[str]:
        """See ``ObjectStore.list``. Markers of empty folders, which S3 consoles make, are left out."""
        names: list[str] = []
        more: dict[str, str] = {}
        while True:
            wanted = {"Prefix": self.prefix + store.check_prefix(prefix), **more}
            answer = self._call("list_objects_v2", wanted, _Patience(self.options))
            keys = [_text(entry, "Key") for entry in cast("list[Answer]", answer.get("Contents", []))]
            names += (key[len(self.prefix) :] for key in keys if not key.endswith("/"))
            is_more, token = answer.get("IsTruncated"), _text(answer, "NextContinuationToken")
            has_no_end = is_more and token in ("", more.get("ContinuationToken"))
            if has_no_end or not all(key and key.startswith(wanted["Prefix"]) for key in keys):
                raise self._strange("list_objects_v2")
            if not is_more:
                return sorted(names)
            more = {"ContinuationToken": token}

    def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        keys = list(dict.fromkeys(self.prefix + store.check_name(name) for name in names))
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            self._delete(keys[first : first + _DELETE_AT_ONCE])

    def _delete(self, keys: Sequence[str]) -> None:
        patience = _Patience(self.options)
        while keys and not self._deletes_one_by_one:
            wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._call("delete_objects", {"Delete": wanted}, patience)
            rule = _rule_of("delete_objects", answer)
            if rule is None:
                left = self._undeleted(keys, answer)
            elif rule.action is Action.ASK_WHAT_IS_LEFT:
                left = self._left_of(keys, answer, patience)
            else:
                self._deletes_one_by_one = True
                break
            if len(left) < len(keys):
                patience.begin_anew()
            if left:
                self._wait(patience, self._unavailable("delete_objects", patience, next(iter(left.values()))))
            keys = list(left)
        for key in keys:
            self._call("delete_object", {"Key": key}, _Patience(self.options))

    def _undeleted(self, keys: Sequence[str], answer: Answer) -> dict[str, str]:
        """Return what an answer names as not deleted, with the reasons. Raise an error if it cannot be deleted."""
        reasons: dict[str, str] = {}
        for entry in cast("Sequence[Answer]", answer.get("Errors", [])):
            code, message = _text(entry, "Code"), _text(entry, "Message")
            if code in _IS_ABSENT:
                continue
            status = 403 if code == "AccessDenied" else 400
            rule = rule_of("delete_objects", status, code, message)
            if rule.action is not Action.AGAIN:
                raise s3_client.refused(self._named("delete_objects"), rule, status, code, message)
            reasons[_text(entry, "Key")] = code
        if not reasons.keys() <= set(keys):
            raise self._strange("delete_objects")
        return reasons

    def _left_of(self, keys: Sequence[str], answer: Answer, patience: "_Patience") -> dict[str, str]:
        """Return what is still there after a bulk delete failed as a whole, with the reason.

        Some servers fail because one object is missing, and delete all others. The server is asked again only after
        something was deleted.
        """
        reason = f"{_status(answer)} {_error(answer, 'Code')}"
        if patience.has_asked:
            return dict.fromkeys(keys, reason)
        patience.has_asked = True
        try:
            return {key: reason for key in keys if self._is_there(key)}
        except UnavailableError as error:
            raise self._unavailable("delete_objects", patience, reason) from error

    def _call(self, operation: str, parameters: Mapping[str, object], patience: "_Patience") -> Answer:
        """Send one request, and send it again if the table of answers says so. Return a success, or an answer on which
        the caller acts.
        """
        has_fresh_credentials = False
        while True:
            client, before = s3_client.client_of(self.options), patience.sent
            reply = self._reply(client, operation, parameters, patience)
            if not isinstance(reply, _Failure):
                return reply
            if reply.action is Action.FRESH_CREDENTIALS and not has_fresh_credentials:
                has_fresh_credentials = True
                s3_client.forget_client(self.options, client)
                continue
            if reply.action is not Action.AGAIN:
                s3_client.forget_client(self.options, client)  # so that corrected credentials are found
                raise reply.error
            # botocore repeats by itself, but only until all calls of the process have used up a quota that they share:
            # in an outage the first calls would have all of it, and the others one request each.
            if patience.sent == before:
                raise reply.error from reply.cause
            self._wait(patience, reply.error, reply.cause)

    def _wait(self, patience: "_Patience", error: RiffleError, cause: Exception | None = None) -> None:
        """Pause before one more request; raise ``error`` if patience is at its end."""
        if patience.sent >= self.options.s3_max_attempts:
            if patience.is_at_its_end():
                raise error from cause
            self._say_that_it_waits(error)
        time.sleep(min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** min(patience.sent, _DOUBLINGS)))

    def _unavailable(self, operation: str, patience: "_Patience", why: str) -> UnavailableError:
        return s3_client.unavailable(self._named(operation, patience.sent), why)

    def _say_that_it_waits(self, error: RiffleError) -> None:
        """Warn now and then, so that the log says why a query makes no progress."""
        now = time.monotonic()
        if now - self._said_at >= _SAID_EACH_SECONDS:
            self._said_at = now
            _logger.warning(
                "[RIFFLE-0444] %s; it is tried again for %g s (s3_patience)", error, self.options.s3_patience_seconds
            )

    def _reply(
        self, client: BaseClient, operation: str, parameters: Mapping[str, object], patience: "_Patience"
    ) -> "Answer | _Failure":
        """Send one request, which botocore may repeat. Return what came of it."""
        payer = {"RequestPayer": "requester"} if self.options.s3_requester_pays else {}
        sending, before = s3_client.SENDING, patience.sent
        sending.requests, sending.sent = self.requests, patience.sent
        try:
            return cast("Answer", getattr(client, operation)(Bucket=self.bucket, **payer, **parameters))
        except boto_errors.ClientError as error:
            answer = cast("Answer", error.response)
            if sending.sent > before and is_definite(_status(answer)):
                patience.definite += 1
            return self._reply_of(operation, answer)
        except (boto_errors.BotoCoreError, urllib3.exceptions.HTTPError) as error:
            failure = self._failure(operation, error)
            return _Failure(_action_of(failure), failure, error)
        except (ResponseParserError, ValueError, TypeError):
            # Their texts quote the answer, which may be a proxy's, so they are not shown.
            failure = s3_client.unavailable(self._named(operation, sending.sent), "the answer is none of S3's")
            return _Failure(Action.AGAIN, failure)
        finally:
            patience.sent = sending.sent

    def _reply_of(self, operation: str, answer: Answer) -> "Answer | _Failure":
        status, code, message = _status(answer), _error(answer, "Code"), _error(answer, "Message")
        rule = rule_of(operation, status, code, message)
        if rule.action in _OF_CALLERS:
            return answer
        call = self._named(operation, s3_client.SENDING.sent)
        return _Failure(rule.action, s3_client.refused(call, rule, status, code, message))

    def _failure(self, operation: str, error: Exception) -> RiffleError:
        call = self._named(operation, s3_client.SENDING.sent)
        if isinstance(error, _NO_CREDENTIALS):
            return s3_client.no_credentials(call, type(error).__name__)
        if isinstance(error, boto_errors.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return s3_client.untrusted(call)
        if isinstance(error, _NO_ANSWER):
            return s3_client.unavailable(call, type(error).__name__)
        remedy = "check `root`, `s3_endpoint` and `s3_region`"
        return ConfigError(f"{operation} cannot be sent: {error}", remedy=remedy, where=call.where, id="RIFFLE-0445")

    def _strange(self, operation: str) -> ConfigError:
        remedy = "check `s3_endpoint`: the server must be S3"
        where = self._named(operation).where
        return ConfigError(f"the answer to {operation} is none of S3's", remedy=remedy, where=where, id="RIFFLE-0446")

    def _named(self, operation: str, attempts: int = 1) -> s3_client.Call:
        endpoint = s3_client.client_of(self.options).meta.endpoint_url
        return s3_client.Call(operation, endpoint, self.bucket, attempts)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What to do after a request that did not succeed, and the error to raise in the end.

    There is no cause if it could repeat credentials.
    """

    action: Action
    error: RiffleError
    cause: Exception | None = None


def _action_of(error: RiffleError) -> Action:
    return Action.AGAIN if isinstance(error, UnavailableError) else Action.FINAL


def _rule_of(operation: str, answer: Answer) -> Rule | None:
    """Return the rule of an answer, ``None`` for a success."""
    status = _status(answer)
    return rule_of(operation, status, _error(answer, "Code"), _error(answer, "Message")) if status >= 300 else None


def _error(answer: Answer, name: str) -> str:
    """Return a text of the error that an answer holds."""
    return _text(cast("Answer", answer.get("Error", {})), name)


def _status(answer: Answer) -> int:
    return cast("dict[str, int]", answer["ResponseMetadata"])["HTTPStatusCode"]


def _text(fields: Answer, name: str) -> str:
    """Return a text of an answer. One that stands there twice, of which botocore makes a list, is none."""
    found = fields.get(name)
    return found if isinstance(found, str) else ""


class _Patience:
    """Limits how long a call of a store is repeated: ``s3_max_attempts`` requests, then until ``s3_patience`` is over.
    Both start anew with every success in between.
    """

    def __init__(self, options: store.StoreOptions) -> None:
        self._seconds = options.s3_patience_seconds
        self.begin_anew()

    def begin_anew(self) -> None:
        """Count from here on."""
        self.sent = 0
        self.definite = 0
        """How many of these requests had an answer that means that they have changed nothing."""
        self.has_asked = False
        """Whether the server was asked what a bulk delete left, since something was deleted."""
        self._began = time.monotonic()

    @property
    def is_unclear(self) -> bool:
        """Whether a request may have taken effect although its answer did not say so."""
        return self.sent > self.definite

    def is_at_its_end(self) -> bool:
        """Tell whether its time is over."""
        return time.monotonic() - self._began >= self._seconds


class BrokenOff(Exception):
    """A body ended before its time; the text says how."""


class Body:
    """What was asked for from ``start``. ``is_whole``: the server knows no ranges, and gives the object."""

    def __init__(self, stream: StreamingBody, start: int, length: int | None, *, is_whole: bool) -> None:
        self._stream = stream
        self._wanted = (start, None if length is None else start + length) if is_whole else None

    def read(self) -> bytes:
        """Return all of it. Raises ``BrokenOff``."""
        if self._wanted is not None:
            return b"".join(self.pieces())
        with _raising_broken_off():
            data: bytes = self._stream.read()
        return data

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces of ``PIECE_BYTES`` at most, and of a whole object no byte after it. Raises ``BrokenOff``,
        after what came.
        """
        at, (start, end) = 0, self._wanted or (0, None)
        with closing(self._stream):
            while (end is None or at < end) and (piece := self._piece()):
                wanted = piece[max(0, start - at) : None if end is None else end - at]
                at += len(piece)
                if wanted:
                    yield wanted

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
