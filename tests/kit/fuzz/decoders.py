"""Every decoder of stored bytes and of bytes that cross processes, with real encodings as seeds.

Other modules make the inputs and watch the decoders.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import xxhash

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.messages.first_version_orders import FirstVersionOrder
from riffle_spark.messages.slot_orders import Home, LateRule, Order, Receipt, Watermark
from riffle_spark.messages.upkeep_orders import (
    Census,
    CensusOrder,
    Drop,
    Follow,
    MergeOrder,
    SnapshotOrder,
    UpkeepOrder,
    UpkeepReceipt,
)
from riffle_spark.observe import status
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.process.types import spark_schemas
from riffle_spark.protocol.batch.mailbox import Mailbox, MailboxRequest
from riffle_spark.protocol.batch.stored_requests import apply_stored_settings, read_requests
from riffle_spark.protocol.facts import DriverFacts, GroupFacts, MemberFacts, PartitionLag, StoreFacts
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ownership.view import recorded_assignment
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.protocol.shards import partitions_in
from riffle_spark.settings import Settings, from_sources, read_toml
from riffle_spark.simulate.scenario import read_scenario
from riffle_spark.simulate.world_file import SHIPPED, read_world
from riffle_spark.state.copies import journal, part_runs
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block, encode_block_file, read_index
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import (
    Block,
    Entry,
    Head,
    Link,
    Manifest,
    MergedDelta,
    Replacement,
    Snapshot,
    link_in_block,
)
from riffle_spark.state.log.record import Record, decode, encode
from riffle_spark.state.log.record_manifests import manifest_of_record
from riffle_spark.state.objects.encryption import (
    HEADER_BYTES_MAX,
    frame_version,
    key_id_of,
    parse_keys,
    read_key_source,
)
from riffle_spark.state.objects.open import normalised, open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import check_name
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema, read_meanings, read_operator_meanings, schema_of_text
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.folders import CHECKOUT, DATA
from tests.kit.fuzz.framed_parts import KEYS, PLACE, framed, retagged
from tests.kit.fuzz.outside_answers import ANSWERS, NAMES_IN_A_FOLDER, read_answer, read_folder
from tests.kit.fuzz.small_logs import framed_record, read_log, small_logs

__all__ = ["DECODERS", "Decoder"]

_ARCHIVE = DATA / "roots" / "0.1-format1" / "root.tar.gz"
_MOST = 24
"""The most real encodings per kind."""
_UNPACKED_MOST = 1 << 20


@dataclass(frozen=True)
class Decoder:
    """A function that reads bytes of one kind. It may raise only errors of riffle_spark."""

    name: str
    decode: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    sealed: Callable[[bytes], bytes] = bytes
    """Replaces the checksum of an encoding by the right one, if the encoding has a checksum."""


@cache
def _archived() -> Mapping[str, bytes]:
    """Return the files of a root that an earlier version wrote, by their names."""
    with tarfile.open(_ARCHIVE) as packed:
        files = [(member.name, packed.extractfile(member)) for member in packed if member.isfile()]
        return {name: file.read() for name, file in files if file is not None}


def _records() -> list[bytes]:
    records = [data for name, data in _archived().items() if name.startswith("state/log/")]
    decoded = [decode(data, "seed") for data in records[:: max(1, len(records) // _MOST)]]
    return [
        *records[:_MOST],
        *map(encode, decoded),
        encode(_with_all_fields(decoded[-1])),
        encode(_with_blocks(decoded[-1])),
    ]


def _with_blocks(record: Record) -> Record:
    """Return a record of the newest format, whose links are in blocks and which refers to other records."""

    def in_block(link: Link, key_group: int) -> Link:
        return link_in_block(link.head, key_group, link.head.version, link.rows, Block(1_000, 50), link.merged)

    entries = {
        address: replace(entry, chain=tuple(in_block(link, address[1]) for link in entry.chain))
        for address, entry in record.entries.items()
    }
    sequence = max(record.sequence, 20)
    between = (sequence - 8, sequence - 4)
    return replace(_with_all_fields(record), sequence=sequence, full=sequence - 16, between=between, entries=entries)


def _with_all_fields(record: Record) -> Record:
    """Return a record with a value in every field."""
    orders = {
        "drained": ["m1"],
        "pins": {"3": "m1"},
        "slots": 2,
        "settings": {"num_standbys": 1},
        "homes": {"1": "m1"},
        "awaited": {"m1": [5, ["m1", "1", "host", 2, None, {"zone": "a"}, {}]]},
        "later": {"x": 1},
    }
    shards = tuple((f"topic{n % 2}", n // 2) for n in range(8))
    return replace(record, orders=orders, shards=shards, weights={"measured": {"1": 2.5}}, event_times={"s": 5})


def _bodies() -> list[bytes]:
    """Return JSON bodies of records; ``_sealed_record`` adds their checksum and length."""
    packed = (data.split(b"\n", 1)[1] for data in _records())
    return [cast(bytes, pa.input_stream(pa.BufferReader(data), compression="zstd").read()) for data in packed]


def _logs() -> list[bytes]:
    """Return the first records of a log, and a later piece of it that starts with a full record."""
    log_records = [data for name, data in sorted(_archived().items()) if name.startswith("state/log/")]
    records = [decode(data, "seed") for data in log_records]
    return [log for first in (0, records[-1].full) for log in small_logs(records[first : first + 5])]


def _record(data: bytes) -> None:
    record = decode(data, "record")
    manifest_of_record(record, [replace(record, sequence=base, full=base, between=()) for base in record.bases])
    recorded_assignment(record)
    Weights().resume(record.weights, Groups())
    will = read_requests(record.orders)
    apply_stored_settings(Settings(), will.settings)
    for store, text in record.schemas.items():
        schema_of_text(store, text)
        read_meanings(text)
        read_operator_meanings(text)
    for name in Manifest(record.entries).object_names():
        check_name(name)
    partitions_in(record.offsets)


def _record_of_body(data: bytes) -> None:
    _record(framed_record(data))


def _sealed_record(data: bytes) -> bytes:
    """Return a record with the right checksum and, if its body can be unpacked, the right length."""
    head, _, packed = data.partition(b"\n")
    try:
        parsed = json.loads(head)
        parsed["xxh3"] = f"{xxhash.xxh3_64_intdigest(packed):016x}"
        with suppress(OSError, pa.ArrowException):
            stream = pa.input_stream(pa.BufferReader(packed), compression="zstd")
            parsed["length"] = stream.read_buffer(_UNPACKED_MOST).size
        return json.dumps(parsed).encode() + b"\n" + packed
    except (ValueError, TypeError, RecursionError):
        return data


PLAIN = PlainColumns(
    "totals", pa.schema([("k", pa.string())]), pa.schema([("count", pa.int64()), ("total", pa.float64())])
)
TIMED = PlainColumns(
    "sessions",
    pa.schema([("k", pa.string()), ("n", pa.int32())]),
    pa.schema([("until", pa.timestamp("us", "UTC")), ("seen", pa.list_(pa.string()))]),
    due="until",
    time_mode="EventTime",
)
VARIABLES = VariableColumns(
    "visits",
    pa.schema([("k", pa.string())]),
    (
        Variable("last", "value", pa.schema([("at", pa.int64())]), ttl_ms=1000),
        Variable("pages", "list", pa.schema([("page", pa.string())])),
        Variable("by", "map", pa.schema([("n", pa.int64())]), pa.schema([("name", pa.string())])),
    ),
    indexed=True,
)
SCHEMAS: tuple[StoreSchema, ...] = (PLAIN, TIMED, VARIABLES)


def _plain_rows(count: int) -> pa.Table:
    keys = [f"key-{n}" for n in range(count)]
    return pa.table([keys, list(range(count)), [n / 7 for n in range(count)]], schema=PLAIN.row_schema)


def _timed_rows(count: int) -> pa.Table:
    columns = {
        "k": [f"key-{n}" for n in range(count)],
        "n": list(range(count)),
        "until": [None if n % 3 == 0 else 10**15 + n for n in range(count)],
        "seen": [["a", None][: n % 3] for n in range(count)],
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in TIMED.row_schema], schema=TIMED.row_schema)


def _variable_rows(count: int) -> pa.Table:
    schema = VARIABLES.part_schema(delta=True)
    names = ["last", "pages", "by", "__timer"]
    rows = [
        {
            "k": f"key-{n}",
            "__variable": names[n % 4],
            "__index": n if n % 4 == 1 else None,
            "__due": 10**12 + n,
            "__state_last": {"at": n} if n % 4 == 0 else None,
            "__state_pages": {"page": "p"} if n % 4 == 1 else None,
            "__state_by": {"key": {"name": "x"}, "value": {"n": n}} if n % 4 == 2 else None,
            "__deleted": n % 11 == 10,
        }
        for n in range(count)
    ]
    columns = [
        pa.array([row[field.name] for row in rows], pa.string() if field.name == "__variable" else field.type)
        for field in schema
    ]
    return pa.table(
        [c.cast(f.type) if c.type != f.type else c for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def _parts() -> list[bytes]:
    snapshots = [data for name, data in _archived().items() if "/snapshot/" in name]
    encoded = [part_codec.encode(table) for table in (_plain_rows(5), _plain_rows(4000))]
    encoded += [part_codec.encode(PLAIN.sealed(_plain_rows(n))) for n in (0, 3, 50)]
    encoded += [part_codec.encode(TIMED.sealed(_timed_rows(n)), "until") for n in (3, 60)]
    encoded += [part_codec.encode(VARIABLES.sealed(_variable_rows(n)), packed=True) for n in (4, 600)]
    return [*snapshots[:6], *encoded]


def _part(data: bytes, decrypted: Callable[[part_codec.Data], part_codec.Data] | None = None) -> None:
    """Read a part as all readers do, and validate all of its values."""
    table = part_codec.decode(data, part_codec.checksum(data), "part", decrypted)
    rows = pa.array(range(min(table.num_rows, 100)), pa.int64())
    pa.concat_tables([table, table]).combine_chunks().take(rows).validate(full=True)
    for schema in SCHEMAS:
        with suppress(CorruptStateError):
            part_runs.split_into_runs(part_codec.open_part(decrypted(data) if decrypted else data, "part"), schema)


def _block(data: bytes) -> None:
    """Read a block file as a stack reads it. Its checksum may be wrong."""
    try:
        checksum_of_block(pa.py_buffer(data))
        rows, index = read_index(pa.py_buffer(data))
    except ValueError:
        return
    table = part_codec.open_block(rows, "block")
    for schema in SCHEMAS:
        with suppress(CorruptStateError):
            block = part_runs.OpenBlock(table, index, schema, 1)
            for key_group in list(index.ranges)[:100]:
                block.read_runs(key_group)


def _blocks() -> list[bytes]:
    files = []
    tables = [PLAIN.sealed(_plain_rows(50)), TIMED.sealed(_timed_rows(60)), VARIABLES.sealed(_variable_rows(600))]
    for schema, table in zip((PLAIN, TIMED, VARIABLES), tables, strict=True):
        starts = np.array([0, 7, 7, table.num_rows])
        rows = part_codec.encode_block(table, starts, schema.due if schema is TIMED else None)
        key_groups = np.array([1, 5, 9], np.int32)
        files.append(encode_block_file(rows, key_groups, starts))
        files.append(encode_block_file(rows, key_groups, starts, starts[:-1], np.array([1, 2, 3], np.uint64)))
    return files


def _sealed_block(data: bytes) -> bytes:
    return data[:-16] + part_codec.checksum(data[:-16]).to_bytes(8, "little") + data[-8:]


def _encrypted_part(data: bytes) -> None:
    key_id_of(data[:HEADER_BYTES_MAX])
    frame_version(data)
    _part(data, lambda block: KEYS.decrypt(block, PLACE, "part"))


def _encrypted_parts() -> list[bytes]:
    parts = _parts()
    return [*map(framed, parts), framed(parts[-1], "2025"), framed(parts[0], frame=1), framed(b"")]


def _keys(text: str, where: str) -> None:
    """Read a list of keys, without a call of KMS for wrapped keys, and use the result."""
    keys = parse_keys(text, where, lambda wrapped: wrapped)
    repr(keys)
    keys.decrypt(keys.new_encryption()(b"a part", PLACE), PLACE, "part")
    keys.with_write_key(keys.write_key)


def _keys_of_file(path: Path) -> None:
    _keys(read_key_source(f"file:{path}"), f"file:{path}")


def _keys_of_variable(data: bytes) -> None:
    """Read keys from an environment variable. Its value ends at its first NUL and need not be valid text."""
    os.environb[b"RIFFLE_FUZZ_KEYS"] = data.partition(b"\0")[0]
    _keys(read_key_source("env:RIFFLE_FUZZ_KEYS"), "env:RIFFLE_FUZZ_KEYS")


def _lists_of_keys() -> list[bytes]:
    first_key, second_key = (base64.b64encode(bytes(range(first, first + 32))) for first in (0, 7))
    return [
        b"2026-11 = " + first_key,
        b"# keys of the query\nplain\nold = %s\nnew = kms:%s  # by KMS\n" % (first_key, second_key),
        b"\xef\xbb\xbfa=%s\r\nb=%s\r\n" % (first_key, second_key),
        b"plain, old = %s, new = kms:%s" % (second_key, first_key),
        b"old = %s\nplain" % first_key,
    ]


def _schema_texts() -> list[bytes]:
    texts = [dict(schema.to_text()) for schema in SCHEMAS]
    texts[0] |= {
        "history": json.dumps({"changes": [2, 5], "since": [[["total"], 5]]}),
        "meanings": '{"count": "count(1)"}',
    }
    texts[1] |= {"routed_by": "1"}
    return [json.dumps(text).encode() for text in texts]


def _schema_text(data: bytes) -> None:
    text = _object(data)
    schema = schema_of_text("totals", text)
    read_meanings(text)
    read_operator_meanings(text)
    for schema_known in SCHEMAS:
        schema_known.can_read(text)
    schema.part_schema(delta=True)
    schema.history.names_declared_after(3)


def _object(data: bytes) -> dict[str, str]:
    """Return a JSON object of texts, which is the form of a schema in a record."""
    with suppress(ValueError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict) and all(isinstance(value, str) for value in body.values()):
            return body
    raise CorruptStateError("a record refuses this")


def _packed_schema(data: bytes) -> None:
    schema_of_text("totals", {"key": PLAIN.to_text()["key"], "state": base64.b64encode(data).decode()})


def _packed_schemas() -> list[bytes]:
    return [base64.b64decode(schema.to_text()["key"]) for schema in SCHEMAS] + [TIMED.state.serialize().to_pybytes()]


_HEAD = Head(7, "1-" + "ab" * 16)
_STACKED = tuple(StackedPart(f"sealed/{n}-1-{'ab' * 16}", n * 10, 100, 2**63 + n, 5, 1) for n in range(3))
_FRAME_BYTES = 12


def _sealed_entry(data: bytes) -> bytes:
    body = data[_FRAME_BYTES:]
    checksum = xxhash.xxh3_64_intdigest(body, journal.first_seed("totals"))
    return struct.pack("<QI", checksum, len(body)) + body


def _journal(data: bytes) -> None:
    listing, end, _ = journal.read_entries(data, journal.Listing(), journal.first_seed("totals"))
    assert end <= len(data)
    journal.encode_entry(listing.all_changes(), 0)


def _journal_entry(data: bytes) -> None:
    _journal(_sealed_entry(bytes(_FRAME_BYTES) + data))


def _journals() -> list[bytes]:
    changes = [journal.Change(5, _HEAD, 0, _STACKED), journal.Change(6, None)]
    first, seed = journal.encode_entry(changes, journal.first_seed("totals"))
    second, _ = journal.encode_entry([journal.Change(5, _HEAD, 2, _STACKED[:1])], seed)
    return [first, first + second]


_HOME = Home("file:///tmp/state", StoreOptions(), "/tmp/local", "app", frozenset({"app/1", "app/2"}), "0" * 32)


_MERGED = Link(Head(4, "1-aa"), 0, 9, 5, 3, MergedDelta(f"{4:020d}-1-{7:032x}", 1, 9))


@cache
def _entries() -> dict[int, Entry]:
    records = [decode(data, "seed") for name, data in sorted(_archived().items()) if name.startswith("state/log/")]
    return {kg: entry for record in records[-4:] for (_, kg), entry in record.entries.items()}


def _orders() -> list[bytes]:
    order = Order(
        home=_HOME,
        store="totals",
        key=("k",),
        schema=PLAIN.to_text(),
        output=PLAIN.part_schema(),
        rows=PLAIN.part_schema(),
        per_key_group=False,
        order_by=("at",),
        total=8,
        epoch=3,
        version=9,
        time_ms=5,
        watermark_ms=None,
        slots={0: (0, 1, 2, 3), 1: (4, 5, 6, 7)},
        entries=_entries(),
        sequence=4,
    )
    entry = replace(
        order,
        standbys={1: ("m1", "m2")},
        followed_by={2: ("m1",)},
        watermark=Watermark("at", 5),
        late=LateRule("at"),
        initial=PLAIN.key,
        shown={"k": "K"},
        routed_by=("k",),
        whole=True,
    )
    return [order.to_json().encode(), entry.to_json().encode()]


def _mailboxes() -> list[bytes]:
    request = MailboxRequest(0, "ab12", "pin", {"key_group": ["t", 3], "member": "1"}, "ann", "laptop", 5, 900)
    box = Mailbox().add(request, 0)
    return [Mailbox().encode(), box.encode(), box.add(replace(request, command="rebalance", arguments={}), 1).encode()]


def _statuses() -> list[bytes]:
    facts = DriverFacts(
        time_ms=9,
        query_id="ab12",
        source=(PartitionLag("clicks", 0, 5, 1.5),),
        members=(MemberFacts("m1", "1", "host", "zone-a", disk_used=0.5),),
        stores=(StoreFacts("totals", 5, 900, 2),),
        groups=(GroupFacts("totals", ("totals",), (0, -1), ((), (0,)), ((), ())),),
        counters={"batches": 3},
    )
    whole = status.Status(
        facts,
        batches=(status.BatchSummary(3, 9, 5, {"run": 0.5, "total": 0.6}, 0),),
        moves=(status.MoveSummary(9, 3, 1, "totals", "owner", "", "m1", "balance", topic="clicks", partition=0),),
        warnings=(status.WarningSummary(9, "RIFFLE-0809", "dead letters"),),
        settings={"num_standbys": "1"},
    )
    long = replace(whole, settings={f"setting{number}": "x" * 60 for number in range(1500)})
    return [status.encode(status.Status(DriverFacts(0))), status.encode(whole), status.encode(long)]


def _upkeep_orders() -> list[bytes]:
    entries = list(_entries().items())
    order = UpkeepOrder(
        _HOME,
        "m0123456789ab",
        3,
        7,
        {"totals": PLAIN.to_text()},
        (Drop("totals", 3, Head(2, "1-aa")), Drop("totals", 4, None)),
        tuple(Follow("totals", kg, entry) for kg, entry in entries[:3]),
        tuple(SnapshotOrder("totals", kg, entry) for kg, entry in entries[3:5]),
        (MergeOrder("totals", 5, Entry(None, (_MERGED,), cut=Head(1, "1-aa")), 2),),
    )
    return [order.to_json().encode()]


def _receipts() -> list[bytes]:
    receipt = Receipt("totals", 1, "3-" + "ab" * 16, 9, "m1", "1", rows=5, error=("ConfigError", "p", "r", "w", "i"))
    part = [1, 0, 9, 5, 2, None]
    parsed = json.loads(receipt.to_json())
    parsed |= {"parts": [part, part], "output": part, "read": [[1, 2, 3]], "received": [[1], [2]], "busy": [[1], [2]]}
    return [receipt.to_json().encode(), json.dumps(parsed).encode()]


def _upkeep_receipts() -> list[bytes]:
    snapshot = Snapshot("00000000000000000005-1-aa", Head(5, "1-aa"), 9, 5, 3)
    receipt = UpkeepReceipt(
        "1",
        "m1",
        copies=(("totals", 1, 5, "1-aa"),),
        missing=(("totals", 2),),
        unfinished=(("totals", 3, 1, 2),),
        snapshots=(("totals", 4, snapshot),),
        merges=(("totals", 5, Replacement(Head(1, "1-aa"), _MERGED)),),
        errors=("no",),
    )
    return [receipt.to_json().encode()]


def _text_of(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode(errors="replace"))


@cache
def _scratch() -> Path:
    in_memory = Path("/dev/shm")  # on other systems each write to a file is synced
    return Path(tempfile.mkdtemp(prefix="riffle-fuzz-", dir=in_memory if in_memory.is_dir() else None))


def forget_scratch() -> None:
    """Remove the files that were written for decoders that read files."""
    if _scratch.cache_info().currsize:
        shutil.rmtree(_scratch(), ignore_errors=True)
        _scratch.cache_clear()


def _file_of(name: str, parse: Callable[[Path], object]) -> Callable[[bytes], object]:
    def decoded(data: bytes) -> object:
        path = _scratch() / name
        path.write_bytes(data)
        return parse(path)

    return decoded


def _scenarios() -> list[bytes]:
    files = sorted((DATA / "assignor_cases").rglob("*.json"), key=lambda path: path.stat().st_size)
    cases = [json.loads(path.read_text())["scenario"] for path in files[:_MOST]]
    return [json.dumps(case).encode() for case in cases]


def _packed_scenarios() -> list[bytes]:
    return [gzip.compress(data, mtime=0) for data in _scenarios()[:8]]


def _sealed_gzip(data: bytes) -> bytes:
    """Return a gzip file with a right checksum and length, if its content can be unpacked."""
    with suppress(zlib.error):
        return gzip.compress(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[10:], _UNPACKED_MOST), mtime=0)
    return data


def _worlds() -> list[bytes]:
    folder = CHECKOUT / "riffle_spark" / "simulate" / "worlds"
    small = {
        "name": "small",
        "seed": 1,
        "seconds": "1 h",
        "every": "1 min",
        "swing": 0.5,
        "changes": 3,
        "config": {},
        "protocol": {"probing_rebalance_interval": "10 min"},
        "policies": ["riffle"],
        "members": [{"id": "m{:02}", "count": 3, "threads": 2, "racks": ["a", "b"], "tags": {"zone": "a"}}],
        "tasks": [{"subtopology": "s", "count": 8, "state_bytes": 1e6, "row_bytes": 100, "spread": "10 %"}],
        "events": [
            {"at": 5, "lose": ["m00"]},
            {"at": "1 min", "return": ["m00"]},
            {"at": 90, "bounce": ["m01"]},
            {"at": 100, "join": [{"id": "n"}]},
            {"at": 200, "load": 2, "tasks": ["s_1"]},
            {"at": 300, "lose_rack": "b"},
        ],
    }
    shipped = [(folder / f"{name}.json").read_bytes() for name in SHIPPED if name != "day"]
    return [*shipped, json.dumps(small).encode()]


def _tomls() -> list[bytes]:
    toml = b'root = "s3://b/p"\nkey_groups = 8\nmember_racks = ["10.*=a"]\nforced_awareness = {zone = ["a", "b"]}\n'
    toml += b'num_standbys = 1\nretained_for = "10 min"\nlocal_disk_limit = "80 %"\ndeliver_after_commit = true\n'
    return [(CHECKOUT / "conf" / "riffle.toml").read_bytes(), toml, b"[riffle]\n" + toml]


def _conf(data: bytes) -> None:
    lines = [line.partition("=") for line in data.decode(errors="replace").split("\n")]
    from_sources(
        None, {f"spark.riffle.{name.strip()}": value.strip() for name, _, value in lines if name.strip() != "conf_file"}
    )


def _confs() -> list[bytes]:
    texts = [
        "key_groups=8",
        "retained_for=10 min",
        "local_disk_limit=80 %",
        "member_racks=10.*=a,b=c",
        "deliver_after_commit=true",
    ]
    texts += ["forced_awareness=zone=a,zone=b", "accept=totals", "num_standbys=2", "root=file:///tmp/x"]
    return [text.encode() for text in ("\n".join(texts), *texts)]


def _settings_of_a_call(data: bytes) -> None:
    """Read settings that a program passes. Their values may have any JSON type."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(parsed, dict):
        from_sources(Settings().but(**parsed), {})


def _calls() -> list[bytes]:
    texts_by_name = {
        "root": "file:///tmp/x",
        "key_groups": 8,
        "retained_for": "10 min",
        "local_disk_limit": "80 %",
        "member_racks": [["10.*", "a"]],
        "forced_awareness": {"zone": ["a", "b"]},
        "deliver_after_commit": True,
        "num_standbys": 1,
        "store_groups": {"totals": "a"},
        "accept": "totals",
        "s3_patience": 5,
        "local_dir": None,
    }
    return [
        json.dumps(texts_by_name).encode(),
        *(json.dumps({name: value}).encode() for name, value in texts_by_name.items()),
    ]


def _columns_of_spark(text: str) -> None:
    for parse in (spark_schemas.schema_of_ddl, spark_schemas.schema_of_json):
        with suppress(ConfigError):
            parse(text)


def _texts_of_columns() -> list[bytes]:
    field = {"name": "k", "type": "string", "nullable": True, "metadata": {}}
    inner = {"type": "array", "elementType": {"type": "struct", "fields": [field]}, "containsNull": True}
    mapped = {"type": "map", "keyType": "long", "valueType": inner, "valueContainsNull": False}
    whole = {"type": "struct", "fields": [field, {**field, "type": mapped}, {**field, "type": "decimal(10,2)"}]}
    ddl = "k string not null comment 'it''s', `a b`: array<struct<x: decimal(38, 9), y map<int, timestamp_ntz>>>"
    return [json.dumps(whole).encode(), ddl.encode(), b"interval day to second, i interval hour", b"a int, b bigint"]


def _checkpoint(data: bytes) -> None:
    folder = _scratch() / "checkpoint"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    head, _, tail = data.partition(b"\0")
    (folder / "metadata").write_bytes(head)
    (folder / "offsets" / "3").write_bytes(tail)
    checkpoint = Checkpoint(str(folder))
    with suppress(ConfigError):
        checkpoint.query_id()
    checkpoint.next_batch()
    checkpoint.restore(3, tail.decode(errors="replace"))


def _checkpoints() -> list[bytes]:
    offsets = b'v1\n{"batchWatermarkMs":5,"conf":{}}\n{"topic":{"0":123,"1":45}}\n{"riffle_heartbeat_ms":5}'
    return [b'{"id":"0b7e"}\0' + offsets, b'{"id":"x"}\0v1\n{}\n-']


def _names(text: str) -> None:
    paths.parse_object_name(text)
    paths.parse_record_name(text)
    for line in text.split("\n"):
        for check in (paths.check_store_name, check_name, normalised, open_store):
            with suppress(ConfigError):
                check(line)


def _decoders() -> Iterator[Decoder]:
    yield Decoder("record", _record, _records, _sealed_record)
    yield Decoder("record body", _record_of_body, _bodies)
    yield Decoder("log", lambda data: read_log(data, _scratch()), _logs)
    yield Decoder("part", _part, _parts)
    yield Decoder("block", _block, _blocks, _sealed_block)
    yield Decoder("encrypted part", _encrypted_part, _encrypted_parts, retagged)
    yield Decoder("encrypted body", lambda data: _encrypted_part(framed(data)), _parts)
    yield Decoder("keys of a file", _file_of("keys", _keys_of_file), _lists_of_keys)
    yield Decoder("keys of a variable", _keys_of_variable, _lists_of_keys)
    yield Decoder("schema text", _schema_text, _schema_texts)
    yield Decoder("packed schema", _packed_schema, _packed_schemas)
    yield Decoder("journal", _journal, _journals, _sealed_entry)
    yield Decoder("journal entry", _journal_entry, lambda: [entry[_FRAME_BYTES:] for entry in _journals()[:1]])
    yield Decoder("order", _text_of(lambda text: Order.from_json(text, 0)), _orders)
    yield Decoder("upkeep order", _text_of(UpkeepOrder.from_json), _upkeep_orders)
    yield Decoder("census order", _text_of(CensusOrder.from_json), lambda: [CensusOrder(_HOME).to_json().encode()])
    first_version = FirstVersionOrder(_HOME, "totals", {"key": "k", "state": "s"}, 4, -1, 1)
    yield Decoder(
        "first version order", _text_of(FirstVersionOrder.from_json), lambda: [first_version.to_json().encode()]
    )
    yield Decoder("receipt", _text_of(Receipt.from_json), _receipts)
    yield Decoder("upkeep receipt", _text_of(UpkeepReceipt.from_json), _upkeep_receipts)
    census = Census("1", "m1", (("totals", 1, 5, "1-aa"),), ("1-aa",), "rack", {"zone": "a"})
    yield Decoder("census", _text_of(Census.from_json), lambda: [census.to_json().encode()])
    yield Decoder("mailbox", Mailbox.decode, _mailboxes)
    yield Decoder("status", status.decode, _statuses)
    yield Decoder("scenario", _file_of("scenario.json", read_scenario), _scenarios)
    packed = _file_of("scenario.json.gz", read_scenario)
    yield Decoder("packed scenario", packed, _packed_scenarios, _sealed_gzip)
    yield Decoder("world", _file_of("world.json", lambda path: read_world(str(path))), _worlds)
    yield Decoder("settings file", _file_of("riffle.toml", read_toml), _tomls)
    yield Decoder("settings of Spark", _conf, _confs)
    yield Decoder("settings of a call", _settings_of_a_call, _calls)
    yield Decoder("columns of Spark", _text_of(_columns_of_spark), _texts_of_columns)
    yield Decoder("answer of S3", read_answer, lambda: ANSWERS)
    yield Decoder("folder of a member", lambda data: read_folder(data, _scratch()), lambda: NAMES_IN_A_FOLDER)
    yield Decoder("checkpoint", _checkpoint, _checkpoints)
    yield Decoder(
        "names", _text_of(_names), lambda: [b"delta/00000000000000000001/1-" + b"ab" * 16, b"s3://bucket/a/b\ntotals"]
    )


DECODERS: Mapping[str, Decoder] = {decoder.name: decoder for decoder in _decoders()}
