"""Public: run a processor or a block without Spark and without a network, in milliseconds.

``Harness`` feeds one operator batch by batch; what it runs on is in ``simulation`` and ``simulated_work``. ``fixtures``
is a plugin of pytest.
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
