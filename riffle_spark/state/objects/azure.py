"""Objects in an Azure container, by the Blob API.

A put carries ``If-None-Match: *``. The answer 409 ``BlobAlreadyExists`` means that the name is taken.
A replacement carries ``If-Match`` with the ETag that was read, and a conditional read ``If-None-Match``.
``azure_client`` finds the endpoint and the credentials. Azure changes backslashes in names to slashes and does not
promise to keep dots at the end of a part, so such names are refused.
"""

import re
import time
from collections.abc import Hashable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects import http_store, store
from riffle_spark.state.objects.answers import NOT_IMPLEMENTED, TRANSIENT, Action, Rule
from riffle_spark.state.objects.azure_client import CREDENTIAL_CHAIN, create_client, signs_url
from riffle_spark.state.objects.http_store import Client, Page, Request, Response
from riffle_spark.state.objects.options import StoreOptions

_PAGE_NAMES: Final = 5000
_PUT: Final = frozenset({"put_object"})
_GET: Final = frozenset({"get_object"})
_COPY: Final = frozenset({"copy_object"})
_COPY_POLL_SECONDS: Final = 0.5
_HEAD_OR_DELETE: Final = frozenset({"head_object", "delete_object"})
_NO_CONTAINER: Final = "The container does not exist ({code})."
_CREATE_CONTAINER: Final = "Create the container, or correct `root` or `azure_endpoint`."
_ALTERED: Final = re.compile(r"\\|\.(?:/|\Z)")
"""A backslash, or a dot at the end of a part."""


class AzureStore(http_store.HttpStore):
    """A store below a prefix of a container. ``host`` is the account's host in the root's URL, empty for ``az://``."""

    ENDPOINT_SETTING = "`azure_endpoint`"
    TABLE = (
        Rule(
            Action.FINAL,
            codes=("ContainerNotFound",),
            problem=_NO_CONTAINER,
            remedy=_CREATE_CONTAINER,
            id="RIFFLE-1085",
        ),
        Rule(Action.ANSWER, _GET, frozenset({304, 404, 416})),
        Rule(Action.ANSWER, _HEAD_OR_DELETE | _COPY, frozenset({404})),
        Rule(Action.ANSWER, _PUT, frozenset({412})),
        Rule(Action.ANSWER, _PUT, frozenset({409}), ("BlobAlreadyExists",)),
        Rule(
            Action.FINAL,
            statuses=frozenset({404}),
            problem=_NO_CONTAINER,
            remedy=_CREATE_CONTAINER,
            id="RIFFLE-1085",
        ),
        Rule(
            Action.FINAL,
            _PUT,
            NOT_IMPLEMENTED,
            problem="The server has no conditional puts: it answered {status} {code} to `If-None-Match: *`.",
            remedy="Use a server with conditional puts, or correct `azure_endpoint`.",
            kind=ConfigError,
            id="RIFFLE-1086",
        ),
        Rule(
            Action.FINAL,
            codes=("BlobImmutable*", "LeaseIdMissing", "BlobArchived", "BlobBeingRehydrated", "BlobNotRehydrated"),
            problem="{operation} was refused by a policy, a lease or a tier of the blob ({code}).",
            remedy="End immutability policies, leases and archiving rules for blobs below `root`.",
            id="RIFFLE-1087",
        ),
        Rule(Action.AGAIN, codes=("ServerBusy", "InternalError", "OperationTimedOut", "Md5Mismatch")),
        Rule(
            Action.FRESH_CREDENTIALS,
            codes=("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation", "401"),
            problem="The server does not accept the credentials ({code}).",
            remedy=f"Correct the credentials ({CREDENTIAL_CHAIN}), and the clock of this machine.",
            id="RIFFLE-1088",
        ),
        Rule(
            Action.FRESH_CREDENTIALS,
            statuses=frozenset({401, 403}),
            problem="{operation} was denied ({code}).",
            remedy=f"Check the credentials ({CREDENTIAL_CHAIN}) and grant them the role that riffle policy ROOT "
            "prints. If the account has a firewall, let this network in or use a private endpoint.",
            id="RIFFLE-1089",
        ),
        Rule(Action.AGAIN, statuses=TRANSIENT - NOT_IMPLEMENTED),
        Rule(
            Action.FINAL,
            problem="{operation} was refused: {status} {code}: {message}.",
            remedy="Check `root` and `azure_endpoint`. The server must be Azure's Blob service.",
            kind=ConfigError,
            id="RIFFLE-1090",
        ),
    )

    def __init__(self, host: str, container: str, prefix: str, options: StoreOptions) -> None:
        """Create a store for the blobs below ``prefix``. Raises ``ConfigError`` for a prefix that Azure would change.

        ``host`` is the account's host name; it is empty if the environment names the account.
        """
        super().__init__(container, prefix, options)
        self.host = host
        if _ALTERED.search(prefix):
            # Cause: Azure would store the objects under another name.
            raise ConfigError(
                f"The prefix {prefix!r} has a backslash, or a part that ends with a dot, which Azure does not keep.",
                remedy="Set `root` to another prefix.",
                where="root",
                id="RIFFLE-1091",
            )

    def __reduce__(self) -> "tuple[type[AzureStore], tuple[str, str, str, StoreOptions]]":
        return AzureStore, (self.host, self.bucket, self.prefix.rstrip("/"), self.options)

    def __repr__(self) -> str:
        endpoint = f", {self.options.azure.endpoint!r}" if self.options.azure.endpoint else ""
        return f"AzureStore({self.host!r}, {self.bucket!r}, {self.prefix.rstrip('/')!r}{endpoint})"

    @property
    def place(self) -> str:
        """The container as a URL."""
        return f"abfss://{self.bucket}@{self.host}" if self.host else f"az://{self.bucket}"

    @property
    def _client_name(self) -> Hashable:
        return ("azure", self.host, self.options)

    def _create_client(self) -> Client:
        return create_client(self.host, self.place, self.options)

    def _put_request(self, key: str, data: bytes) -> Request:
        return self._conditional_put(key, data, {"If-None-Match": "*"})

    def _replace_request(self, key: str, data: bytes, tag: str) -> Request:
        return self._conditional_put(key, data, {"If-Match": tag})

    def _conditional_put(self, key: str, data: bytes, condition: Mapping[str, str]) -> Request:
        """Return the request that puts a blob under the condition that these headers state."""
        headers = {
            **condition,
            "Content-Type": "application/octet-stream",
            "Content-MD5": store.content_md5(data),
            "x-ms-blob-type": "BlockBlob",
        }
        return Request("put_object", "PUT", self._blob(key), headers, data)

    def _get_request(self, key: str) -> Request:
        return Request("get_object", "GET", self._blob(key))

    def _get_changed_request(self, key: str, tag: str) -> Request:
        return Request("get_object", "GET", self._blob(key), {"If-None-Match": tag})

    def _tag_of(self, response: Response) -> str:
        return response.headers.get("ETag", "")

    def _head_request(self, key: str) -> Request:
        return Request("head_object", "HEAD", self._blob(key))

    def can_copy_from(self, source: store.ObjectStore) -> bool:
        """Return whether ``source`` is in the same account, and requests are not authorized by their URL."""
        is_same = isinstance(source, AzureStore) and (source.host, source.options) == (self.host, self.options)
        return is_same and not signs_url(self._client().authorize)

    def _copy_request(self, source: http_store.HttpStore, key: str, source_key: str, token: str) -> Request:
        assert isinstance(source, AzureStore)
        if token:
            time.sleep(_COPY_POLL_SECONDS)
            return Request("head_object", "HEAD", self._blob(key))
        return Request("copy_object", "PUT", self._blob(key), {"x-ms-copy-source": source._blob(source_key)})

    def _copy_progress(self, response: Response, body: bytes) -> str:  # noqa: ARG002 - the progress is in a header
        status = response.headers["x-ms-copy-status"]
        if status not in ("success", "pending"):
            raise ValueError(status)
        return "" if status == "success" else status

    def _delete_request(self, key: str) -> Request:
        return Request("delete_object", "DELETE", self._blob(key), {"x-ms-delete-snapshots": "include"})

    def _list_request(self, prefix: str, token: str, delimiter: str = "") -> Request:
        fields = {"restype": "container", "comp": "list", "prefix": prefix, "maxresults": str(_PAGE_NAMES)}
        optional = {name: text for name, text in (("marker", token), ("delimiter", delimiter)) if text}
        query = urlencode({**fields, **optional}, quote_via=quote)
        return Request("list_objects", "GET", f"{self._endpoint}/{self.bucket}?{query}")

    def _page(self, body: bytes) -> Page:
        """Return the names in an answer to a LIST, without folders, and the token of the next page."""
        try:
            answer = ElementTree.fromstring(body)  # noqa: S314 - as botocore parses S3's answers
        except ElementTree.ParseError:
            raise ValueError("not XML") from None
        if answer.tag != "EnumerationResults":
            raise ValueError("not a list of blobs")
        names = [
            blob.findtext("Name", "")
            for blob in answer.iterfind("Blobs/Blob")
            if blob.findtext("Properties/ResourceType") != "directory"  # of a hierarchical namespace
        ]
        folders = [folder.findtext("Name", "") for folder in answer.iterfind("Blobs/BlobPrefix")]
        return Page(names, answer.findtext("NextMarker") or "", folders)

    def _refusal(self, response: Response, body: bytes) -> tuple[str, str]:
        message = re.search(rb"<Message>([^<\n]*)", body)
        return response.headers.get("x-ms-error-code", ""), message[1].decode(errors="replace") if message else ""

    def _written_at(self, response: Response) -> float:
        return parsedate_to_datetime(response.headers["Last-Modified"]).timestamp()

    def _key(self, name: str) -> str:
        """Return the full name of a blob. Raises ``ConfigError`` for a name that Azure would change."""
        if _ALTERED.search(name):
            # Cause: Azure would store the object under another name.
            raise ConfigError(
                f"The object name {name!r} has a backslash, or a part that ends with a dot, which Azure does not keep.",
                remedy="Rename the store.",
                where="object name",
                id="RIFFLE-1092",
            )
        return super()._key(name)

    def _blob(self, key: str) -> str:
        return f"{self._endpoint}/{self.bucket}/{quote(key, safe='/~')}"
