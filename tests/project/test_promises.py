"""Each promise has one cluster test that runs without ``--all``."""

from __future__ import annotations

import re

from tests.kit.folders import CHECKOUT

_PROMISE = re.compile(r'mark\.promise\("([^"]+)"\)')


def test_six_promises_have_one_test_on_a_cluster_each() -> None:
    """Six promises have one cluster test each, and no other cluster test runs without ``--all``."""
    promises = [name for path in (CHECKOUT / "tests").rglob("test_*.py") for name in _PROMISE.findall(path.read_text())]
    assert len(promises) == len(set(promises)) == 6
