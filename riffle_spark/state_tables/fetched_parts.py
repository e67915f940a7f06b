"""Fetch and decode the parts of some key-groups into memory."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.errors import CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.due_times import DUE_ORDER
from riffle_spark.state.formats.part_codec import HASH
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Address, Entry, Link, Snapshot
from riffle_spark.state.objects.place import Place
from riffle_spark.state.restore.reader import (
    RANGE_BYTES,
    Reader,
    group_into_bounded_runs,
    in_parallel,
    split_into_ranges,
)
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state_tables import ranged_rows
from riffle_spark.state_tables.requested_keys import RequestedKeys

_RANGED_KEYS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a delta's part or of a snapshot, of batch ``version`` and the driver's ``epoch``."""

    table: pa.Table
    version: int
    epoch: int


PartCache: TypeAlias = dict[tuple[int, Link | Snapshot], Part]
"""Parts by key-group and link or snapshot."""


def fetch_parts(
    reader: Reader,
    store: str,
    entries: Mapping[int, Entry],
    schema: StoreSchema,
    keys: RequestedKeys | None = None,
    cache: PartCache | None = None,
) -> dict[int, list[Part]]:
    """Return the parts of each key-group of ``entries``, newest first.

    Adjacent parts of an object are fetched with one GET, and several GETs run at once. With ``keys`` the parts have
    the rows with the hash of a requested key, and parts of the first format, which have no hashes, all their rows.
    ``cache`` has parts that were fetched before with these keys; the others are added to it. Raises
    ``CorruptStateError`` if an object is missing or damaged, ``RefusedError`` if a key is missing.
    """
    parts = {} if cache is None else cache
    links = {link: number for number, entry in entries.items() for link in entry.chain if (number, link) not in parts}
    # Snapshots are first, because a large one takes several rounds of requests. The deltas are fetched at the same
    # time.
    work: list[Callable[[], PartCache]] = [
        partial(_fetch_snapshot, reader, store, number, entry.snapshot, keys if schema.one_row_a_key else None)
        for number, entry in entries.items()
        if entry.snapshot is not None and (number, entry.snapshot) not in parts
    ]
    work += [partial(_fetch_run, reader, store, run, links) for run in group_into_bounded_runs(reader, links)]
    for fetched in in_parallel(lambda fetch: fetch(), work):
        for place, part in fetched.items():
            parts[place] = part if keys is None else _select_requested(part, schema, keys)
    return {number: _collect_parts(number, entry, parts) for number, entry in entries.items()}


def _collect_parts(key_group: int, entry: Entry, fetched: PartCache) -> list[Part]:
    """Return the fetched parts of a key-group, newest first."""
    parts = [fetched[key_group, link] for link in reversed(entry.chain)]
    return parts if entry.snapshot is None else [*parts, fetched[key_group, entry.snapshot]]


def _fetch_run(reader: Reader, store: str, run: list[Link], key_group_of: Mapping[Link, int]) -> PartCache:
    """Return the parts of a run of links, which takes one GET."""
    intact: dict[Link, memoryview] = {}
    for link, data in reader.fetch_run(run).items():
        if isinstance(data, CorruptStateError):
            raise data
        intact[link] = data
    return {
        (key_group_of[link], link): Part(table, link.head.version, link.head.epoch)
        for link, table in reader.open_links(store, intact, key_group_of).items()
    }


def _fetch_snapshot(
    reader: Reader, store: str, key_group: int, snapshot: Snapshot, keys: RequestedKeys | None
) -> PartCache:
    """Return the part of a snapshot. A large one is fetched with several GETs at once.

    With a few ``keys`` only their rows of a large snapshot are fetched, if its format allows it.
    """
    address = (store, key_group)
    rows: pa.Table | None = None
    if keys is not None and len(keys.hashes) <= _RANGED_KEYS_MAX and snapshot.length >= ranged_rows.RANGED_FROM_BYTES:
        # Ranges that turn out to be damaged may have been damaged in transit. The whole object has a checksum.
        with suppress(CorruptStateError, pa.ArrowInvalid):
            rows = ranged_rows.fetch_rows_of_hashes(reader, address, snapshot, keys.hashes)
    if rows is None:
        data = _fetch_whole_snapshot(reader, address, snapshot)
        name = paths.snapshot_name(*address, snapshot.id)
        rows = _decode(reader, data, paths.snapshot_place(*address, snapshot.id), name)
    return {(key_group, snapshot): Part(rows, snapshot.head.version, snapshot.head.epoch)}


def _fetch_whole_snapshot(reader: Reader, address: Address, snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot, which have its checksum. Damaged bytes are fetched once more.

    Raises ``CorruptStateError`` if the object is missing or damaged.
    """
    ranges = [*split_into_ranges(snapshot.length, RANGE_BYTES)]
    for _ in range(2):
        pieces = in_parallel(lambda span: reader.fetch_snapshot_range(address, snapshot, *span), ranges)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if part_codec.checksum(data) == snapshot.checksum:
            return data
    raise part_codec.altered_error(paths.snapshot_name(*address, snapshot.id))


def _select_requested(part: Part, schema: StoreSchema, keys: RequestedKeys) -> Part:
    """Return the rows of a part with the hash of a requested key, or all rows if they have no hashes."""
    table = part.table
    if HASH not in table.column_names:
        return part
    mask = keys.mask_hashes(one_array(table.column(HASH)).to_numpy())
    if schema.due is not None and DUE_ORDER in table.column_names:
        table = table.drop_columns([DUE_ORDER]).replace_schema_metadata(None)  # it numbers all rows
    return replace(part, table=table.filter(pa.array(mask)))


def _decode(reader: Reader, data: part_codec.Data, place: Place, where: str) -> pa.Table:
    """Return the rows of a part with verified checksum."""
    keys = reader.keys
    return part_codec.open_part(data if keys is None else keys.decrypt(data, place, where), where)
