"""Frames of the state of a root, on all lines of Spark."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.spark.engine.routing import spark_schema
from riffle_spark.spark.job_wiring import settings_of
from riffle_spark.spark.state_request import StateRequest, read_pieces
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state_tables.requested_keys import Keys
from riffle_spark.state_tables.table_pieces import ChangesPiece, TablePiece
from riffle_spark.worker.member_folders import options_of

_NUMBER = "piece"


def state_frame(  # noqa: PLR0913 - one argument for each thing that may be chosen
    spark: SparkSession,
    root: str,
    store: str | None = None,
    *,
    variable: str | None = None,
    version: int | str | None = None,
    time: datetime | str | None = None,
    keys: Keys | None = None,
    key_groups: Iterable[int] | None = None,
    changes: tuple[int, int | None] | None = None,
    options: StoreOptions | None = None,
    encryption_keys: str | None = None,
) -> DataFrame:
    """Return a frame with the state of a store, or with its changes between two batches.

    The rows have the columns of ``read_state`` (docs/read-state.md). All tasks read the version that was the newest, or
    was chosen, when this function was called. A frame may be used while this version is retained.

    Args:
        spark: the session.
        root: where the state is stored.
        store: the name of the store. It may be left out if the query has only one.
        variable: as in ``read_state``.
        version: the batch whose state is read, or ``savepoint:NAME``. By default the newest.
        time: the newest state that was committed at this time or before.
        keys: only the rows of these keys.
        key_groups: only the rows of these key-groups.
        changes: the first and the last batch of a change feed, both inclusive; ``None`` for the newest. The frame then
            has the columns ``batch_id`` and ``change_type`` (``update`` or ``delete``) in place of ``version``.
        options: how to reach the object store. By default as set in ``spark.riffle.*`` of the session and in
            ``conf/riffle.toml``.
        encryption_keys: the setting of the same name. The executors read the keys from the same source.

    Returns:
        The frame. Its tasks raise the errors of ``read_state``.

    Raises:
        ConfigError: as ``read_state``, and if the batches of a change feed are not retained.

    Example:
        >>> state_frame(spark, "s3://bucket/state/visits", "visits").count()  # doctest: +SKIP
    """
    request = StateRequest(
        root,
        store,
        variable,
        version,
        time,
        keys,
        key_groups=None if key_groups is None else tuple(key_groups),
        has_changes=changes is not None,
        first_batch=None if changes is None else changes[0],
        last_batch=None if changes is None else changes[1],
        options=options or options_of(settings_of(spark, None)),
        encryption_keys=encryption_keys,
    )
    pieces = request.split()
    numbers = spark.range(0, len(pieces), 1, max(1, len(pieces))).withColumnRenamed("id", _NUMBER)
    return numbers.mapInArrow(partial(_read_numbered, pieces), spark_schema(request.schema))


def _read_numbered(
    pieces: "Sequence[TablePiece | ChangesPiece]", batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the pieces whose numbers the batches of a task have."""
    for batch in batches:
        yield from read_pieces([pieces[number] for number in batch.column(0).to_pylist()])


def register_state_source(spark: SparkSession) -> None:
    """Make the data source ``riffle_state`` known to a session of Spark 4, for ``spark.read.format("riffle_state")``.

    Raises ``ConfigError`` on Spark 3.5, which has no data sources in Python. ``state_frame`` works there.
    """
    try:
        from riffle_spark.spark.state_source import StateSource
    except ImportError as error:
        raise ConfigError(
            "This Spark has no data sources in Python.",
            remedy="Use riffle_spark.state_frame, or Spark 4.",
            where="riffle_state",
            id="RIFFLE-1566",
        ) from error
    spark.dataSource.register(StateSource)
