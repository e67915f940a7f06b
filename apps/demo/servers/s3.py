"""An S3 server process over HTTP. Knows moto_server. Does not know what is stored in it."""

from __future__ import annotations

import sys
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from apps.demo.servers.child import Child, Launch, free_port, listens
from apps.demo.servers.server import Server

__all__ = ["S3Server"]

START_TIMEOUT_SECONDS = 60.0
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret", "AWS_DEFAULT_REGION": "us-east-1"}


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

    def _has_made_bucket(self) -> bool:
        if not listens(self._port):
            return False
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            region_name=CREDENTIALS["AWS_DEFAULT_REGION"],
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=1, read_timeout=5),
        )
        try:
            client.create_bucket(Bucket=self.bucket)
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True
