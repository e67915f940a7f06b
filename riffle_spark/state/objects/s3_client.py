"""boto3's S3 clients, one per process and set of options, and the errors of their calls.

No error repeats credentials.
"""

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
from riffle_spark.state.objects.answers import Action, Rule
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.s3_answers import CREDENTIAL_CHAIN, rule_of
from riffle_spark.state.objects.store import RequestCounts, check_endpoint, content_md5

_REQUEST_KINDS = {
    "PutObject": "put",
    "CopyObject": "put",
    "HeadObject": "head",
    "HeadBucket": "head",
    "ListObjectsV2": "list",
    "DeleteObject": "delete",
    "DeleteObjects": "delete",
}
_CLIENTS: dict[tuple[int, StoreOptions], BaseClient] = {}
_AWS_ENDPOINT_SETTINGS = "AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config"


class _Sending(threading.local):
    """The counts to which this thread's requests belong, and how many it has sent for the current call."""

    requests = RequestCounts()
    sent = 0


SENDING = _Sending()


def client_of(options: StoreOptions) -> BaseClient:
    """Return this process's client. A lock could be inherited by a fork, and a spare client is harmless."""
    key = (os.getpid(), options)
    return _CLIENTS.get(key) or _CLIENTS.setdefault(key, _create_client(options))


def forget_client(options: StoreOptions, client: BaseClient) -> None:
    """Make the next call create a new client with newly read credentials, unless another thread has done so."""
    if _CLIENTS.get((os.getpid(), options)) is client:
        _CLIENTS.pop((os.getpid(), options), None)


def _create_client(options: StoreOptions) -> BaseClient:
    """Return a new boto3 client that counts requests. Raises ``ConfigError`` for invalid endpoints and settings."""
    endpoint = options.s3.endpoint
    config = Config(
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        max_pool_connections=options.max_connections,
        # With Content-MD5 botocore leaves the payload unsigned over TLS, which the policies of some buckets deny.
        s3={"addressing_style": "path" if endpoint else "auto", "payload_signing_enabled": True},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    check_endpoint(endpoint or "")
    try:
        session = boto3.session.Session()
        client: BaseClient = session.client("s3", endpoint_url=endpoint, region_name=options.s3.region, config=config)
    except (boto_errors.BotoCoreError, ValueError) as error:
        problem = str(error)
    else:
        check_endpoint(client.meta.endpoint_url, _AWS_ENDPOINT_SETTINGS)
        return _with_event_handlers(client)
    check_endpoint(problem, _AWS_ENDPOINT_SETTINGS)
    raise ConfigError(
        f"Cannot create an S3 client: {problem}",
        remedy="Check `s3_endpoint` (http://host:port or https://host), `s3_region` and AWS's own settings.",
        where="s3_endpoint",
        id="RIFFLE-0447",
    )


def _with_event_handlers(client: BaseClient) -> BaseClient:
    """Count a client's requests, and add and remove headers for servers other than AWS."""
    client.meta.events.register("before-send.s3", _count)
    client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
    client.meta.events.register_last("before-call.s3", _drop_expect)
    return client


def _count(event_name: str, **_: object) -> None:
    """Count a request that is sent now. botocore calls this for every retry too."""
    SENDING.sent += 1
    SENDING.requests.add(_REQUEST_KINDS.get(event_name.rpartition(".")[2], "get"))


def _add_content_md5(params: dict[str, dict[str, str]], **_: object) -> None:
    """Add the checksum that many S3-compatible servers require of a bulk delete. botocore sends only a newer one."""
    params["headers"]["Content-MD5"] = content_md5(cast("bytes", params["body"]))


def _drop_expect(params: dict[str, dict[str, str]], **_: object) -> None:
    """Send a body at once. Waiting for a 100 answer costs a round trip, or a second if the server sends none."""
    params["headers"].pop("Expect", None)


@dataclass(frozen=True, slots=True)
class Call:
    """A call, for error messages: operation, endpoint, bucket and attempts."""

    name: str
    endpoint: str
    bucket: str
    attempts: int = 1

    @property
    def where(self) -> str:
        """The place for an error's ``where``."""
        return f"s3://{self.bucket} at {self.endpoint}"


def refused(call: Call, rule: Rule, status: int, code: str, message: str) -> RiffleError:
    """Return the error that a rule prescribes for a server's answer."""
    if not rule.problem:
        return unavailable(call, f"{status} {escape_unprintable(code)}")
    text = escape_unprintable((message or code).rstrip("."))
    problem = rule.problem.format(operation=call.name, status=status, code=escape_unprintable(code), message=text)
    return rule.kind(problem, remedy=rule.remedy, where=call.where, id=rule.id)


def unavailable(call: Call, reason: str) -> UnavailableError:
    """Return the error for a call that failed after all its attempts."""
    times = "1 attempt" if call.attempts == 1 else f"{call.attempts} attempts"
    return UnavailableError(
        f"{call.name} failed after {times}: {reason}",
        remedy=f"Make {call.endpoint} reachable and healthy, or correct `s3_endpoint`. Then start again.",
        where=call.where,
        id="RIFFLE-0448",
    )


def no_credentials(call: Call, kind: str) -> RefusedError:
    """Return the error for a client that found no complete credentials."""
    return RefusedError(
        f"boto3 found no usable credentials for S3 ({kind}).",
        remedy=f"Give boto3 credentials by its default chain: {CREDENTIAL_CHAIN}.",
        where=call.where,
        id="RIFFLE-0449",
    )


def untrusted(call: Call) -> RefusedError:
    """Return the error for a server with an untrusted TLS certificate."""
    # Cause: The certificate is self-signed, its authority is unknown on this machine, or the endpoint is wrong.
    return RefusedError(
        "The server's TLS certificate is not trusted.",
        remedy="Point AWS_CA_BUNDLE at the authority that signed it, or correct `s3_endpoint`.",
        where=call.where,
        id="RIFFLE-0450",
    )


def unwrapped_key(wrapped: bytes, region: str | None) -> bytes:
    """Decrypt a wrapped data key with AWS KMS.

    Raises ``RefusedError`` if KMS refuses, ``UnavailableError`` if it does not answer. No error quotes the answer.
    """
    remedy = (
        f"Check the credentials ({CREDENTIAL_CHAIN}), grant them kms:Decrypt on the key that wrapped it, and set the "
        "region."
    )
    config = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
    try:
        client = boto3.session.Session().client("kms", region_name=region, config=config)
        plain: bytes = client.decrypt(CiphertextBlob=wrapped)["Plaintext"]
    except boto_errors.ClientError as error:
        answer = cast("dict[str, dict[str, object]]", error.response)
        code = str(answer.get("Error", {}).get("Code", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if rule_of("decrypt", status if isinstance(status, int) else 0, code, "").action is Action.AGAIN:
            raise _kms_unavailable(code) from None
        raise RefusedError(
            f"KMS refused to unwrap a key ({code}).", remedy=remedy, where="encryption_keys", id="RIFFLE-0451"
        ) from None
    except (boto_errors.HTTPClientError, boto_errors.ConnectionError, ResponseParserError) as error:
        raise _kms_unavailable(type(error).__name__) from None
    except (boto_errors.BotoCoreError, ValueError, KeyError) as error:
        raise RefusedError(
            f"Cannot send a request to KMS ({type(error).__name__}).",
            remedy=remedy,
            where="encryption_keys",
            id="RIFFLE-0452",
        ) from None
    return plain


def _kms_unavailable(reason: str) -> UnavailableError:
    """Return the error for a request to KMS that got no answer for this ``reason``."""
    return UnavailableError(
        f"KMS did not answer ({reason}).",
        remedy="Make KMS reachable, then start again.",
        where="encryption_keys",
        id="RIFFLE-0453",
    )
