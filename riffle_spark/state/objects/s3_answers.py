"""The reaction of a call to each answer of an S3 server, as a table.

``rule_of`` returns the first row of ``TABLE`` that matches an answer's operation, HTTP status, error code and text. The
row names the next action and the error to raise if nothing helps. An answer without a body, such as every answer to
HEAD, has its status as its code, as botocore reports it. Errors do not quote answers about credentials, because they
may repeat the sent values.
"""

import re
from typing import Final

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.answers import NOT_IMPLEMENTED, TRANSIENT, Action, Rule, first_match

CREDENTIAL_CHAIN: Final = "environment, ~/.aws or the machine's role"


_PUT = frozenset({"put_object"})
_GET = frozenset({"get_object"})
_HEAD = frozenset({"head_object"})
_BULK_DELETE = frozenset({"delete_objects"})
_SINGLE_DELETE = frozenset({"delete_object"})
_COPY = frozenset({"copy_object"})
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
_UNCONDITIONAL = "The server has no conditional puts: it answered {status} {code} to `If-None-Match: *` ({message})."
_UNCONDITIONAL_REMEDY = (
    "Use a server with conditional puts (`If-None-Match: *`) or a newer version of this one, or correct `s3_endpoint`."
)
_CHECK_ENDPOINT = (
    "Check `root`, `s3_endpoint` and `s3_region`. The server must be S3 with conditional puts (If-None-Match)."
)
_ENCRYPTION = "{operation} was refused because of its encryption: {status} {code}: {message}."
_ENCRYPTION_REMEDY = (
    "Correct or unset `s3_server_side_encryption` and `s3_kms_key`. The key must exist, be enabled and be in the "
    "bucket's region."
)
_RIGHTS = (
    f"Check the credentials ({CREDENTIAL_CHAIN}) and grant them s3:ListBucket on the bucket, and s3:GetObject, "
    "s3:PutObject and s3:DeleteObject below the prefix (riffle policy ROOT prints them). If the bucket's policy "
    "demands encryption, set `s3_server_side_encryption` or `s3_kms_key`. If its requester pays, set "
    "`s3_requester_pays`."
)

TABLE: Final = (
    Rule(
        Action.FINAL,
        codes=("NoSuchBucket",),
        problem="The bucket does not exist ({code}).",
        remedy="Create the bucket, or correct `root` or the endpoint.",
        id="RIFFLE-0488",
    ),
    Rule(Action.ANSWER, _GET, frozenset({304, 404, 416})),
    Rule(Action.ANSWER, _PUT, frozenset({404}), ("NoSuchKey",)),  # If-Match on an object that is absent
    Rule(Action.ANSWER, _HEAD | _SINGLE_DELETE, frozenset({404})),
    Rule(Action.ANSWER, _COPY, frozenset({404}), ("NoSuchKey",)),
    Rule(Action.ANSWER, _PUT, frozenset({304, 412})),  # 304: MinIO before April 2024
    Rule(Action.DELETE_SINGLY, _BULK_DELETE, frozenset({405, 501})),
    Rule(Action.DELETE_SINGLY, _BULK_DELETE, codes=_NOT_IMPLEMENTED_CODES),
    Rule(Action.FIND_REMAINING, _BULK_DELETE, frozenset({500})),
    Rule(Action.FIND_REMAINING, _BULK_DELETE, frozenset({404}), ("NoSuchKey", "NoSuchVersion")),
    Rule(Action.AGAIN, codes=_BUSY_CODES),
    Rule(
        Action.FINAL,
        codes=("KMS.*", "Kms*", "*Encryption*"),
        problem=_ENCRYPTION,
        remedy=_ENCRYPTION_REMEDY,
        id="RIFFLE-0489",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        frozenset({400, 501}),
        text=re.compile("(?i)server.side.encryption|kms"),
        problem=_ENCRYPTION,
        remedy=_ENCRYPTION_REMEDY,
        id="RIFFLE-0489",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        NOT_IMPLEMENTED,
        problem=_UNCONDITIONAL,
        remedy=_UNCONDITIONAL_REMEDY,
        kind=ConfigError,
        id="RIFFLE-0493",
    ),
    Rule(
        Action.FINAL,
        _PUT,
        frozenset({400}),
        text=re.compile("(?i)if-none-match"),
        problem=_UNCONDITIONAL,
        remedy=_UNCONDITIONAL_REMEDY,
        kind=ConfigError,
        id="RIFFLE-0493",
    ),
    Rule(
        Action.FINAL,
        statuses=NOT_IMPLEMENTED,
        problem="The server does not implement {operation}: {status} {code}: {message}.",
        remedy=_CHECK_ENDPOINT,
        kind=ConfigError,
        id="RIFFLE-0496",
    ),
    Rule(
        Action.FINAL,
        codes=("RequestTimeTooSkewed", "RequestExpired", "ExpiredRequest"),
        problem="The clock of this machine is wrong ({code}).",
        remedy="Set its time, preferably by NTP.",
        id="RIFFLE-0498",
    ),
    Rule(
        Action.FINAL,
        codes=("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect", "301"),
        problem="The bucket is in another region ({code}).",
        remedy="Set `s3_region` to the bucket's region.",
        id="RIFFLE-0499",
    ),
    Rule(
        Action.FINAL,
        codes=("InvalidObjectState",),
        problem="The object was moved to an archive ({code}).",
        remedy="Restore it, and end the lifecycle rule that archives objects below `root`.",
        id="RIFFLE-0501",
    ),
    Rule(
        Action.FRESH_CREDENTIALS,
        codes=_CREDENTIAL_CODES,
        problem="The server does not accept the credentials ({code}).",
        remedy=f"Correct the credentials that boto3 finds ({CREDENTIAL_CHAIN}).",
        id="RIFFLE-0502",
    ),
    Rule(
        Action.FRESH_CREDENTIALS,
        statuses=frozenset({401, 403}),
        problem="{operation} was denied: {message}.",
        remedy=_RIGHTS,
        id="RIFFLE-0503",
    ),
    Rule(
        Action.FRESH_CREDENTIALS,
        statuses=frozenset({400}),
        codes=("400",),
        problem="{operation} was refused without a reason: {status}.",
        remedy=f"Check `s3_endpoint`, `s3_region`, and that the credentials ({CREDENTIAL_CHAIN}) have not expired.",
        id="RIFFLE-0505",
    ),
    Rule(Action.AGAIN, statuses=TRANSIENT),
    Rule(
        Action.FINAL,
        problem="{operation} was refused: {status} {code}: {message}.",
        remedy=_CHECK_ENDPOINT,
        kind=ConfigError,
        id="RIFFLE-0506",
    ),
)
"""The first matching row counts. The last row matches every answer."""


def rule_of(operation: str, status: int, code: str, message: str) -> Rule:
    """Return the first row of ``TABLE`` that matches an answer. ``operation`` is the name of boto3's method.

    >>> rule_of("put_object", 412, "PreconditionFailed", "").action.name
    'ANSWER'
    """
    return first_match(TABLE, operation, status, code, message)
