"""Elements of lists for many keys as columns: all elements of the requested keys, and due elements of any other key.

Maps are not read this way: the next id of a key must be greater than all ids before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array
from riffle_spark.state.copies import elements
from riffle_spark.state.copies.reading import CopyRuns, DueElements, Reading
from riffle_spark.state.copies.run import Hashes, Indices
from riffle_spark.state.formats.due_times import NEVER_MS
from riffle_spark.state.formats.key_codec import encode_keys, find_differing_rows
from riffle_spark.state.schemas.variables import VariableColumns


class ElementKeys(NamedTuple):
    """Keys by key-group with their stored hashes. ``spans`` holds (key-group, first key, end)."""

    keys: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    spans: Sequence[tuple[int, int, int]]


class VariableElements(NamedTuple):
    """Elements of one variable, as columns: ``owners`` has the number of each element's key, ``ids`` its id, ``values``
    its fields, and ``due_ms`` when it is due (``NO_DUE``: never).

    ``next_ids`` holds, for each requested key, an id greater than the ids of all its elements, past and present.
    """

    owners: Indices
    ids: Indices
    values: pa.Table
    due_ms: Indices
    next_ids: Indices


@dataclass(frozen=True, slots=True)
class ElementColumns:
    """Elements by variable.

    ``keys`` are the requested keys, followed by the key of each due element that no requested key has. ``key_groups``
    are their key-groups. ``next_ms`` holds, for each key-group, a time before which nothing else is due.
    """

    keys: pa.Table
    key_groups: npt.NDArray[np.int32]
    variables: Mapping[str, VariableElements]
    next_ms: Mapping[int, int]

    @staticmethod
    def read(
        schema: VariableColumns, requested: ElementKeys, copies: Mapping[int, CopyRuns], until_ms: int
    ) -> "ElementColumns":
        """Read the requested keys, and all elements of ``copies`` (by key-group) that are due until ``until_ms``."""
        readings = {
            key_group: copy.open_reading(schema, requested.keys.slice(0, 0)) for key_group, copy in copies.items()
        }
        due = [
            (key_group, elements_due)
            for key_group, reading in sorted(readings.items())
            for elements_due in reading.find_due_elements(reading.first_ms, until_ms)
            if elements_due.variable in schema.by_name
        ]
        spans = {key_group: (start, end) for key_group, start, end in requested.spans}
        extra: list[_ExtraElements] = []
        key_groups = [requested.key_groups]
        first_key = requested.keys.num_rows
        for key_group, elements_due in due:
            places = _places_of_other_keys(requested, spans.get(key_group, (0, 0)), elements_due)
            extra.append(_ExtraElements(elements_due, places, first_key))
            key_groups.append(np.full(len(places), key_group, np.int32))
            first_key += len(places)
        tables = [requested.keys, *(due_elements.keys.take(pa.array(places)) for due_elements, places, _ in extra)]
        return ElementColumns(
            pa.concat_tables(tables, promote_options="default").combine_chunks(),
            np.concatenate(key_groups),
            {
                name: _read_variable(schema, name, requested, copies, [e for e in extra if e.due.variable == name])
                for name in schema.by_name
            },
            {key_group: _find_next_ms(reading, until_ms + 1) for key_group, reading in readings.items()},
        )


class _ExtraElements(NamedTuple):
    """Due elements of keys that were not requested: their places in ``due``, and the number of the first key."""

    due: DueElements
    places: Indices
    first_key: int


def _places_of_other_keys(requested: ElementKeys, span: tuple[int, int], due: DueElements) -> Indices:
    """Return the places in ``due`` of the elements whose keys are not among a key-group's requested keys, which are
    ``span`` of all requested keys.
    """
    keys = requested.keys.slice(span[0], span[1] - span[0])
    hashes = requested.hashes[slice(*span)]
    matches = np.flatnonzero(np.isin(due.hashes, hashes))
    if not len(matches):
        return np.arange(len(due.hashes))
    by_hash = np.argsort(hashes)
    places = by_hash[np.searchsorted(hashes, due.hashes[matches], sorter=by_hash)]
    if len(
        find_differing_rows(due.keys.take(pa.array(matches)), keys.take(pa.array(places)))
    ):  # two keys have one hash
        is_requested = pc.is_in(encode_keys(due.keys.columns), value_set=encode_keys(keys.columns))
        return np.flatnonzero(~is_requested.to_numpy(zero_copy_only=False))
    return np.delete(np.arange(len(due.hashes)), matches)


def _read_variable(
    schema: VariableColumns,
    name: str,
    requested: ElementKeys,
    copies: Mapping[int, CopyRuns],
    extra: Sequence[_ExtraElements],
) -> VariableElements:
    """Return the current elements of the requested keys, and the extra due elements."""
    variable = schema.by_name[name]
    next_ids = np.zeros(requested.keys.num_rows, np.int64)
    owners = [np.empty(0, np.int64)]
    ids = [np.empty(0, np.int64)]
    dues = [np.empty(0, np.int64)]
    tables = [variable.value.empty_table()]
    rows = _read_current_rows(name, requested, copies, next_ids)
    if rows is not None:
        owners.append(rows.owners.astype(np.int64))
        ids.append(rows.ids)
        dues.append(rows.due_times_ms())
        tables = [variable.values(rows.take_column(elements.structs_of))]
    for due, places, first_key in extra:
        owners.append(np.arange(first_key, first_key + len(places)))
        ids.append(due.ids[places])
        dues.append(due.due_ms[places])
        tables.append(variable.values(one_array(due.structs).take(pa.array(places))))
    values = pa.concat_tables(tables).combine_chunks()
    return VariableElements(np.concatenate(owners), np.concatenate(ids), values, np.concatenate(dues), next_ids)


def _read_current_rows(
    name: str, requested: ElementKeys, copies: Mapping[int, CopyRuns], next_ids: Indices
) -> elements.ElementRows | None:
    """Return a variable's current rows of the requested keys of all key-groups, or ``None`` if there is none.

    Updates ``next_ids`` in place, so that each is above all ids of its key.
    """
    runs: list[elements.ElementRun] = []
    places: list[Indices] = []
    owners: list[Indices] = []
    for key_group, start, end in requested.spans:
        copy_runs = copies[key_group].runs if key_group in copies else ()
        of_variable = [run for run in copy_runs if isinstance(run, elements.ElementRun) and run.variable == name]
        keys = requested.keys.slice(start, end - start)
        ranges = elements.find_key_ranges(of_variable, requested.hashes[start:end], keys)
        for run, (starts, ends) in zip(of_variable, ranges, strict=True):
            hits = np.flatnonzero(ends > starts)
            if len(hits):
                next_ids[start + hits] = np.maximum(next_ids[start + hits], run.ids[ends[hits] - 1] + 1)
                runs.append(run)
                places.append(elements.expand_ranges(starts[hits], ends[hits]))
                owners.append(np.repeat(start + hits, ends[hits] - starts[hits]))
    if not runs:
        return None
    rows = elements.ElementRows(runs, places, np.concatenate(owners)).select_newest()
    return rows.select(~rows.deleted_mask())


def _find_next_ms(reading: Reading, from_ms: int) -> int:
    """Return a time at or after ``from_ms`` before which nothing else is due.

    It may be the time of an element that was removed before. Then the next search finds nothing, which is harmless.
    """
    due_ms = reading.find_due_time(max(from_ms, reading.first_ms), 0)
    return NEVER_MS if due_ms is None else due_ms
