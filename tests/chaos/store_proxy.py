"""A proxy for a real S3 server that breaks answers on request.

Each kind of trouble meets a random share of the requests. ``refusing`` closes the port.
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

__all__ = ["TROUBLES", "StoreProxy", "Trouble"]

TROUBLES: Final = (
    "error 500",
    "error 503 with Retry-After",
    "reset in mid-body",
    "reset in mid-request",
    "truncated body",
    "slow",
    "error after success",
    "no answer after success",
)
"""The kinds of trouble. A truncated body ends regularly before its announced length."""
SLOW_SECONDS = 5.0
BEHIND_TIMEOUT_SECONDS = 60.0
_HOPS = {"content-length", "transfer-encoding", "connection", "server", "date"}
_RESET = struct.pack("ii", 1, 0)  # with this option close() sends RST


class Trouble(NamedTuple):
    """A kind of trouble, and the share of requests that meet it."""

    kind: str
    share: float = 1.0


class _Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes
    length: str


class StoreProxy:
    """A proxy that listens on one loopback port. ``met`` counts the requests that met each trouble."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.met: Counter[str] = Counter()
        self.trouble: Trouble | None = None
        self._behind = urlsplit(endpoint).netloc
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server: _Server | None = None
        self._serve(0)
        self._port: int = self._running.server_port

    @property
    def endpoint(self) -> str:
        """The address of the proxy for clients."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def _running(self) -> _Server:
        assert self._server is not None
        return self._server

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Close the port and every connection for the length of the block."""
        self.stop()
        self.met["refused connections"] += 1
        try:
            yield
        finally:
            self._serve(self._port)

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            open_connections = list(self._open)
        for connection in open_connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def drawn(self) -> str | None:
        """Return the trouble of the current request, or ``None``."""
        with self._lock:
            trouble = self.trouble
            if trouble is None or self._chance.random() >= trouble.share:
                return None
            return trouble.kind

    def note(self, kind: str) -> None:
        """Count a request that met trouble."""
        with self._lock:
            self.met[kind] += 1

    def connected(self, connection: socket.socket, *, at_once: bool) -> None:
        """Add a new connection, or remove a closed one."""
        with self._lock:
            (self._open.add if at_once else self._open.discard)(connection)

    def forward(self, command: str, path: str, body: bytes, headers: dict[str, str]) -> _Answer:
        """Send the request to the server. Return its answer."""
        with closing(http.client.HTTPConnection(self._behind, timeout=BEHIND_TIMEOUT_SECONDS)) as server:
            server.request(command, path, body, headers)
            answer = server.getresponse()
            data = answer.read()
        answer_headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOPS]
        return _Answer(answer.status, answer_headers, data, answer.getheader("Content-Length") or str(len(data)))

    def _serve(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler, self)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[_Handler], proxy: StoreProxy) -> None:
        self.proxy = proxy
        super().__init__(address, handler)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection without a regular end of data, so that it can be a reset."""
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients, because breaking connections is the purpose of the proxy."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.proxy.connected(self.connection, at_once=True)

    def finish(self) -> None:
        self.server.proxy.connected(self.connection, at_once=False)
        super().finish()

    def handle_any(self) -> None:
        proxy = self.server.proxy
        kind = proxy.drawn()
        length = int(self.headers.get("Content-Length", 0))
        if kind == "reset in mid-request" and length:
            proxy.note(kind)
            self.rfile.read(length // 2)
            return self._reset()
        body = self.rfile.read(length)
        if kind == "slow":
            proxy.note(kind)
            time.sleep(SLOW_SECONDS)
        if kind in {"error 500", "error 503 with Retry-After"}:
            proxy.note(kind)
            return self._say(_refusal(kind))
        try:
            answer = proxy.forward(self.command, self.path, body, dict(self.headers.items()))
        except OSError:
            return self._reset()
        return self._answered(answer, kind)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    def _answered(self, answer: _Answer, kind: str | None) -> None:
        proxy = self.server.proxy
        changes = self.command in {"PUT", "POST"} and answer.status < 300
        if kind == "error after success" and changes:
            proxy.note(kind)
            return self._say(_refusal("error 500"))
        if kind == "no answer after success" and changes:
            proxy.note(kind)
            return self._reset()
        if kind in {"reset in mid-body", "truncated body"} and len(answer.body) > 1 and self.command == "GET":
            proxy.note(kind)
            self._say(answer._replace(body=answer.body[: len(answer.body) // 2]))
            return self._reset() if kind == "reset in mid-body" else self._end()
        return self._say(answer)

    def _say(self, answer: _Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", answer.length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _reset(self) -> None:
        with suppress(OSError):
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._end()

    def _end(self) -> None:
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _refusal(kind: str) -> _Answer:
    status = 503 if "503" in kind else 500
    code = "SlowDown" if status == 503 else "InternalError"
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up</Message></Error>".encode()
    headers = [("Retry-After", "1")] if status == 503 else []
    return _Answer(status, headers, body, str(len(body)))
