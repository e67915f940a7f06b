"""One record of the log, and its bytes (docs/formats.md).

A record is one line of JSON (magic, format version, checksum, size) followed by a zstd frame of JSON. Entries are rows
of plain numbers and a table of heads, so that a record of 128 key-groups stays small. Reserved fields are written as
they were read.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from typing import Final, Literal, cast, get_args

import pyarrow as pa
import xxhash

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError, raise_if_memory
from riffle_spark.garbage import collect_garbage_rarely
from riffle_spark.state.formats import bounded_json
from riffle_spark.state.log import entry_rows, paths
from riffle_spark.state.log.manifest import Address, Entry, Link
from riffle_spark.state.log.owner_columns import owners_from_json, owners_to_json
from riffle_spark.state.log.recorded_moves import RecordedMoves
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint

FORMAT = 10
"""The format in which records are written."""
OLDEST_FORMAT = 1
"""The oldest format that can be read."""
_MAGIC = "riffle-log"
_FULL_DISTANCE_MAX = 1 << 10
"""The number of a record minus that of its full record is less than this."""

Kind = Literal["batch", "claim", "rollback", "adopt", "dispatch", "orders", "state", "savepoint"]
_REMEDY = "Restore the object from a backup, or roll back to a batch whose record is intact (riffle rollback)."
_NUMBERS = ("sequence", "epoch", "version", "rollbacks", "written_ms", "total", "full", "promised", "purged")
FORK_OF: Final = "fork of "
"""The start of the ``query_id`` of a fork's first record."""
_TEXTS = ("kind", "previous", "commit_id", "log_id", "query_id", "dispatch")
_MAPS = (
    "entries",
    "schemas",
    "owners",
    "standbys",
    "event_times",
    "initial_states",
    "weights",
    "watermarks",
    "orders",
    "stale_stores",
    "row_counts",
    "edit",
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int,)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_MAPS, (dict,)),
    **dict.fromkeys(("target", "time_ms", "watermark_ms", "late_watermark_ms", "delivers_as"), (int, type(None))),
    **dict.fromkeys(("offsets", "input_digest", "previous_offsets"), (str, type(None))),
    **dict.fromkeys(("outputs", "shards", "members", "moves", "savepoints", "between"), (list,)),
    "delivers_after_commit": (bool,),
}
_VALUES: Mapping[str, tuple[type, type]] = {
    "owners": (str, str),
    "event_times": (int, int),
    "stale_stores": (int, int),
    "row_counts": (int, int),
    "schemas": (dict, str),
    "standbys": (list, str),
    "initial_states": (list, str),
}
"""The type of a map's values, and of their values."""
_ENTRIES = {"heads", "stores", "merged"}
_OF_TASKS = ("owners", "standbys")
"""Maps that are stored as columns since format 10 (``owner_columns``)."""
_json_text = json.JSONEncoder(separators=(",", ":")).encode
_TASK = re.compile(r"(?!query/[0-9]+\Z)(.+/)?(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered record. Times are milliseconds since the epoch.

    ==================== ==============================================================================================
    log_id               commit id of the log's first record; differs after a root was emptied and started again
    version              the newest committed batch, -1 for none
    full                 sequence of the full record that ``entries`` change, or the record's own if it is full
    between              the records between the full record and this one that its manifest needs, in ascending order
    entries              all entries in a full record, otherwise the entries that changed since the last of ``bases``
    offsets              Spark's offset-log entry of the batch, as text
    input_digest         digest of the batch's rows, if the offset log cannot be read
    outputs              sealed output rows; the sink gets them if ``delivers_after_commit`` is set
    shards               the (topic, partition) of key-groups 0, 1, ... unless ``dispatch`` is ``key_group``
    time_ms              the batch's time, from Spark
    watermark_ms         timers of the next batch are due by it; with Spark's watermark, that of this batch
    late_watermark_ms    rows of the next batch that are not newer are late; with Spark's, that of this batch
    event_times          newest event time per store
    initial_states       names of the loaded initial states, per store
    delivers_as          after a rollback to a batch with sealed output: its ``rollbacks`` when it ran
    stale_stores         stores that later batches ran without: the last batch of which they have the rows
    row_counts           the number of state rows of each store for which it is known
    moves                why key-groups moved since the record before
    promised             the oldest sequence that a rollback may return to; no object that it or a later record lists is
                         deleted before a newer record raises it
    members              live members: in full records, and in records after which they changed
    weights              load of the key-groups
    orders               operator requests (docs/formats.md)
    watermarks           reserved
    edit                 of kind ``state``: what an operator changed, who and why (docs/formats.md)
    purged               the newest sequence at which keys were purged, 0 for never; local files from before are deleted
    savepoints           records that are kept until their savepoint is deleted. No object that they list is deleted
    previous_offsets     of the object of a savepoint, and of a rollback to it: the offset-log entry of the batch before
    ==================== ==============================================================================================
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
    row_counts: Mapping[str, int] = field(default_factory=dict)
    moves: tuple[RecordedMoves, ...] = ()
    edit: Mapping[str, object] = field(default_factory=dict)
    purged: int = 0
    savepoints: tuple[RecordedSavepoint, ...] = ()
    previous_offsets: str | None = None
    between: tuple[int, ...] = ()

    @property
    def division(self) -> tuple[bool, int]:
        """How keys are divided into key-groups. `riffle dispatch` changes it."""
        return self.dispatch == "key_group", self.total

    @property
    def bases(self) -> tuple[int, ...]:
        """The records whose changes precede ``entries``, the full record first. Empty in a full record."""
        return () if self.full == self.sequence else (self.full, *self.between)

    @property
    def delivery_rollbacks(self) -> int:
        """The ``rollbacks`` in the batch's delivery id: the number when the batch ran."""
        return self.rollbacks if self.delivers_as is None else self.delivers_as

    @property
    def edited_ms(self) -> int:
        """The time (ms) of a value that an operator sets: that of the newest batch, or of this record without one."""
        return self.written_ms if self.time_ms is None else self.time_ms

    @property
    def is_unbound(self) -> bool:
        """Whether the state belongs to no query: that of a fork or of a loaded export, before `riffle adopt`."""
        return not self.query_id or self.query_id.startswith(FORK_OF)


_DEFAULTS: Mapping[str, object] = {
    f.name: f.default if f.default_factory is MISSING else f.default_factory()
    for f in fields(Record)
    if f.name != "entries" and (f.default is not MISSING or f.default_factory is not MISSING)
}
"""The default values of fields. Records of the newest format omit fields with their default value."""


def digest(data: bytes) -> str:
    """Return the digest of a record (BLAKE2b, 16 bytes, hex). The next record stores it."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def encode(record: Record) -> bytes:
    """Return the bytes of a record."""
    body: dict[str, object] = {f.name: getattr(record, f.name) for f in fields(record)}
    entries = entry_rows.entries_to_text(record.entries)
    body["outputs"] = [[store, *entry_rows.link_to_json(link)] for store, link in record.outputs]
    body["members"] = [member.to_json() for member in record.members]
    body["moves"] = [moves.to_json() for moves in record.moves]
    body["savepoints"] = [savepoint.to_json() for savepoint in record.savepoints]
    for name, default in _DEFAULTS.items():
        if getattr(record, name) == default:
            del body[name]
    owners = {name: cast("Mapping[str, object]", body[name]) for name in _OF_TASKS if name in body}
    body.update({name: owners_to_json(values) for name, values in owners.items()})
    names = list(body)
    place = names.index("entries")
    before = _json_text({name: body[name] for name in names[:place]})
    after = _json_text({name: body[name] for name in names[place + 1 :]})
    plain = f'{before[:-1]},"entries":{entries}{"," if len(after) > 2 else ""}{after[1:]}'.encode()
    packed = cast(bytes, pa.compress(plain, codec="zstd", asbytes=True))
    _check_readable(plain, packed)
    checksum = f"{xxhash.xxh3_64_intdigest(packed):016x}"
    header = {"magic": _MAGIC, "format": FORMAT, "xxh3": checksum, "length": len(plain)}
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + packed


def _check_readable(plain: bytes, packed: bytes) -> None:
    """Raise ``ConfigError`` for a body that is too large for ``decode``."""
    try:
        bounded_json.check_size(plain, len(packed))
    except ValueError as error:
        # Cause: The record lists the chains of all key-groups. It is larger than a reader accepts.
        raise ConfigError(
            f"The next log record is too large: {error}.",
            remedy="Reduce the key-groups (riffle dispatch), or lower snapshot_chain_links.",
            where="log",
            id="RIFFLE-0414",
        ) from error


@collect_garbage_rarely()
def decode(data: bytes, name: str, *, with_entries: bool = True, changed_only: bool = False) -> Record:
    """Return the record in ``data``. ``name`` is the name of its object.

    Unless ``with_entries``, the record has no entries. With ``changed_only`` it has the entries that its own batch
    changed, each with only its newest link. Both are much faster for many key-groups.

    Raises ``CorruptStateError`` if the bytes are not a whole, unaltered record of a known format.
    """
    head, _, packed = data.partition(b"\n")
    header = _header_of_line(head)
    if header is None:
        # Cause: The object is empty or truncated, or another program wrote it.
        raise CorruptStateError("This object is not a riffle log record.", remedy=_REMEDY, where=name, id="RIFFLE-0415")
    record_format = header.get("format")
    if type(record_format) is not int or not OLDEST_FORMAT <= record_format <= FORMAT:
        # Cause: A newer version of riffle-spark wrote the record.
        raise CorruptStateError(
            f"The record has format {record_format!r}, but this version reads {OLDEST_FORMAT} to {FORMAT}.",
            remedy="Run the version of riffle-spark that wrote it, or a newer one.",
            where=name,
            id="RIFFLE-0416",
        )
    if header.get("xxh3") != f"{xxhash.xxh3_64_intdigest(packed):016x}":
        raise CorruptStateError(
            "The record is truncated or altered: its checksum differs.", remedy=_REMEDY, where=name, id="RIFFLE-0417"
        )
    try:
        body = bounded_json.parse_json(_unpack(packed, header), len(packed))
        selection: Literal["all", "changed", "none"] = "all" if with_entries else "none"
        record = _record_of_body(
            cast("dict[str, object]", body), record_format, "changed" if changed_only else selection
        )
    except (OSError, pa.ArrowException, ConfigError, *UNREADABLE) as error:
        raise_if_memory(error)
        # Cause: The checksum matches, so another version or program wrote the record in this form.
        raise CorruptStateError(
            f"The record cannot be read: {error!r}", remedy=_REMEDY, where=name, id="RIFFLE-0418"
        ) from error
    if paths.parse_record_name(name) not in (None, record.sequence):
        problem = f"The object contains record {record.sequence}, which is not the number in its name."
        # Cause: The object was copied or renamed.
        raise CorruptStateError(problem, remedy=_REMEDY, where=name, id="RIFFLE-0419")
    return record


def _header_of_line(line: bytes) -> Mapping[str, object] | None:
    """Return the header in the first line of a record, or ``None`` for any other line."""
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_header = isinstance(header, dict) and header.get("magic") == _MAGIC
    return cast("Mapping[str, object]", header) if is_header else None


def is_record(data: bytes, name: str) -> bool:
    """Return whether the bytes are a whole, unaltered record of this name."""
    try:
        decode(data, name)
    except CorruptStateError:
        return False
    return True


def _unpack(packed: bytes, header: Mapping[str, object]) -> bytes:
    """Return the uncompressed body of a record. Raises ``ValueError`` if it is too long."""
    limit = bounded_json.allowed_bytes(len(packed)) // 2  # the parsed body takes at least twice the bytes of its text
    if header["format"] == 1:
        with pa.input_stream(pa.BufferReader(packed), compression="zstd") as stream:
            # Not `read`: pyarrow's leaks its buffer if the stream is broken.
            body = stream.read_buffer(limit + 1)
        if body.size > limit:
            raise ValueError(f"a body of more than {limit} bytes")
        return cast(bytes, body.to_pybytes())
    length = header["length"]
    if type(length) is not int or not 0 < length <= limit:
        raise ValueError(f"a body of {length!r} bytes")
    return cast(bytes, pa.decompress(packed, decompressed_size=length, codec="zstd", asbytes=True))


def _record_of_body(
    body: dict[str, object], record_format: int, selection: Literal["all", "changed", "none"]
) -> Record:
    """Return the record of a parsed body with all entries, the changed ones or none.

    Raises ``KeyError``, ``TypeError`` or ``ValueError`` for any other body.
    """
    if record_format >= FORMAT:
        body = {**body, **{name: owners_from_json(body[name]) for name in _OF_TASKS if name in body}}
    _check_body(body)
    values: dict[str, object] = dict(body)
    entries: Mapping[Address, Entry] = {}
    columns = cast("dict[str, object]", body["entries"])
    if selection == "all":
        entries = entry_rows.checked_entries_from_json(columns)
    elif selection == "changed":
        entries = entry_rows.changed_entries_from_json(columns, cast(int, body["version"]), cast(int, body["epoch"]))
    values["entries"] = entries
    for name in ("standbys", "initial_states"):
        values[name] = {k: tuple(v) for k, v in cast("dict[str, list[str]]", body.get(name, {})).items()}
    outputs = cast("list[list[object]]", body.get("outputs", []))
    values["outputs"] = tuple((cast(str, store), entry_rows.link_from_json(rest)) for store, *rest in outputs)
    for store, link in cast("tuple[tuple[str, Link], ...]", values["outputs"]):
        entry_rows.check_link(store, link)
    values["shards"] = tuple(map(_parse_shard, cast("list[list[object]]", body.get("shards", []))))
    values["members"] = tuple(map(RecordedMember.from_json, cast("list[list[object]]", body.get("members", []))))
    values["moves"] = tuple(map(RecordedMoves.from_json, cast("list[list[object]]", body.get("moves", []))))
    savepoints = cast("list[list[object]]", body.get("savepoints", []))
    values["savepoints"] = tuple(map(RecordedSavepoint.from_json, savepoints))
    values["between"] = tuple(cast("list[int]", body.get("between", [])))
    record = Record(**values)  # type: ignore[arg-type]
    _check_references(record)
    assigned = record.weights.get("assigned")
    moved = (task for moves in record.moves for task in moves.tasks)
    for name in (*record.owners, *record.standbys, *(assigned if isinstance(assigned, dict) else ()), *moved):
        if not _TASK.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a task")
    return record


def _check_references(record: Record) -> None:
    """Raise ``ValueError`` if a record refers to later records, a too distant full record, or unordered bases."""
    earlier = (record.full, record.promised, record.target or 0, record.purged)
    line = (*record.bases, record.sequence)
    is_line = all(type(base) is int and base < later for base, later in pairwise(line))
    if not is_line or not 0 <= min(earlier) <= max(earlier) <= record.sequence < record.full + _FULL_DISTANCE_MAX:
        raise ValueError(f"record {record.sequence} refers to {', '.join(map(str, (*earlier, *record.between)))}")


def _parse_shard(row: list[object]) -> tuple[str, int]:
    """Return the topic and partition in a JSON array. Raises ``TypeError`` for other values."""
    topic, number = row
    if type(topic) is not str or type(number) is not int:
        raise TypeError(f"invalid partition {row!r}")
    return topic, number


def _check_body(body: Mapping[str, object]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for an unknown field or kind, or a value of a wrong type or size."""
    if type(body) is not dict:
        raise TypeError("the body is not an object")
    if unknown := sorted(body.keys() - {f.name for f in fields(Record)}):
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
    if body["kind"] not in get_args(Kind):
        raise ValueError(f"unknown kind {body['kind']!r}")
    if unknown := sorted(cast("dict[str, object]", body["entries"]).keys() - _ENTRIES):
        raise TypeError(f"entries hold {', '.join(unknown)}, which this version cannot read")


def _check_values(name: str, values: Mapping[str, object]) -> None:
    """Raise ``TypeError`` if a value of the mapping ``name`` does not have its type."""
    outer, inner = _VALUES[name]
    for value in values.values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if type(value) is not outer or any(type(item) is not inner for item in items):
            raise TypeError(f"{name} contains {value!r}")


@dataclass(frozen=True, slots=True)
class RecordedMember:
    """A live member: its id, executor, host, slots, rack and tags. ``facts`` are reserved (docs/formats.md)."""

    id: str
    executor: str
    host: str
    slots: int
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> list[object]:
        """Return the member as a row."""
        return [self.id, self.executor, self.host, self.slots, self.rack, dict(self.tags), dict(self.facts)]

    @classmethod
    def from_json(cls, row: list[object]) -> "RecordedMember":
        """Return the member of a row. Raises ``TypeError`` or ``ValueError`` for other rows."""
        name, executor, host, slots, rack, tags, facts = row
        types = tuple(map(type, (name, executor, host, slots, tags, facts)))
        if types != (str, str, str, int, dict, dict) or type(rack) not in (str, type(None)):
            raise TypeError(f"invalid member {row!r}")
        member_tags = cast("dict[str, str]", tags)
        if any(type(value) is not str for value in member_tags.values()):
            raise TypeError(f"a tag is not text: {member_tags!r}")
        return cls(
            cast(str, name),
            cast(str, executor),
            cast(str, host),
            cast(int, slots),
            cast("str | None", rack),
            member_tags,
            cast("dict[str, object]", facts),
        )
