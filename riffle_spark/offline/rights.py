"""What a job may do with its root, and nothing else: a policy for AWS IAM. Knows S3's names of calls. Asks nobody."""

import re
from collections.abc import Mapping

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.open import normalised

__all__ = ["iam_policy"]

_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_READ = ("s3:GetObject",)
_A_KEY = re.compile(r"arn:([a-z-]+):kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+\Z")
_KEY = ("kms:GenerateDataKey", "kms:Decrypt")
_PARTITION = re.compile(r"aws[a-z-]*\Z")


def iam_policy(
    root: str, *, kms_key: str | None = None, partition: str = "aws", read_only: bool = False
) -> Mapping[str, object]:
    """Return the least that a job on a root needs: ``read_only`` for what changes nothing, as ``riffle verify``.

    ``kms_key`` is the ARN of the key that objects are encrypted with, ``partition`` that of AWS (``aws-cn``). Raises
    ``ConfigError`` for a root that is not in S3, what is no partition, a name that a policy would take for a pattern,
    or a key by which a policy gives no right.
    """
    if not _PARTITION.match(partition):
        raise ConfigError(
            f"{partition!r} is no partition of AWS",
            remedy="use aws, aws-cn, ...",
            where="--partition",
            id="RIFFLE-0145",
        )
    if kms_key is not None:
        _check_key(kms_key, partition)
    scheme, _, place = normalised(root).partition("://")
    if scheme != "s3" or set("*?$") & set(place):
        raise ConfigError(
            f"there is no policy for {root}",
            remedy="name a root in S3, without *, ? and $ in it",
            where="root",
            id="RIFFLE-0146",
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


def _check_key(kms_key: str, partition: str) -> None:
    found = _A_KEY.match(kms_key)
    if found is None:
        raise ConfigError(
            f"{kms_key!r} is not the ARN of a key",
            remedy="give arn:PARTITION:kms:REGION:ACCOUNT:key/ID. IAM takes a key by this ARN alone, not by its id or "
            "an alias; aws kms describe-key --key-id alias/NAME tells it",
            where="--kms-key",
            id="RIFFLE-0147",
        )
    if found[1] != partition:
        raise ConfigError(
            f"{kms_key!r} is a key of the partition {found[1]}, and the policy is for {partition}",
            remedy=f"give --partition {found[1]}, or the key of that partition in which the bucket is",
            where="--kms-key",
            id="RIFFLE-0148",
        )
