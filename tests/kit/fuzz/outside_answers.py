"""Inputs that other programs make: answers of a server to S3 calls, and file names in a member's folder."""

from __future__ import annotations

import io
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import urllib3
from botocore.awsrequest import AWSResponse

from riffle_spark.errors import RiffleError
from riffle_spark.state.copies.abandoned import has_process_ended, is_owner_dead, remove_leftovers
from riffle_spark.state.copies.disk import list_incoming_files
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.objects import s3_client
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.s3 import S3Store

__all__ = ["ANSWERS", "NAMES_IN_A_FOLDER", "answering", "read_answer", "read_folder"]

_OPTIONS = StoreOptions(
    s3=S3Options(endpoint="http://fuzz.invalid", region="north"), max_attempts=1, patience_seconds=0.0
)
_LIST = b"""200
<ListBucketResult><IsTruncated>%s</IsTruncated><KeyCount>2</KeyCount><Contents><Key>p/log/00000000000000000000</Key>
<Size>5</Size></Contents><Contents><Key>p/totals/</Key></Contents>%s</ListBucketResult>"""
ANSWERS = [
    _LIST % (b"false", b""),
    _LIST % (b"true", b"<NextContinuationToken>x</NextContinuationToken>"),
    b"200\nbytes",
    b"200\n<DeleteResult><Error><Key>p/a</Key><Code>InternalError</Code><Message>m</Message></Error></DeleteResult>",
    b"403\n<Error><Code>AccessDenied</Code><Message>no</Message></Error>",
    b"404\n<Error><Code>NoSuchKey</Code></Error>",
    b"503\n<Error><Code>SlowDown</Code></Error>",
    b"412\n",
    b"206\nbytes",
]
"""An answer: its status, a newline, and its body."""
_NAMES_MOST = 24
_ATTEMPT = b"1-" + b"ab" * 16
NAMES_IN_A_FOLDER = [
    b"\n".join(
        [
            b"stacks/totals/0003." + b"ab" * 16 + b".part",
            b"sealed/7-" + _ATTEMPT,
            b"sealed/8-" + _ATTEMPT,
            b"fetched/7-" + _ATTEMPT + b"." + b"cd" * 16,
            b"incoming/totals/0003.00000000000000000005-" + _ATTEMPT,
            b"owner",
            b"process",
            b"upkeep",
            b"advancing",
        ]
    ),
    b"stacks/totals/0000000001.0a1b2c3d.journal\nstacks/totals/0000000002.0a1b2c3d.journal\nstacks/totals/0003.x.part",
]


def read_answer(data: bytes) -> None:
    """Make every kind of S3 call. Each gets this answer."""
    status, _, body = data.partition(b"\n")
    store = answering(int(status) if status.isdigit() and len(status) == 3 else 200, body)
    for call in (
        lambda: store.list("log/"),
        lambda: store.get("log/1"),
        lambda: store.get("log/1", 2, 3),
        lambda: store.exists("log/1"),
        lambda: store.copy_to("log/1", 0, 3, len),
        lambda: store.delete(["a", "b"]),
        lambda: store.put_if_absent("log/1", b"x"),
    ):
        with suppress(RiffleError):
            call()


def answering(status: int, body: bytes) -> S3Store:
    """Return a store whose server answers every request in this way until ``answering`` is called again."""
    _answer[:] = [status, body]
    s3_client._create_client = _client_of  # private: every new client is the fake client
    return S3Store("bucket", "p", _OPTIONS)


_answer: list[Any] = [200, b""]


_real_client = s3_client._create_client  # private: the function that makes real clients


def _client_of(options: StoreOptions) -> Any:
    return _client() if options == _OPTIONS else _real_client(options)


@cache
def _client() -> Any:
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "fuzz")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "fuzz")
    client: Any = _real_client(_OPTIONS)
    client.meta.events.register("before-send.s3", _answered)
    return client


def _answered(request: Any, **_: object) -> AWSResponse:
    status, body = _answer
    headers = {"Content-Length": str(len(body)), "Content-Type": "application/xml"}
    raw = urllib3.HTTPResponse(io.BytesIO(body), headers, status, preload_content=False)
    return AWSResponse(request.url, status, raw.headers, raw)  # type: ignore[arg-type] # any headers


def read_folder(data: bytes, folder: Path) -> None:
    """Read a member's folder with all of its readers. Each file contains its own name."""
    member = folder / "m0123456789ab"
    shutil.rmtree(member, ignore_errors=True)
    member.mkdir(parents=True)
    for name in data.split(b"\n")[:_NAMES_MOST]:
        with suppress(OSError, ValueError, RecursionError):
            _put(os.fsencode(member), name)
    member_folder = Folder(member, "app/1")
    list(member_folder.copies())
    member_folder.sealed_attempts()
    member_folder.remove_unused_deltas()
    list_incoming_files(member / "incoming")
    for file_name in ("owner", "process"):
        if (member / file_name).is_file():
            has_process_ended((member / file_name).read_text(errors="replace"))
    if (member / "owner").is_file():
        is_owner_dead(member / "owner", ["app/2"])
    remove_leftovers(member, 0.0)


def _put(member: bytes, name: bytes) -> None:
    path = os.path.normpath(os.path.join(member, name.lstrip(b"/")))  # noqa: PTH118 - a name may be no text
    if path.startswith(member + b"/"):
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "xb") as file:  # noqa: PTH123
            file.write(name)
