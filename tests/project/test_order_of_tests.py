"""Several processes keep the order of the tests: what is fast comes first, also where a file has slow tests."""

from __future__ import annotations

import re

import pytest

from tests.kit.folders import CHECKOUT

pytest_plugins = ["pytester"]

CONFTEST = """
from tests.kit.order_of_tests import InOrder

def pytest_xdist_make_scheduler(config, log):
    return InOrder(config, log)

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "slow" in item.name)
"""
FAST_AND_SLOW = "def test_fast(): pass\ndef test_slow(): pass\ndef test_fast_too(): pass\n"
_PROMISE = re.compile(r'mark\.promise\("([^"]+)"\)')
ORDER = (("a", "fast"), ("a", "fast_too"), ("b", "fast"), ("b", "fast_too"), ("a", "slow"), ("b", "slow"))


def test_slow_tests_of_a_file_come_after_the_fast_ones_of_all(pytester: pytest.Pytester) -> None:
    """A process gets the fast tests of one file, then of the next, and only then the slow ones."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_a=FAST_AND_SLOW, test_b=FAST_AND_SLOW)
    result = pytester.runpytest_subprocess("-n", "1", "-v", "-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6)
    names = [line.split()[-1] for line in result.outlines if " PASSED " in line]
    assert names == [f"test_{file}.py::test_{name}" for file, name in ORDER]


def test_six_promises_have_one_test_on_a_cluster_each() -> None:
    """``./run test`` starts no other cluster, so that it stays within its minutes."""
    promises = [name for path in (CHECKOUT / "tests").rglob("test_*.py") for name in _PROMISE.findall(path.read_text())]
    assert len(promises) == len(set(promises)) == 6
