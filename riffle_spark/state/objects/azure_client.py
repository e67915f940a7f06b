"""The endpoint and the credentials of an Azure storage account.

Each process reads them from the environment variables of the Azure CLI, in this order:

1. ``AZURE_STORAGE_CONNECTION_STRING``: the account's key or a shared access signature, and perhaps the endpoint.
2. ``AZURE_STORAGE_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``.
3. Microsoft Entra ID by ``azure-identity``: a service principal, a workload identity, a managed identity, or az login.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from riffle_spark.errors import ConfigError, RefusedError, RiffleError, UnavailableError
from riffle_spark.optional_packages import check_importable
from riffle_spark.state.objects import store
from riffle_spark.state.objects.http_store import Authorize, Client, new_session
from riffle_spark.state.objects.options import StoreOptions

CREDENTIAL_CHAIN: Final = (
    "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or an identity of azure-identity"
)
_VERSION: Final = "2021-12-02"
"""The version of the Blob API. Every public and sovereign cloud has it."""
_SCOPE: Final = "https://storage.azure.com/.default"
_TOKEN_SPARE_SECONDS: Final = 300
_CONNECTION: Final = "AZURE_STORAGE_CONNECTION_STRING"
_SIGNED_HEADERS: Final = (
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-MD5",
    "Content-Type",
    "Date",
    "If-Modified-Since",
    "If-Match",
    "If-None-Match",
    "If-Unmodified-Since",
    "Range",
)


def create_client(host: str, place: str, options: StoreOptions) -> Client:
    """Return a client of the account with this host in the root's URL. Without a host the environment names it.

    Raises ``ConfigError`` if no account is named, or if two different ones are.
    """
    connection = _connection_string()
    named = connection.get("AccountName", "")
    account = host.partition(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT", "") or named
    if not account or (named and named != account):
        raise ConfigError(
            f"The root {place} is in account {account!r}, but {_CONNECTION} names account {named!r}."
            if account
            else f"The root {place} names no storage account.",
            remedy="Write the root as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, or set "
            f"AZURE_STORAGE_ACCOUNT or {_CONNECTION} for the same account.",
            where="root",
            id="RIFFLE-1095",
        )
    suffix = connection.get("EndpointSuffix", "core.windows.net")
    blob_host = re.sub(r"\.dfs\.", ".blob.", host, count=1) or f"{account}.blob.{suffix}"
    endpoint = options.azure.endpoint or (not host and connection.get("BlobEndpoint")) or f"https://{blob_host}"
    store.check_endpoint(endpoint, "azure_endpoint")
    endpoint = endpoint.rstrip("/")
    session = new_session(options.max_connections)
    return Client(endpoint, session, _authorize(account, connection, f"{place} at {endpoint}"))


def _authorize(account: str, connection: Mapping[str, str], where: str) -> Authorize:
    """Return the function that signs requests: with the account's key, a shared access signature, or a token of
    Microsoft Entra ID.

    A key has priority over a signature, and the connection string over environment variables. ``where`` is the place
    for errors.
    """
    key = connection.get("AccountKey") or os.environ.get("AZURE_STORAGE_KEY")
    if key:
        return _SharedKey(account, key)
    signature = connection.get("SharedAccessSignature") or os.environ.get("AZURE_STORAGE_SAS_TOKEN")
    if signature:
        return _SharedAccessSignature(signature)
    return _Token(where)


def _connection_string() -> Mapping[str, str]:
    """Return the fields of the connection string, none if there is no such string. No error quotes it."""
    text = os.environ.get(_CONNECTION, "")
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    fields = {name.strip(): value.strip() for name, _, value in parts}
    if text and not ({"AccountName", "AccountKey"} <= fields.keys() or "SharedAccessSignature" in fields):
        raise ConfigError(
            f"{_CONNECTION} has neither AccountName and AccountKey nor SharedAccessSignature.",
            remedy="Copy it from the account's access keys, or unset it.",
            where=_CONNECTION,
            id="RIFFLE-1096",
        )
    return fields


class _SharedKey:
    """Signs requests with a key of the account."""

    def __init__(self, account: str, key: str) -> None:
        """Decode the account's ``key``. Raises ``RefusedError`` if it is not base64."""
        self._account = account
        try:
            self._key = base64.b64decode(key, validate=True)
        except binascii.Error:
            raise RefusedError(
                "The key of the storage account is not valid base64.",
                remedy=f"Correct AZURE_STORAGE_KEY or {_CONNECTION}.",
                where="AZURE_STORAGE_KEY",
                id="RIFFLE-1097",
            ) from None

    def __call__(self, prepared: Any) -> Any:
        _stamp(prepared.headers)
        signature = hmac.new(self._key, self._text(prepared).encode(), hashlib.sha256).digest()
        prepared.headers["Authorization"] = f"SharedKey {self._account}:{base64.b64encode(signature).decode()}"
        return prepared

    def _text(self, prepared: Any) -> str:
        """Return the text to sign: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
        values = [prepared.headers.get(name, "") for name in _SIGNED_HEADERS]
        values[2] = "" if values[2] == "0" else values[2]
        own = sorted((name.lower(), value) for name, value in prepared.headers.items() if name.lower()[:5] == "x-ms-")
        url = urlsplit(prepared.url)
        query = sorted(parse_qsl(url.query, keep_blank_values=True))
        resource = [f"/{self._account}{url.path}", *(f"{name.lower()}:{value}" for name, value in query)]
        return "\n".join([prepared.method, *values, *(f"{name}:{value}" for name, value in own), *resource])


class _SharedAccessSignature:
    """Adds a shared access signature to the URL."""

    def __init__(self, signature: str) -> None:
        self._signature = signature.lstrip("?")

    def __call__(self, prepared: Any) -> Any:
        _stamp(prepared.headers)
        prepared.url += f"{'&' if '?' in prepared.url else '?'}{self._signature}"
        return prepared


def signs_url(authorize: Authorize) -> bool:
    """Return whether credentials are a part of each URL. They do not cover another URL that a request names."""
    return isinstance(authorize, _SharedAccessSignature)


class _Token:
    """Adds an access token of Microsoft Entra ID. Fetches a new one five minutes before it ends."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._credential: Any = None
        self._token = ""
        self._expires_at = 0.0

    def __call__(self, prepared: Any) -> Any:
        _stamp(prepared.headers)
        with self._lock:
            if time.time() > self._expires_at - _TOKEN_SPARE_SECONDS:
                self._fetch()
        prepared.headers["Authorization"] = f"Bearer {self._token}"
        return prepared

    def _fetch(self) -> None:
        """Get a new token from Microsoft Entra ID and store it with its expiry time.

        Raises ``RefusedError`` without usable credentials, ``UnavailableError`` if the service does not answer.
        """
        pip = "Run pip install 'azure-identity>=1.16' on the driver and the executors, or set AZURE_STORAGE_KEY."
        check_importable("azure.identity", "A root in Azure without an account key", pip, where="root")
        from azure.core import exceptions as azure_errors
        from azure.identity import DefaultAzureCredential

        try:
            self._credential = self._credential or DefaultAzureCredential()
            token = self._credential.get_token(_SCOPE)
        except (azure_errors.AzureError, ValueError) as error:
            raise self._error(error, isinstance(error, azure_errors.ServiceRequestError)) from None
        self._token = token.token
        self._expires_at = token.expires_on

    def _error(self, error: Exception, is_unreachable: bool) -> RiffleError:
        """Return the error for a token that could not be fetched. It does not quote the exception's text."""
        kind = type(error).__name__
        if is_unreachable:
            return UnavailableError(
                f"Microsoft Entra ID did not answer ({kind}).",
                remedy="Make login.microsoftonline.com or the identity endpoint reachable, then start again.",
                where=self._where,
                id="RIFFLE-1098",
            )
        return RefusedError(
            f"Found no usable Azure credentials ({kind}).",
            remedy=f"Give credentials on the driver and the executors: {CREDENTIAL_CHAIN}.",
            where=self._where,
            id="RIFFLE-1099",
        )


def _stamp(headers: Any) -> None:
    """Set the headers with the API version and the time, which each request needs."""
    headers["x-ms-version"] = _VERSION
    headers["x-ms-date"] = formatdate(usegmt=True)
