"""Objects in a store that is reached by plain HTTP requests. Google Cloud Storage and Azure share this code.

A dialect, ``gcs`` or ``azure``, makes the requests and reads the answers. This module sends them. The SDKs of both
services were measured and not taken (docs/adr/0017-own-requests-to-gcs-and-azure.md).

- Each request that is sent is counted. Nothing below this module repeats a request.
- ``requests`` reads proxies and certificate authorities from the environment (``HTTPS_PROXY``, ``NO_PROXY``,
  ``REQUESTS_CA_BUNDLE``), also for the requests that fetch a token.
- No error quotes an exception or a URL, because a URL may contain a shared access signature.
"""

import mmap
import os
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import requests
import urllib3.exceptions
from requests.adapters import HTTPAdapter

from riffle_spark.errors import UNREADABLE, ConfigError, RefusedError, RiffleError, UnavailableError
from riffle_spark.printable import escape_unprintable
from riffle_spark.state.objects import store
from riffle_spark.state.objects.answers import Action, Rule, first_match, is_definite
from riffle_spark.state.objects.remote import BodyInterrupted, Failure, Patience, RemoteStore

_KINDS: Final = {
    "put_object": "put",
    "copy_object": "put",
    "get_object": "get",
    "head_object": "head",
    "list_objects": "list",
    "delete_object": "delete",
}
_PARALLEL_DELETES: Final = 8
_ERROR_BYTES_MAX: Final = 64 << 10
_MESSAGE_CHARACTERS_MAX: Final = 300
Authorize = Callable[[Any], Any]
"""Adds credentials to a prepared request of ``requests``, and returns it."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request without credentials. ``url`` is quoted."""

    operation: str
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing. ``token`` names the next page. It is empty on the last page.

    ``folders`` are the common prefixes, if the request has a delimiter.
    """

    names: Sequence[str]
    token: str
    folders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """Connections to an endpoint, and the credentials of its requests."""

    endpoint: str
    session: Any
    authorize: Authorize


class Response(Protocol):
    """The used part of ``requests.Response``."""

    status_code: int
    headers: Mapping[str, str]
    raw: Any

    def close(self) -> None:
        """Give the connection back."""


_CLIENTS: dict[tuple[int, Hashable], Client] = {}


def new_session(max_connections: int) -> Any:
    """Return a session that never repeats a request."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=max_connections, max_retries=0, pool_block=True))
    return session


class _Body:
    """A body of known length. It detects an early end with every version of urllib3."""

    def __init__(self, response: Response) -> None:
        self._response = response
        length = response.headers.get("Content-Length", "")
        self._remaining = int(length) if length.isdigit() else None

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes, or all. Raises ``BodyInterrupted``."""
        try:
            data: bytes = self._response.raw.read(size, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise BodyInterrupted(f"the body was interrupted ({type(error).__name__})") from None
        if self._remaining is not None:
            self._remaining -= len(data)
            if self._remaining > 0 and (size is None or not data):
                raise BodyInterrupted("the body ended early")
        return data

    def close(self) -> None:
        """Give the connection back."""
        self._response.close()


class HttpStore(RemoteStore[Client, Request, Response]):
    """A store below a prefix of a bucket or container. Subclasses make requests and read answers."""

    TABLE: ClassVar[Sequence[Rule]]
    """The reaction to each answer. The first matching row counts, and the last row matches every answer."""
    ENDPOINT_SETTING: ClassVar[str]

    @property
    @abstractmethod
    def place(self) -> str:
        """The bucket as a URL, for errors."""

    @abstractmethod
    def _put_request(self, key: str, data: bytes) -> Request: ...

    @abstractmethod
    def _replace_request(self, key: str, data: bytes, tag: str) -> Request: ...

    @abstractmethod
    def _get_request(self, key: str) -> Request: ...

    @abstractmethod
    def _get_changed_request(self, key: str, tag: str) -> Request: ...

    @abstractmethod
    def _tag_of(self, response: Response) -> str:
        """Return the tag in the answer to a get request."""

    @abstractmethod
    def _head_request(self, key: str) -> Request: ...

    @abstractmethod
    def _delete_request(self, key: str) -> Request: ...

    @abstractmethod
    def _list_request(self, prefix: str, token: str, delimiter: str = "") -> Request: ...

    @abstractmethod
    def _page(self, body: bytes) -> Page:
        """Parse the answer to a list request. Raises an error of ``UNREADABLE``."""

    @abstractmethod
    def _refusal(self, response: Response, body: bytes) -> tuple[str, str]:
        """Return the error code and the message of an answer."""

    @abstractmethod
    def _create_client(self) -> Client:
        """Return a new client. Raises ``ConfigError`` without credentials."""

    @property
    @abstractmethod
    def _client_name(self) -> Hashable:
        """The key of the client. Stores with an equal key share a client in each process."""

    def _client(self) -> Client:
        """Return this process's client. A lock could be inherited by a fork, and a spare client is harmless."""
        name = (os.getpid(), self._client_name)
        return _CLIENTS.get(name) or _CLIENTS.setdefault(name, self._create_client())

    def _forget(self, client: Client) -> None:
        name = (os.getpid(), self._client_name)
        if _CLIENTS.get(name) is client:
            _CLIENTS.pop(name, None)

    @property
    def _endpoint(self) -> str:
        return self._client().endpoint

    def _key(self, name: str) -> str:
        return self.prefix + store.check_name(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if its name is free. Return whether this call wrote it."""
        return self._put(self._put_request(self._key(name), data)) is not None

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> store.TaggedObject | None:
        """Replace the object if it still has ``tag``. Return its new tag, ``None`` if this call did not replace it."""
        return self._put(self._replace_request(self._key(name), data, tag))

    def _put(self, request: Request) -> store.TaggedObject | None:
        """Send a conditional put. Return the object's new tag, ``None`` if the condition did not hold."""
        response = self._exchange_put(request)
        body = b""
        with suppress(BodyInterrupted):  # the status has already confirmed the put
            body = _Body(response).read()
        if response.status_code >= 300:
            return None
        tag = ""
        with suppress(*UNREADABLE):  # without a tag the next writer reads the object
            tag = self._tag_of_put(response, body)
        return store.TaggedObject(None, tag)

    def _tag_of_put(self, response: Response, body: bytes) -> str:  # noqa: ARG002 - for stores whose answer has it
        """Return the tag in the answer to a put. Raises an error of ``UNREADABLE`` if there is none."""
        return self._tag_of(response)

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        response = self._exchange(self._head_request(self._key(name)), Patience(self.options))
        response.close()
        return response.status_code < 300

    def modified(self, name: str) -> float | None:
        """Return when the object was written, by the server's clock."""
        response = self._exchange(self._head_request(self._key(name)), Patience(self.options))
        with closing(response):
            if response.status_code == 404:
                return None
            try:
                return self._written_at(response)
            except (*UNREADABLE, urllib3.exceptions.HTTPError):
                raise self._invalid_answer("head_object") from None

    @abstractmethod
    def _written_at(self, response: Response) -> float:
        """Return the time in the answer to a head request."""

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted, without folder markers."""
        names: list[str] = []
        full_prefix = self.prefix + store.check_prefix(prefix)
        for page in self._pages(full_prefix):
            if not all(key.startswith(full_prefix) for key in page.names):
                raise self._invalid_answer()
            names += (key[len(self.prefix) :] for key in page.names if not key.endswith("/"))
        return sorted(names)

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``, sorted."""
        full_prefix = self.prefix + store.check_prefix(prefix)
        pages = self._pages(full_prefix, "/")
        return sorted(folder[len(full_prefix) : -1] for page in pages for folder in page.folders)

    def _pages(self, prefix: str, delimiter: str = "") -> Iterator[Page]:
        """Yield the pages of a listing, each with one request. Raises ``ConfigError`` if a page names itself as the
        next.
        """
        token = ""
        while True:
            page = self._read_page(self._list_request(prefix, token, delimiter))
            if page.token and page.token == token:
                raise self._invalid_answer()
            yield page
            token = page.token
            if not token:
                return

    @abstractmethod
    def can_copy_from(self, source: store.ObjectStore) -> bool:
        """Return whether ``source`` is reached with the same endpoint and credentials."""

    def copy_from(self, source: store.ObjectStore, name: str) -> bool:
        """Copy the object of another bucket or prefix under the same name. Return whether it exists there."""
        assert isinstance(source, HttpStore)
        patience = Patience(self.options)
        token = ""
        while True:
            response = self._exchange(self._copy_request(source, self._key(name), source._key(name), token), patience)
            if response.status_code == 404:
                response.close()
                return False
            try:
                token = self._copy_progress(response, _Body(response).read())
            except (*UNREADABLE, BodyInterrupted):
                raise self._invalid_answer("copy_object") from None
            if not token:
                return True

    @abstractmethod
    def _copy_request(self, source: "HttpStore", key: str, source_key: str, token: str) -> Request:
        """Return the request that copies an object of ``source``, or that continues a copy with this ``token``."""

    @abstractmethod
    def _copy_progress(self, response: Response, body: bytes) -> str:
        """Return the token to continue a copy with, empty if it is complete. Raises an error of ``UNREADABLE``."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist, each with its own request, several at once.

        Bulk requests of these services save no cost: each object in them counts as a request.
        """
        keys = list(dict.fromkeys(self._key(name) for name in names))
        if len(keys) < 2:
            for key in keys:
                self._delete(key)
            return
        pool = ThreadPoolExecutor(min(_PARALLEL_DELETES, len(keys)))
        try:
            for _ in pool.map(self._delete, keys):
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def _delete(self, key: str) -> None:
        self._exchange(self._delete_request(key), Patience(self.options)).close()

    def _body(self, name: str, start: int, length: int | None, patience: Patience) -> _Body | bytes | None:
        """Send a GET for ``length`` bytes from ``start`` (``None``: to the end) and return the unread body.

        Return ``None`` if the object does not exist, and no bytes if ``start`` is at or behind its end. Raises
        ``ConfigError`` if the server ignores ranges.
        """
        request = self._get_request(self._key(name))
        last = "" if length is None else start + length - 1
        has_range = bool(start or length)
        headers = {**request.headers, "Range": f"bytes={start}-{last}"} if has_range else request.headers
        response = self._exchange(Request(request.operation, request.method, request.url, headers), patience)
        if response.status_code in {404, 416}:
            return None if response.status_code == 404 else b""
        if has_range and response.status_code == 200:
            response.close()
            raise ConfigError(
                "The server ignores the Range header of get_object and returns the whole object.",
                remedy="Use a server that supports ranges, or remove the proxy that drops the header.",
                where=self._where,
                id="RIFFLE-1060",
            )
        return _Body(response)

    def _tagged_body(self, name: str, tag: str, patience: Patience) -> tuple[str, _Body | None] | None:
        """Send a GET; return the object's tag with its unread body, or ``None`` if the object does not exist.

        The body is ``None`` if the object still has ``tag``. An empty ``tag`` reads the object in any case.
        """
        key = self._key(name)
        request = self._get_changed_request(key, tag) if tag else self._get_request(key)
        response = self._exchange(request, patience)
        if response.status_code in {304, 404}:
            return (tag, None) if response.status_code == 304 else None
        return self._tag_of(response), _Body(response)

    def _read_page(self, request: Request) -> Page:
        """Return one page of names of a LIST, and repeat the request while the store does not answer."""
        patience = Patience(self.options)
        while True:
            try:
                body = _Body(self._exchange(request, patience)).read()
            except BodyInterrupted as error:
                self._wait(patience, self._unavailable(request.operation, patience, str(error)))
                continue
            try:
                return self._page(body)
            except UNREADABLE:
                raise self._invalid_answer() from None

    def _send(self, client: Client, request: Request, patience: Patience) -> Response | Failure:
        """Send a request once and count it. Return the answer, or the error with what the caller should do next."""
        patience.sent += 1
        headers = {"Accept-Encoding": "identity", **request.headers}
        body = memoryview(request.body) if isinstance(request.body, mmap.mmap) else request.body
        session = client.session
        try:
            prepared = session.prepare_request(
                requests.Request(request.method, request.url, headers, data=body, auth=client.authorize)
            )
        except RiffleError as error:  # an error of the credentials: nothing was sent
            patience.definite += 1
            return Failure(Action.AGAIN if isinstance(error, UnavailableError) else Action.FINAL, error)
        except (requests.exceptions.RequestException, ValueError) as error:
            return Failure(Action.FINAL, self._unsendable(type(error).__name__))
        environment = session.merge_environment_settings(request.url, {}, True, None, None)
        timeout = (self.options.connect_timeout_seconds, self.options.read_timeout_seconds)
        self.requests.add(_KINDS[request.operation])
        try:
            response: Response = session.send(prepared, timeout=timeout, allow_redirects=False, **environment)
        except ValueError as error:  # an error of the URL, which ``requests`` cannot parse
            return Failure(Action.FINAL, self._unsendable(type(error).__name__))
        except (requests.exceptions.RequestException, OSError) as error:
            return self._judge_exception(request.operation, patience, error)
        return response if response.status_code < 300 else self._judge_answer(request.operation, patience, response)

    def _judge_answer(self, operation: str, patience: Patience, response: Response) -> Response | Failure:
        """Return an answer that the caller handles, or the error of the store's table for it.

        Reads at most ``_ERROR_BYTES_MAX`` bytes of the answer, and closes it.
        """
        body = b""
        with suppress(urllib3.exceptions.HTTPError, OSError):
            body = response.raw.read(_ERROR_BYTES_MAX, decode_content=False)
        response.close()
        if is_definite(response.status_code):
            patience.definite += 1
        try:
            code, message = self._refusal(response, body)
        except UNREADABLE:
            code, message = "", ""
        code = code or str(response.status_code)
        rule = first_match(self.TABLE, operation, response.status_code, code, message)
        if rule.action is Action.ANSWER:
            return response
        if not rule.problem:
            reason = f"{response.status_code} {escape_unprintable(code)}"
            return Failure(rule.action, self._unavailable(operation, patience, reason))
        text = escape_unprintable((message or code)[:_MESSAGE_CHARACTERS_MAX].rstrip(". \n"))
        problem = rule.problem.format(
            operation=operation, status=response.status_code, code=escape_unprintable(code), message=text
        )
        return Failure(rule.action, rule.kind(problem, remedy=rule.remedy, where=self._where, id=rule.id))

    def _judge_exception(self, operation: str, patience: Patience, error: Exception) -> Failure:
        """Return the error for an exception of ``requests``: final for an untrusted certificate, else to be retried."""
        if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
            patience.definite += 1  # no request was sent
            # Cause: The certificate is self-signed, its authority is unknown on this machine, or the endpoint is wrong.
            untrusted = RefusedError(
                "The server's TLS certificate is not trusted.",
                remedy=f"Point REQUESTS_CA_BUNDLE at the authority that signed it, or correct {self.ENDPOINT_SETTING}.",
                where=self._where,
                id="RIFFLE-1061",
            )
            return Failure(Action.FINAL, untrusted)
        return Failure(Action.AGAIN, self._unavailable(operation, patience, type(error).__name__))

    @property
    def _where(self) -> str:
        return f"{self.place} at {self._endpoint}"

    def _unavailable(self, operation: str, patience: Patience, reason: str) -> UnavailableError:
        """Return the error for an operation without a usable answer, with the number of attempts and the ``reason``."""
        times = "1 attempt" if patience.sent == 1 else f"{patience.sent} attempts"
        return UnavailableError(
            f"{operation} failed after {times}: {reason}",
            remedy=f"Make {self._endpoint} reachable and healthy, or correct {self.ENDPOINT_SETTING}. Then start "
            "again.",
            where=self._where,
            id="RIFFLE-1062",
        )

    def _invalid_answer(self, operation: str = "list_objects") -> ConfigError:
        """Return the error for an answer that cannot be parsed."""
        # Cause: Another service or a proxy answers at the endpoint.
        return ConfigError(
            f"The answer to {operation} is not valid.",
            remedy=f"Check {self.ENDPOINT_SETTING}: another service or a proxy may answer there.",
            where=self._where,
            id="RIFFLE-1063",
        )

    def _unsendable(self, reason: str) -> ConfigError:
        """Return the error for a request that cannot be sent, for example because the URL is invalid."""
        return ConfigError(
            f"Cannot send a request to {self._endpoint} ({reason}).",
            remedy=f"Check `root` and {self.ENDPOINT_SETTING}.",
            where=self._where,
            id="RIFFLE-1064",
        )
