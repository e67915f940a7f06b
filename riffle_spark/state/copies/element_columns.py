"""What copies hold of keys of many key-groups, as columns: all elements of the keys that are asked for, and those of
any key that are due. Knows runs of elements. Does not know a user, or files.

Elements of lists alone are had so: an element's number is above those before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.columns import one_array, positions_of
from riffle_spark.state.copies import elements
from riffle_spark.state.copies.reading import CopyRuns, FoundDue, Reading
from riffle_spark.state.copies.run import Hashes, Indices
from riffle_spark.state.formats.due_times import NEVER_MS
from riffle_spark.state.formats.key_codec import differing, encode_keys
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["ElementColumns", "ElementKeys", "FoundElements"]


class ElementKeys(NamedTuple):
    """Keys by key-group, and the hashes that parts have of them. ``spans`` holds (key-group, first key, end)."""

    keys: pa.Table
    hashes: Hashes
    key_groups: npt.NDArray[np.int32]
    spans: Sequence[tuple[int, int, int]]


class FoundElements(NamedTuple):
    """Elements of one variable: the number of the key of each, its id, what it holds, a column a field, and when it is
    due (``NO_DUE``: never). ``next_ids`` are, by asked key, above all that were ever there.
    """

    owners: Indices
    ids: Indices
    values: pa.Table
    due_ms: Indices
    next_ids: Indices


@dataclass(frozen=True, slots=True)
class ElementColumns:
    """What was found by variable. ``keys`` are those that were asked for, and behind them the key of each due element
    that is of none of these; ``key_groups`` are theirs. ``next_ms`` says for each key-group before when nothing is due
    once all is gone that was asked for.
    """

    keys: pa.Table
    key_groups: npt.NDArray[np.int32]
    found: Mapping[str, FoundElements]
    next_ms: Mapping[int, int]

    @staticmethod
    def of(
        schema: VariableColumns, asked: ElementKeys, copies: Mapping[int, CopyRuns], until_ms: int
    ) -> "ElementColumns":
        """Read copies by their key-groups, those of the asked keys and others, and look there for what is due by
        then.
        """
        readings = {key_group: copy.reading(schema, asked.keys.slice(0, 0)) for key_group, copy in copies.items()}
        due = [
            (key_group, found)
            for key_group, reading in sorted(readings.items())
            for found in reading.due(reading.first_ms, until_ms)
            if found.variable in schema.by_name
        ]
        spans = {key_group: (start, end) for key_group, start, end in asked.spans}
        others = [_of_others(asked, spans.get(key_group, (0, 0)), found) for key_group, found in due]
        tables = [found.keys.take(pa.array(at)) for (_, found), at in zip(due, others, strict=True)]
        counts = np.array([len(at) for at in others], np.int64)
        firsts = (positions_of(counts) + asked.keys.num_rows).tolist()
        beside = [_Beside(found, at, first) for (_, found), at, first in zip(due, others, firsts[:-1], strict=True)]
        return ElementColumns(
            pa.concat_tables([asked.keys, *tables], promote_options="default").combine_chunks(),
            np.concatenate([asked.key_groups, np.repeat(np.array([one for one, _ in due], np.int32), counts)]),
            {
                name: _read(schema, name, asked, copies, [one for one in beside if one.found.variable == name])
                for name in schema.by_name
            },
            {key_group: _next_ms(reading, until_ms + 1) for key_group, reading in readings.items()},
        )


class _Beside(NamedTuple):
    """Due elements of keys that were not asked for: which of those that were found, and the number of the first key."""

    found: FoundDue
    at: Indices
    first_key: int


def _of_others(asked: ElementKeys, span: tuple[int, int], found: FoundDue) -> Indices:
    """Return which due elements are of none of a key-group's keys that were asked for."""
    keys, hashes = asked.keys.slice(span[0], span[1] - span[0]), asked.hashes[slice(*span)]
    known = np.flatnonzero(np.isin(found.hashes, hashes))
    if not len(known):
        return np.arange(len(found.hashes))
    by_hash = np.argsort(hashes)
    places = by_hash[np.searchsorted(hashes, found.hashes[known], sorter=by_hash)]
    if len(differing(found.keys.take(pa.array(known)), keys.take(pa.array(places)))):  # two keys have one hash
        is_known = pc.is_in(encode_keys(found.keys.columns), value_set=encode_keys(keys.columns))
        return np.flatnonzero(~is_known.to_numpy(zero_copy_only=False))
    return np.delete(np.arange(len(found.hashes)), known)


def _read(
    schema: VariableColumns, name: str, asked: ElementKeys, copies: Mapping[int, CopyRuns], due: Sequence[_Beside]
) -> FoundElements:
    """Return the newest elements of the asked keys, and those that are due beside them."""
    variable, next_ids = schema.by_name[name], np.zeros(asked.keys.num_rows, np.int64)
    rows = _rows(name, asked, copies, next_ids)
    numbers = np.empty(0, np.int64)
    owners, ids, dues, tables = [numbers], [numbers], [numbers], [variable.value.empty_table()]
    if rows is not None:
        owners, ids, dues = [rows.owners.astype(np.int64)], [rows.ids], [rows.dues()]
        tables = [variable.values(rows.column(elements.structs_of))]
    for one in due:
        owners.append(np.arange(one.first_key, one.first_key + len(one.at)))
        ids.append(one.found.ids[one.at])
        dues.append(one.found.due_ms[one.at])
        tables.append(variable.values(one_array(one.found.structs).take(pa.array(one.at))))
    values = pa.concat_tables(tables).combine_chunks()
    return FoundElements(np.concatenate(owners), np.concatenate(ids), values, np.concatenate(dues), next_ids)


def _rows(
    name: str, asked: ElementKeys, copies: Mapping[int, CopyRuns], next_ids: Indices
) -> elements.ElementRows | None:
    """Return the newest rows of a variable of the asked keys, of all key-groups at once; ``None`` if there is none."""
    runs, places, owners = list[elements.ElementRun](), list[Indices](), list[Indices]()
    for key_group, start, end in asked.spans:
        held = copies[key_group].runs if key_group in copies else ()
        mine = [run for run in held if isinstance(run, elements.ElementRun) and run.variable == name]
        located = elements.located(mine, asked.hashes[start:end], asked.keys.slice(start, end - start))
        for run, (first, last) in zip(mine, located, strict=True):
            at = np.flatnonzero(last > first)
            if len(at):
                next_ids[start + at] = np.maximum(next_ids[start + at], run.ids[last[at] - 1] + 1)
                runs.append(run)
                places.append(elements.ranges_of(first[at], last[at]))
                owners.append(np.repeat(start + at, last[at] - first[at]))
    if not runs:
        return None
    rows = elements.ElementRows(runs, places, np.concatenate(owners)).newest()
    return rows.only(~rows.deleted())


def _next_ms(reading: Reading, from_ms: int) -> int:
    """Return a time before which nothing is due from then on. It is that of an element that was there once: one that
    went before its time only lets somebody look for nothing then.
    """
    found = reading.due_by(max(from_ms, reading.first_ms), 0)
    return NEVER_MS if found is None else found
