"""Real servers for Google Cloud Storage and Azure: fake-gcs-server and Azurite, in memory, on free loopback ports."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from apps.demo.gateway import ensure_program
from apps.demo.servers import Child, Launch, Server, free_port
from riffle_spark.state.objects.azure_client import _SharedKey  # private: the store creates no containers
from riffle_spark.state.objects.options import AzureOptions, GcsOptions, StoreOptions
from tests.kit.npm import ensure_npm

__all__ = ["AZURE_ACCOUNT", "AZURE_KEY", "AzureServer", "CloudServer", "GcsServer", "TokenServer"]

GCS_SERVER = "github.com/fsouza/fake-gcs-server@v1.56.1"
"""Versions before July 2026 ignore ``ifGenerationMatch``."""
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public account and key of Azurite."""
START_SECONDS = 60.0


class CloudServer(Server):
    """A server with one bucket or container, ``riffle``.

    If it gets a folder ``tls`` with a certificate, it uses TLS.
    """

    name: str
    bucket = "riffle"

    def __init__(self, folder: Path, tls: Path | None = None) -> None:
        self._port = free_port()
        self._tls = tls
        self._folder = folder
        self._child: Child | None = None
        self.address = f"{'https' if tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def endpoint(self) -> str:
        """The value of the setting for the endpoint."""
        return self.address

    @property
    def options(self) -> StoreOptions:
        """Options with which a client reaches the server."""
        raise NotImplementedError

    def new_root(self) -> str:
        """Return the URL of an unused root."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command of the server."""
        raise NotImplementedError

    def make_bucket(self) -> None:
        """Make the bucket. Raises ``OSError`` until the server listens."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the server without waiting for it."""
        command = self.command()
        self._child = Child(Launch(self.name, command, self._folder / f"{self.name}.log", grace_seconds=1))

    def wait_until_ready(self) -> None:
        """Wait until the bucket exists."""
        assert self._child is not None
        self._child.wait_until(self._has_made_bucket, START_SECONDS)

    def stop(self) -> None:
        """Stop the server. Its objects are lost."""
        if self._child is not None:
            self._child.stop()

    @property
    def _verify(self) -> str | bool:
        return str(self._tls / "ca.pem") if self._tls else True

    def _has_made_bucket(self) -> bool:
        try:
            self.make_bucket()
        except OSError:
            return False
        return True


class GcsServer(CloudServer):
    """fake-gcs-server, which is built with Go on first use. It ignores the tokens that a ``TokenServer`` issues."""

    name = "fake-gcs-server"

    @property
    def options(self) -> StoreOptions:
        """Options with which a client reaches the server."""
        return StoreOptions(gcs=GcsOptions(endpoint=self.endpoint), max_attempts=2, patience_seconds=0)

    def new_root(self) -> str:
        """Return the URL of an unused root."""
        return f"gs://{self.bucket}/{uuid.uuid4().hex}"

    def command(self) -> list[str]:
        """Return the command of the server."""
        tls = ["-cert-location", f"{self._tls}/server.pem", "-private-key-location", f"{self._tls}/server.key"]
        return [
            str(ensure_program(GCS_SERVER)),
            *("-backend", "memory", "-log-level", "warn"),
            *("-scheme", "https" if self._tls else "http", *(tls if self._tls else [])),
            *("-host", "127.0.0.1", "-port", str(self._port), "-public-host", f"127.0.0.1:{self._port}"),
        ]

    def make_bucket(self) -> None:
        """Make the bucket."""
        answer = requests.post(
            f"{self.address}/storage/v1/b?project=riffle", json={"name": self.bucket}, timeout=10, verify=self._verify
        )
        assert answer.status_code in {200, 409}, answer.text


class AzureServer(CloudServer):
    """Azurite's Blob server, which is installed with npm on first use. It checks signatures."""

    name = "azurite"

    @property
    def endpoint(self) -> str:
        """The URL of the account."""
        return f"{self.address}/{AZURE_ACCOUNT}"

    @property
    def options(self) -> StoreOptions:
        """Options with which a client reaches the server."""
        return StoreOptions(azure=AzureOptions(endpoint=self.endpoint), max_attempts=2, patience_seconds=0)

    def new_root(self) -> str:
        """Return the URL of an unused root."""
        return f"abfss://{self.bucket}@{AZURE_ACCOUNT}.dfs.core.windows.net/{uuid.uuid4().hex}"

    def command(self) -> list[str]:
        """Return the command of the server."""
        tls = ["--cert", f"{self._tls}/server.pem", "--key", f"{self._tls}/server.key"] if self._tls else []
        program = ensure_npm("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
        return [
            *("node", str(program), "--inMemoryPersistence", "--silent", "--disableTelemetry"),
            *("--blobHost", "127.0.0.1", "--blobPort", str(self._port), *tls),
        ]

    def make_bucket(self) -> None:
        """Make the container with a signed request."""
        answer = requests.put(
            f"{self.endpoint}/{self.bucket}?restype=container",
            auth=_SharedKey(AZURE_ACCOUNT, AZURE_KEY),
            timeout=10,
            verify=self._verify,
        )
        assert answer.status_code in {201, 409}, answer.text


class TokenServer:
    """Issues access tokens to the service account of the file ``credentials``."""

    def __init__(self, credentials: Path) -> None:
        self.credentials = credentials
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Write the file ``credentials`` and serve tokens in a thread."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Tokens)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        # Each client checks the key on loading: 6 ms with this key size, 40 ms with the usual one.
        key = rsa.generate_private_key(public_exponent=65537, key_size=1024).private_bytes(  # noqa: S505 - of a test
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account",
            "project_id": "riffle",
            "client_email": "riffle@riffle.iam.gserviceaccount.com",
            "private_key": key.decode(),
            "token_uri": f"http://127.0.0.1:{self._server.server_port}/token",
        }
        self.credentials.write_text(json.dumps(account))

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Tokens(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"access_token": "issued", "expires_in": 3600, "token_type": "Bearer"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""
