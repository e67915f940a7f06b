"""A real S3 server for the tests of state: a process of its own, spoken to over HTTP."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from riffle_spark.state.options import StoreOptions

START_SECONDS = 60.0
BUCKET = "riffle"


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    bucket: str = BUCKET

    @property
    def options(self) -> StoreOptions:
        """Options to reach the server with."""
        return StoreOptions(s3_endpoint=self.endpoint, s3_region="us-east-1", s3_max_attempts=2)

    def new_root(self) -> str:
        """Return the URL of a root that nobody has used."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Have the server verify signatures and rights, which it does not do otherwise."""
        self._reset_auth("0")
        try:
            yield
        finally:
            self._reset_auth("inf")

    def _reset_auth(self, unchecked_calls: str) -> None:
        url = f"{self.endpoint}/moto-api/reset-auth"
        urllib.request.urlopen(urllib.request.Request(url, unchecked_calls.encode(), method="POST"), timeout=10).close()


@contextlib.contextmanager
def running_server(log: Path, scheme: str = "http") -> Iterator[str]:
    """Run a server process on a free loopback port; yield its endpoint. It ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command + ["--ssl"] * (scheme == "https"), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        _await(process, port, log)
        yield f"{scheme}://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the S3 server ended at once:\n{log.read_text()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the S3 server did not listen within {START_SECONDS} s:\n{log.read_text()}")


@pytest.fixture(scope="session")
def aws_environment() -> Iterator[None]:
    """Credentials and settings for the loopback server alone; nothing of the machine's own is used or asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def s3_server(aws_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server with an empty bucket, for the whole session."""
    with running_server(tmp_path_factory.mktemp("s3") / "server.log") as endpoint:
        boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(
            Bucket=BUCKET
        )
        yield S3Server(endpoint)
