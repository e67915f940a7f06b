"""boto3's S3 client, one a process and set of options. Knows boto3's settings and events. Does not know objects.

A client belongs to one process: it is made at the first call, shared by all stores with equal options, and made anew
in a fork. What it sends is counted for the store that this thread is sending for.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from typing import cast

import boto3
from botocore import exceptions as boto_errors
from botocore.client import BaseClient
from botocore.config import Config

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects import RequestCounts
from riffle_spark.state.options import StoreOptions

__all__ = ["SENDING", "client_of", "forget_client"]

_KINDS = {
    "PutObject": "put",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "DeleteObjects": "delete",
}


class _Sending(threading.local):
    """Whose requests this thread is sending, and how many it has sent for the call at hand."""

    requests = RequestCounts()
    sent = 0


SENDING = _Sending()
_CLIENTS: dict[tuple[int, StoreOptions], BaseClient] = {}


def client_of(options: StoreOptions) -> BaseClient:
    """Return this process's client. No lock: a fork might inherit it held, and a spare client is harmless."""
    key = (os.getpid(), options)
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _made(options))


def forget_client(options: StoreOptions) -> None:
    """Let the next call make a client anew: with credentials that may have been corrected."""
    _CLIENTS.pop((os.getpid(), options), None)


def _made(options: StoreOptions) -> BaseClient:
    endpoint = options.s3_endpoint
    config = Config(
        connect_timeout=options.s3_connect_timeout_seconds,
        read_timeout=options.s3_read_timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": options.s3_max_attempts},
        max_pool_connections=options.s3_max_connections,
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    if endpoint and "@" in endpoint:
        raise ConfigError(
            "the endpoint holds credentials", remedy="give them by boto3's default chain", where="s3_endpoint"
        )
    try:
        session = boto3.session.Session()
        client: BaseClient = session.client("s3", endpoint_url=endpoint, region_name=options.s3_region, config=config)
    except (boto_errors.BotoCoreError, ValueError) as error:
        remedy = "check `s3_endpoint` (http://host:port or https://host), `s3_region` and AWS's own settings"
        raise ConfigError(f"there is no S3 client to be had: {error}", remedy=remedy, where="s3_endpoint") from error
    client.meta.events.register("before-send.s3", _count)
    client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
    client.meta.events.register_last("before-call.s3", _drop_expect)
    return client


def _count(event_name: str, **_: object) -> None:
    """Count a request that goes out now; botocore tells this for every retry too."""
    SENDING.sent += 1
    SENDING.requests.add(_KINDS.get(event_name.rpartition(".")[2], "get"))


def _add_content_md5(params: dict[str, dict[str, str]], **_: object) -> None:
    """Add the checksum that many S3-compatible servers demand of a bulk delete; botocore sends only a newer one."""
    body = cast("bytes", params["body"])
    params["headers"]["Content-MD5"] = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _drop_expect(params: dict[str, dict[str, str]], **_: object) -> None:
    """Send a body at once: to wait for leave is one more round trip, and a second where a server gives none."""
    params["headers"].pop("Expect", None)
