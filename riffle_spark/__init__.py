"""Keep the state of PySpark streaming queries in an object store, with local copies on the executors.

``on`` wraps a query in Spark's own API. ``Stateful`` declares an operator for ``foreachBatch``. Names are loaded on
first use. Importing ``riffle_spark`` imports neither pyspark nor pyarrow.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from riffle_spark.log_lines import escape_log_records

if TYPE_CHECKING:
    from riffle_spark.offline.recovery import adopt, rollback
    from riffle_spark.offline.switch import switch_dispatch
    from riffle_spark.process.blocks.arrow_function import arrow_function
    from riffle_spark.process.merging.aggregates import aggregate, count, first, last, max_, mean, min_, sum_
    from riffle_spark.process.merging.user_aggregate import UserAggregate
    from riffle_spark.protocol.batch.batch_report import BatchReport
    from riffle_spark.protocol.ownership.readiness import KeyPlace, MemberState, Readiness
    from riffle_spark.protocol.ownership.rebalance import RebalanceListener
    from riffle_spark.settings import Settings
    from riffle_spark.spark.compat import StatefulProcessor, StatefulProcessorHandle
    from riffle_spark.spark.configure import configure, warm_up
    from riffle_spark.spark.frames.stream_frame import latest, on
    from riffle_spark.spark.heartbeat import heartbeat
    from riffle_spark.spark.plans.planned_function import top_k, user_aggregate
    from riffle_spark.spark.queries.stream_query import StreamQuery
    from riffle_spark.spark.state_frame import register_state_source, state_frame
    from riffle_spark.spark.stateful import Stateful, StatefulJob, together
    from riffle_spark.spark.transform import transform_with_state, transform_with_state_in_pandas
    from riffle_spark.state_tables.read_state import read_state

__all__ = [
    "BatchReport",
    "KeyPlace",
    "MemberState",
    "Readiness",
    "RebalanceListener",
    "Settings",
    "Stateful",
    "StatefulJob",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "StreamQuery",
    "UserAggregate",
    "adopt",
    "aggregate",
    "arrow_function",
    "configure",
    "count",
    "first",
    "heartbeat",
    "last",
    "latest",
    "max_",
    "mean",
    "min_",
    "on",
    "read_state",
    "register_state_source",
    "rollback",
    "state_frame",
    "sum_",
    "switch_dispatch",
    "together",
    "top_k",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "user_aggregate",
    "warm_up",
]

__version__ = "0.1.0"

_HOMES = {
    "process.merging.aggregates": ("aggregate", "count", "first", "last", "max_", "mean", "min_", "sum_"),
    "process.blocks.arrow_function": ("arrow_function",),
    "process.merging.user_aggregate": ("UserAggregate",),
    "protocol.ownership.rebalance": ("RebalanceListener",),
    "protocol.ownership.readiness": ("KeyPlace", "MemberState", "Readiness"),
    "offline.recovery": ("adopt", "rollback"),
    "protocol.batch.batch_report": ("BatchReport",),
    "offline.switch": ("switch_dispatch",),
    "settings": ("Settings",),
    "spark.compat": ("StatefulProcessor", "StatefulProcessorHandle"),
    "spark.configure": ("configure", "warm_up"),
    "spark.heartbeat": ("heartbeat",),
    "spark.frames.stream_frame": ("latest", "on"),
    "spark.plans.planned_function": ("top_k", "user_aggregate"),
    "spark.queries.stream_query": ("StreamQuery",),
    "spark.state_frame": ("register_state_source", "state_frame"),
    "spark.stateful": ("Stateful", "StatefulJob", "together"),
    "spark.transform": ("transform_with_state", "transform_with_state_in_pandas"),
    "state_tables.read_state": ("read_state",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

escape_log_records()
if sys.platform != "win32":  # no address limits there
    import_module("riffle_spark.state.copies.mapped_bytes").reserve_few_addresses()


def __getattr__(name: str) -> object:
    """Import a public name at its first use. Raises ``AttributeError`` for other names."""
    if name not in _MODULES:
        raise AttributeError(f"module 'riffle_spark' has no attribute {name!r}")
    value = getattr(import_module(f"riffle_spark.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
