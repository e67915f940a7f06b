"""A store behind the real S3 client, whose requests are answered in this process from an ``inner`` store."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from botocore.awsrequest import AWSResponse

from riffle_spark.state.objects import remote, s3_client
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.s3 import S3Store
from riffle_spark.state.objects.store import ObjectStore, content_tag

__all__ = ["S3InMemory"]

_BUCKET = "simulated"
_ROOT = "root"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)$")
_BUSY_SHARE = 0.05
"""The share of puts that are refused because another put of the same name is under way."""
Answer = tuple[int, dict[str, str], bytes]


class S3InMemory:
    """An S3 server with the objects of ``inner``. ``store`` is the client of the query.

    Some lists have small pages, and some puts must be repeated.
    """

    serving: ClassVar[S3InMemory | None] = None
    """The server that answers requests. Clients are cached, so they cannot refer to it."""

    def __init__(self, inner: ObjectStore, chance: random.Random, sleep: Callable[[float], None]) -> None:
        self._inner = inner
        self._chance = chance
        self._sleep = sleep
        chance.random()
        self._page = chance.choice([3, 1000])
        kms = chance.choice([None, "aws/s3"])
        options = StoreOptions(s3=S3Options(endpoint="http://simulated:9000", region="us-east-1", kms_key=kms))
        self._options = options
        self.store: ObjectStore = S3Store(_BUCKET, _ROOT, options)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Answer requests from now on. While a client waits, other actors continue."""
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "simulated")
        patch.setattr(remote, "time", self)
        patch.setattr(S3InMemory, "serving", self)
        client: Any = s3_client.client_of(self._options)
        client.meta.events.register("before-send.s3", _served, unique_id="simulated")

    def sleep(self, seconds: float) -> None:
        """Wait, and let other actors continue."""
        self._sleep(seconds)

    def monotonic(self) -> float:
        """Return a constant time, because no call waits for long."""
        return 0.0

    def answer(self, request: Any) -> AWSResponse:
        """Return the answer of the server to a request."""
        url = urlsplit(request.url)
        query = parse_qs(urlsplit(request.url).query, keep_blank_values=True)
        name = unquote(url.path).removeprefix(f"/{_BUCKET}").removeprefix(f"/{_ROOT}/")
        headers = {key.lower(): _text(value) for key, value in request.headers.items()}
        if "list-type" in query:
            status, answer_headers, body = self._list({key: values[0] for key, values in query.items()})
        elif request.method == "POST":
            status, answer_headers, body = self._delete(bytes(request.body).decode())
        elif request.method == "PUT":
            status, answer_headers, body = self._put(name, request.body, headers)
        elif request.method == "HEAD":
            status = 200 if self._inner.exists(name) else 404
            answer_headers = {}
            body = b""
        else:
            status, answer_headers, body = self._get(name, headers.get("range"), headers.get("if-none-match", ""))
        said_of: Any = {"content-length": str(len(body)), **answer_headers}
        return AWSResponse(request.url, status, said_of, _Raw(body))

    def _put(self, name: str, body: Any, headers: dict[str, str]) -> Answer:
        data = bytes(body) if isinstance(body, (bytes, bytearray, memoryview)) else body.read()
        if self._chance.random() < _BUSY_SHARE:
            return _refused(409, "ConditionalRequestConflict")
        if (tag := headers.get("if-match")) is not None:
            done = self._inner.replace_if_unchanged(name, data, tag.strip('"'))
            return (200, {}, b"") if done else _refused(412, "PreconditionFailed")
        if headers.get("if-none-match") != "*":
            self._inner.delete([name])
        return (200, {}, b"") if self._inner.put_if_absent(name, data) else _refused(412, "PreconditionFailed")

    def _get(self, name: str, ranged: str | None, known_tag: str) -> Answer:
        data = self._inner.get(name)
        if data is None:
            return _refused(404, "NoSuchKey")
        tag = f'"{content_tag(data)}"'
        if tag == known_tag:
            return 304, {"etag": tag}, b""
        match = _RANGE.match(ranged or "")
        if match is None:
            return 200, {"etag": tag}, data
        start = int(match[1])
        end = int(match[2]) + 1 if match[2] else len(data)
        return _refused(416, "InvalidRange") if start >= len(data) else (206, {}, data[start:end])

    def _list(self, query: dict[str, str]) -> Answer:
        prefix = query.get("prefix", "")
        after = query.get("continuation-token", "")
        names = self._inner.list(prefix.removeprefix(f"{_ROOT}/"))
        keys = [key for key in (f"{_ROOT}/{name}" for name in names) if key > after]
        page = keys[: self._page]
        is_truncated = len(keys) > self._page
        xml = "".join(f"<Contents><Key>{escape(quote(key))}</Key></Contents>" for key in page)
        xml += f"<EncodingType>url</EncodingType><IsTruncated>{str(is_truncated).lower()}</IsTruncated>"
        xml += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_truncated else ""
        return 200, {}, f"<ListBucketResult>{xml}</ListBucketResult>".encode()

    def _delete(self, body: str) -> Answer:
        root = ElementTree.fromstring(body)  # noqa: S314 - the product wrote it
        keys = [element.text or "" for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]
        self._inner.delete([key.removeprefix(f"{_ROOT}/") for key in keys])
        return 200, {}, b"<DeleteResult></DeleteResult>"


class _Raw(BytesIO):
    """A response body with the interface of urllib3."""

    def stream(self, *_: object, **__: object) -> Any:
        """Yield the remaining bytes."""
        while data := self.read(1 << 16):
            yield data


def _served(request: Any, **_: object) -> AWSResponse | None:
    return S3InMemory.serving.answer(request) if S3InMemory.serving is not None else None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _refused(status: int, code: str) -> Answer:
    return status, {}, f"<Error><Code>{code}</Code><Message>simulated</Message></Error>".encode()
