"""The least rights that a job needs on its root: an AWS IAM policy, a Google Cloud role, or an Azure role."""

import json
import re
from collections.abc import Mapping

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.open import normalised

_OBJECT_ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject")
_READ_ACTIONS = ("s3:GetObject",)
_DIRECTORY_BUCKET = "--x-s3"
"""The end of the names of directory buckets (S3 Express One Zone)."""
_KEY_ARN = re.compile(r"arn:([a-z-]+):kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+\Z")
_KEY_ACTIONS = ("kms:GenerateDataKey", "kms:Decrypt")
_GCS_READ = ("storage.objects.get", "storage.objects.list")
_GCS_WRITE = ("storage.objects.create", "storage.objects.delete")
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
_ROLE = "riffle_spark state"


def access_policy(
    root: str, *, kms_key: str | None = None, partition: str = "aws", read_only: bool = False
) -> Mapping[str, object]:
    """Return the rights for a root in a cloud. ``read_only`` is enough for commands that change nothing.

    ``kms_key`` and ``partition`` are for S3: see ``iam_policy``. Raises ``ConfigError`` for a root outside of a cloud.
    """
    scheme, _, place = normalised(root).partition("://")
    if scheme not in ("gs", "abfss", "az"):
        return iam_policy(root, kms_key=kms_key, partition=partition, read_only=read_only)
    if kms_key is not None:
        # Cause: Keys of Google Cloud and Azure are set on the bucket or the account, and need no right of the job.
        raise ConfigError(
            f"--kms-key is for roots in S3, not for {root}.",
            remedy="Leave it out. Set the key on the bucket or the storage account.",
            where="--kms-key",
            id="RIFFLE-1110",
        )
    bucket, _, prefix = place.partition("/")
    return _gcs_role(bucket, prefix, read_only) if scheme == "gs" else _azure_role(bucket, read_only)


def _gcs_role(bucket: str, prefix: str, read_only: bool) -> Mapping[str, object]:
    """Return a custom role, as gcloud iam roles create reads it, and the binding of the bucket."""
    objects = f"projects/_/buckets/{bucket}/objects/{prefix + '/' if prefix else ''}"
    # Listing is a right on the bucket, so the condition does not limit it to the prefix.
    condition = f'resource.type == "storage.googleapis.com/Bucket" || resource.name.startsWith({json.dumps(objects)})'
    permissions = sorted(_GCS_READ if read_only else _GCS_READ + _GCS_WRITE)
    return {
        "role": {"title": _ROLE, "stage": "GA", "includedPermissions": permissions},
        "binding": {
            "resource": f"gs://{bucket}",
            "role": "projects/PROJECT/roles/ROLE",
            "members": ["serviceAccount:ACCOUNT@PROJECT.iam.gserviceaccount.com"],
            "condition": {"title": f"below {prefix or bucket}", "expression": condition},
        },
    }


def _azure_role(place: str, read_only: bool) -> Mapping[str, object]:
    """Return a custom role, as az role definition create reads it, for the container."""
    container, _, host = place.partition("@")
    account = host.partition(".")[0] or "ACCOUNT"
    scope = (
        "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP/providers/Microsoft.Storage/storageAccounts/"
        f"{account}/blobServices/default/containers/{container}"
    )
    actions = ["read"] if read_only else ["read", "write", "delete"]
    return {
        "Name": _ROLE,
        "Description": f"{'Read' if read_only else 'Keep'} the state of a riffle_spark job.",
        "Actions": [],
        "DataActions": [f"{_BLOBS}/{action}" for action in actions],
        "AssignableScopes": [scope],
    }


def iam_policy(
    root: str, *, kms_key: str | None = None, partition: str = "aws", read_only: bool = False
) -> Mapping[str, object]:
    """Return the policy for a root in S3. ``read_only`` is enough for commands that change nothing.

    ``kms_key`` is the ARN of the key that encrypts objects, ``partition`` the AWS partition (``aws-cn``). Raises
    ``ConfigError`` for a root outside S3 or with IAM wildcards, and for a key that is not an ARN of the partition.
    """
    if kms_key is not None:
        _check_key(kms_key, partition)
    scheme, _, place = normalised(root).partition("://")
    if scheme != "s3" or set("*?$") & set(place):
        # Cause: The root is not in S3, or has characters that an IAM policy reads as wildcards.
        raise ConfigError(
            f"Cannot make a policy for root {root}.",
            remedy="Use a root in S3 (without *, ? and $), Google Cloud Storage or Azure.",
            where="root",
            id="RIFFLE-0146",
        )
    bucket, _, prefix = place.partition("/")
    if bucket.endswith(_DIRECTORY_BUCKET):
        statements = [_directory_bucket_statement(bucket, partition, read_only)]
    else:
        statements = _bucket_statements(f"arn:{partition}:s3:::{bucket}", f"{prefix}/" if prefix else "", read_only)
    if kms_key is not None:
        actions = [action for action in _KEY_ACTIONS if not read_only or action == "kms:Decrypt"]
        statements.append({"Sid": "KeyOfTheRoot", "Effect": "Allow", "Action": actions, "Resource": [kms_key]})
    return {"Version": "2012-10-17", "Statement": statements}


def _directory_bucket_statement(bucket: str, partition: str, read_only: bool) -> Mapping[str, object]:
    """Return the statement for a directory bucket. Its only right is a session, which no prefix can limit."""
    session = {
        "Sid": "SessionOfTheBucket",
        "Effect": "Allow",
        "Action": ["s3express:CreateSession"],
        "Resource": [f"arn:{partition}:s3express:*:*:bucket/{bucket}"],
    }
    mode = {"Condition": {"StringEquals": {"s3express:SessionMode": "ReadOnly"}}}
    return {**session, **mode} if read_only else session


def _bucket_statements(arn: str, below: str, read_only: bool) -> list[Mapping[str, object]]:
    """Return the statements for the prefix ``below`` in the general purpose bucket ``arn``."""
    return [
        {
            "Sid": "ListTheRoot",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [arn],
            # S3 reports a missing object only to callers that may list. A GET has no prefix, so "IfExists".
            "Condition": {"StringLikeIfExists": {"s3:prefix": [f"{below}*"]}},
        },
        {
            "Sid": "ObjectsOfTheRoot",
            "Effect": "Allow",
            "Action": list(_READ_ACTIONS if read_only else _OBJECT_ACTIONS),
            "Resource": [f"{arn}/{below}*"],
        },
    ]


def _check_key(kms_key: str, partition: str) -> None:
    """Raise ``ConfigError`` unless ``kms_key`` is the ARN of a key in this AWS partition."""
    match = _KEY_ARN.match(kms_key)
    if match is None or match[1] != partition:
        # Cause: IAM grants rights on a key by its ARN only, not by a key id or an alias.
        raise ConfigError(
            f"{kms_key!r} is not the ARN of a key in AWS partition {partition}.",
            remedy=f"Use arn:{partition}:kms:REGION:ACCOUNT:key/ID, as aws kms describe-key --key-id alias/NAME prints "
            "it, or set --partition.",
            where="--kms-key",
            id="RIFFLE-0147",
        )
