"""Public: run an operator without Spark and without a network, in milliseconds.

``Harness`` runs one operator batch by batch. ``simulation`` and ``simulated_work`` have the parts of a simulated query.
``fixtures`` is a pytest plugin.
"""

from riffle_spark.testing.harness import Harness
from riffle_spark.testing.simulated_work import Aborted, Attempt, Crashed, SimSink, SimWork, Step, routed
from riffle_spark.testing.simulation import InlineBackground, ManualClock, SimCluster, home_of

__all__ = [
    "Aborted",
    "Attempt",
    "Crashed",
    "Harness",
    "InlineBackground",
    "ManualClock",
    "SimCluster",
    "SimSink",
    "SimWork",
    "Step",
    "home_of",
    "routed",
]
