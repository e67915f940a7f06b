"""Public: test operators without Spark, in milliseconds, and wrapped queries in local mode.

``Harness`` runs one operator batch by batch. ``run`` runs a wrapped query. ``simulation`` and ``simulated_work`` have
the parts of a simulated query. ``fixtures`` is a pytest plugin.
"""

from riffle_spark.testing.harness import Harness
from riffle_spark.testing.query_runs import Batch, run
from riffle_spark.testing.simulated_work import Aborted, Attempt, Crashed, SimSink, SimWork, Step, routed
from riffle_spark.testing.simulation import InlineBackground, ManualClock, SimCluster, home_of

__all__ = [
    "Aborted",
    "Attempt",
    "Batch",
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
    "run",
]
