"""Where an executor stands: its environment first, then EC2's metadata service, which may be anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from riffle_spark.worker.census import rack_of_environment, tags_of_environment, zone_of_ec2

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


def test_the_zone_is_what_the_metadata_service_says() -> None:
    """A token is got first and handed in with the question."""
    with metadata_service() as address:
        assert zone_of_ec2(address) == "eu-west-1b"


@pytest.mark.parametrize(("token", "status"), [("secret", 403), ("secret", 404), ("", 200), ("a\nb", 200)])
def test_a_service_that_refuses_is_no_rack(token: str, status: int) -> None:
    """No token, no zone, and no error."""
    with metadata_service(token, status) as address:
        assert zone_of_ec2(address) is None


def test_a_service_that_hangs_is_given_up_soon() -> None:
    """A census does not wait for what may never come."""
    with metadata_service(hangs=True) as address:
        started = time.monotonic()
        assert zone_of_ec2(address) is None
        assert time.monotonic() - started < HANG_SECONDS / 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:80"])
def test_where_nobody_answers_there_is_no_rack(address: str) -> None:
    """A machine outside EC2."""
    assert zone_of_ec2(address) is None


def test_rack_and_tags_come_from_the_environment() -> None:
    """Names of tags are in lower case; what is empty is not said."""
    said = {
        "RIFFLE_RACK": "r1",
        "RIFFLE_TAG_ZONE": "A",
        "RIFFLE_TAG_Node_Pool": "spot",
        "RIFFLE_TAG_X": "",
        "PATH": "/",
    }
    assert rack_of_environment(said) == "r1"
    assert tags_of_environment(said) == {"zone": "A", "node_pool": "spot"}
    assert rack_of_environment({"RIFFLE_RACK": ""}) is None
    assert tags_of_environment({"RIFFLE_TAG_": "nameless"}) == {}
