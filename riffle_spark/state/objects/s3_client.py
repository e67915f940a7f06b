"""boto3's S3 client, one for each process and set of options, and the errors of its calls. No error repeats
credentials.
"""

import base64
import hashlib
import os
import threading
from dataclasses import dataclass
from typing import cast

import boto3
from botocore import exceptions as boto_errors
from botocore.client import BaseClient
from botocore.config import Config
from botocore.parsers import ResponseParserError

from riffle_spark.errors import ConfigError, RefusedError, RiffleError, UnavailableError
from riffle_spark.printable import escape_unprintable
from riffle_spark.state.objects.s3_answers import CREDENTIAL_CHAIN, Action, Rule, rule_of
from riffle_spark.state.objects.store import RequestCounts, StoreOptions, check_endpoint

__all__ = [
    "SENDING",
    "Call",
    "client_of",
    "content_md5",
    "forget_client",
    "no_credentials",
    "refused",
    "unavailable",
    "untrusted",
    "unwrapped_key",
]

_KINDS = {
    "PutObject": "put",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "DeleteObject": "delete",
    "DeleteObjects": "delete",
}
_CLIENTS: dict[tuple[int, StoreOptions], BaseClient] = {}
_OF_AWS = "AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config"


class _Sending(threading.local):
    """Whose requests this thread is sending, and how many it has sent for the call at hand."""

    requests = RequestCounts()
    sent = 0


SENDING = _Sending()


def client_of(options: StoreOptions) -> BaseClient:
    """Return this process's client. No lock: a fork might inherit it held, and a spare client is harmless."""
    key = (os.getpid(), options)
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _made(options))


def forget_client(options: StoreOptions, client: BaseClient) -> None:
    """Let the next call make a new client, which reads the credentials again. Keep one that another thread has made."""
    if _CLIENTS.get((os.getpid(), options)) is client:
        _CLIENTS.pop((os.getpid(), options), None)


def _made(options: StoreOptions) -> BaseClient:
    endpoint = options.s3_endpoint
    config = Config(
        connect_timeout=options.s3_connect_timeout_seconds,
        read_timeout=options.s3_read_timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": options.s3_max_attempts},
        max_pool_connections=options.s3_max_connections,
        # With Content-MD5 botocore would leave the payload unsigned over TLS, which some buckets' policies deny.
        s3={"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": True},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    check_endpoint(endpoint or "")
    try:
        session = boto3.session.Session()
        client: BaseClient = session.client("s3", endpoint_url=endpoint, region_name=options.s3_region, config=config)
    except (boto_errors.BotoCoreError, ValueError) as error:
        said = str(error)
    else:
        check_endpoint(client.meta.endpoint_url, _OF_AWS)
        return _listening(client)
    check_endpoint(said, _OF_AWS)
    remedy = "check `s3_endpoint` (http://host:port or https://host), `s3_region` and AWS's own settings"
    raise ConfigError(f"there is no S3 client to be had: {said}", remedy=remedy, where="s3_endpoint", id="RIFFLE-0447")


def _listening(client: BaseClient) -> BaseClient:
    """Return a client whose requests are counted, and have what other servers want."""
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
    params["headers"]["Content-MD5"] = content_md5(cast("bytes", params["body"]))


def content_md5(body: bytes) -> str:
    """Return a body's ``Content-MD5``: every S3 server knows this checksum, and it needs no trailer."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _drop_expect(params: dict[str, dict[str, str]], **_: object) -> None:
    """Send a body at once: to wait for leave is one more round trip, and a second where a server gives none."""
    params["headers"].pop("Expect", None)


@dataclass(frozen=True, slots=True)
class Call:
    """Who was asked for what, and how often."""

    name: str
    endpoint: str
    bucket: str
    attempts: int = 1

    @property
    def where(self) -> str:
        """The place for an error's ``where``."""
        return f"s3://{self.bucket} at {self.endpoint}"


def refused(call: Call, rule: Rule, status: int, code: str, message: str) -> RiffleError:
    """Return the error for a server's answer, as its rule describes it."""
    if not rule.problem:
        return unavailable(call, f"{status} {escape_unprintable(code)}")
    problem = rule.problem.format(
        operation=call.name, status=status, code=escape_unprintable(code), message=escape_unprintable(message or code)
    )
    return rule.kind(problem, remedy=rule.remedy, where=call.where, id=rule.id)


def unavailable(call: Call, why: str) -> UnavailableError:
    """Return the error for a server that did not do its work within the bounded attempts."""
    times = "1 attempt" if call.attempts == 1 else f"{call.attempts} attempts"
    return UnavailableError(
        f"{call.name} failed after {times}: {why}",
        remedy=f"make {call.endpoint} reachable and healthy, or correct `s3_endpoint`; then start again",
        where=call.where,
        id="RIFFLE-0448",
    )


def no_credentials(call: Call, kind: str) -> RefusedError:
    """Return the error for a client that found no complete credentials."""
    remedy = f"give boto3 credentials by its default chain: {CREDENTIAL_CHAIN}"
    return RefusedError(
        f"there are no usable credentials for S3 ({kind})", remedy=remedy, where=call.where, id="RIFFLE-0449"
    )


def untrusted(call: Call) -> RefusedError:
    """Return the error for a server whose TLS certificate does not verify."""
    remedy = "point AWS_CA_BUNDLE at the authority that signed it, or correct `s3_endpoint`"
    return RefusedError(
        "the server's TLS certificate is not trusted", remedy=remedy, where=call.where, id="RIFFLE-0450"
    )


def unwrapped_key(wrapped: bytes, region: str | None) -> bytes:
    """Return what AWS KMS makes of a wrapped data key; it knows by itself which of its keys wrapped it.

    Raises ``RefusedError`` if KMS refuses, ``UnavailableError`` if it does not answer; no error repeats what it said.
    """
    remedy = f"check the credentials ({CREDENTIAL_CHAIN}), grant them kms:Decrypt on the key that wrapped it, and set "
    remedy += "the region"
    config = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
    try:
        client = boto3.session.Session().client("kms", region_name=region, config=config)
        plain: bytes = client.decrypt(CiphertextBlob=wrapped)["Plaintext"]
    except boto_errors.ClientError as error:
        told = cast("dict[str, dict[str, object]]", error.response)
        code = str(told.get("Error", {}).get("Code", ""))
        status = told.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if rule_of("decrypt", status if isinstance(status, int) else 0, code, "").action is Action.AGAIN:
            raise _kms_unavailable(code) from None
        raise RefusedError(
            f"KMS did not unwrap a key ({code})", remedy=remedy, where="encryption_keys", id="RIFFLE-0451"
        ) from None
    except (boto_errors.HTTPClientError, boto_errors.ConnectionError, ResponseParserError) as error:
        raise _kms_unavailable(type(error).__name__) from None
    except (boto_errors.BotoCoreError, ValueError, KeyError) as error:
        problem = f"KMS cannot be asked for a key ({type(error).__name__})"
        raise RefusedError(problem, remedy=remedy, where="encryption_keys", id="RIFFLE-0452") from None
    return plain


def _kms_unavailable(why: str) -> UnavailableError:
    remedy = "make KMS reachable; then start again"
    return UnavailableError(f"KMS did not answer ({why})", remedy=remedy, where="encryption_keys", id="RIFFLE-0453")
