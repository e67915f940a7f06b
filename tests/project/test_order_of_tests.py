"""``./run test`` starts few clusters and few JVMs, so that it stays within its minutes."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.remote import Producer

from tests.kit.folders import CHECKOUT
from tests.kit.order_of_tests import SPLIT_TESTS_MAX, InOrder

_PROMISE = re.compile(r'mark\.promise\("([^"]+)"\)')
TESTS = [
    f"tests/{file}.py::test_{number}"
    for file in ("assign/test_a", "live/test_b", "worker/test_c", "live/test_d", "spark/test_e", "spark/test_f")
    for number in range(8)
]


def test_six_promises_have_one_test_on_a_cluster_each() -> None:
    """No other test of ``./run test`` starts a cluster."""
    promises = [name for path in (CHECKOUT / "tests").rglob("test_*.py") for name in _PROMISE.findall(path.read_text())]
    assert len(promises) == len(set(promises)) == 6


class Process:
    """A process as the scheduler sees it: it gets tests by their numbers, and may be told to end."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.waiting: list[int] = []
        self.done: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: list[int]) -> None:
        """Take tests."""
        assert not self.shutting_down
        self.waiting += numbers

    def shutdown(self) -> None:
        """Take no more tests."""
        self.shutting_down = True


def played(count: int, seed: int = 0) -> list[Process]:
    """Run all tests on some processes, which take turns, or by chance with a seed. Return the processes."""
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _: ["popen"] * count)
    scheduler = InOrder(config, Producer("tests", enabled=False))
    chance = random.Random(seed)
    processes = [Process(f"gw{number}") for number in range(count)]
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, TESTS)
    scheduler.schedule()
    while any(process.waiting for process in processes):
        busy = [process for process in processes if process.waiting]
        process = chance.choice(busy) if seed else min(busy, key=lambda process: len(process.done))
        # A process keeps its last test until it gets another one or ends.
        assert len(process.waiting) > 1 or process.shutting_down
        number = process.waiting.pop(0)
        process.done.append(TESTS[number])
        scheduler.mark_test_complete(process, number)
    assert scheduler.tests_finished
    return processes


def processes_of(folder: str, processes: list[Process]) -> set[str]:
    """Return the names of the processes that ran tests of a folder."""
    return {process.gateway.id for process in processes for test in process.done if f"/{folder}/" in test}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_each_test_runs_once_and_those_of_spark_in_two_processes(count: int, seed: int) -> None:
    """However fast each process is."""
    processes = played(count, seed)
    assert sorted(test for process in processes for test in process.done) == sorted(TESTS)
    assert sum(any("/spark/" in test for test in process.done) for process in processes) <= 2


def test_one_of_three_processes_begins_with_the_tests_of_clusters() -> None:
    """These wait much. The others run them last, when nothing else is left, and share the tests of Spark."""
    first, *others = sorted(played(3), key=lambda process: "/live/" not in process.done[0])
    is_live = ["/live/" in test for test in first.done]
    assert is_live == sorted(is_live, reverse=True)
    assert not any("/spark/" in test for test in first.done)
    for process in others:
        is_live = ["/live/" in test for test in process.done]
        assert is_live == sorted(is_live)
        assert any("/spark/" in test for test in process.done)


def test_a_long_file_of_spark_is_several_runs() -> None:
    """Two processes share a file of eight tests."""
    assert SPLIT_TESTS_MAX < 8
    counts = [sum("test_e" in test for test in process.done) for process in played(3)]
    assert sorted(counts) == [0, 8 - SPLIT_TESTS_MAX, SPLIT_TESTS_MAX]
