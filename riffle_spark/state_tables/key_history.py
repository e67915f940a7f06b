"""The states of a key in all retained batches, newest first."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.log.record import Record
from riffle_spark.state_tables.differences import compare_rows
from riffle_spark.state_tables.fetched_parts import PartCache, fetch_parts
from riffle_spark.state_tables.requested_keys import RequestedKeys
from riffle_spark.state_tables.state_view import StateRoot, StateTable


class KeyState(NamedTuple):
    """The rows of a key from batch ``version`` on, which was committed at ``time_ms``, until the next state.

    ``is_oldest`` is whether older states are no longer retained, so that the key may have had these rows before.
    """

    version: int
    time_ms: int
    rows: pa.Table
    is_oldest: bool


def iterate_key_states(root: StateRoot, newest: StateTable, keys: RequestedKeys) -> Iterator[KeyState]:
    """Yield the different states of a key, newest first. ``newest`` is its table as of the newest record.

    Reads each retained record, and each part of the key's key-groups once. Parts are kept in memory only as far as they
    have the key. A store that an older record lacks has no rows in it.
    """
    reader = newest.view.new_reader()
    cache: PartCache = {}
    previous: tuple[Record, dict[int, Entry], pa.Table] | None = None
    for record in root.records.iterate():
        table = replace(newest, view=root.view_of(record))
        entries = table.view.entries(table.store, table.find_key_groups(keys, None))
        if previous is not None and _heads(entries) == _heads(previous[1]):
            previous = (record, entries, previous[2])
            continue
        try:
            parts = fetch_parts(reader, newest.store, entries, newest.store_schema, keys, cache)
        except CorruptStateError as error:
            raise root.explain(error, record) from error
        rows_of = newest.rows_of(keys)
        tables = [rows_of(number, parts[number], entry.timer_ms) for number, entry in entries.items()]
        rows = pa.concat_tables([newest.schema.empty_table(), *tables])
        if previous is not None and len(compare_rows(rows, previous[2]).changes):
            yield KeyState(previous[0].version, previous[0].written_ms, previous[2], is_oldest=False)
        previous = (record, entries, rows)
    assert previous is not None, "a root that can be opened has a newest record"
    yield KeyState(previous[0].version, previous[0].written_ms, previous[2], is_oldest=True)


def _heads(entries: dict[int, Entry]) -> list[tuple[object, ...]]:
    """Return the identity of the state of key-groups."""
    return [(number, entry.head, entry.timer_ms) for number, entry in entries.items()]
