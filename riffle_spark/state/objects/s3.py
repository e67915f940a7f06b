"""Objects in an S3 bucket.

Theory of operation.

1. A put carries ``If-None-Match: *``. 412 means that the name is taken. 409 means that another put of it is in progress
   and that this one must be sent again. ``s3_answers`` lists the meaning of every other answer.
   A replacement carries ``If-Match`` with the ETag that was read, and a conditional read ``If-None-Match``.
2. botocore itself repeats a request after a lost connection, a time-out or a 5xx answer. Then a 412 may answer a repeat
   of a put that has succeeded. ``put_if_absent`` returns ``False``, and the caller reads the object to find out.
3. botocore stops repeating when all calls of the process have used up a shared quota. So this module repeats calls too,
   until `s3_patience` ends.
"""

import mmap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, cast

import urllib3.exceptions
from botocore import exceptions as boto_errors
from botocore.client import BaseClient
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError
from riffle_spark.state.objects import s3_client, store
from riffle_spark.state.objects.answers import Action, Rule, is_definite
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.remote import BodyInterrupted, Failure, Patience, RemoteStore
from riffle_spark.state.objects.s3_answers import rule_of

_Answer = Mapping[str, object]
"""An answer of botocore: the fields of an operation's output or error."""
_AWS_OWN_KEY: Final = "aws/s3"
_BULK_DELETE_MAX: Final = 1000
_ABSENT: Final = frozenset({"NoSuchKey", "NoSuchVersion"})
_FOR_THE_CALLER: Final = frozenset({Action.ANSWER, Action.DELETE_SINGLY, Action.FIND_REMAINING})
"""Actions of answers that the caller of a request interprets."""
_NO_CREDENTIALS = (
    boto_errors.NoCredentialsError,
    boto_errors.PartialCredentialsError,
    boto_errors.CredentialRetrievalError,
    boto_errors.ProfileNotFound,
    boto_errors.NoAuthTokenError,
    boto_errors.SSOError,
)
_NO_ANSWER = (boto_errors.ConnectionError, boto_errors.HTTPClientError, urllib3.exceptions.HTTPError)


class _Request(NamedTuple):
    """A method of boto3 and its parameters."""

    operation: str
    parameters: Mapping[str, object]


class _Body:
    """The body of a botocore answer. Every early end raises the same exception."""

    def __init__(self, body: StreamingBody) -> None:
        self._body = body

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes, or all. Raises ``BodyInterrupted``."""
        try:
            data: bytes = self._body.read(size)
        except (boto_errors.BotoCoreError, urllib3.exceptions.HTTPError) as error:
            raise BodyInterrupted(f"the body was interrupted ({type(error).__name__})") from error
        return data

    def close(self) -> None:
        """Give the connection back."""
        self._body.close()


class S3Store(RemoteStore[BaseClient, _Request, _Answer]):
    """A store below ``s3://bucket/prefix``. It sends nothing before its first call."""

    def __init__(self, bucket: str, prefix: str, options: StoreOptions) -> None:
        super().__init__(bucket, prefix, options)
        self._deletes_singly = False

    def __reduce__(self) -> "tuple[type[S3Store], tuple[str, str, StoreOptions]]":
        return S3Store, (self.bucket, self.prefix.rstrip("/"), self.options)

    def __repr__(self) -> str:
        endpoint = f", {self.options.s3.endpoint!r}" if self.options.s3.endpoint else ""
        return f"S3Store({self.bucket!r}, {self.prefix.rstrip('/')!r}{endpoint})"

    @property
    def _encryption(self) -> dict[str, object]:
        """The arguments of a put that request encryption by the server."""
        key = self.options.s3.kms_key
        if key is None:
            algorithm = self.options.s3.server_side_encryption
            return {} if algorithm is None else {"ServerSideEncryption": algorithm}
        key_id = {} if key == _AWS_OWN_KEY else {"SSEKMSKeyId": key}
        return {"ServerSideEncryption": "aws:kms", "BucketKeyEnabled": True, **key_id}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if its name is free. Return whether this call wrote it.

        If a request had no definite answer and its repeat is refused, raise ``UnavailableError``, because the object
        may exist.
        """
        key = self.prefix + store.check_name(name)
        parameters = {"Key": key, "Body": data, "ContentMD5": store.content_md5(data), "IfNoneMatch": "*"}
        answer = self._exchange_put(_Request("put_object", {**parameters, **self._encryption}))
        return _status(answer) < 300

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> store.TaggedObject | None:
        """Replace the object if it still has the ETag ``tag``. Return its new one, else ``None``.

        Needs a server with ``If-Match`` on puts, and boto3 1.35.69 or newer.
        """
        key = self.prefix + store.check_name(name)
        parameters = {"Key": key, "Body": data, "ContentMD5": store.content_md5(data), "IfMatch": tag}
        answer = self._exchange_put(_Request("put_object", {**parameters, **self._encryption}))
        return store.TaggedObject(None, _text(answer, "ETag")) if _status(answer) < 300 else None

    def _tagged_body(self, name: str, tag: str, patience: Patience) -> tuple[str, _Body | None] | None:
        """Send a GET; return the object's ETag with its unread body, or ``None`` if the object does not exist.

        The body is ``None`` if the object still has ``tag``. An empty ``tag`` reads the object in any case.
        """
        condition = {"IfNoneMatch": tag} if tag else {}
        answer = self._call("get_object", {"Key": self.prefix + store.check_name(name), **condition}, patience)
        if _status(answer) == 404:
            return None
        if _status(answer) == 304:
            return tag, None
        return _text(answer, "ETag"), _Body(cast("StreamingBody", answer["Body"]))

    def _body(self, name: str, start: int, length: int | None, patience: Patience) -> _Body | bytes | None:
        """Send a GET for ``length`` bytes from ``start`` (``None``: to the end) and return the unread body.

        Return ``None`` if the object does not exist, and no bytes if ``start`` is at or behind its end. Raises
        ``ConfigError`` if the server ignores ranges.
        """
        last = "" if length is None else start + length - 1
        range_header = {"Range": f"bytes={start}-{last}"} if start or length else {}
        answer = self._call("get_object", {"Key": self.prefix + store.check_name(name), **range_header}, patience)
        if _status(answer) in {404, 416}:
            return None if _status(answer) == 404 else b""
        body = cast("StreamingBody", answer["Body"])
        if range_header and _status(answer) == 200:
            body.close()
            raise ConfigError(
                "The server ignores the Range header of get_object and returns the whole object.",
                remedy="Use a server that supports ranges, or remove the proxy that drops the header.",
                where=self._describe("get_object").where,
                id="RIFFLE-0850",
            )
        return _Body(body)

    def exists(self, name: str) -> bool:
        """Return whether the object exists. S3 does not distinguish a missing bucket from a missing object here."""
        return self._has_object(self.prefix + store.check_name(name))

    def _has_object(self, key: str) -> bool:
        return _status(self._call("head_object", {"Key": key}, Patience(self.options))) != 404

    def modified(self, name: str) -> float | None:
        """Return when the object was written, in whole seconds of the server's clock."""
        answer = self._call("head_object", {"Key": self.prefix + store.check_name(name)}, Patience(self.options))
        return None if _status(answer) == 404 else cast("datetime", answer["LastModified"]).timestamp()

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted, without the folder markers of S3 consoles."""
        names: list[str] = []
        full_prefix = self.prefix + store.check_prefix(prefix)
        for page in self._pages({"Prefix": full_prefix}):
            keys = [_text(entry, "Key") for entry in cast("list[_Answer]", page.get("Contents", []))]
            if not all(key and key.startswith(full_prefix) for key in keys):
                raise self._invalid_answer("list_objects_v2")
            names += (key[len(self.prefix) :] for key in keys if not key.endswith("/"))
        return sorted(names)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``, sorted."""
        folders: list[str] = []
        full_prefix = self.prefix + store.check_prefix(prefix)
        for page in self._pages({"Prefix": full_prefix, "Delimiter": "/"}):
            entries = cast("list[_Answer]", page.get("CommonPrefixes", []))
            folders += (_text(entry, "Prefix")[len(full_prefix) : -1] for entry in entries)
        return sorted(folders)

    def _pages(self, parameters: Mapping[str, str]) -> Iterator[_Answer]:
        """Yield the pages of a listing, each with one request. Raises ``ConfigError`` if a page does not name the
        next.
        """
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", {**parameters, **token}, Patience(self.options))
            is_truncated = page.get("IsTruncated")
            next_token = _text(page, "NextContinuationToken")
            if is_truncated and next_token in ("", token.get("ContinuationToken")):
                raise self._invalid_answer("list_objects_v2")
            yield page
            if not is_truncated:
                return
            token = {"ContinuationToken": next_token}

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist."""
        keys = list(dict.fromkeys(self.prefix + store.check_name(name) for name in names))
        for first in range(0, len(keys), _BULK_DELETE_MAX):
            self._delete(keys[first : first + _BULK_DELETE_MAX])

    def _delete(self, keys: Sequence[str]) -> None:
        """Delete objects, at most 1000, by one bulk request, and repeat it for the objects that it left.

        If the server has no bulk delete, delete them one by one, now and in later calls.
        """
        patience = Patience(self.options)
        while keys and not self._deletes_singly:
            parameters = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._call("delete_objects", {"Delete": parameters}, patience)
            action = Action.ANSWER if _status(answer) < 300 else _rule_of_answer("delete_objects", answer).action
            if action is Action.DELETE_SINGLY:
                self._deletes_singly = True
                break
            if action is Action.FIND_REMAINING:
                remaining = self._existing(keys, answer, patience)
            else:
                remaining = self._undeleted(keys, answer)
            if len(remaining) < len(keys):
                patience.restart()
            if remaining:
                reason = next(iter(remaining.values()))
                self._wait(patience, self._unavailable("delete_objects", patience, reason))
            keys = list(remaining)
        for key in keys:
            self._call("delete_object", {"Key": key}, Patience(self.options))

    def _existing(self, keys: Sequence[str], answer: _Answer, patience: Patience) -> dict[str, str]:
        """Return the keys that a failed bulk delete has left, with the reason.

        Some servers delete all other objects and fail because one is missing. The objects are looked up again only
        after some were deleted.
        """
        reason = f"{_status(answer)} {_error_code(answer)}"
        if patience.has_looked_up:
            return dict.fromkeys(keys, reason)
        patience.has_looked_up = True
        try:
            return {key: reason for key in keys if self._has_object(key)}
        except UnavailableError as error:
            raise self._unavailable("delete_objects", patience, reason) from error

    def _undeleted(self, keys: Sequence[str], answer: _Answer) -> dict[str, str]:
        """Return the keys that were not deleted, with the reasons. Raise an error if a retry cannot help."""
        reasons: dict[str, str] = {}
        for entry in cast("Sequence[_Answer]", answer.get("Errors", [])):
            code = _text(entry, "Code")
            message = _text(entry, "Message")
            if code in _ABSENT:
                continue
            status = 403 if code == "AccessDenied" else 400
            rule = rule_of("delete_objects", status, code, message)
            if rule.action is not Action.AGAIN:
                raise s3_client.refused(self._describe("delete_objects"), rule, status, code, message)
            reasons[_text(entry, "Key")] = code
        if not reasons.keys() <= set(keys):
            raise self._invalid_answer("delete_objects")
        return reasons

    def can_copy_from(self, source: store.ObjectStore) -> bool:
        """Return whether ``source`` is reached with the same endpoint and options."""
        return isinstance(source, S3Store) and source.options == self.options

    def copy_from(self, source: store.ObjectStore, name: str) -> bool:
        """Copy the object of another bucket or prefix under the same name. Return whether it exists there.

        One put writes at most 5 GiB, and CopyObject copies as much.
        """
        assert isinstance(source, S3Store)
        key = self.prefix + store.check_name(name)
        origin = {"Bucket": source.bucket, "Key": source.prefix + name}
        parameters = {"Key": key, "CopySource": origin, **self._encryption}
        return _status(self._call("copy_object", parameters, Patience(self.options))) < 300

    def _call(self, operation: str, parameters: Mapping[str, object], patience: Patience) -> _Answer:
        return self._exchange(_Request(operation, parameters), patience)

    def _client(self) -> BaseClient:
        return s3_client.client_of(self.options)

    def _forget(self, client: BaseClient) -> None:
        s3_client.forget_client(self.options, client)

    def _unavailable(self, operation: str, patience: Patience, reason: str) -> UnavailableError:
        return s3_client.unavailable(self._describe(operation, patience.sent), reason)

    def _send(self, client: BaseClient, request: _Request, patience: Patience) -> _Answer | Failure:
        """Send a request. botocore may repeat it. Return the answer or the failure."""
        operation, parameters = request
        body = parameters.get("Body")
        if isinstance(body, mmap.mmap):
            body.seek(0)  # an attempt before this one has read it
        payer = {"RequestPayer": "requester"} if self.options.s3.requester_pays else {}
        sending = s3_client.SENDING
        sending.requests = self.requests
        sending.sent = patience.sent
        try:
            return cast("_Answer", getattr(client, operation)(Bucket=self.bucket, **payer, **parameters))
        except boto_errors.ClientError as error:
            answer = cast("_Answer", error.response)
            if sending.sent > patience.sent and is_definite(_status(answer)):
                patience.definite += 1
            return self._judge_answer(operation, answer)
        except (boto_errors.BotoCoreError, urllib3.exceptions.HTTPError) as error:
            failure = self._judge_exception(operation, error)
            action = Action.AGAIN if isinstance(failure, UnavailableError) else Action.FINAL
            return Failure(action, failure, error)
        except (ResponseParserError, ValueError, TypeError):
            # The texts of these errors quote the answer, which may be a proxy's, so they are not shown.
            call = self._describe(operation, sending.sent)
            return Failure(Action.AGAIN, s3_client.unavailable(call, "the answer is not S3"))
        finally:
            patience.sent = sending.sent

    def _judge_answer(self, operation: str, answer: _Answer) -> _Answer | Failure:
        """Return an answer that the caller handles, or the error for it with what the caller should do next."""
        rule = _rule_of_answer(operation, answer)
        if rule.action in _FOR_THE_CALLER:
            return answer
        call = self._describe(operation, s3_client.SENDING.sent)
        message = _text(cast("_Answer", answer.get("Error", {})), "Message")
        return Failure(rule.action, s3_client.refused(call, rule, _status(answer), _error_code(answer), message))

    def _judge_exception(self, operation: str, error: Exception) -> RiffleError:
        """Return the error of the store for an exception of boto3."""
        call = self._describe(operation, s3_client.SENDING.sent)
        if isinstance(error, _NO_CREDENTIALS):
            return s3_client.no_credentials(call, type(error).__name__)
        if isinstance(error, boto_errors.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            return s3_client.untrusted(call)
        if isinstance(error, _NO_ANSWER):
            return s3_client.unavailable(call, type(error).__name__)
        # Cause: A parameter is invalid, so boto3 did not send the request.
        return ConfigError(
            f"Cannot send {operation}: {error}",
            remedy="Check `root`, `s3_endpoint` and `s3_region`.",
            where=call.where,
            id="RIFFLE-0445",
        )

    def _invalid_answer(self, operation: str) -> ConfigError:
        """Return the error for an answer that is not S3's."""
        # Cause: Another service or a proxy answers at the endpoint.
        return ConfigError(
            f"The answer to {operation} is not a valid S3 answer.",
            remedy="Check `s3_endpoint`: the server must be S3.",
            where=self._describe(operation).where,
            id="RIFFLE-0446",
        )

    def _describe(self, operation: str, attempts: int = 1) -> s3_client.Call:
        """Return the operation, endpoint, bucket and number of attempts of a call, for its errors."""
        endpoint = s3_client.client_of(self.options).meta.endpoint_url
        return s3_client.Call(operation, endpoint, self.bucket, attempts)


def _rule_of_answer(operation: str, answer: _Answer) -> Rule:
    message = _text(cast("_Answer", answer.get("Error", {})), "Message")
    return rule_of(operation, _status(answer), _error_code(answer), message)


def _error_code(answer: _Answer) -> str:
    return _text(cast("_Answer", answer.get("Error", {})), "Code")


def _status(answer: _Answer) -> int:
    return cast("dict[str, int]", answer["ResponseMetadata"])["HTTPStatusCode"]


def _text(fields: _Answer, name: str) -> str:
    """Return a text of an answer, empty if it is absent. botocore returns a list if an element occurs twice."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
