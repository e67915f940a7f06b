"""The garbage collector of a Python worker does not scan imported modules."""

from __future__ import annotations

import subprocess
import sys

WORKER = """
import gc
from riffle_spark.spark.engine.task import _answers

def frozen():
    for _ in _answers(iter(()), str):
        pass
    return gc.get_freeze_count()

first, kept = frozen(), [[] for _ in range(1000)]
print(gc.get_freeze_count() > 10_000, frozen() <= first)
"""


def test_objects_that_exist_after_the_first_task_are_frozen_once() -> None:
    """Objects that exist after a worker's first task are frozen once. Later objects are collected as usual."""
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "True"]
