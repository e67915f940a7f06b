"""Public: run a processor or a block without Spark and without a network, in milliseconds.

``Harness`` feeds one operator batch by batch; what it runs on is in ``simulation``.
"""

from riffle_spark.testing.harness import Aborted, Harness
from riffle_spark.testing.simulation import (
    Attempt,
    InlineBackground,
    ManualClock,
    SimCluster,
    SimSink,
    SimWork,
    home_of,
    routed,
)

__all__ = [
    "Aborted",
    "Attempt",
    "Harness",
    "InlineBackground",
    "ManualClock",
    "SimCluster",
    "SimSink",
    "SimWork",
    "home_of",
    "routed",
]
