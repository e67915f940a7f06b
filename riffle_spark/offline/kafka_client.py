"""Connections to Kafka's brokers without Spark."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kafka import KafkaAdminClient

_LIMITS = ("request_timeout_ms", "bootstrap_timeout_ms")


@contextlib.contextmanager
def administrator(servers: Sequence[str], seconds: float) -> Iterator[KafkaAdminClient]:
    """Yield a client of the cluster. It waits at most ``seconds`` to connect and for each answer.

    At least one of the servers must accept connections: otherwise Kafka's client would leak its thread.
    """
    limits = {name: int(seconds * 1000) for name in _LIMITS if name in KafkaAdminClient.DEFAULT_CONFIG}
    admin = _Administrator(bootstrap_servers=list(servers), **limits)
    try:
        yield admin
    finally:
        admin.close()


class _Administrator(KafkaAdminClient):  # type: ignore[misc]
    """A client that ends its thread if the server refuses it."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except BaseException:
            self._closed = False  # close() needs it; the base class sets it at the end of __init__
            with contextlib.suppress(Exception):
                self.close()
            raise


def accepts_connections(server: str, seconds: float) -> bool:
    """Return whether a server, as ``host:port``, accepts connections."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), seconds):
            return True
    except (OSError, ValueError, OverflowError):
        return False
