"""What a driver tells the slots of one operator in one batch, and what they answer. Knows plain data only."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.errors import UNREADABLE, ConflictError, RiffleError
from riffle_spark.state.formats.arrow_schemas import schema_from_text, schema_to_text
from riffle_spark.state.log.entry_rows import entries_from_json, entries_to_json
from riffle_spark.state.log.manifest import Address, Entry, Head, Link
from riffle_spark.state.objects.store import StoreOptions

__all__ = [
    "ATTEMPT", "HASH", "INITIAL", "KEY_GROUP", "LETTER", "RECEIPT", "SLOT", "USUAL_INITIAL", "Home", "LateRule",
    "Order", "Part", "Receipt", "Watermark", "error_fields", "fields_of", "json_line", "letter_field", "reading",
    "result_schema", "without_letters",
]  # fmt: skip

INITIAL = "__riffle_initial"
SLOT = "__riffle_slot"
KEY_GROUP = "__riffle_key_group"
HASH = "__riffle_hash"
ATTEMPT = "__riffle_attempt"
RECEIPT = "__riffle_receipt"
LETTER = "__riffle_letter"
"""The last column of an output that has dead letters beside its rows: what is told of a row that the user's function
fails on, and null in all others.
"""
USUAL_INITIAL = "initial"
"""The name of the initial state that comes with a store's first batch or not at all."""
_SCHEMAS = ("output", "rows", "initial")
_unpacked = lru_cache(64)(schema_from_text)


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Raise ``ConflictError`` for a message that cannot be read: who wrote it is of another version."""
    try:
        yield
    except UNREADABLE as error:
        raise ConflictError(
            f"{message} between driver and executors cannot be read: {type(error).__name__}",
            remedy="install one version of riffle-spark on the driver and all executors, then start the query "
            "again: nothing was committed",
            where="riffle_spark.messages",
            id="RIFFLE-0123",
        ) from error


class Watermark(NamedTuple):
    """The column that holds a row's event time, and by how many milliseconds rows may come later than the newest."""

    column: str
    delay_ms: int


class LateRule(NamedTuple):
    """What is late by the watermark of the batch before: rows by the event time in a column of theirs, or whole keys,
    as those of an aggregate, by a timestamp column of the key, such as the end of a window.

    What is late is left out; ``Receipt.late_rows`` counts rows, or distinct keys.
    """

    column: str
    by: Literal["rows", "keys"] = "rows"


@dataclass(frozen=True, slots=True)
class Home:
    """Where state lives: the root and how to reach it, the local folder, and which executors the driver sees alive.

    ``log_id`` keeps copies of a root apart from those of one that was emptied and begun again. ``encryption_keys``
    names where each process finds its keys, and ``key`` is that of new parts (``Keys.write_key``). Both are empty if
    nothing is encrypted.
    """

    root: str
    options: StoreOptions
    local_dir: str | None
    application: str
    live: frozenset[str]
    log_id: str = ""
    encryption_keys: str = ""
    key: str = ""

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json_line({**fields_of(self), "live": sorted(self.live)})

    @classmethod
    def from_json(cls, text: str) -> "Home":
        """Return what ``to_json`` wrote."""
        with reading("where state lives"):
            body = json.loads(text)
            return cls(**{**body, "options": StoreOptions(**body["options"]), "live": frozenset(body["live"])})


@dataclass(frozen=True)
class Order:
    """One operator's batch: what every slot needs to know, but for the computation. ``slots`` maps a slot's number to
    its key-groups. ``schema`` is the store's as the log keeps it, ``key`` names its columns; rows go by those that
    ``routed_by`` names, or else by all of these.

    ``entries`` come cut to their last links, which is all that an owner needs; a slot that needs more reads the log's
    record ``sequence`` itself. So an order stays small however long the chains are. ``newest``: the driver has just
    seen that nobody committed after its base, so a copy that is beyond it is of a line that was given up, and is
    restored. ``standbys`` names, by key-group, members with a copy that could take over at once: a slot that finds none
    where it runs stops. ``followed_by`` names all that will read a key-group's deltas, so that what one member reads
    can lie together. A store that is not ``durable`` has no objects: what this member has not, is empty.
    ``read_by`` is the column by whose numbers rows are counted, to know where they came from. ``by_key``: a row's
    key-group is its key's hash; else it stands for the row's partition.

    Where there is a ``watermark``, rows whose event time is not after ``late_watermark_ms`` are late and left out, and
    the newest time is told; where there is a rule ``late``, what it says is left out. ``whole``: the computation gets
    all keys of the slot's key-groups, not only those of rows; ``keyless``: the one key 0, with rows or without. Timers
    of event time are due by ``watermark_ms``; those due by ``last_pass_ms`` too, after all others, where no batch may
    follow this one. Timers of processing time are due by ``time_ms``. Where there is ``initial``, rows have one more
    column: of these columns in rows of initial state, which have only their keys else, and null in others.
    """

    home: Home
    store: str
    key: tuple[str, ...]
    schema: Mapping[str, str]
    output: pa.Schema
    rows: pa.Schema
    per_key_group: bool
    order_by: tuple[str, ...]
    total: int
    epoch: int
    version: int
    time_ms: int
    watermark_ms: int | None
    slots: Mapping[int, tuple[int, ...]]
    entries: Mapping[int, Entry]
    sequence: int
    seal_output: bool = False
    newest: bool = False
    standbys: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    followed_by: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    durable: bool = True
    read_by: str | None = None
    by_key: bool = True
    time_mode: TimeMode = "None"
    watermark: Watermark | None = None
    late_watermark_ms: int | None = None
    last_pass_ms: int | None = None
    initial: pa.Schema | None = None
    shown: Mapping[str, str] = field(default_factory=dict)
    late: LateRule | None = None
    whole: bool = False
    keyless: bool = False
    routed_by: tuple[str, ...] = ()

    @property
    def routing(self) -> tuple[str, ...]:
        """The columns whose hash is a row's key-group."""
        return self.routed_by or self.key

    @property
    def late_rule(self) -> LateRule | None:
        """What is late, if anything can be: as it is told, or rows by the column that the watermark is made of."""
        return self.late or (LateRule(self.watermark.column) if self.watermark else None)

    @property
    def times(self) -> Times:
        """The batch's times, as far as anything goes by them."""
        return Times(self.time_mode, self.time_ms, self.watermark_ms, self.last_pass_ms, self.late_watermark_ms)

    def to_json(self) -> str:
        """Return the order as lines of JSON: what all slots are told, then the entries of each slot."""
        body = fields_of(self)
        body["home"] = self.home.to_json()
        body["slots"] = list(self.slots.items())
        body["standbys"], body["followed_by"] = _grouped(self.standbys), _grouped(self.followed_by)
        body.update({name: schema_to_text(body[name]) for name in _SCHEMAS if body[name] is not None})
        parts = self._entries_by_slot()
        body["entries"] = list(parts)
        return "\n".join([json_line(body), *(json_line(entries_to_json(part)) for part in parts.values())])

    def _entries_by_slot(self) -> dict[int | None, dict[Address, Entry]]:
        slot_of = {key_group: slot for slot, key_groups in self.slots.items() for key_group in key_groups}
        parts: dict[int | None, dict[Address, Entry]] = {}
        for key_group, entry in self.entries.items():
            parts.setdefault(slot_of.get(key_group), {})[self.store, key_group] = entry
        return parts

    @classmethod
    def from_json(cls, text: str, slot: int | None = None) -> "Order":
        """Return the order that ``to_json`` wrote; for one slot, only with the entries of its key-groups."""
        with reading("an order"):
            return cls._read(text, slot)

    @classmethod
    def _read(cls, text: str, slot: int | None) -> "Order":
        first, *lines = text.split("\n")
        body = json.loads(first)
        wanted = [line for of, line in zip(body["entries"], lines, strict=True) if slot is None or of == slot]
        read = [entries_from_json(json.loads(line)) for line in wanted]
        body["entries"] = {key_group: entry for part in read for (_, key_group), entry in part.items()}
        body["home"] = Home.from_json(body["home"])
        body["watermark"] = body["watermark"] and Watermark(*body["watermark"])
        body["late"] = body["late"] and LateRule(*body["late"])
        body["slots"] = {number: tuple(key_groups) for number, key_groups in body["slots"]}
        for name in ("standbys", "followed_by"):
            groups = ((tuple(members), key_groups) for members, key_groups in body[name])
            body[name] = {key_group: members for members, key_groups in groups for key_group in key_groups}
        body.update({name: tuple(body[name]) for name in ("key", "order_by", "routed_by")})
        body.update({name: _unpacked(body[name]) for name in _SCHEMAS if body[name] is not None})
        return cls(**body)


def _grouped(by_key_group: Mapping[int, tuple[str, ...]]) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return each list of members once, with the key-groups that have it."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for key_group, members in by_key_group.items():
        groups.setdefault(members, []).append(key_group)
    return list(groups.items())


def json_line(body: object) -> str:
    """Return a message, or its body, as one line of JSON, as every message is written."""
    return json.dumps(body, default=fields_of, separators=(",", ":"))


def fields_of(message: Any) -> dict[str, object]:
    """Return the fields of a dataclass by name, as they are: ``dataclasses.asdict`` copies all that is in them."""
    names = [one.name for one in fields(message)]
    return dict(zip(names, attrgetter(*names)(message), strict=True))


class Part(NamedTuple):
    """One key-group's part of the delta an attempt sealed, and when its earliest timer is due after it (ms)."""

    key_group: int
    start: int
    length: int
    checksum: int
    rows: int
    timer_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one attempt of one slot did. Seconds are of a monotonic clock, bytes as sent to or got from the store.

    ``rows`` counts all that it received, ``late_rows`` those that it left out, or keys (``LateRule``). ``timers_fired``
    and ``expired`` count timers and elements of state whose time had come, ``event_time_max_ms`` is the newest event
    time of all rows. ``dead_rows`` are dead letters, which are no ``output_rows``; ``dead_told`` what one of these
    raised. ``missing`` are key-groups it found no copy of where a standby has one; ``read`` are (key-group, number
    of the partition, rows) where the order asked to count. ``received`` are key-groups and how many rows each got,
    ``busy`` those whose own time in the user's code was measured, in microseconds: a column each. ``disk`` is the share
    of the member's disk that is in use, and the disk's bytes; ``memory`` what the Python worker took in the end, and
    what was left besides, in bytes.
    """

    store: str
    slot: int
    attempt: str
    version: int
    member: str
    executor: str
    rows: int = 0
    keys: int = 0
    output_rows: int = 0
    late_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    event_time_max_ms: int | None = None
    dead_rows: int = 0
    dead_told: str | None = None
    parts: tuple[Part, ...] = ()
    output: Part | None = None
    sealed_bytes: int = 0
    restores: int = 0
    folds: int = 0
    local_parts: int = 0
    fetched_parts: int = 0
    fetched_snapshots: int = 0
    fetched_bytes: int = 0
    fetched_snapshot_bytes: int = 0
    missing: tuple[int, ...] = ()
    read: tuple[tuple[int, int, int], ...] = ()
    received: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    busy: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    input_bytes: int = 0
    disk: tuple[float, int] = (0.0, 0)
    memory: tuple[int, int] = (0, 0)
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0
    error: tuple[str, str, str, str, str] | None = None

    def link(self, part: Part) -> Link:
        """Return the manifest's link to one of this attempt's parts."""
        return Link(Head(self.version, self.attempt), part.start, part.length, part.checksum, part.rows)

    def to_json(self) -> str:
        """Return the receipt as one line of JSON."""
        return json_line(self)

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Return the receipt that ``to_json`` wrote."""
        with reading("a receipt"):
            body = json.loads(text)
            body["parts"] = tuple(Part(*part) for part in body["parts"])
            body["output"] = Part(*body["output"]) if body["output"] else None
            body["error"] = tuple(body["error"]) if body["error"] else None
            body.update({name: tuple(body[name]) for name in ("missing", "disk", "memory")})
            body.update({name: tuple(map(tuple, body[name])) for name in ("read", "received", "busy")})
            return cls(**body)


def error_fields(error: RiffleError) -> tuple[str, str, str, str, str]:
    """Return an error as a receipt carries it: as the class of ``riffle_spark.errors`` that says who must act. What a
    module, or a user, made of that class need not be known to the driver.
    """
    public = next(kind for kind in type(error).__mro__ if kind.__module__ == RiffleError.__module__)
    return public.__name__, error.problem, error.remedy, error.where, error.id


def letter_field(rows: Iterable[pa.Field]) -> pa.Field:
    """Return the column of dead letters of rows that have these columns."""
    row = pa.struct([field.with_nullable(True) for field in rows])
    told = [pa.field(name, pa.string()) for name in ("error", "message", "traceback", "store")]
    return pa.field(LETTER, pa.struct([*told, pa.field("key_group", pa.int32()), pa.field("row", row)]))


def without_letters(output: pa.Schema) -> pa.Schema:
    """Return the columns of an output's own rows."""
    return output.remove(output.get_field_index(LETTER)) if LETTER in output.names else output


def result_schema(output: pa.Schema) -> pa.Schema:
    """Return the schema of what a slot returns: attempt, receipt (in one row only), then the output columns."""
    nullable = [pa.field(f.name, f.type, nullable=True) for f in output]
    return pa.schema([pa.field(ATTEMPT, pa.string()), pa.field(RECEIPT, pa.string()), *nullable])
