"""The messages of a batch: an order from the driver to the slots of an operator, and a receipt from each slot.

Messages are JSON. Spark pickles no objects of this package, only the names of its functions.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from riffle_spark.batch_times import TimeMode, Times
from riffle_spark.errors import UNREADABLE, ConflictError, RiffleError
from riffle_spark.state.formats.arrow_schemas import schema_from_text, schema_to_text
from riffle_spark.state.log.entry_rows import entries_from_json, newest_links_to_text
from riffle_spark.state.log.manifest import Block, Entry, Head, Link, link_in_block, links_in_block
from riffle_spark.state.objects.options import StoreOptions

INITIAL = "__riffle_initial"
SLOT = "__riffle_slot"
KEY_GROUP = "__riffle_key_group"
HASH = "__riffle_hash"
ATTEMPT = "__riffle_attempt"
RECEIPT = "__riffle_receipt"
LETTER = "__riffle_letter"
"""The last column of an output with dead letters: a struct for a row that the user's function failed on, else null."""
USUAL_INITIAL = "initial"
"""The name of the initial state that is loaded with a store's first batch."""
_SCHEMAS = ("output", "rows", "initial")
_unpacked = lru_cache(64)(schema_from_text)


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Run a block that parses a message, which ``message`` names.

    Raise ``ConflictError`` for errors of parsing, because another version wrote the message.
    """
    try:
        yield
    except UNREADABLE as error:
        # Cause: The driver and an executor run different versions of riffle-spark.
        raise ConflictError(
            f"Cannot read {message} between driver and executors: {type(error).__name__}.",
            remedy="Install the same version of riffle-spark on the driver and all executors, then restart the query. "
            "Nothing was committed.",
            where="riffle_spark.messages",
            id="RIFFLE-0123",
        ) from error


class Watermark(NamedTuple):
    """The event-time column, and the watermark delay in milliseconds."""

    column: str
    delay_ms: int


class LateRule(NamedTuple):
    """The rule by which slots drop late rows or keys. It uses the watermark of the previous batch.

    Rows are late by an event-time column. Keys are late by a timestamp column of the key, such as the end of a window.
    ``Receipt.late_rows`` counts rows or distinct keys.
    """

    column: str
    by: Literal["rows", "keys"] = "rows"


@dataclass(frozen=True, slots=True)
class Home:
    """The location of state: the root and its options, the local folder, and the ids of the live executors.

    Copies are valid only for one ``log_id`` and one ``purged``. ``log_id`` differs if a new log was created on the same
    root. ``purged`` is the number of the last record that purged keys, 0 for none. ``encryption_keys`` names the place
    from which each process reads its keys, and ``key`` the key of new parts. Both are empty without encryption.
    """

    root: str
    options: StoreOptions
    local_dir: str | None
    application: str
    live: frozenset[str]
    log_id: str = ""
    encryption_keys: str = ""
    key: str = ""
    purged: int = 0

    def to_json(self) -> str:
        """Return the message as one line of JSON. The text is cached, because all orders of a batch have one home."""
        return _home_text(self)

    @classmethod
    def from_json(cls, text: str) -> "Home":
        """Return the message that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("the location of state"):
            body = json.loads(text)
            options = StoreOptions.from_fields(body["options"])
            return cls(**{**body, "options": options, "live": frozenset(body["live"])})


@lru_cache(4)
def _home_text(home: Home) -> str:
    return json_line({**fields_of(home), "live": sorted(home.live)})


@dataclass(frozen=True)
class Order:
    """The order of a batch to the slots of an operator: everything that they need, except the computation.

    Attributes:
        key: the names of the key columns.
        schema: the schema of the store as the log stores it.
        slots: the key-groups of each slot, by slot number.
        entries: the log's entries by key-group. The message has only the newest ``links_sent`` links of each (``None``:
            all), so that it stays small. A slot that needs more links reads record ``sequence`` of the log.
        newest: whether record ``sequence`` is known to be the newest. Then a copy beyond it belongs to an abandoned
            attempt and is restored.
        standbys: the members, by key-group, whose copy could take over at once. A slot without a copy then stops.
        followed_by: all members, by key-group, that will read its deltas. Parts for one member are stored together.
        durable: whether the store has objects. If not, a key-group without a local copy is empty.
        read_by: the column with the partition number by which rows are counted.
        by_key: whether a row's key-group is the hash of its key. If not, it stands for the row's partition.
        late_watermark_ms: rows whose event time is not after this are dropped, by ``watermark`` or the rule ``late``.
        watermark_ms: event-time timers are due up to this, and in the last batch also up to ``last_pass_ms``.
        time_ms: processing-time timers are due up to this.
        initial: the columns of the initial state. Rows have one more column for them, which is null in other rows.
        whole: whether the computation gets all keys of the slot's key-groups, not only the keys with rows.
        keyless: whether the computation gets the one key 0.
        routed_by: the columns whose hash selects a row's key-group; empty for all key columns.
        is_combined: whether each row stands for several rows of its key.
        combined: the names of the combined columns. Those in ``sums`` are sent as two columns each.
        input_partitions: if not 0, the slot counts the rows that would remain if each input partition combined its
            rows. It is the number of input partitions.
        claim: the digits that the ids of all attempts start with. They identify the driver's claim of the log.
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
    is_combined: bool = False
    combined: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    input_partitions: int = 0
    claim: str = ""
    links_sent: int | None = None

    def attempt_name(self, random: bytes) -> str:
        """Return the name of an attempt, ``<epoch>-<attempt id>``. ``random`` are 16 bytes that make it unique."""
        return f"{self.epoch}-{self.claim}{random.hex()[len(self.claim) :]}"

    @property
    def routing(self) -> tuple[str, ...]:
        """The columns whose hash selects a row's key-group."""
        return self.routed_by or self.key

    @property
    def late_rule(self) -> LateRule | None:
        """The rule by which rows or keys are late: ``late``, or the watermark's own column; ``None`` if none are."""
        return self.late or (LateRule(self.watermark.column) if self.watermark else None)

    @property
    def times(self) -> Times:
        """The times of the batch for computations."""
        return Times(self.time_mode, self.time_ms, self.watermark_ms, self.last_pass_ms, self.late_watermark_ms)

    def to_json(self) -> str:
        """Return the order as lines of JSON: one with the common fields, then one with the entries of each slot."""
        body = fields_of(self)
        body["home"] = self.home.to_json()
        body["slots"] = list(self.slots.items())
        body["standbys"] = _grouped(self.standbys)
        body["followed_by"] = _grouped(self.followed_by)
        body.update({name: schema_to_text(body[name]) for name in _SCHEMAS if body[name] is not None})
        lines = self._entries_by_slot()
        body["entries"] = list(lines)
        return "\n".join([json_line(body), *lines.values()])

    def _entries_by_slot(self) -> dict[int | None, str]:
        """Return the text of the entries by slot. ``None`` has the entries of key-groups without a slot."""
        entries = self.entries
        parts: dict[int | None, list[int]] = {
            slot: [key_group for key_group in sorted(key_groups) if key_group in entries]
            for slot, key_groups in self.slots.items()
        }
        parts[None] = sorted(entries.keys() - set(chain.from_iterable(self.slots.values())))
        return {
            slot: newest_links_to_text([((self.store, kg), entries[kg], self.links_sent) for kg in key_groups])
            for slot, key_groups in parts.items()
            if key_groups
        }

    @classmethod
    def from_json(cls, text: str, slot: int | None = None) -> "Order":
        """Return the order that ``to_json`` wrote.

        For one ``slot``, it has only the entries of the slot's key-groups. Raises ``ConflictError`` for any other text.
        """
        with reading("an order"):
            return cls._read(text, slot)

    @classmethod
    def _read(cls, text: str, slot: int | None) -> "Order":
        """Return the order that ``to_json`` wrote. Raise the errors of parsing."""
        first, *lines = text.split("\n")
        body = json.loads(first)
        slot_lines = [line for n, line in zip(body["entries"], lines, strict=True) if slot is None or n == slot]
        parts = [entries_from_json(json.loads(line)) for line in slot_lines]
        body["entries"] = {key_group: entry for part in parts for (_, key_group), entry in part.items()}
        body["home"] = Home.from_json(body["home"])
        body["watermark"] = body["watermark"] and Watermark(*body["watermark"])
        body["late"] = body["late"] and LateRule(*body["late"])
        body["slots"] = {number: tuple(key_groups) for number, key_groups in body["slots"]}
        for name in ("standbys", "followed_by"):
            groups = ((tuple(members), key_groups) for members, key_groups in body[name])
            body[name] = {key_group: members for members, key_groups in groups for key_group in key_groups}
        body.update({name: tuple(body[name]) for name in ("key", "order_by", "routed_by", "combined", "sums")})
        body.update({name: _unpacked(body[name]) for name in _SCHEMAS if body[name] is not None})
        return cls(**body)


def _grouped(by_key_group: Mapping[int, tuple[str, ...]]) -> list[tuple[tuple[str, ...], list[int]]]:
    """Return (members, key-groups): each distinct tuple of members once, with all its key-groups."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for key_group, members in by_key_group.items():
        groups.setdefault(members, []).append(key_group)
    return list(groups.items())


def json_line(body: object) -> str:
    """Return a dataclass or a JSON value as one line of JSON."""
    return _encoder.encode(body)


def fields_of(message: Any) -> dict[str, object]:
    """Return the fields of a dataclass by name, without the deep copies of ``dataclasses.asdict``."""
    return {item.name: getattr(message, item.name) for item in fields(message)}


def set_fields_of(message: Any) -> dict[str, object]:
    """Return the fields of a dataclass by name, without those that have their default value."""
    defaults = _defaults_of(message.__class__)
    return {name: value for name, value in fields_of(message).items() if value != defaults.get(name)}


@lru_cache(8)
def _defaults_of(kind: Any) -> Mapping[str, object]:
    """Return the default values of a dataclass by the names of its fields."""
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(kind)
        if item.default is not MISSING or item.default_factory is not MISSING
    }


_encoder = json.JSONEncoder(default=fields_of, separators=(",", ":"))


class Part(NamedTuple):
    """A key-group's part of a sealed delta, and the time of its earliest timer afterwards (ms).

    ``is_whole``: its rows are the whole state of the key-group.
    """

    key_group: int
    start: int
    length: int
    checksum: int
    rows: int
    timer_ms: int | None = None
    is_whole: bool = False


@dataclass(slots=True)
class Receipt:
    """The results and figures of one attempt of a slot, sent to the driver. It is never changed.

    It is not frozen, because the driver creates one per slot and batch, and that would take five times as long.

    Attributes:
        rows: the number of all rows received.
        combined_rows: the number of rows that remain if rows are combined, 0 if that was not measured.
        late_rows: the number of dropped rows or keys (``LateRule``).
        timers_fired: the number of due timers.
        expired: the number of due elements of state.
        rows_added: with ``rows_updated`` and ``rows_removed``, the ``StateRows`` of the attempt.
        event_time_max_ms: the newest event time of all rows.
        dead_rows: the number of dead letters, which ``output_rows`` does not count.
        dead_example: the class of the error of the first dead letter.
        restores: the number of copies that were fetched as a whole.
        catch_ups: the number of copies that fetched only deltas.
        hits: the number of copies that fetched nothing.
        missing: the key-groups of which a standby has a copy, but this member has none.
        partition_rows: (key-group, partition number, rows).
        received: the columns key-group and rows.
        user_times: the columns key-group and microseconds in the user's code, if measured.
        disk: the used share of the member's disk, and its size in bytes.
        memory: the bytes that the Python worker uses, and the free bytes.
        fetched_bytes: the bytes that this attempt received from the store.
        sealed_bytes: the bytes that it sent to the store.
        seconds: the time of each step, by a monotonic clock.
        error: the fields of ``error_fields``.
    """

    store: str
    slot: int
    attempt: str
    version: int
    member: str
    executor: str
    rows: int = 0
    combined_rows: int = 0
    keys: int = 0
    output_rows: int = 0
    late_rows: int = 0
    timers_fired: int = 0
    expired: int = 0
    rows_added: int = 0
    rows_updated: int = 0
    rows_removed: int = 0
    event_time_max_ms: int | None = None
    dead_rows: int = 0
    dead_example: str | None = None
    parts: tuple[Part, ...] = ()
    block: Block | None = None
    output: Part | None = None
    sealed_bytes: int = 0
    restores: int = 0
    folds: int = 0
    hits: int = 0
    catch_ups: int = 0
    local_parts: int = 0
    fetched_parts: int = 0
    fetched_snapshots: int = 0
    fetched_bytes: int = 0
    fetched_snapshot_bytes: int = 0
    missing: tuple[int, ...] = ()
    partition_rows: tuple[tuple[int, int, int], ...] = ()
    received: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    user_times: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    input_bytes: int = 0
    disk: tuple[float, int] = (0.0, 0)
    memory: tuple[int, int] = (0, 0)
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0
    error: tuple[str, str, str, str, str] | None = None

    def link(self, part: Part) -> Link:
        """Return the link that the log stores for one of this attempt's parts."""
        if self.block is not None and part.key_group >= 0:
            return link_in_block(self.head, part.key_group, part.checksum, part.rows, self.block)
        return Link(self.head, part.start, part.length, part.checksum, part.rows)

    def links(self) -> list[Link]:
        """Return the links of ``parts``. They share one head."""
        if not self.parts:
            return []
        key_groups, starts, lengths, checksums, rows, *_ = zip(*self.parts, strict=True)
        if self.block is not None:
            return links_in_block(self.head, key_groups, checksums, rows, self.block)
        head = self.head
        return [Link(head, *numbers) for numbers in zip(starts, lengths, checksums, rows, strict=True)]

    @property
    def head(self) -> Head:
        """The head that this attempt's parts lead to."""
        return Head(self.version, self.attempt)

    def to_json(self) -> str:
        """Return the receipt as one line of JSON, without the fields that have their default value."""
        return json_line(set_fields_of(self))

    @classmethod
    def from_json(cls, text: str) -> "Receipt":
        """Return the receipt that ``to_json`` wrote. Raises ``ConflictError`` for any other text."""
        with reading("a receipt"):
            body = json.loads(text)
            for name in body.keys() & _RECEIPT_FIELDS.keys():
                body[name] = _RECEIPT_FIELDS[name](body[name])
            return cls(**body)


def _tuples(rows: Iterable[Iterable[object]]) -> tuple[tuple[object, ...], ...]:
    """Return lists in a JSON list as tuples."""
    return tuple(map(tuple, rows))


_RECEIPT_FIELDS: Mapping[str, Callable[[Any], object]] = {
    "parts": lambda rows: tuple([Part(*row) for row in rows]),
    "block": lambda row: Block(*row),
    "output": lambda row: Part(*row),
    **dict.fromkeys(("error", "missing", "disk", "memory"), tuple),
    **dict.fromkeys(("partition_rows", "received", "user_times"), _tuples),
}
"""The functions that convert fields of a receipt from JSON."""


def attempt_number(attempt: str) -> int:
    """Return the number that identifies an attempt in each row of its result: 64 bits of the hash of its name.

    Names have 16 random bytes, so two attempts of a batch never have the same number in practice.
    """
    return int.from_bytes(blake2b(attempt.encode(), digest_size=8).digest(), "big", signed=True)


def error_fields(error: RiffleError) -> tuple[str, str, str, str, str]:
    """Return an error's class, problem, remedy, place and id for a receipt.

    The class is the nearest class in ``riffle_spark.errors``, because the driver may not know a user's subclass.
    """
    public = next(kind for kind in type(error).__mro__ if kind.__module__ == RiffleError.__module__)
    return public.__name__, error.problem, error.remedy, error.where, error.id


def letter_field(rows: Iterable[pa.Field]) -> pa.Field:
    """Return the output column that holds dead letters, for rows with these columns."""
    row = pa.struct([field.with_nullable(True) for field in rows])
    texts = [pa.field(name, pa.string()) for name in ("error", "message", "traceback", "store")]
    return pa.field(LETTER, pa.struct([*texts, pa.field("key_group", pa.int32()), pa.field("row", row)]))


def without_letters(output: pa.Schema) -> pa.Schema:
    """Return an output's columns without the column for dead letters."""
    return output.remove(output.get_field_index(LETTER)) if LETTER in output.names else output


def result_schema(output: pa.Schema) -> pa.Schema:
    """Return the schema of a slot's result for a store: the attempt's number, the receipt, then the output columns.

    Only the last row has a receipt.
    """
    nullable = [pa.field(f.name, f.type, nullable=True) for f in output]
    return pa.schema([pa.field(ATTEMPT, pa.int64()), pa.field(RECEIPT, pa.string()), *nullable])
