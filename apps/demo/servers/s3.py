"""S3 servers over HTTP: moto_server in memory, or versitygw on files."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from apps.demo.gateway import ensure_gateway
from apps.demo.servers.child import Child, Launch, free_port, listens
from apps.demo.servers.server import Server

__all__ = ["DiskS3Server", "S3Server"]

START_TIMEOUT_SECONDS = 60.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class ClientArguments(TypedDict):
    """The arguments of boto3 for an address and credentials."""

    endpoint_url: str
    aws_access_key_id: str
    aws_secret_access_key: str
    region_name: str


class S3Server(Server):
    """A server with one bucket, on a free loopback port, in memory.

    ``environment`` has the variables for its clients.
    """

    def __init__(self, folder: Path, bucket: str = "riffle") -> None:
        self.bucket = bucket
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.environment = dict(CREDENTIALS)
        self._log = folder / "s3.log"
        self._child: Child | None = None

    def start(self) -> None:
        """Start without waiting."""
        self._child = Child(Launch("the S3 server", self._command(), self._log, grace_seconds=1))

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]

    def wait_until_ready(self) -> None:
        """Wait until the bucket exists."""
        assert self._child is not None, "start it first"
        self._child.wait_until(self._has_made_bucket, START_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop the process. Its objects in memory are lost."""
        if self._child is not None:
            self._child.stop()

    @property
    def pids(self) -> list[int]:
        """The ids of the server's processes, none before it starts."""
        return self._child.pids() if self._child is not None else []

    @property
    def client_arguments(self) -> ClientArguments:
        """The arguments of ``boto3.client("s3", ...)`` for this server."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "region_name": CREDENTIALS["AWS_DEFAULT_REGION"],
        }

    def measure(self, prefix: str) -> tuple[int, int]:
        """Return the number and the bytes of the objects below a prefix."""
        with closing(boto3.client("s3", **self.client_arguments)) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{prefix}/")
            sizes = [stored["Size"] for page in pages for stored in page.get("Contents", ())]
        return len(sizes), sum(sizes)

    def _has_made_bucket(self) -> bool:
        if not listens(self._port):
            return False
        with closing(boto3.client("s3", **self.client_arguments)) as client:
            try:
                client.create_bucket(Bucket=self.bucket)
            except client.exceptions.BucketAlreadyOwnedByYou:
                return True
            except (BotoCoreError, ClientError):
                return False
        return True


class DiskS3Server(S3Server):
    """A server on plain files in its folder, for large objects and high bandwidth. The files outlive it.

    It is built with Go on first use. Raises ``ConfigError`` if Go is missing.
    """

    def __init__(self, folder: Path, bucket: str = "riffle") -> None:
        super().__init__(folder, bucket)
        self._program = ensure_gateway()
        self._files = folder / "files"

    def _command(self) -> list[str]:
        self._files.mkdir(parents=True, exist_ok=True)
        account = ["--access", CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
        address = ["--port", f"127.0.0.1:{self._port}", "--region", CREDENTIALS["AWS_DEFAULT_REGION"]]
        return [str(self._program), *account, *address, "--keep-alive", "--quiet", "posix", str(self._files)]
