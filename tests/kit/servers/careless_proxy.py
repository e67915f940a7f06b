"""Proxies before a real server: one drops the condition of puts, so that a put overwrites, as on servers that ignore
it; one denies every call that is not allowed.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>not in the policy</Message></Error>"
Allows = Callable[[str, str, bytes], bool]
"""Whether a call may pass, by its method, path with query, and body."""


@contextlib.contextmanager
def careless_proxy(endpoint: str) -> Iterator[str]:
    """Run the careless one on a free loopback port, in a thread; yield its endpoint. It ends with the block."""
    with proxy(endpoint, lambda *_: True, frozenset({"if-none-match", "ifGenerationMatch"})) as address:
        yield address


@contextlib.contextmanager
def proxy(endpoint: str, allows: Allows, drops: frozenset[str] = frozenset()) -> Iterator[str]:
    """Run a proxy that lets pass what is allowed, without some headers and parameters of queries."""
    behind = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in drops}
            if not allows(self.command, self.path, body):
                self.answer(403, [], b"" if self.command == "HEAD" else _DENIED)
                return
            with contextlib.closing(http.client.HTTPConnection(behind, timeout=30)) as server:
                server.request(self.command, _without(self.path, drops), body, headers)
                answer = server.getresponse()
                data = answer.read()
            self.answer(answer.status, answer.getheaders(), data)

        def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "server", "date"}:
                    self.send_header(name, value)
            length = next((value for name, value in headers if name.lower() == "content-length"), str(len(data)))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _without(path: str, drops: frozenset[str]) -> str:
    """Return a path without some parameters of its query."""
    before, mark, query = path.partition("?")
    return before + mark + "&".join(part for part in query.split("&") if part.partition("=")[0] not in drops)
