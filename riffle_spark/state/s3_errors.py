"""What an S3 server's refusal means to us. Knows S3's error codes. Does not know boto3, and repeats no credentials."""

from __future__ import annotations

from dataclasses import dataclass

from riffle_spark.errors import ConfigError, RiffleError, UnavailableError

__all__ = ["Call", "is_transient", "no_credentials", "refused", "unavailable", "untrusted"]

_TRANSIENT_CODES = frozenset({
    "BandwidthLimitExceeded", "ConditionalRequestConflict", "InternalError", "OperationAborted", "RequestTimeout",
    "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequestsException",
})  # fmt: skip
_CHAIN = "environment, ~/.aws or the machine's role"
_BUCKET = "there is no such bucket", "create the bucket, or correct `root` or the endpoint"
_CREDENTIALS = "the server does not accept the credentials", f"correct the credentials that boto3 finds ({_CHAIN})"
_REGION = "the bucket is in another region", "set `s3_region` to the bucket's region"
_CLOCK = "this machine's clock is wrong", "set its time, best by NTP"
_REFUSALS = {
    "NoSuchBucket": _BUCKET,
    "AuthFailure": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidAccessKeyId": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidSecurity": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "TokenRefreshRequired": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "PermanentRedirect": _REGION,
    "301": _REGION,
    "RequestTimeTooSkewed": _CLOCK,
}
"""Problem and remedy by code. The message that comes with these may quote what was sent, so it is left out."""
_RIGHTS = "s3:ListBucket on the bucket; s3:GetObject, s3:PutObject and s3:DeleteObject below the prefix"


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


def is_transient(code: str, status: int) -> bool:
    """Tell whether the same request may well succeed later."""
    return status >= 500 or status in {408, 409, 429} or code in _TRANSIENT_CODES


def refused(call: Call, code: str, status: int, message: str) -> RiffleError:
    """Return the error for a server's answer with an error ``code`` and ``message``."""
    if code in _REFUSALS:
        problem, remedy = _REFUSALS[code]
        return ConfigError(f"{problem} ({code})", remedy=remedy, where=call.where)
    if status in {401, 403}:
        remedy = f"check the credentials ({_CHAIN}) and grant them {_RIGHTS}"
        return ConfigError(f"{call.name} was denied: {message or code}", remedy=remedy, where=call.where)
    if is_transient(code, status):
        return unavailable(call, f"{status} {code}")
    remedy = "check `root`, `s3_endpoint` and `s3_region`; the server must be S3 with conditional puts (If-None-Match)"
    return ConfigError(f"{call.name} was refused: {status} {code}: {message}", remedy=remedy, where=call.where)


def unavailable(call: Call, why: str) -> UnavailableError:
    """Return the error for a server that did not do its work within the bounded attempts."""
    times = "1 attempt" if call.attempts == 1 else f"{call.attempts} attempts"
    return UnavailableError(
        f"{call.name} failed after {times}: {why}",
        remedy=f"make {call.endpoint} reachable and healthy, or correct `s3_endpoint`; then start again",
        where=call.where,
    )


def no_credentials(call: Call, kind: str) -> ConfigError:
    """Return the error for a client that found no complete credentials."""
    remedy = f"give boto3 credentials by its default chain: {_CHAIN}"
    return ConfigError(f"there are no usable credentials for S3 ({kind})", remedy=remedy, where=call.where)


def untrusted(call: Call) -> ConfigError:
    """Return the error for a server whose TLS certificate does not verify."""
    remedy = "point AWS_CA_BUNDLE at the authority that signed it, or correct `s3_endpoint`"
    return ConfigError("the server's TLS certificate is not trusted", remedy=remedy, where=call.where)
