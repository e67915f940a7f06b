"""Start the stores of a wrapped query from frames: ``riffle_spark.on(..., initial_state=...)``.

1. At the start of the query the frames are compared with its stores.
2. Before the query's first batch their rows are written as the first version of its stores, without any batch.
3. A root that already has state, also from an earlier start that seeded it, stays as it is. So the argument may stay in
   the code. If the driver dies while it writes, the next start writes all rows again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from riffle_spark.errors import ConfigError
from riffle_spark.offline.command_errors import machine_clocks
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.stages.merged_groups import MergedGroups
from riffle_spark.process.stages.rows_to_state import buffer_folding
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.settings import Settings
from riffle_spark.spark.engine import tick
from riffle_spark.spark.engine.routing import arrow_of, quoted, spark_schema
from riffle_spark.spark.job_operators import JobOperator, JobOperators
from riffle_spark.spark.job_wiring import home_of, settings_of
from riffle_spark.spark.seeds.first_version import FirstRows, commit_first_version, new_draft, write_first_version
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.unknown_names import check_known


def seeder(
    batch: DataFrame,
    declared: Sequence[JobOperator],
    initial: Mapping[str, DataFrame],
    settings: Settings,
    checkpoint: str,
) -> Callable[[SparkSession], None]:
    """Return a function that writes the initial state if the root is empty. Call it before the first batch.

    ``batch`` has the columns of the query's batches, and ``initial`` a frame per store. Raises ``ConfigError`` for
    unknown stores, for operators that cannot start from a frame, and for frames with other columns.
    """
    check_known("store", list(initial), [operator.store for operator in declared], source="initial_state")
    active = settings_of(batch.sparkSession, settings)
    if active.dispatch != "key_group":
        raise ConfigError(
            f"Initial state cannot be loaded with dispatch = {active.dispatch}, because its rows have no partition.",
            remedy="Use dispatch = key_group, or leave initial_state out.",
            where="initial_state",
            id="RIFFLE-1630",
        )
    operators = JobOperators(declared, active, "spark", Weights()).of_batch(batch)
    rows = [_first_rows(operator, initial[operator.store]) for operator in operators if operator.store in initial]
    return _Seeder(rows, settings, checkpoint)


@dataclass(frozen=True)
class _Seeder:
    """Writes the first version of a query's stores, once."""

    rows: Sequence[FirstRows]
    settings: Settings
    checkpoint: str

    def __call__(self, spark: SparkSession) -> None:
        """Write the rows unless the root has a log. Raises ``ConfigError`` if that log lacks one of the stores."""
        settings = settings_of(spark, self.settings)
        home = home_of(spark, settings)
        log = Log(open_store(home.root, home.options), home.root, machine_clocks)
        query_id = tick.query_id_in(spark, self.checkpoint)
        if query_id is None:
            return
        if log.is_started():
            self._check_loaded(log.open(), query_id)
            return
        written = write_first_version(home, settings.key_groups, -1, self.rows)
        commit_first_version(log, written, new_draft(query_id, settings.key_groups))

    def _check_loaded(self, tail: Record | None, query_id: str) -> None:
        """Raise ``ConfigError`` for a store that starts with the query's next batch, because its rows are not written.

        ``tail`` is the newest record. The root of another query is refused later.
        """
        new = [rows.schema.store for rows in self.rows if tail is not None and rows.schema.store not in tail.schemas]
        if new and tail is not None and tail.query_id == query_id:
            # Cause: The operator or its initial state was added to the query after its first start.
            raise ConfigError(
                f"Store {new[0]!r} is new, but its query has already run, so its initial state would be left out.",
                remedy="Start another query with this store and its initial state on an empty root, export the store "
                "(riffle export), and load it into this root (riffle state load). Or remove the store from "
                "initial_state to start it without state.",
                where="initial_state",
                id="RIFFLE-1831",
            )


def _first_rows(operator: Operator, frame: DataFrame) -> FirstRows:
    """Return the rows of a store, from a frame that has its columns by name."""
    compute = operator.compute
    if frame.isStreaming or not isinstance(compute, DistinctRows | MergedGroups | SessionGroups):
        raise ConfigError(
            f"Store {operator.store!r} cannot start from {'a streaming frame' if frame.isStreaming else 'a frame'}.",
            remedy="Pass a static frame for an aggregate, a de-duplication or session windows. A processor takes "
            "initialState in transformWithState.",
            where="initial_state",
            id="RIFFLE-1631",
        )
    folding = buffer_folding(compute) if isinstance(compute, SessionGroups) else None
    expected = operator.schema.part_schema() if folding is None else folding.rows
    missing = [name for name in expected.names if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in expected.names]
    if missing or unknown or len(frame.columns) != len(expected):
        raise ConfigError(
            f"The initial state of store {operator.store!r} "
            f"{'lacks ' + ', '.join(missing) if missing else 'also has ' + ', '.join(unknown or frame.columns)}.",
            remedy=f"Give it the columns {', '.join(f'{field.name} ({field.type})' for field in expected)}.",
            where="initial_state",
            id="RIFFLE-1632",
        )
    selected = frame.select(*[F.col(quoted(name)) for name in expected.names])
    for field, moved in zip(expected, arrow_of(selected.schema, "initial_state"), strict=True):
        if field.type != moved.type:
            raise ConfigError(
                f"Column {field.name!r} of the initial state of store {operator.store!r} is {moved.type}, but the "
                f"query stores {field.type}.",
                remedy=f"Cast it to {spark_schema(expected)[field.name].dataType.simpleString()}.",
                where="initial_state",
                id="RIFFLE-1633",
            )
    return FirstRows(operator.schema, operator.schema_after({}, 1), selected, folding)
