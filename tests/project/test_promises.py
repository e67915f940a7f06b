"""Each promise has one test on a cluster that ``./run test`` runs."""

from __future__ import annotations

import re

from tests.kit.folders import CHECKOUT

_PROMISE = re.compile(r'mark\.promise\("([^"]+)"\)')


def test_six_promises_have_one_test_on_a_cluster_each() -> None:
    """No other test of ``./run test`` starts a cluster."""
    promises = [name for path in (CHECKOUT / "tests").rglob("test_*.py") for name in _PROMISE.findall(path.read_text())]
    assert len(promises) == len(set(promises)) == 6
