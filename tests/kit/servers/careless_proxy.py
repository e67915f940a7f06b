"""Proxies in front of a real server.

One drops the condition of puts, so that a put overwrites an object, as on servers that ignore the condition. The other
denies every call that is not allowed.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from tests.kit.servers.scripted_server import Answer, Request, scripted_server

_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>not in the policy</Message></Error>"
_HOPS = {"content-length", "transfer-encoding", "connection", "server", "date"}
Allows = Callable[[str, str, bytes], bool]
"""A function of method, path with query, and body that returns whether a call may pass."""


@contextlib.contextmanager
def careless_proxy(endpoint: str) -> Iterator[str]:
    """Run a proxy that drops the conditions of puts, in a thread on a free loopback port. Yield its endpoint."""
    with proxy(endpoint, lambda *_: True, frozenset({"if-none-match", "ifGenerationMatch"})) as address:
        yield address


@contextlib.contextmanager
def proxy(endpoint: str, allows: Allows, drops: frozenset[str] = frozenset()) -> Iterator[str]:
    """Run a proxy that denies calls which are not allowed, and drops some headers and query parameters.

    Yield its endpoint.
    """
    behind = urlsplit(endpoint).netloc

    def respond(request: Request) -> Answer:
        if not allows(request.method, request.path, request.body):
            return Answer(403, b"" if request.method == "HEAD" else _DENIED)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in drops}
        with contextlib.closing(http.client.HTTPConnection(behind, timeout=30)) as server:
            server.request(request.method, _without(request.path, drops), request.body, headers)
            answer = server.getresponse()
            data = answer.read()
        passed = {name: value for name, value in answer.getheaders() if name.lower() not in _HOPS}
        return Answer(answer.status, data, headers=passed, length=answer.getheader("Content-Length"))

    with scripted_server(respond) as server:
        yield server.endpoint


def _without(path: str, drops: frozenset[str]) -> str:
    """Return a path without some of its query parameters."""
    before, mark, query = path.partition("?")
    return before + mark + "&".join(part for part in query.split("&") if part.partition("=")[0] not in drops)
