"""A proxy before a real S3 server that drops ``If-None-Match``: then a put overwrites, as on servers that ignore it."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@contextlib.contextmanager
def careless_proxy(endpoint: str) -> Iterator[str]:
    """Run the proxy on a free loopback port, in a thread; yield its endpoint. It ends with the block."""
    behind = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "if-none-match"}
            with contextlib.closing(http.client.HTTPConnection(behind, timeout=30)) as server:
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"content-length", "transfer-encoding", "connection", "server", "date"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = handle_any  # noqa: N815

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
