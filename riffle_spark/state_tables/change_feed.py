"""The changes of a store, batch by batch, as Spark's own ``statestore`` source reads them.

Theory of operation.

1. The record of each batch lists the deltas that the batch added to each key-group. So only these deltas are read, and
   the cost follows the changes, not the size of the state.
2. A row of a delta is an ``update``, also if the key is new, or a ``delete``. A delete of a whole variable of a key is
   one row without an element. It applies before the other rows of its batch and key.
3. Expired keys leave no row in a delta. If a batch moves the timer of a key-group forward, its expired keys are found
   in the whole state of the key-group. They are deletes of this batch.
4. If a record has no deltas that lead from the batch before (a purge, a rewrite), both states are compared.
5. `riffle dispatch` moves keys to other key-groups and changes none. So the changes before and after its record are
   read, and its record is not compared with the one before.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from riffle_spark.columns import Mask
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.copies.elements import ElementRun, structs_of
from riffle_spark.state.copies.part_runs import split_into_runs
from riffle_spark.state.copies.run import Run, RunsOfKeyGroup, find_due_rows
from riffle_spark.state.formats.due_times import NEVER_MS, first_ms_of
from riffle_spark.state.formats.key_codec import normalise_zeros
from riffle_spark.state.log.manifest import EMPTY, Entry, Link
from riffle_spark.state.log.record import Record
from riffle_spark.state.restore.prefetch import run_ahead
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import NO_DUE, NO_ELEMENT, TIMER
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.state_tables.differences import DELETE, UPDATE, compare_rows
from riffle_spark.state_tables.fetched_parts import Part, fetch_parts
from riffle_spark.state_tables.state_view import StateRoot, StateTable

BATCH_ID: Final = "batch_id"
CHANGE_TYPE: Final = "change_type"
_AHEAD_BYTES: Final = 64 << 20
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Step:
    """The change of a key-group's entry by batch ``version``, from ``before`` to ``after``."""

    version: int
    before: Entry
    after: Entry

    @property
    def links(self) -> tuple[Link, ...] | None:
        """The deltas that lead from the entry before, ``None`` if it is not on the chain."""
        return self.after.links_after(self.before.head)

    @property
    def expired_until_ms(self) -> int | None:
        """The time until which keys expired in this batch, ``None`` if none can have expired."""
        if self.before.timer_ms is None or first_ms_of(self.after.timer_ms) <= self.before.timer_ms:
            return None
        return first_ms_of(self.after.timer_ms) - 1


Steps: TypeAlias = Mapping[int, list[Step]]
"""The changes of each key-group's entry, in the order of batches."""


def changes_schema(table: StateTable) -> pa.Schema:
    """Return the columns of the changes of a table: the batch, the change, and the table's columns but ``version``."""
    fields = [field.with_nullable(True) for field in table.schema if field.name != table.columns.version]
    return pa.schema([pa.field(BATCH_ID, pa.int64()), pa.field(CHANGE_TYPE, pa.string()), *fields])


class _Stretch(NamedTuple):
    """Two records with the same division into key-groups. The changes between them belong to batch ``version``."""

    version: int
    before: Record | None
    after: Record


def _stretches_of_batches(root: StateRoot, first: int, last: int) -> list[_Stretch]:
    """Return the records between which batches ``first`` to ``last`` changed state, in order.

    A batch ends at its own record. So a later change by an operator counts as a change of the next batch, and a stream
    that has read the batch does not miss it. A change of the division ends a stretch of the next batch, and starts
    another. Reads the records of all of these batches. Raises ``ConfigError`` if one of them, or the batch before, is
    not retained.
    """
    if first > last or last > root.records.tail.version:
        raise ConfigError(
            f"No batches from {first} to {last}: the newest batch is {root.records.tail.version}.",
            remedy="Choose batches in their order, up to the newest one.",
            where="changeStartBatchId",
            id="RIFFLE-1561",
        )
    of_batch: dict[int, Record] = {}
    switches: dict[int, list[tuple[Record, Record]]] = {}
    newer: Record | None = None
    for record in root.records.iterate():
        is_same_batch = newer is not None and record.version == newer.version
        if record.version < first - 1 or (newer is not None and newer.version == first - 1 and not is_same_batch):
            break
        if newer is not None and is_same_batch and record.division != newer.division:
            switches.setdefault(record.version + 1, []).insert(0, (record, newer))
        if is_same_batch or record.version not in of_batch:
            of_batch[record.version] = record
        newer = record
    records = {version: of_batch[version] for version in range(first - 1, last + 1) if version in of_batch}
    has_start = first == 0 or first - 1 in of_batch
    if not has_start or len(records) < last - first + 1 + (first - 1 in of_batch):
        oldest = min(of_batch, default=root.records.tail.version) + 1
        # Cause: Retention deleted the records, or the batches were rolled back.
        raise ConfigError(
            f"The changes of batches {first} to {last} are not retained: the oldest changes are those "
            f"of batch {oldest}.",
            remedy="Choose later batches. Raise retained_versions to keep more in future.",
            where="changeStartBatchId",
            id="RIFFLE-1562",
        )
    stretches: list[_Stretch] = []
    for version in range(first, last + 1):
        before = records.get(version - 1)  # absent before the first batch
        for end, start in switches.get(version, ()):
            stretches.append(_Stretch(version, before, end))
            before = start
        stretches.append(_Stretch(version, before, records[version]))
    return stretches


def read_changes(
    table: StateTable, first: int, last: int, key_groups: Iterable[int] | None = None
) -> pa.RecordBatchReader:
    """Return the changes of batches ``first`` to ``last``, both inclusive, of a table as of batch ``last``.

    The rows of a key-group are in the order of batches. Raises ``ConfigError`` if the batches are not retained.
    """
    return read_steps(table, collect_steps(table, first, last, key_groups))


def read_steps(table: StateTable, steps: Steps) -> pa.RecordBatchReader:
    """Return the changes of these steps, which ``collect_steps`` returned."""
    schema = changes_schema(table)

    def iterate() -> Iterator[pa.RecordBatch]:
        reading = run_ahead(partial(_changes_of, table, schema), steps.items(), _count_bytes, _AHEAD_BYTES, _THREADS)
        for _, tables in reading:
            try:
                for changes in tables.result():
                    yield from changes.to_batches()
            except CorruptStateError as error:
                raise table.view.root.explain(error, table.view.record) from error

    return pa.RecordBatchReader.from_batches(schema, iterate())


def collect_steps(table: StateTable, first: int, last: int, key_groups: Iterable[int] | None = None) -> Steps:
    """Return the changes of each key-group's entry by batches ``first`` to ``last``.

    Raises ``ConfigError`` if the batches are not retained.
    """
    root = table.view.root
    chosen = table.find_key_groups(None, key_groups)
    entries_of: dict[int | None, dict[int, Entry]] = {None: {}}
    steps: dict[int, list[Step]] = {}
    for version, first_record, last_record in _stretches_of_batches(root, first, last):
        for record in (first_record, last_record):
            if record is not None and record.sequence not in entries_of:
                entries_of[record.sequence] = root.view_of(record).entries(table.store, chosen)
        before = entries_of[None if first_record is None else first_record.sequence]
        after = entries_of[last_record.sequence]
        for number in sorted(before.keys() | after.keys()):
            step = Step(version, before.get(number, EMPTY), after.get(number, EMPTY))
            if (step.before.head, step.before.timer_ms) != (step.after.head, step.after.timer_ms):
                steps.setdefault(number, []).append(step)
    return steps


def _count_bytes(item: tuple[int, list[Step]]) -> int:
    """Return the bytes that the changes of a key-group need at most."""
    return sum(step.after.measure().bytes for step in item[1])


def _changes_of(table: StateTable, schema: pa.Schema, item: tuple[int, list[Step]]) -> list[pa.Table]:
    """Return the changes of a key-group, a table per batch that changed it."""
    number, steps = item
    reader = table.view.new_reader()
    tables: list[pa.Table] = []
    for step in steps:
        links = step.links
        if links is None:
            tables.append(_compared(table, schema, number, step))
            continue
        delta = fetch_parts(reader, table.store, {number: Entry(None, links)}, table.store_schema)[number]
        changes = [
            table.store_schema.either(
                partial(_plain_changes, part=part), partial(_variable_changes, name=str(table.variable), part=part)
            )
            for part in reversed(delta)
        ]
        until_ms = step.expired_until_ms
        if until_ms is not None and table.store_schema.due is not None:
            parts = fetch_parts(reader, table.store, {number: step.after}, table.store_schema)[number]
            read_expired_keys = partial(_expired_keys, number, parts, first_ms_of(step.before.timer_ms), until_ms)
            changes.append(table.store_schema.either(read_expired_keys, lambda _: pa.table({})))
        tables += [_complete(rows, schema, number, step.version) for rows in changes if rows.num_rows]
    return tables


def _plain_changes(schema: PlainColumns, part: Part) -> pa.Table:
    """Return the rows of a delta's part with their kind of change, and when they are due."""
    tables = [
        _plain_rows(schema, run) for run in split_into_runs(schema.without_later_names(part.table, part.epoch), schema)
    ]
    return pa.concat_tables(tables) if tables else pa.table({})


def _plain_rows(schema: PlainColumns, run: Run) -> pa.Table:
    """Return the rows of a run with their kind of change, and when they are due."""
    rows = normalise_zeros(pa.Table.from_batches([run.rows]), schema.key.names)
    due_ms = pa.nulls(len(rows), pa.int64())
    if run.due is not None:
        values = run.due.values
        is_due = np.ones(len(rows), np.bool_) if run.due.are_due is None else run.due.are_due
        in_ms = -(-values // run.due.per_ms)
        due_ms = pa.array(in_ms, mask=~is_due)
    return _with_change(rows.columns, run.deleted, due_ms)


def _expired_keys(number: int, parts: Sequence[Part], first_ms: int, until_ms: int, schema: PlainColumns) -> pa.Table:
    """Return the keys of a key-group that expired from ``first_ms`` to ``until_ms``, as deletes."""
    runs = [
        run for part in parts for run in split_into_runs(schema.without_later_names(part.table, part.epoch), schema)
    ]
    rows = find_due_rows(schema, [RunsOfKeyGroup(number, runs, first_ms)], min(until_ms, NEVER_MS - 1)).rows
    columns = [rows.column(name) for name in schema.key.names]
    columns += [pa.nulls(len(rows), field.type) for field in schema.state]
    return _with_change(columns, np.ones(len(rows), np.bool_), pa.nulls(len(rows), pa.int64()))


def _variable_changes(schema: VariableColumns, name: str, part: Part) -> pa.Table:
    """Return the changes of a variable in a delta's part. Rows that clear the variable of a key are first."""
    table = schema.without_later_names(part.table, part.epoch)
    runs = [run for run in split_into_runs(table, schema) if isinstance(run, ElementRun) and run.variable == name]
    if not runs:
        return pa.table({})
    (run,) = runs
    is_clear = run.ids == NO_ELEMENT
    order = pa.array(np.argsort(~is_clear, kind="stable"))
    clears = pa.array(is_clear)
    columns: list[pa.Array] = list(normalise_zeros(pa.Table.from_batches([run.rows]), schema.key.names).columns)
    due_ms = run.due.values if run.due is not None else np.full(len(run.ids), NO_DUE)
    if name == TIMER:
        due_ms = run.ids
    else:
        variable = schema.by_name[name]
        structs = structs_of(run)
        if variable.key is not None:
            columns += variable.keys(structs).columns
        if variable.kind == "list":
            columns.append(pa.array(run.ids, mask=is_clear))
        columns += _without_values(variable.values(structs).columns, run.deleted)
    changes = _with_change(columns, run.deleted, pa.array(due_ms, mask=(due_ms == NO_DUE) | is_clear))
    assert len(clears) == changes.num_rows
    return changes.take(order)


def _without_values(columns: Sequence[pa.ChunkedArray], deleted: Mask | None) -> list[pa.Array | pa.ChunkedArray]:
    """Return columns with nulls in deleted rows."""
    return list(columns) if deleted is None else [_null_where(column, deleted) for column in columns]


def _null_where(column: pa.ChunkedArray, mask: Mask) -> pa.ChunkedArray:
    """Return a column with nulls in the rows of a mask."""
    return column.take(pa.array(np.arange(len(mask)), mask=mask))


def _with_change(columns: Sequence[pa.Array | pa.ChunkedArray], deleted: Mask | None, due: pa.Array) -> pa.Table:
    """Return columns after their kind of change, and before the times when the rows are due."""
    count = len(due)
    kinds = np.full(count, UPDATE, dtype=object)
    if deleted is not None:
        kinds[deleted] = DELETE
    names = [str(place) for place in range(len(columns) + 2)]
    return pa.Table.from_arrays([pa.array(kinds, pa.string()), *columns, due], names=names)


def _complete(rows: pa.Table, schema: pa.Schema, number: int, version: int) -> pa.Table:
    """Return changes of a key-group in one batch with all columns of the schema."""
    change, *content, due = rows.columns
    count = rows.num_rows
    group = pa.array(np.full(count, number, np.int32))
    batch = pa.array(np.full(count, version, np.int64))
    return pa.Table.from_arrays([batch, change, *content, group, due], schema=schema)


def _compared(table: StateTable, schema: pa.Schema, number: int, step: Step) -> pa.Table:
    """Return the changes between two entries whose chains do not lead from one to the other."""
    sides: list[pa.Table] = []
    for entry in (step.before, step.after):
        parts = fetch_parts(table.view.new_reader(), table.store, {number: entry}, table.store_schema)[number]
        sides.append(table.rows_of(None)(number, parts, entry.timer_ms))
    difference = compare_rows(*sides)
    is_delete = np.array(difference.changes.to_numpy(zero_copy_only=False) == DELETE, np.bool_)
    names = [name for name in table.schema.names if name != table.columns.version]
    identity = [field.name for field in table.schema if (field.metadata or {}).get(b"riffle.role") in _IDENTITY]
    places = pa.array(np.where(is_delete, np.arange(len(is_delete)), np.arange(len(is_delete)) + len(is_delete)))
    rows_before_and_after = pa.concat_tables([difference.before, difference.after]).take(places)
    columns = [
        rows_before_and_after.column(name)
        if name in identity
        else _null_where(rows_before_and_after.column(name), is_delete)
        for name in names
    ]
    kinds = pa.array(np.where(is_delete, DELETE, UPDATE))
    batch = pa.array(np.full(len(is_delete), step.version, np.int64))
    return pa.Table.from_arrays([batch, kinds, *columns], schema=schema)


_IDENTITY: Final = (b"key", b"map_key", b"index", b"timer", b"key_group")
