"""An HTTP server that gives the answers of a test, for answers that a real S3 server cannot be made to give."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import AzureOptions, GcsOptions, S3Options, StoreOptions
from riffle_spark.state.objects.store import ObjectStore


@dataclass(frozen=True)
class Answer:
    """The server's answer to one request.

    A ``broken`` answer announces more bytes than the server sends, so the client waits until its read timeout. With the
    header ``Connection: close`` the client does not wait.
    """

    status: int
    body: bytes = b""
    broken: bool = False
    silent_seconds: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    length: str | None = None
    """The announced length, if it differs from that of the body. The answer to a HEAD has no body."""


def refusal(status: int, code: str, message: str = "no") -> Answer:
    """Return the answer of an S3 server with an error code."""
    return Answer(
        status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    )


@dataclass(frozen=True)
class Request:
    """A request that the scripted server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def access_key(self) -> str:
        """The access key that signed the request."""
        return self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]


@dataclass
class ScriptedServer:
    """An HTTP server that gives the answers of a list, and repeats the last one. It records all requests.

    If ``respond`` is set, it makes the answers instead.
    """

    answers: list[Answer] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    """All requests with their bodies."""
    respond: Callable[[Request], Answer] | None = None
    ports: list[int] = field(default_factory=list)
    """The client's port of each request. It identifies the connection."""
    endpoint: str = ""

    def store(
        self, *answers: Answer, attempts: int = 2, patience_seconds: float = 0.0, root: str = "s3://riffle/root"
    ) -> ObjectStore:
        """Return a store to which the server gives these answers."""
        self.answers[:] = answers
        return open_store(
            root,
            StoreOptions(
                s3=S3Options(endpoint=self.endpoint),
                gcs=GcsOptions(endpoint=self.endpoint),
                azure=AzureOptions(endpoint=self.endpoint),
                max_attempts=attempts,
                read_timeout_seconds=0.3,
                patience_seconds=patience_seconds,
            ),
        )

    def next(self) -> Answer:
        """Return the answer of the list for the newest request."""
        return self.answers[min(len(self.requests), len(self.answers)) - 1]


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    """Python's default of 5 is less than the connections that a store opens at once.

    The kernel repeats a refused connection only after a second.
    """


@contextlib.contextmanager
def scripted_server(respond: Callable[[Request], Answer] | None = None) -> Iterator[ScriptedServer]:
    """Run a scripted server in a thread on a free loopback port. It ends with the block."""
    script = ScriptedServer(respond=respond)

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, dict(self.headers), body)
            script.seen.append(request)
            script.requests.append((self.command, self.path, dict(self.headers)))
            script.ports.append(self.client_address[1])
            answer = script.next() if script.respond is None else script.respond(request)
            time.sleep(answer.silent_seconds)
            with contextlib.suppress(OSError):
                self.send_response(answer.status)
                self.send_header("Content-Length", answer.length or str(len(answer.body) + 10 * answer.broken))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = _Server(("127.0.0.1", 0), Handler)
    script.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()


def put_beside_fork(store: ObjectStore) -> None:
    """Put two objects, one more in a forked child, and one more in this process."""
    store.put_if_absent("log/1", b"abc")
    store.put_if_absent("log/2", b"abc")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            store.put_if_absent("log/3", b"abc")
        os._exit(0)
    os.waitpid(child, 0)
    store.put_if_absent("log/4", b"abc")
