"""A real S3 server as a process, which can check credentials or use TLS."""

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

from riffle_spark.state.objects.options import S3Options, StoreOptions

START_SECONDS = 60.0
BUCKET = "riffle"


@dataclass(frozen=True)
class ObjectServer:
    """A running server with one bucket."""

    endpoint: str
    bucket: str = BUCKET

    @property
    def options(self) -> StoreOptions:
        """Options with which a client reaches the server."""
        return StoreOptions(
            s3=S3Options(endpoint=self.endpoint, region="us-east-1"), max_attempts=2, patience_seconds=0
        )

    def new_root(self) -> str:
        """Return the URL of an unused root."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Make the server verify signatures and permissions during a block. By default it does not."""
        self._reset_auth("0")
        try:
            yield
        finally:
            self._reset_auth("inf")

    def _reset_auth(self, unchecked_calls: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", unchecked_calls.encode())
        request.add_header("Content-Type", "text/plain")  # otherwise the server parses the body as a form
        urllib.request.urlopen(request, timeout=10).close()


@contextlib.contextmanager
def running_server(log: Path, scheme: str = "http", tls: Path | None = None) -> Iterator[str]:
    """Run a server process on a free loopback port, and yield its endpoint. The server ends with the block.

    With ``https`` it uses the certificate of ``tls`` or a self-signed one.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if tls is not None:
        command += ["--ssl-cert", f"{tls}/server.pem", "--ssl-key", f"{tls}/server.key"]
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
