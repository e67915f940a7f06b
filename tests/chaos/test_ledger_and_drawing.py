"""What a chaos run believes in: its ledger finds each kind of wrong, its faults are drawn fairly, its proxy breaks."""

from __future__ import annotations

import http.client
import itertools
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.chaos.drawing import draw, fewer_than
from tests.chaos.events import CHUNK, Plan
from tests.chaos.ledger import Call, Delivery, Ledger, Verdict, compare, ledgers
from tests.chaos.run_of_chaos import committed_share
from tests.chaos.store_proxy import StoreProxy, Trouble
from tests.kit.servers.scripted_server import Answer, ScriptedServer

PLAN = Plan(seed=3, rate=100, users=10, partitions=2, start_ms=1_700_000_003_000)
Rows = list[tuple[int, int, int]]


def call(batch: int, rows: Rows, line: int = 0) -> Call:
    """Return a call of a sink with these rows: place, count, sum."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Call(Delivery("q", line, batch), *columns)


def ledger(*rows: tuple[int, int]) -> Ledger:
    """Return a ledger of two places."""
    counts, sums = np.array(rows, np.int64).T
    return Ledger(counts, sums)


MORE = [call(0, [(0, 1, 5)]), call(1, [(0, 2, 7), (1, 1, 4)])]
"""Three events of place 0, one of place 1."""
TOTALS = [call(0, [(0, 1, 5)]), call(1, [(0, 3, 12), (1, 1, 4)])]
"""The same, told as running totals."""


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        (MORE, Verdict()),
        ([*MORE, call(1, [(1, 1, 4), (0, 2, 7)])], Verdict()),
        (MORE[:1], Verdict(lost=3, wrong=2)),
        (MORE[1:], Verdict(lost=1, wrong=1, missing=1)),
        ([*MORE, call(2, [(1, 2, 8)])], Verdict(doubled=2, wrong=1)),
        ([*MORE, call(0, [(0, 1, 6)])], Verdict(wrong=1, differing=1)),
        ([*MORE, call(1, [(0, 2, 7), (1, 1, 4)], line=1)], Verdict()),
        ([*MORE, call(0, [(0, 3, 12), (1, 1, 4)], line=1)], Verdict()),
        ([*MORE, call(2, [(0, 3, 12)], line=1)], Verdict(doubled=3, wrong=1)),
    ],
    ids=[
        "exact", "the same again", "a batch is lost", "the first is missing", "too many", "again with other rows",
        "rolled back to the first", "rolled back before the first", "a line that gives nothing up",
    ],
)  # fmt: skip
def test_what_is_added_up(calls: list[Call], verdict: Verdict) -> None:
    """Where each row is something more, deliveries count once, and what a rollback gave up does not count."""
    assert compare(ledger((3, 12), (1, 4)), calls, running=False) == verdict


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        (TOTALS, Verdict()),
        ([*TOTALS, TOTALS[1]], Verdict()),
        (TOTALS[:1], Verdict(lost=3, wrong=2)),
        ([*TOTALS, call(2, [(0, 3, 12)])], Verdict(wrong=1)),
        ([call(0, [(0, 2, 5)]), call(1, [(0, 1, 5), (1, 1, 4)]), call(2, [(0, 3, 12)])], Verdict(wrong=1)),
    ],
    ids=["exact", "the same again", "a batch is lost", "told twice", "a total that went back"],
)
def test_what_replaces_what_was(calls: list[Call], verdict: Verdict) -> None:
    """Where rows are running totals the newest counts, and a total that does not grow is wrong."""
    assert compare(ledger((3, 12), (1, 4)), calls, running=True) == verdict


def test_a_ledger_is_what_the_events_come_to() -> None:
    """Both ledgers have every event and its amount, made again from the seed."""
    chunks = [PLAN.chunk(index) for index in range(4)]
    by_user, by_window = ledgers(PLAN, 4 * CHUNK)
    amounts = sum(int(chunk.amounts.sum()) for chunk in chunks)
    assert (by_user.counts.sum(), by_window.counts.sum()) == (4 * CHUNK, 4 * CHUNK)
    assert (by_user.sums.sum(), by_window.sums.sum()) == (amounts, amounts)
    assert by_user.counts[3] == sum(int((chunk.users == 3).sum()) for chunk in chunks)
    assert (by_window.counts > 0).sum() >= 20 * 2000 // 1000 // 10


def test_every_kind_comes_once_before_any_comes_again() -> None:
    """A seed says which faults come and when, each kind as often as the others; another seed says otherwise."""
    kinds = ["a", "b", "c", "d"]
    drawn = list(itertools.islice(draw(7, "store", kinds, (1.0, 2.0)), 12))
    assert Counter(one.kind for one in drawn) == dict.fromkeys(kinds, 3)
    assert {one.kind for one in drawn[:4]} == set(kinds)
    assert all(1.0 <= one.pause_seconds <= 2.0 for one in drawn)
    assert drawn == list(itertools.islice(draw(7, "store", kinds, (1.0, 2.0)), 12))
    assert drawn != list(itertools.islice(draw(8, "store", kinds, (1.0, 2.0)), 12))
    assert fewer_than(3, kinds, Counter(one.kind for one in drawn[:9])).keys() <= set(kinds)
    assert fewer_than(2, ["a", "b"], {"a": 2}) == {"b": 0}


@pytest.mark.parametrize(
    ("kind", "status", "reached"),
    [
        ("error 500", 500, False),
        ("error 503 with Retry-After", 503, False),
        ("reset in mid-request", ConnectionError, False),
        ("error after success", 500, True),
        ("no answer after success", ConnectionError, True),
        ("slow", 200, True),
    ],
)
def test_the_proxy_breaks_puts(
    scripted: ScriptedServer, kind: str, status: int | type[Exception], reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trouble shows the client what it says, and whether the server has done it."""
    monkeypatch.setattr("tests.chaos.store_proxy.SLOW_SECONDS", 0.01)
    scripted.answers[:] = [Answer(200, b"done")]
    proxy = StoreProxy(scripted.endpoint, seed=1)
    try:
        with proxy.with_trouble(Trouble(kind)), closing(_connection(proxy)) as client:
            assert _put(client) == status
        assert proxy.met == {kind: 1}
        assert bool(scripted.requests) == reached
        with closing(_connection(proxy)) as client:
            assert _put(client) == 200
    finally:
        proxy.stop()


def _connection(proxy: StoreProxy) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=10)


def _put(client: http.client.HTTPConnection) -> object:
    """Return the status, or the kind of error."""
    try:
        client.request("PUT", "/a", b"x" * 100)
        answer = client.getresponse()
        answer.read()
    except ConnectionError:
        return ConnectionError
    return answer.status


@pytest.mark.parametrize("kind", ["reset in mid-body", "truncated body"])
def test_the_proxy_breaks_bodies(scripted: ScriptedServer, kind: str) -> None:
    """A body ends in its middle, by a reset or by the end of the connection; a refused one does not even begin."""
    scripted.answers[:] = [Answer(200, b"x" * 1000)]
    proxy = StoreProxy(scripted.endpoint, seed=1)
    broken = ConnectionError if kind == "reset in mid-body" else http.client.IncompleteRead
    try:
        with proxy.with_trouble(Trouble(kind)), closing(_connection(proxy)) as client:
            client.request("GET", "/a")
            with pytest.raises((broken, http.client.IncompleteRead)):
                client.getresponse().read()
        with proxy.refusing(), closing(_connection(proxy)) as client, pytest.raises(ConnectionRefusedError):
            client.request("GET", "/a")
        with closing(_connection(proxy)) as client:
            client.request("GET", "/a")
            assert client.getresponse().read() == b"x" * 1000
    finally:
        proxy.stop()


def test_what_was_begun_and_never_told_of_was_not_committed(tmp_path: Path) -> None:
    """Only the queries that note what they begin count, and what a run before had committed counts as committed."""
    (tmp_path / "totals").write_text("0\n1\n1\n2\n")
    told: dict[str, list[object]] = {
        "totals": [{"decision": "run"}, {"decision": "repeat"}, {"decision": "run"}],
        "windows": [{}] * 9,
    }
    assert committed_share(tmp_path, told) == 0.75
