"""Rows whose time has come, in what stacks hold: found at the cost of what is due. Knows runs. Does not know clocks.

Theory of operation. Each run finds its own due rows by its order. Some are not their key's newest: a newer run may have
moved the time, or deleted the key. So the newest row of each key that was found is looked up, and its time counts. What
was due before a key-group's ``first_ms`` needs no look: below that nothing lives.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.state.copies.run import Hashes, Indices, Run, WantedKeys, look_up, newest_by_group
from riffle_spark.state.formats.due_times import NEVER_MS, DueTimes, in_milliseconds
from riffle_spark.state.schemas.plain_columns import PlainColumns

__all__ = ["DueRows", "RunsOfKeyGroup", "due_rows", "first_due_ms"]

_MORE = 8


class RunsOfKeyGroup(NamedTuple):
    """A key-group's runs, the newest first; nothing in them is due before ``first_ms``."""

    key_group: int
    runs: Sequence[Run]
    first_ms: int


class DueRows(NamedTuple):
    """The newest rows of keys, by key-group and hash, and when each is due (ms)."""

    rows: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    due_ms: Indices


def due_rows(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], until_ms: int) -> DueRows:
    """Return the rows that are due by then. Key-groups ascend."""
    rows, hashes, key_groups, due_ms = _newest_rows(
        schema, groups, [[_due(run).between(one.first_ms, until_ms) for run in one.runs] for one in groups]
    )
    is_due = due_ms <= until_ms
    return DueRows(rows.filter(pa.array(is_due)), hashes[is_due], key_groups[is_due], due_ms[is_due])


def first_due_ms(schema: PlainColumns, groups: Sequence[RunsOfKeyGroup]) -> dict[int, int | None]:
    """Return when the first row of each key-group is due, ``None`` where none ever is. Key-groups ascend."""
    key_groups = np.array([one.key_group for one in groups], np.int32)
    least = np.full(len(groups), NEVER_MS)
    places = [[_due(run).position(one.first_ms) for run in one.runs] for one in groups]
    left, count = list(range(len(groups))), 1
    while left:
        ahead = [
            [_due(run).order[at : at + count] for run, at in zip(groups[n].runs, places[n], strict=True)] for n in left
        ]
        found = _newest_rows(schema, [groups[n] for n in left], ahead)
        np.minimum.at(least, np.searchsorted(key_groups, found.key_groups), found.due_ms)
        for n in left:
            places[n] = [at + count for at in places[n]]
        left = [n for n in left if least[n] > _unseen_ms(groups[n], places[n])]
        count *= _MORE
    return {one.key_group: None if ms == NEVER_MS else int(ms) for one, ms in zip(groups, least, strict=True)}


def _due(run: Run) -> DueTimes:
    assert run.due is not None, "runs of a store with a due column have due times"
    return run.due


def _unseen_ms(one: RunsOfKeyGroup, places: Sequence[int]) -> int:
    """Return when the first row is due that was not looked at yet."""
    return min((_due(run).ms_at(at) for run, at in zip(one.runs, places, strict=True)), default=NEVER_MS)


def _newest_rows(
    schema: PlainColumns, groups: Sequence[RunsOfKeyGroup], numbers: Sequence[Sequence[npt.NDArray[np.uint32]]]
) -> DueRows:
    """Return the newest row of each key that some rows of some runs have, of those that are not deleted."""
    names = schema.key.names
    some = [
        (one.key_group, run, rows)
        for one, of_runs in zip(groups, numbers, strict=True)
        for run, rows in zip(one.runs, of_runs, strict=True)
        if len(rows)
    ]
    batches = [run.rows.select(names).take(pa.array(rows)) for _, run, rows in some]
    keys = pa.Table.from_batches(batches, schema.key).combine_chunks()
    hashes = np.concatenate([np.empty(0, np.uint64), *(run.hashes[rows] for _, run, rows in some)])
    of_row = np.repeat(np.array([kg for kg, _, _ in some], np.int32), [len(rows) for _, _, rows in some])
    once = newest_by_group(hashes, keys, of_row)
    keys, hashes, of_row = keys.take(pa.array(once)), hashes[once], of_row[once]
    ends = np.searchsorted(of_row, [one.key_group + 1 for one in groups])
    starts = np.searchsorted(of_row, [one.key_group for one in groups])
    wanted = [WantedKeys(int(start), int(end), one.runs) for one, start, end in zip(groups, starts, ends, strict=True)]
    rows, is_there = look_up(wanted, hashes, keys, schema.row_schema)
    rows = rows.filter(pa.array(is_there))
    column = one_array(rows.column(str(schema.due)))
    due_ms = np.where(column.is_valid().to_numpy(zero_copy_only=False), in_milliseconds(column), NEVER_MS)
    return DueRows(rows, hashes[is_there], of_row[is_there], due_ms)
