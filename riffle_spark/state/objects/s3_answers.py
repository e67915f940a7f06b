"""What an S3 server's answer means for the call: one table.

Theory of operation. ``rule_of`` returns the first row of ``TABLE`` that matches an answer's operation, HTTP status,
error code and text. The row says what to do next, and which error to raise if nothing helps. Servers differ: the codes
are those of AWS, MinIO, Ceph RGW, Cloudflare R2, NetApp StorageGRID and the XML API of Google Cloud Storage. An answer
without a body (every answer to HEAD) has its status as its code, as botocore reports it. Texts of answers about
credentials are left out of errors, because they may repeat what was sent.
"""

import re
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from riffle_spark.errors import ConfigError, RefusedError

__all__ = ["CREDENTIAL_CHAIN", "TABLE", "Action", "Rule", "is_definite", "rule_of"]

CREDENTIAL_CHAIN: Final = "environment, ~/.aws or the machine's role"


class Action(Enum):
    """What a store does after an answer that is not a success."""

    ANSWER = "the answer itself says what the caller asked: absent, or taken"
    AGAIN = "send the same request again, until `s3_patience` ends"
    FRESH_CREDENTIALS = "send it once more with a new client, which reads the credentials again"
    FINAL = "raise the error at once"
    DELETE_ONE_BY_ONE = "delete each object with a request of its own, from now on"
    ASK_WHAT_IS_LEFT = "look which objects are still there, and delete only those"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table. An empty condition matches everything. Codes are patterns of ``fnmatch``.

    ``problem`` may name ``{operation}``, ``{status}``, ``{code}`` and ``{message}``.
    """

    action: Action
    operations: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    codes: tuple[str, ...] = ()
    says: re.Pattern[str] | None = None
    problem: str = ""
    remedy: str = ""
    kind: type[ConfigError] = RefusedError
    id: str = ""

    def matches(self, operation: str, status: int, code: str, message: str) -> bool:
        """Tell whether every condition of the row holds."""
        return (
            (not self.operations or operation in self.operations)
            and (not self.statuses or status in self.statuses)
            and (not self.codes or any(fnmatchcase(code, pattern) for pattern in self.codes))
            and (self.says is None or self.says.search(message) is not None)
        )


_PUT = frozenset({"put_object"})
_GET = frozenset({"get_object"})
_HEAD = frozenset({"head_object"})
_BULK_DELETE = frozenset({"delete_objects"})
_ONE_DELETE = frozenset({"delete_object"})
_NOT_IMPLEMENTED = frozenset({405, 501, 505})
_NOT_IMPLEMENTED_CODES = ("MethodNotAllowed", "NotImplemented")
_CREDENTIAL_CODES = (
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidIdentityToken",
    "InvalidSecurity",
    "InvalidToken",
    "InvalidTokenId",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
)
_BUSY_CODES = (
    "BadDigest",
    "BandwidthLimitExceeded",
    "ConditionalRequestConflict",
    "IDPCommunicationError",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown*",
    "*Throttling*",
    "TooManyRequests*",
    "XAmzContentSHA256Mismatch",
)
_UNCONDITIONAL = "this server has no conditional puts: it answered {status} {code} to `If-None-Match: *` ({message})"
_CONDITIONAL = (
    "use a server with conditional puts (`If-None-Match: *`), or a newer version of this one; correct `s3_endpoint` if "
    "another server is meant"
)
_MISSING = "the server does not implement {operation}: {status} {code}: {message}"
_CHECK_ENDPOINT = (
    "check `root`, `s3_endpoint` and `s3_region`; the server must be S3 with conditional puts (If-None-Match)"
)
_OF_ENCRYPTION = re.compile("(?i)server.side.encryption|kms")
_ENCRYPTED = "{operation} was refused because of its encryption: {status} {code}: {message}"
_ENCRYPTION = (
    "correct or unset `s3_server_side_encryption` and `s3_kms_key`; the key must exist, be enabled and be in the "
    "bucket's region"
)
_OF_PAYER = re.compile("(?i)request-payer")
_PAID = "{operation} was refused because of who pays for it: {status} {code}: {message}"
_PAYER = "set `s3_requester_pays` to true if the bucket's requester pays, and to false if the server does not know it"
_NOT_ACCEPTED = "the server does not accept the credentials ({code})"
_CREDENTIALS = f"correct the credentials that boto3 finds ({CREDENTIAL_CHAIN})"
_DENIED = "{operation} was denied: {message}"
_RIGHTS = (
    f"check the credentials ({CREDENTIAL_CHAIN}) and grant them s3:ListBucket on the bucket; s3:GetObject, "
    "s3:PutObject and s3:DeleteObject below the prefix (riffle policy --root ROOT prints them). If the bucket's policy "
    "demands encryption, set `s3_server_side_encryption` or `s3_kms_key`; if its requester pays, set "
    "`s3_requester_pays`"
)

TABLE: Final = (
    Rule(
        Action.FINAL,
        codes=("NoSuchBucket",),
        problem="there is no such bucket ({code})",
        remedy="create the bucket, or correct `root` or the endpoint",
        id="RIFFLE-0488",
    ),
    Rule(Action.ANSWER, _GET, frozenset({404, 416})),
    Rule(Action.ANSWER, _HEAD | _ONE_DELETE, frozenset({404})),
    Rule(Action.ANSWER, _PUT, frozenset({304, 412})),  # 304: MinIO before April 2024
    Rule(Action.DELETE_ONE_BY_ONE, _BULK_DELETE, frozenset({405, 501})),
    Rule(Action.DELETE_ONE_BY_ONE, _BULK_DELETE, codes=_NOT_IMPLEMENTED_CODES),
    Rule(Action.ASK_WHAT_IS_LEFT, _BULK_DELETE, frozenset({500})),
    Rule(Action.ASK_WHAT_IS_LEFT, _BULK_DELETE, frozenset({404}), ("NoSuchKey", "NoSuchVersion")),
    Rule(Action.AGAIN, codes=_BUSY_CODES),
    Rule(
        Action.FINAL,
        codes=("KMS.*", "Kms*", "CloudKms*", "*Encryption*"),
        problem=_ENCRYPTED,
        remedy=_ENCRYPTION,
        id="RIFFLE-0489",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        frozenset({400, 501}),
        says=_OF_ENCRYPTION,
        problem=_ENCRYPTED,
        remedy=_ENCRYPTION,
        id="RIFFLE-0489",
    ),
    Rule(Action.FINAL, codes=("InvalidPayer", "UserProjectMissing"), problem=_PAID, remedy=_PAYER, id="RIFFLE-0491"),
    Rule(Action.FINAL, statuses=frozenset({400, 501}), says=_OF_PAYER, problem=_PAID, remedy=_PAYER, id="RIFFLE-0491"),
    Rule(
        Action.FINAL,
        _PUT,
        _NOT_IMPLEMENTED,
        problem=_UNCONDITIONAL,
        remedy=_CONDITIONAL,
        kind=ConfigError,
        id="RIFFLE-0493",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        codes=_NOT_IMPLEMENTED_CODES,
        problem=_UNCONDITIONAL,
        remedy=_CONDITIONAL,
        kind=ConfigError,
        id="RIFFLE-0493",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        frozenset({400}),
        says=re.compile("(?i)if-none-match"),
        problem=_UNCONDITIONAL,
        remedy=_CONDITIONAL,
        kind=ConfigError,
        id="RIFFLE-0493",
    ),
    Rule(
        Action.FINAL,
        statuses=_NOT_IMPLEMENTED,
        problem=_MISSING,
        remedy=_CHECK_ENDPOINT,
        kind=ConfigError,
        id="RIFFLE-0496",
    ),
    Rule(
        Action.FINAL,
        codes=_NOT_IMPLEMENTED_CODES,
        problem=_MISSING,
        remedy=_CHECK_ENDPOINT,
        kind=ConfigError,
        id="RIFFLE-0496",
    ),
    Rule(
        Action.FINAL,
        codes=("RequestTimeTooSkewed", "RequestExpired", "ExpiredRequest"),
        problem="this machine's clock is wrong ({code})",
        remedy="set its time, best by NTP",
        id="RIFFLE-0498",
    ),
    Rule(
        Action.FINAL,
        codes=("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"),
        problem="the bucket is in another region ({code})",
        remedy="set `s3_region` to the bucket's region",
        id="RIFFLE-0499",
    ),
    Rule(
        Action.FINAL,
        codes=("*QuotaExceeded",),
        problem="the bucket's quota is used up ({code})",
        remedy="raise the quota of the bucket or of its owner, or delete what is not needed",
        id="RIFFLE-0500",
    ),
    Rule(
        Action.FINAL,
        codes=("InvalidObjectState",),
        problem="the object was moved to an archive ({code})",
        remedy="restore it, and end the lifecycle rule that archives objects below `root`",
        id="RIFFLE-0501",
    ),
    Rule(
        Action.FRESH_CREDENTIALS, codes=_CREDENTIAL_CODES, problem=_NOT_ACCEPTED, remedy=_CREDENTIALS, id="RIFFLE-0502"
    ),
    Rule(Action.FRESH_CREDENTIALS, statuses=frozenset({401, 403}), problem=_DENIED, remedy=_RIGHTS, id="RIFFLE-0503"),
    Rule(
        Action.FRESH_CREDENTIALS,
        codes=("AccessDenied", "AccessDeniedException"),
        problem=_DENIED,
        remedy=_RIGHTS,
        id="RIFFLE-0503",
    ),
    Rule(
        Action.FRESH_CREDENTIALS,
        statuses=frozenset({400}),
        codes=("400",),
        problem="{operation} was refused without a reason: {status}",
        remedy=f"check `s3_endpoint`, `s3_region`, and that the credentials ({CREDENTIAL_CHAIN}) have not expired",
        id="RIFFLE-0505",
    ),
    Rule(Action.AGAIN, statuses=frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))),
    Rule(
        Action.FINAL,
        problem="{operation} was refused: {status} {code}: {message}",
        remedy=_CHECK_ENDPOINT,
        kind=ConfigError,
        id="RIFFLE-0506",
    ),
)
"""The first row that matches counts; the last one matches every answer."""


def rule_of(operation: str, status: int, code: str, message: str) -> Rule:
    """Return the first row of ``TABLE`` for an answer; ``operation`` is the name of boto3's method.

    >>> rule_of("put_object", 412, "PreconditionFailed", "").action.name
    'ANSWER'
    """
    return next(rule for rule in TABLE if rule.matches(operation, status, code, message))


def is_definite(status: int) -> bool:
    """Tell whether an error answer of this status means that the request has changed nothing, and never will."""
    return (status < 500 and status != 408) or status in _NOT_IMPLEMENTED
