"""One record of the log, and its bytes. Knows the format of docs/formats.md. Does not know where records are kept.

A record is one line of JSON (magic, format version, checksum) followed by a zstd frame of JSON. Entries are columns of
plain numbers and a table of attempts, so that a record of 128 key-groups stays small and quick to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, cast

import pyarrow as pa
import xxhash

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.manifest import Address, Entry, Head, Link, Snapshot

__all__ = ["FORMAT", "Kind", "Record", "decode", "digest", "encode"]

FORMAT = 1
"""Version of the record format. A reader of version N reads N - 1 too."""
_MAGIC = "riffle-log"

Kind = Literal["batch", "claim", "rollback", "adopt", "dispatch"]


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered record.

    ``log_id`` is the first record's commit id: it tells a root from one that was emptied and begun again. ``version``
    is the last committed batch id (-1: none), ``full`` the sequence of the full record that ``entries`` change (its
    own, if this one is full). ``offsets`` is Spark's offset-log entry of that batch as text and ``input_digest`` a
    digest of its rows where that log cannot be read. ``outputs`` are sealed output rows, ``delivers_after_commit``
    says whether they are what a sink gets. ``shards`` are the (topic, partition) that key-groups 0, 1, ... stand for,
    unless ``dispatch`` is ``key_group``. Times are milliseconds since the epoch: ``time_ms`` is the batch's, as Spark
    gave it; in the batch after this record timers are due by ``watermark_ms``, and rows that are not newer than
    ``late_watermark_ms`` are late. By store, ``event_times`` are the newest event times seen and
    ``initial_states`` the names of the initial states that were loaded.
    """

    sequence: int
    kind: Kind
    previous: str
    commit_id: str
    log_id: str
    epoch: int
    query_id: str
    version: int
    rollbacks: int
    written_ms: int
    total: int
    dispatch: str
    full: int
    entries: Mapping[Address, Entry] = field(default_factory=dict)
    target: int | None = None
    offsets: str | None = None
    input_digest: str | None = None
    time_ms: int | None = None
    watermark_ms: int | None = None
    schemas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    standbys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    outputs: tuple[tuple[str, Link], ...] = ()
    delivers_after_commit: bool = False
    shards: tuple[tuple[str, int], ...] = ()
    late_watermark_ms: int | None = None
    event_times: Mapping[str, int] = field(default_factory=dict)
    initial_states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def digest(data: bytes) -> str:
    """Return the digest by which the next record names this one (BLAKE2b, 16 bytes, hex)."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    body: dict[str, object] = {f.name: getattr(record, f.name) for f in fields(record)}
    body["entries"] = _entries_to_json(record.entries)
    body["outputs"] = [[store, *_link_to_json(link)] for store, link in record.outputs]
    packed = cast(bytes, pa.compress(json.dumps(body, separators=(",", ":")).encode(), codec="zstd", asbytes=True))
    header = {"magic": _MAGIC, "format": FORMAT, "xxh3": f"{xxhash.xxh3_64_intdigest(packed):016x}"}
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + packed


def decode(data: bytes, name: str) -> Record:
    """Return the record that ``data`` holds; ``name`` is for errors.

    Raises ``CorruptStateError`` if the bytes are not a whole, unaltered record of a format this version reads.
    """
    head, _, packed = data.partition(b"\n")
    try:
        header = json.loads(head)
        assert header["magic"] == _MAGIC
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise CorruptStateError("this object is not a riffle log record", remedy=_REMEDY_FOREIGN, where=name) from None
    if header.get("format") != FORMAT:
        raise CorruptStateError(
            f"the record has format {header.get('format')}, this version reads {FORMAT}",
            remedy="run the version of riffle-spark that wrote it, or a newer one",
            where=name,
        )
    if header.get("xxh3") != f"{xxhash.xxh3_64_intdigest(packed):016x}":
        raise CorruptStateError("the record is truncated or altered: its checksum differs", remedy=_REMEDY, where=name)
    try:
        body = json.loads(pa.input_stream(pa.BufferReader(packed), compression="zstd").read())
        body["entries"] = _entries_from_json(body["entries"])
        for lists in ("standbys", "initial_states"):
            body[lists] = {key: tuple(values) for key, values in body.get(lists, {}).items()}
        body["outputs"] = tuple((store, _link_from_json(rest)) for store, *rest in body["outputs"])
        body["shards"] = tuple((topic, partition) for topic, partition in body.get("shards", ()))
        return Record(**body)
    except (ValueError, KeyError, TypeError, IndexError, OSError, RecursionError) as error:
        raise CorruptStateError(f"the record cannot be read: {error!r}", remedy=_REMEDY, where=name) from error


_REMEDY = "restore the object from a backup, or roll back to a version whose record is intact (riffle rollback)"
_REMEDY_FOREIGN = (
    "point `root` at an empty folder or prefix, or at one that riffle wrote; restore the object if it was ours"
)


_Row = tuple[int, "int | None", "list[object] | None", "list[int | str]", "int | None"]
"""Key-group, timer, snapshot, chain as five numbers a link, and where the entry is cut."""


def _link_to_json(link: Link) -> list[object]:
    return [link.head.version, link.head.attempt, link.start, link.length, f"{link.checksum:016x}", link.rows]


def _link_from_json(row: list[object]) -> Link:
    version, attempt, start, length, checksum, rows = cast("tuple[int, str, int, int, str, int]", tuple(row))
    return Link(Head(version, attempt), start, length, int(checksum, 16), rows)


def _entries_to_json(entries: Mapping[Address, Entry]) -> dict[str, object]:
    heads: dict[Head, int] = {}

    def number(head: Head) -> int:
        return heads.setdefault(head, len(heads))

    rows: dict[str, list[object]] = {}
    for (store, key_group), entry in sorted(entries.items()):
        snapshot = entry.snapshot
        chain = [v for k in entry.chain for v in (number(k.head), k.start, k.length, f"{k.checksum:016x}", k.rows)]
        taken = snapshot and [
            snapshot.id, number(snapshot.head), snapshot.length, f"{snapshot.checksum:016x}", snapshot.rows,
        ]  # fmt: skip
        cut = None if entry.cut is None else number(entry.cut)
        rows.setdefault(store, []).append([key_group, entry.timer_ms, taken, chain, cut])
    return {"heads": [[head.version, head.attempt] for head in heads], "stores": rows}


def _entries_from_json(columns: dict[str, object]) -> dict[Address, Entry]:
    heads = [Head(version, attempt) for version, attempt in cast("list[tuple[int, str]]", columns["heads"])]

    def links(flat: list[int | str]) -> tuple[Link, ...]:
        fives = zip(*[iter(flat)] * 5, strict=True)
        return tuple(
            Link(heads[cast(int, h)], cast(int, s), cast(int, n), int(cast(str, c), 16), cast(int, r))
            for h, s, n, c, r in fives
        )

    def snapshot(row: list[object] | None) -> Snapshot | None:
        if row is None:
            return None
        taken, head, length, checksum, count = cast("tuple[str, int, int, str, int]", tuple(row))
        return Snapshot(taken, heads[head], length, int(checksum, 16), count)

    stores = cast("dict[str, list[_Row]]", columns["stores"])
    return {
        (store, key_group): Entry(snapshot(taken), links(chain), timer, None if cut is None else heads[cut])
        for store, rows in stores.items()
        for key_group, timer, taken, chain, cut in rows
    }
