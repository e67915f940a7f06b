"""One record of the log, and its bytes. Knows the format of docs/formats.md. Does not know where records are kept.

A record is one line of JSON (magic, format version, checksum, size) followed by a zstd frame of JSON. Entries are
columns of plain numbers and a table of attempts, so that a record of 128 key-groups stays small and quick to write.
Fields that are reserved are read and written as they came, so that a later version's are not lost.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, cast, get_args

import pyarrow as pa
import xxhash

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.state.formats import bounded_json
from riffle_spark.state.log import entry_rows, paths
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Link, Manifest

__all__ = [
    "FORMAT",
    "OLDEST_FORMAT",
    "Kind",
    "Record",
    "RecordedMember",
    "check_body",
    "decode",
    "digest",
    "encode",
    "is_record",
    "joined",
]

FORMAT = 4
"""The newest version of the record format. A record is written in the oldest version that can express it, so that older
packages refuse only what they would misread.
"""
_FORMAT_OF_GROUPS = 3
"""Names key-groups by their co-location group."""
_FORMAT_OF_MOST = 2
OLDEST_FORMAT = 1
"""The oldest that is read."""
_MAGIC = "riffle-log"
_FULL_WITHIN = 1 << 10
"""No record is so far from the full one that it changes: far more than any version has let them be."""

Kind = Literal["batch", "claim", "rollback", "adopt", "dispatch", "orders"]
_SINCE_2 = ("promised", "members", "weights", "watermarks", "orders", "delivers_as")
_SINCE_4 = ("stale_stores",)
_REMEDY = "restore the object from a backup, or roll back to a version whose record is intact (riffle rollback)"
_REMEDY_FOREIGN = f"{_REMEDY}; if nothing below the root is riffle's, point `root` elsewhere"
_NUMBERS = ("sequence", "epoch", "version", "rollbacks", "written_ms", "total", "full", "promised")
_TEXTS = ("kind", "previous", "commit_id", "log_id", "query_id", "dispatch")
_MAPS = (
    "entries", "schemas", "owners", "standbys", "event_times", "initial_states", "weights", "watermarks", "orders",
    "stale_stores",
)  # fmt: skip
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int,)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_MAPS, (dict,)),
    **dict.fromkeys(("target", "time_ms", "watermark_ms", "late_watermark_ms", "delivers_as"), (int, type(None))),
    **dict.fromkeys(("offsets", "input_digest"), (str, type(None))),
    **dict.fromkeys(("outputs", "shards", "members"), (list,)),
    "delivers_after_commit": (bool,),
}
_VALUES: Mapping[str, tuple[type, type]] = {
    "owners": (str, str),
    "event_times": (int, int),
    "stale_stores": (int, int),
    "schemas": (dict, str),
    "standbys": (list, str),
    "initial_states": (list, str),
}
"""What the values of a map are, and what these hold in turn."""
_ENTRIES = {"heads", "stores"}
_TASK = re.compile(r"(?!query/[0-9]+\Z)(.+/)?(0|[1-9][0-9]{0,8})")


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
    ``late_watermark_ms`` are late; where the watermark is Spark's, both are that of its batch. By store,
    ``event_times`` are the newest event times seen and ``initial_states`` the names of the initial states that were
    loaded. ``delivers_as``: after a rollback to a batch with sealed output rows, the ``rollbacks`` that were before
    it was run. ``stale_stores`` maps each store that later batches ran without to the last version whose rows it has;
    all other stores have the rows of every batch up to ``version``.

    ``promised`` is the oldest sequence that a rollback may go back to: no delete that was sent, or is sent before a
    newer record says otherwise, is of an object that it or a later one lists. ``members`` are the live ones, in full
    records and in those after them by which others live, and ``weights`` the load of key-groups. ``orders`` are what
    was asked of the query (docs/formats.md); ``watermarks`` are reserved, and kept as they are.
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
    promised: int = 0
    members: "tuple[RecordedMember, ...]" = ()
    weights: Mapping[str, object] = field(default_factory=dict)
    watermarks: Mapping[str, object] = field(default_factory=dict)
    orders: Mapping[str, object] = field(default_factory=dict)
    delivers_as: int | None = None
    stale_stores: Mapping[str, int] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """The ``rollbacks`` in the delivery id of its batch: those of the line that the batch was run on."""
        return self.rollbacks if self.delivers_as is None else self.delivers_as


def digest(data: bytes) -> str:
    """Return the digest by which the next record names this one (BLAKE2b, 16 bytes, hex)."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    body: dict[str, object] = {f.name: getattr(record, f.name) for f in fields(record)}
    body["entries"] = entry_rows.entries_to_json(record.entries)
    body["outputs"] = [[store, *entry_rows.link_to_json(link)] for store, link in record.outputs]
    body["members"] = [member.to_json() for member in record.members]
    if record.delivers_as is None:
        del body["delivers_as"]  # or versions that do not know it would refuse every record
    if not record.stale_stores:
        del body["stale_stores"]
    plain = json.dumps(body, separators=(",", ":")).encode()
    packed = cast(bytes, pa.compress(plain, codec="zstd", asbytes=True))
    _check_readable(plain, packed)
    checksum = f"{xxhash.xxh3_64_intdigest(packed):016x}"
    header = {"magic": _MAGIC, "format": _format_of(record), "xxh3": checksum, "length": len(plain)}
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + packed


def _format_of(record: Record) -> int:
    """Return the oldest format that can express a record."""
    if record.stale_stores:
        return FORMAT
    return _FORMAT_OF_GROUPS if _names_groups(record) else _FORMAT_OF_MOST


def _check_readable(plain: bytes, packed: bytes) -> None:
    """Raise ``ConfigError`` for a body that ``decode`` would refuse."""
    try:
        bounded_json.check_size(plain, len(packed))
    except ValueError as error:
        raise ConfigError(
            f"the log's next record is too large: {error}",
            remedy="give the query fewer key-groups (riffle dispatch), or lower `snapshot_chain_links`",
            where="log",
            id="RIFFLE-0414",
        ) from error


def _names_groups(record: Record) -> bool:
    """Tell whether key-groups are named by their group, too."""
    by_name = (record.owners, record.standbys, *record.weights.values(), *map(record.orders.get, ("pins", "homes")))
    return any("/" in name for names in by_name if isinstance(names, Mapping) for name in names)


def decode(data: bytes, name: str) -> Record:
    """Return the record that ``data`` holds; ``name`` is for errors.

    Raises ``CorruptStateError`` if the bytes are not a whole, unaltered record of a format this version reads.
    """
    head, _, packed = data.partition(b"\n")
    try:
        header = json.loads(head)
        assert header["magic"] == _MAGIC
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise CorruptStateError(
            "this object is not a riffle log record", remedy=_REMEDY_FOREIGN, where=name, id="RIFFLE-0415"
        ) from None
    found = header.get("format")
    if type(found) is not int or not OLDEST_FORMAT <= found <= FORMAT:
        raise CorruptStateError(
            f"the record has format {found!r}, this version reads {OLDEST_FORMAT} to {FORMAT}",
            remedy="run the version of riffle-spark that wrote it, or a newer one",
            where=name,
            id="RIFFLE-0416",
        )
    if header.get("xxh3") != f"{xxhash.xxh3_64_intdigest(packed):016x}":
        raise CorruptStateError(
            "the record is truncated or altered: its checksum differs", remedy=_REMEDY, where=name, id="RIFFLE-0417"
        )
    try:
        body = bounded_json.parse(_unpacked(packed, header), len(packed))
        record = _record(cast("dict[str, object]", body), found)
    except (OSError, pa.ArrowException, ConfigError, *UNREADABLE) as error:
        raise_if_memory(error)
        raise CorruptStateError(
            f"the record cannot be read: {error!r}", remedy=_REMEDY, where=name, id="RIFFLE-0418"
        ) from error
    if paths.record_sequence(name) not in (None, record.sequence):
        problem = f"this is record {record.sequence}, under another number"
        raise CorruptStateError(problem, remedy=_REMEDY, where=name, id="RIFFLE-0419")
    return record


def is_record(data: bytes, name: str) -> bool:
    """Tell whether bytes are a record as one was written under this name: not cut short, nor altered on their way."""
    try:
        decode(data, name)
    except CorruptStateError:
        return False
    return True


def _unpacked(packed: bytes, header: Mapping[str, object]) -> bytes:
    """Return the unpacked body. Raises ``ValueError`` if it is longer than is allowed."""
    most = bounded_json.allowed_bytes(len(packed)) // 2  # the parsed body takes at least twice the bytes of its text
    if header["format"] == 1:
        with pa.input_stream(pa.BufferReader(packed), compression="zstd") as stream:
            # Not `read`: where the stream is broken, pyarrow's never gives back the bytes that it made room for.
            body = stream.read_buffer(most + 1)
        if body.size > most:
            raise ValueError(f"a body of more than {most} bytes")
        return cast(bytes, body.to_pybytes())
    length = header["length"]
    if type(length) is not int or not 0 < length <= most:
        raise ValueError(f"a body of {length!r} bytes")
    return cast(bytes, pa.decompress(packed, decompressed_size=length, codec="zstd", asbytes=True))


def _record(body: dict[str, object], found: int) -> Record:
    """Return the record of a body of format ``found``. Raises what is wrong with it as Python does."""
    later = (*(_SINCE_2 if found < 2 else ()), *(_SINCE_4 if found < 4 else ()))
    known = [f.name for f in fields(Record) if f.name not in later]
    check_body(body, known, get_args(Kind))
    read: dict[str, object] = dict(body)
    entries = entry_rows.entries_from_json(cast("dict[str, object]", body["entries"]))
    entry_rows.check_entries(entries)
    read["entries"] = entries
    for lists in ("standbys", "initial_states"):
        read[lists] = {k: tuple(v) for k, v in cast("dict[str, list[str]]", body.get(lists, {})).items()}
    outputs = cast("list[list[object]]", body.get("outputs", []))
    read["outputs"] = tuple((cast(str, store), entry_rows.link_from_json(rest)) for store, *rest in outputs)
    for store, link in cast("tuple[tuple[str, Link], ...]", read["outputs"]):
        entry_rows.check_link(store, link)
    read["shards"] = tuple(map(_shard, cast("list[list[object]]", body.get("shards", []))))
    read["members"] = tuple(map(RecordedMember.from_json, cast("list[list[object]]", body.get("members", []))))
    record = Record(**read)  # type: ignore[arg-type]
    _check_order(record)
    assigned = record.weights.get("assigned")
    for name in (*record.owners, *record.standbys, *(assigned if isinstance(assigned, dict) else ())):
        if not _TASK.fullmatch(name):
            raise ValueError(f"{name!r}, no number of a key-group")
    return record


def _check_order(record: Record) -> None:
    """Raise ``ValueError`` for a record that names later ones, or a full one from far before: whoever reads the log
    goes over all numbers in between.
    """
    sequence, before = record.sequence, (record.full, record.promised, record.target or 0)
    if not 0 <= min(before) <= max(before) <= sequence < record.full + _FULL_WITHIN:
        raise ValueError(f"record {sequence} names {', '.join(map(str, before))}")


def _shard(row: list[object]) -> tuple[str, int]:
    topic, number = row
    if type(topic) is not str or type(number) is not int:
        raise TypeError(f"no partition: {row!r}")
    return topic, number


def check_body(body: Mapping[str, object], known: Collection[str], kinds: Collection[str]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a field that is not ``known``, not of its type or too large, or another
    kind.
    """
    if type(body) is not dict:
        raise TypeError("the body is not an object")
    if unknown := sorted(body.keys() - set(known)):
        raise TypeError(f"unknown fields {', '.join(unknown)}")
    for name, value in body.items():
        if type(value) not in _TYPES[name]:
            raise TypeError(f"{name} is of type {type(value).__name__}")
        if type(value) is int and abs(value) >= entry_rows.NUMBERS_END:
            raise ValueError(f"{name} does not fit 64 bits")
        if name in _TEXTS and not cast(str, value).isprintable():
            raise ValueError(f"{name} is {value!r}")
        if name in _VALUES:
            _check_values(name, cast("dict[str, object]", value))
    if body["kind"] not in kinds:
        raise ValueError(f"unknown kind {body['kind']!r}")
    if unknown := sorted(cast("dict[str, object]", body["entries"]).keys() - _ENTRIES):
        raise TypeError(f"entries hold {', '.join(unknown)}, which this version cannot read: run a newer one")


def _check_values(name: str, values: Mapping[str, object]) -> None:
    outer, inner = _VALUES[name]
    for value in values.values():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if type(value) is not outer or any(type(each) is not inner for each in held):
            raise TypeError(f"{name} holds {value!r}")


@dataclass(frozen=True, slots=True)
class RecordedMember:
    """A live member: its folder's name, the executor that held it, where that ran, its slots, rack and tags.

    ``facts`` are reserved: what was measured of it (docs/formats.md).
    """

    id: str
    executor: str
    host: str
    slots: int
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> list[object]:
        """Return its row."""
        return [self.id, self.executor, self.host, self.slots, self.rack, dict(self.tags), dict(self.facts)]

    @classmethod
    def from_json(cls, row: list[object]) -> "RecordedMember":
        """Return the member of a row. Raises ``TypeError`` or ``ValueError`` where it is none."""
        name, executor, host, slots, rack, tags, facts = row
        types = tuple(map(type, (name, executor, host, slots, tags, facts)))
        if types != (str, str, str, int, dict, dict) or type(rack) not in (str, type(None)):
            raise TypeError(f"no member: {row!r}")
        told = cast("dict[str, str]", tags)
        if any(type(value) is not str for value in told.values()):
            raise TypeError(f"a tag that is no text: {told!r}")
        return cls(
            cast(str, name), cast(str, executor), cast(str, host), cast(int, slots), cast("str | None", rack), told,
            cast("dict[str, object]", facts),
        )  # fmt: skip


def joined(record: Record, base: Mapping[Address, Entry]) -> Manifest:
    """Return what a record and the entries of the full record it changes say together."""
    for address, entry in record.entries.items():
        if entry.cut is not None and entry.cut != base.get(address, EMPTY).head:
            raise CorruptStateError(
                f"record {record.sequence} does not fit the full record {record.full} it names",
                remedy="restore both from one backup, or roll back (riffle rollback)",
                where=paths.record(record.full),
                id="RIFFLE-0420",
            )
    changes = {address: entry.joined(base.get(address, EMPTY)) for address, entry in record.entries.items()}
    return Manifest(changes if record.full == record.sequence else {**base, **changes})
