"""Objects in a Google Cloud Storage bucket, by its JSON API.

A put carries ``ifGenerationMatch=0``. The answer 412 means that the name is taken. A replacement carries the generation
that was read instead, and a conditional read ``ifGenerationNotMatch``. Credentials are the application
default credentials: ``GOOGLE_APPLICATION_CREDENTIALS``, those of gcloud, or the machine's service account.
"""

import json
import re
import threading
from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import google.auth
from google.auth import exceptions as google_errors
from google.auth.transport.requests import Request as TokenRequest

from riffle_spark.errors import ConfigError, RefusedError, RiffleError, UnavailableError
from riffle_spark.state.objects import http_store, store
from riffle_spark.state.objects.answers import NOT_IMPLEMENTED, TRANSIENT, Action, Rule
from riffle_spark.state.objects.http_store import Client, Page, Request, Response
from riffle_spark.state.objects.options import StoreOptions

_ENDPOINT: Final = "https://storage.googleapis.com"
_SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
_PAGE_NAMES: Final = 1000
_PUT: Final = frozenset({"put_object"})
_GET: Final = frozenset({"get_object"})
_COPY: Final = frozenset({"copy_object"})
_HEAD_OR_DELETE: Final = frozenset({"head_object", "delete_object"})
_CHAIN: Final = "GOOGLE_APPLICATION_CREDENTIALS, gcloud's default login, or the machine's service account"
_RIGHTS: Final = (
    f"Check the credentials ({_CHAIN}) and grant them the role that riffle policy ROOT prints, on the bucket."
)
_NO_BUCKET: Final = "The bucket does not exist ({status})."
_CREATE_BUCKET: Final = "Create the bucket, or correct `root` or `gcs_endpoint`."


class GcsStore(http_store.HttpStore):
    """A store below ``gs://bucket/prefix``. It sends nothing before its first call."""

    ENDPOINT_SETTING = "`gcs_endpoint`"
    TABLE = (
        Rule(
            Action.FINAL,
            statuses=frozenset({404}),
            text=re.compile("(?i)bucket does not exist|no such bucket"),
            problem=_NO_BUCKET,
            remedy=_CREATE_BUCKET,
            id="RIFFLE-1070",
        ),
        Rule(Action.ANSWER, _GET, frozenset({304, 404, 416})),
        Rule(Action.ANSWER, _HEAD_OR_DELETE | _COPY, frozenset({404})),
        Rule(Action.ANSWER, _PUT, frozenset({412})),
        Rule(
            Action.FINAL,
            statuses=frozenset({404}),
            problem=_NO_BUCKET,
            remedy=_CREATE_BUCKET,
            id="RIFFLE-1070",
        ),
        Rule(Action.AGAIN, codes=("rateLimitExceeded", "userRateLimitExceeded", "backendError", "internalError")),
        Rule(
            Action.FINAL,
            _PUT,
            NOT_IMPLEMENTED,
            problem="The server has no conditional puts: it answered {status} {code} to ifGenerationMatch=0.",
            remedy="Use a server that checks ifGenerationMatch, or correct `gcs_endpoint`.",
            kind=ConfigError,
            id="RIFFLE-1071",
        ),
        Rule(
            Action.FINAL,
            statuses=frozenset({400}),
            text=re.compile("(?i)requester pays"),
            problem="The requester has to pay for this bucket, which riffle does not support for GCS: {message}.",
            remedy="Turn requester pays off, or use another bucket.",
            id="RIFFLE-1072",
        ),
        Rule(
            Action.FINAL,
            statuses=frozenset({403}),
            codes=("retentionPolicyNotMet", "objectUnderActiveHold"),
            problem="{operation} was refused by the bucket's retention policy or a hold ({code}).",
            remedy="Remove the retention policy and the holds of objects below `root`.",
            id="RIFFLE-1073",
        ),
        Rule(
            Action.FRESH_CREDENTIALS,
            statuses=frozenset({401}),
            problem="The server does not accept the credentials ({code}).",
            remedy=f"Correct the credentials ({_CHAIN}).",
            id="RIFFLE-1074",
        ),
        Rule(
            Action.FRESH_CREDENTIALS,
            statuses=frozenset({403}),
            problem="{operation} was denied: {message}.",
            remedy=_RIGHTS,
            id="RIFFLE-1075",
        ),
        Rule(Action.AGAIN, statuses=TRANSIENT - NOT_IMPLEMENTED),
        Rule(
            Action.FINAL,
            problem="{operation} was refused: {status} {code}: {message}.",
            remedy="Check `root` and `gcs_endpoint`. The server must be Google Cloud Storage.",
            kind=ConfigError,
            id="RIFFLE-1076",
        ),
    )

    def __reduce__(self) -> "tuple[type[GcsStore], tuple[str, str, StoreOptions]]":
        return GcsStore, (self.bucket, self.prefix.rstrip("/"), self.options)

    def __repr__(self) -> str:
        endpoint = f", {self.options.gcs.endpoint!r}" if self.options.gcs.endpoint else ""
        return f"GcsStore({self.bucket!r}, {self.prefix.rstrip('/')!r}{endpoint})"

    @property
    def place(self) -> str:
        """The bucket as a URL."""
        return f"gs://{self.bucket}"

    @property
    def _client_name(self) -> Hashable:
        return ("gcs", self.options)

    def _create_client(self) -> Client:
        endpoint = (self.options.gcs.endpoint or _ENDPOINT).rstrip("/")
        store.check_endpoint(endpoint, "gcs_endpoint")
        session = http_store.new_session(self.options.max_connections)
        return Client(endpoint, session, _Token(session, f"{self.place} at {endpoint}"))

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o"

    def _put_request(self, key: str, data: bytes) -> Request:
        return self._replace_request(key, data, "0")

    def _replace_request(self, key: str, data: bytes, tag: str) -> Request:
        fields = {"uploadType": "media", "name": key, "ifGenerationMatch": tag, "fields": "generation"}
        query = urlencode(fields, quote_via=quote)
        headers = {"Content-Type": "application/octet-stream"}
        return Request("put_object", "POST", f"{self._endpoint}/upload{self._objects}?{query}", headers, data)

    def _get_request(self, key: str) -> Request:
        return Request("get_object", "GET", f"{self._object(key)}?alt=media")

    def _get_changed_request(self, key: str, tag: str) -> Request:
        return Request("get_object", "GET", f"{self._object(key)}?alt=media&ifGenerationNotMatch={quote(tag)}")

    def _tag_of(self, response: Response) -> str:
        return response.headers.get("x-goog-generation", "")

    def _tag_of_put(self, response: Response, body: bytes) -> str:  # noqa: ARG002 - the tag is in the body
        generation = json.loads(body)["generation"]
        return generation if isinstance(generation, str) else ""

    def _head_request(self, key: str) -> Request:
        return Request("head_object", "GET", f"{self._object(key)}?fields=name,updated")

    def can_copy_from(self, source: store.ObjectStore) -> bool:
        """Return whether ``source`` is in GCS at the same endpoint."""
        return isinstance(source, GcsStore) and source.options == self.options

    def _copy_request(self, source: http_store.HttpStore, key: str, source_key: str, token: str) -> Request:
        assert isinstance(source, GcsStore)
        fields = {"fields": "done,rewriteToken", **({"rewriteToken": token} if token else {})}
        query = urlencode(fields, quote_via=quote)
        target = f"rewriteTo/b/{quote(self.bucket, safe='')}/o/{quote(key, safe='')}"
        return Request("copy_object", "POST", f"{source._object(source_key)}/{target}?{query}")

    def _copy_progress(self, response: Response, body: bytes) -> str:  # noqa: ARG002 - the progress is in the body
        answer = json.loads(body)
        return "" if answer["done"] is True else _text(answer["rewriteToken"])

    def _delete_request(self, key: str) -> Request:
        return Request("delete_object", "DELETE", self._object(key))

    def _list_request(self, prefix: str, token: str, delimiter: str = "") -> Request:
        fields = {"prefix": prefix, "fields": "items(name),prefixes,nextPageToken", "maxResults": str(_PAGE_NAMES)}
        optional = {name: text for name, text in (("pageToken", token), ("delimiter", delimiter)) if text}
        query = urlencode({**fields, **optional}, quote_via=quote)
        return Request("list_objects", "GET", f"{self._endpoint}{self._objects}?{query}")

    def _page(self, body: bytes) -> Page:
        answer = json.loads(body)
        names = [_text(item["name"]) for item in answer.get("items", ())]
        folders = [_text(prefix) for prefix in answer.get("prefixes", ())]
        return Page(names, _text(answer.get("nextPageToken", "")), folders)

    def _refusal(self, response: Response, body: bytes) -> tuple[str, str]:
        if "json" not in response.headers.get("Content-Type", ""):
            return "", body.decode(errors="replace")
        error = cast("Mapping[str, Any]", json.loads(body)["error"])
        reasons = error.get("errors") or [{}]
        return _text(reasons[0].get("reason", "")), _text(error.get("message", ""))

    def _written_at(self, response: Response) -> float:
        answer = json.loads(response.raw.read(decode_content=False))
        return datetime.fromisoformat(_text(answer["updated"]).replace("Z", "+00:00")).timestamp()

    def _object(self, key: str) -> str:
        return f"{self._endpoint}{self._objects}/{quote(key, safe='')}"


class _Token:
    """Adds the access token of the application default credentials to requests. It fetches the token when needed."""

    def __init__(self, session: Any, where: str) -> None:
        self._where = where
        self._fetch = TokenRequest(session)
        self._lock = threading.Lock()
        self._credentials: Any = None

    def __call__(self, prepared: Any) -> Any:
        try:
            with self._lock:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=_SCOPES)
                self._credentials.before_request(self._fetch, prepared.method, prepared.url, prepared.headers)
        except google_errors.GoogleAuthError as error:
            raise self._error(error) from None  # its text may quote the answer of the token's server
        return prepared

    def _error(self, error: Exception) -> RiffleError:
        """Return the error for a token that could not be fetched. It does not quote the exception's text."""
        kind = type(error).__name__
        if isinstance(error, google_errors.TransportError) or getattr(error, "retryable", False):
            return UnavailableError(
                f"Google's token server did not answer ({kind}).",
                remedy="Make the token server reachable from this machine, then start again.",
                where=self._where,
                id="RIFFLE-1077",
            )
        return RefusedError(
            f"Found no usable Google credentials ({kind}).",
            remedy=f"Give application default credentials on the driver and the executors: {_CHAIN}.",
            where=self._where,
            id="RIFFLE-1078",
        )


def _text(value: object) -> str:
    """Return a JSON value that is a text. Raises ``TypeError`` for any other value."""
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
