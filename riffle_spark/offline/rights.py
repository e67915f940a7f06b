"""What a job may do with its root, and nothing else: a policy for AWS IAM. Knows S3's names of calls. Asks nobody."""

import re
from collections.abc import Mapping

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.open import normalised

__all__ = ["iam_policy"]

_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_READ = ("s3:GetObject",)
_KEY = ("kms:GenerateDataKey", "kms:Decrypt")
_PARTITION = re.compile(r"aws[a-z-]*\Z")
_KEYS_ARN = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]+:key/[A-Za-z0-9-]+\Z")


def iam_policy(
    root: str, *, kms_key: str | None = None, partition: str = "aws", read_only: bool = False
) -> Mapping[str, object]:
    """Return the least that a job on a root needs: ``read_only`` for what changes nothing, as ``riffle verify``.

    ``kms_key`` is the ARN of the key that objects are encrypted with, ``partition`` that of AWS (``aws-cn``). Raises
    ``ConfigError`` for a root that is not in S3, for what is no such ARN or partition, or a name that a policy would
    take for a pattern.
    """
    scheme, _, place = normalised(root).partition("://")
    if scheme != "s3" or set("*?$") & set(place):
        raise ConfigError(
            f"there is no policy for {root}", remedy="name a root in S3, without *, ? and $ in it", where="root"
        )
    if not _PARTITION.match(partition):
        raise ConfigError(f"{partition!r} is no partition of AWS", remedy="use aws, aws-cn, ...", where="--partition")
    if kms_key is not None and not _KEYS_ARN.match(kms_key):
        raise ConfigError(
            f"{kms_key!r} is not the ARN of a key: a policy knows a key by no id, alias or pattern",
            remedy="name it as arn:aws:kms:eu-central-1:111122223333:key/1234abcd (aws kms describe-key)",
            where="--kms-key",
        )
    bucket, _, prefix = place.partition("/")
    below = f"{prefix}/" if prefix else ""
    arn = f"arn:{partition}:s3:::{bucket}"
    statements: list[Mapping[str, object]] = [
        {
            "Sid": "ListTheRoot",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [arn],
            # Where an object is missing S3 says so only to who may list, and a GET has no prefix to go by.
            "Condition": {"StringLikeIfExists": {"s3:prefix": [f"{below}*"]}},
        },
        {
            "Sid": "ObjectsOfTheRoot",
            "Effect": "Allow",
            "Action": list(_READ if read_only else _OBJECTS),
            "Resource": [f"{arn}/{below}*"],
        },
    ]
    if kms_key is not None:
        actions = [action for action in _KEY if not read_only or action == "kms:Decrypt"]
        statements.append({"Sid": "KeyOfTheRoot", "Effect": "Allow", "Action": actions, "Resource": [kms_key]})
    return {"Version": "2012-10-17", "Statement": statements}
