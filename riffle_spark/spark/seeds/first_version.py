"""Write the first version of a query's stores from frames, and commit it with one record.

1. Spark computes the key-group of each row. One task gets all rows of a key-group, one key-group after the other.
2. The task makes the state, one key-group at a time, and puts a snapshot of each. No row reaches the driver.
3. The driver appends one record that lists all snapshots. Without this record they have no effect. After a crash the
   snapshots are written again, and a later scan deletes those of the first try.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame

from riffle_spark import keygroups
from riffle_spark.messages.first_version_orders import ANSWER_COLUMNS, FirstVersionOrder, WrittenKeyGroup
from riffle_spark.messages.slot_orders import Home
from riffle_spark.process.stages.rows_to_state import BufferFolding, state_of_rows
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.spark.engine.jvm import context
from riffle_spark.spark.engine.task import with_offsets
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry, Head, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import StoreSchema, with_encryption_key

_TASKS_PER_CORE = 4
_KEY_GROUP = "key_group"


@dataclass(frozen=True)
class FirstRows:
    """The rows of a store: a frame with the columns ``names``, by position.

    ``text`` is the store's recorded schema. The rows are state rows, or with ``folding`` the buffers of an aggregate.
    """

    schema: StoreSchema
    text: Mapping[str, str]
    frame: DataFrame
    folding: BufferFolding | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns of the rows, in order."""
        names: list[str] = (self.schema.part_schema() if self.folding is None else self.folding.rows).names
        return names


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """A written first version: the entries of all key-groups, and the schemas and row counts of the stores."""

    entries: Mapping[Address, Entry]
    schemas: Mapping[str, Mapping[str, str]]
    row_counts: Mapping[str, int]


def write_first_version(home: Home, total: int, version: int, stores: Sequence[FirstRows]) -> FirstVersion:
    """Write the snapshots of ``stores`` below the root of ``home``, for a record of ``version``.

    ``total`` is the number of key-groups. Each store is one Spark job. Raises Spark's error if a task fails.
    """
    entries = dict[Address, Entry]()
    schemas = dict[str, Mapping[str, str]]()
    row_counts = dict[str, int]()
    for rows in stores:
        text = with_encryption_key(rows.text, home.key) if home.key else rows.text
        store = rows.schema.store
        order = FirstVersionOrder(home, store, rows.schema.to_text(), total, version, paths.FIRST_VERSION_EPOCH)
        schemas[store] = text
        row_counts[store] = 0
        for written in _write_store(order, rows):
            head = Head(version, written.snapshot_id.partition("-")[2])
            snapshot = Snapshot(written.snapshot_id, head, written.length, written.checksum, written.rows)
            entries[store, written.key_group] = Entry(snapshot, timer_ms=written.timer_ms)
            row_counts[store] += written.state_rows
    return FirstVersion(entries, schemas, row_counts)


def _write_store(order: FirstVersionOrder, rows: FirstRows) -> list[WrittenKeyGroup]:
    """Write the snapshots of a store in one Spark job, and return them."""
    columns = [f"c{index}" for index in range(len(rows.names))]
    routing = [columns[rows.names.index(name)] for name in rows.schema.routing]
    frame = rows.frame.toDF(*columns)
    key_group = f"{keygroups.spark_expression(routing, order.total)} as {_KEY_GROUP}"
    tasks = min(order.total, _TASKS_PER_CORE * context(frame.sparkSession).defaultParallelism)
    placed = frame.selectExpr(key_group, *columns).repartition(tasks, _KEY_GROUP).sortWithinPartitions(_KEY_GROUP)
    answers = placed.mapInArrow(_task(order, rows.names, rows.folding), ANSWER_COLUMNS).collect()  # type: ignore[arg-type] # an iterator is iterable
    return [
        WrittenKeyGroup(row[0], row[1], row[2], int(row[3]), row[4], row[5], row[6])
        for row in sorted(answers, key=lambda row: int(row[0]))
    ]


def _task(
    order: FirstVersionOrder, names: Sequence[str], folding: BufferFolding | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``mapInArrow`` that writes the key-groups of a task. It answers each with a row."""
    text = order.to_json()
    columns = list(names)
    return lambda batches: _write_task(text, columns, folding, batches)


def _write_task(
    text: str, names: list[str], folding: BufferFolding | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the key-groups of a task, given its order as ``text``. Yield an answer for each."""
    # Imported here because the driver needs no worker's modules.
    from riffle_spark.worker.first_version import write_key_groups

    def to_state(schema: StoreSchema, rows: pa.Table) -> tuple[pa.Table, int]:
        return state_of_rows(schema, folding, rows)

    for written in write_key_groups(FirstVersionOrder.from_json(text), to_state, _split(names, batches)):
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "key_group": written.key_group,
                    "snapshot_id": written.snapshot_id,
                    "length": written.length,
                    "checksum": str(written.checksum),
                    "rows": written.rows,
                    "timer_ms": written.timer_ms,
                    "state_rows": written.state_rows,
                }
            ],
            schema=_ANSWER_SCHEMA,
        )


_ANSWER_SCHEMA = pa.schema(
    [
        ("key_group", pa.int32()),
        ("snapshot_id", pa.string()),
        ("length", pa.int64()),
        ("checksum", pa.string()),
        ("rows", pa.int64()),
        ("timer_ms", pa.int64()),
        ("state_rows", pa.int64()),
    ]
)


def _split(names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of batches by key-group, with these column names. A batch may have several key-groups."""
    for batch in batches:
        table = with_offsets(pa.Table.from_batches([batch]))
        key_groups = table.column(0).to_numpy()
        rows = table.select(range(1, table.num_columns)).rename_columns(names)
        start = 0
        while start < len(key_groups):
            end = int(key_groups.searchsorted(key_groups[start], side="right"))
            yield int(key_groups[start]), rows.slice(start, end - start)
            start = end


def commit_first_version(log: Log, written: FirstVersion, base: Record) -> Record:
    """Append the record that lists the snapshots of a first version. Return it.

    ``base`` is the draft with the query, its version and event times. Raises ``FencedError`` if another driver has
    started the log.
    """
    draft = replace(
        base,
        kind="adopt",
        epoch=paths.FIRST_VERSION_EPOCH,
        schemas=written.schemas,
        row_counts=dict(written.row_counts),
    )
    return log.append(draft, Manifest(dict(written.entries)))


def new_draft(query_id: str, total: int) -> Record:
    """Return the draft of a log's first record for a query without state. ``total`` is the number of key-groups."""
    stamp = Stamp(uuid.uuid4().hex, time.time_ns() // 1_000_000)
    return first_record(query_id, total, "key_group", stamp)
