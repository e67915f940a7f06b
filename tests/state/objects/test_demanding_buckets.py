"""Buckets that refuse requests without a certain header, tested with a scripted server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from riffle_spark.errors import ConfigError, RefusedError
from riffle_spark.settings import Settings
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.member_folders import options_of
from tests.kit.servers.s3_calls import CALLS, error_of
from tests.kit.servers.scripted_server import Answer, Request, ScriptedServer, refusal

pytestmark = pytest.mark.usefixtures("aws_environment")

LOCKED = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with Object Lock parameters"
EMPTY = {"GET": b"<ListBucketResult></ListBucketResult>", "POST": b"<DeleteResult></DeleteResult>"}


def success(request: Request) -> Answer:
    """Answer a request with an empty success."""
    is_object = request.path.startswith("/riffle/root")
    return Answer(200, b"" if is_object else EMPTY.get(request.method, b""))


def opened(scripted: ScriptedServer, respond: Callable[[Request], Answer], settings: Settings) -> ObjectStore:
    """Return a store of a scripted server, opened with settings like a job does."""
    scripted.respond = respond
    options = replace(options_of(settings.but(s3_endpoint=scripted.endpoint, s3_patience=0)), max_attempts=1)
    return open_store("s3://riffle/root", options)


def header(request: Request, name: str) -> str | None:
    """Return the value of a header, whatever its case."""
    return {key.lower(): value for key, value in request.headers.items()}.get(name)


def test_a_put_has_the_checksum_that_object_lock_demands(scripted: ScriptedServer) -> None:
    """A put has the checksum of its body, which a bucket with a default retention demands."""

    def respond(request: Request) -> Answer:
        digest = base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest()).decode()
        if header(request, "content-md5") is None:
            return refusal(400, "InvalidRequest", LOCKED)
        return Answer(200) if header(request, "content-md5") == digest else refusal(400, "BadDigest")

    store = opened(scripted, respond, Settings())
    assert store.put_if_absent("log/1", b"abc")
    assert store.put_if_absent("log/2", b"")
    (first, _) = scripted.seen
    assert first.body == b"abc", "the body has no checksum trailer, which other servers do not know"
    assert header(first, "x-amz-content-sha256") == hashlib.sha256(b"abc").hexdigest(), "the payload stays signed"


@pytest.mark.parametrize("algorithm", ["AES256", "aws:kms"])
def test_a_put_names_the_encryption_that_a_policy_demands(scripted: ScriptedServer, algorithm: str) -> None:
    """Only puts name the encryption that a bucket policy demands, and the remedy names the setting if it is missing."""

    def respond(request: Request) -> Answer:
        named = header(request, "x-amz-server-side-encryption")
        allowed = algorithm if request.method == "PUT" else None
        return success(request) if named == allowed else refusal(403, "AccessDenied", "explicit deny")

    store = opened(scripted, respond, Settings(s3_server_side_encryption=algorithm))
    for call in CALLS.values():
        call(store)
    error = error_of(lambda: opened(scripted, respond, Settings()).put_if_absent("log/1", b"abc"))
    assert isinstance(error, RefusedError)
    assert "`s3_server_side_encryption`" in error.remedy


def test_every_request_has_the_requester_pays_header(scripted: ScriptedServer) -> None:
    """Every request says that the requester pays, and the remedy names the setting if it is missing, also for HEAD."""

    def respond(request: Request) -> Answer:
        if header(request, "x-amz-request-payer") != "requester":
            return Answer(403)
        return success(request)

    store = opened(scripted, respond, Settings(s3_requester_pays=True))
    for call in CALLS.values():
        call(store)
    assert [request.method for request in scripted.seen] == ["PUT", "GET", "HEAD", "GET", "POST"]
    for call in CALLS.values():
        error = error_of(lambda call=call: call(opened(scripted, respond, Settings())))  # type: ignore[misc]
        assert "`s3_requester_pays`" in error.remedy


def test_without_these_settings_requests_lack_their_headers(scripted: ScriptedServer) -> None:
    """Without these settings no request has their headers, because some servers refuse unknown headers."""
    store = opened(scripted, success, Settings())
    for call in CALLS.values():
        call(store)
    names = {name.lower() for request in scripted.seen for name in request.headers}
    assert not any("encryption" in name or "payer" in name for name in names)


def test_an_algorithm_without_a_key_and_a_key_exclude_each_other() -> None:
    """A KMS key and an algorithm that uses no key are refused together."""
    with pytest.raises(ConfigError, match="RIFFLE-0457") as caught:
        StoreOptions(s3=S3Options(server_side_encryption="AES256", kms_key="aws/s3"))
    assert "s3_kms_key" in caught.value.remedy
    assert StoreOptions(s3=S3Options(server_side_encryption="aws:kms", kms_key="aws/s3")).s3.kms_key == "aws/s3"
