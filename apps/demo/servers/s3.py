"""An S3 server process over HTTP. Knows moto_server. Does not know what is stored in it."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TypedDict

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from apps.demo.servers.child import Child, Launch, free_port, listens
from apps.demo.servers.server import Server

__all__ = ["S3Server"]

START_TIMEOUT_SECONDS = 60.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class ClientArguments(TypedDict):
    """How boto3 spells an address and credentials."""

    endpoint_url: str
    aws_access_key_id: str
    aws_secret_access_key: str
    region_name: str


class S3Server(Server):
    """One server with one bucket, on a free loopback port. ``environment`` is what its clients need."""

    def __init__(self, folder: Path, bucket: str = "riffle") -> None:
        self.bucket = bucket
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.environment = dict(CREDENTIALS)
        self._log = folder / "s3.log"
        self._child: Child | None = None

    def start(self) -> None:
        """Begin to start."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        self._child = Child(Launch("the S3 server", command, self._log, grace_seconds=1))

    def wait_until_ready(self) -> None:
        """Wait until the bucket is there."""
        assert self._child is not None, "start it first"
        self._child.wait_until(self._has_made_bucket, START_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """End the process; what was stored is gone with it."""
        if self._child is not None:
            self._child.stop()

    @property
    def client_arguments(self) -> ClientArguments:
        """What ``boto3.client("s3", ...)`` needs to reach it."""
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            "region_name": CREDENTIALS["AWS_DEFAULT_REGION"],
        }

    def measure(self, prefix: str) -> tuple[int, int]:
        """How many objects lie below a prefix, and their bytes."""
        with closing(boto3.client("s3", **self.client_arguments)) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{prefix}/")
            sizes = [found["Size"] for page in pages for found in page.get("Contents", ())]
        return len(sizes), sum(sizes)

    def _has_made_bucket(self) -> bool:
        if not listens(self._port):
            return False
        with closing(boto3.client("s3", **self.client_arguments)) as client:
            try:
                client.create_bucket(Bucket=self.bucket)
            except (BotoCoreError, ClientError):
                return False
        return True
