"""A service that speaks as EC2's metadata service does, or is silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["HANG_SECONDS", "metadata_service"]

HANG_SECONDS = 60


@contextmanager
def metadata_service(token: str = "secret", status: int = 200, *, hangs: bool = False) -> Iterator[str]:  # noqa: S107
    """Run a service that speaks as EC2's does, or hangs; yield its address."""
    go_on = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, text: str, code: int) -> None:
            if hangs:
                go_on.wait(HANG_SECONDS)
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self) -> None:
            fits = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
            self._answer(token, status if fits else 404)

        def do_GET(self) -> None:
            fits = self.headers["X-aws-ec2-metadata-token"] == token
            known = self.path == "/latest/meta-data/placement/availability-zone"
            self._answer("eu-west-1b\n", (200 if known else 404) if fits else 401)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
