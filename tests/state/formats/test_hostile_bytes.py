"""Every decoder answers hostile bytes with one of riffle's errors, in bounded time and memory, and runs no code from
them.
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.simulate.world_file import parse_world
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.copies.stack import StackedPart
from riffle_spark.state.formats import arrow_messages, part_codec
from riffle_spark.state.formats.arrow_schemas import schema_from_text, schema_to_text
from riffle_spark.state.log.manifest import Entry, Head, Link, Snapshot
from riffle_spark.state.log.record import Record, decode, encode
from tests.kit.folders import CHECKOUT
from tests.kit.state.drawn_records import PLAIN

INPUTS = 1000


def test_decoders_raise_only_riffles_errors_for_damaged_bytes() -> None:
    """The fuzzer finds no other exception in 1,000 damaged inputs, and over a quarter of them are refused."""
    command = [sys.executable, "-m", "tests.kit.fuzz", "--inputs", str(INPUTS), "--seed", "1", "--json"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=280, check=False)
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["inputs"] == INPUTS
    assert report["refused"] > INPUTS // 4


def lz4(count: int) -> bytes:
    """Return a packed part with ``count`` rows of one value."""
    table = pa.table({part_codec.HASH: pa.array([7] * count, pa.uint64()), part_codec.VARIABLE: ["v"] * count})
    return part_codec.encode(table, packed=True)


def test_a_packed_buffer_is_refused_if_it_claims_a_much_larger_size() -> None:
    """A packed buffer that claims a much larger size is refused before it is unpacked."""
    data, size = lz4(1 << 16), struct.pack("<q", 8 << 16)
    assert part_codec.open_part(data, "part").num_rows == 1 << 16
    assert size in data
    for length in (1 << 40, (1 << 63) - 1, (1 << 30) + 1):
        with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
            part_codec.open_part(data.replace(size, struct.pack("<q", length), 1), "part")


@pytest.mark.parametrize("data", [lz4(5000), part_codec.encode(pa.table({"n": pa.repeat(0, 5000)}))])
def test_a_small_part_that_claims_20_mib_is_refused(data: bytes) -> None:
    """A small part that claims 20 MiB is refused for each compressor."""
    size = struct.pack("<q", 8 * 5000)
    assert size in data
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.open_part(data.replace(size, struct.pack("<q", 20 << 20)), "part")


def test_a_million_equal_rows_are_read_with_each_compressor() -> None:
    """A million equal rows or NULLs are read again with each compressor."""
    equal = pa.table({"n": pa.repeat(0, 1 << 20), "is": pa.nulls(1 << 20, pa.bool_())})
    for table in (equal, pa.table({"is": pa.repeat(0, 1 << 20).cast(pa.bool_())})):
        assert part_codec.open_part(part_codec.encode(table), "part").num_rows == 1 << 20
    assert part_codec.open_part(lz4(1 << 20), "part").num_rows == 1 << 20
    assert part_codec.open_part(part_codec.encode(pa.table({"n": pa.nulls(1 << 20)})), "part").num_rows == 1 << 20


def written(table: pa.Table) -> bytes:
    """Return the bytes of a part that sealing would refuse."""
    sink, schema = pa.BufferOutputStream(), table.schema.with_metadata({b"riffle.format": b"1"})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()


def test_a_list_of_a_billion_nulls_is_refused() -> None:
    """A list of a billion NULLs is refused, because its elements count although they take no bytes."""
    column = pa.ListArray.from_arrays(pa.array([0, 1 << 30], pa.int32()), pa.nulls(1 << 30))
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.open_part(written(pa.table({"n": column})), "part")


@contextmanager
def of_memory(more: int) -> Iterator[None]:
    """Limit the addresses of this process to ``more`` bytes beyond its present use."""
    before, own = resource.getrlimit(resource.RLIMIT_AS), int(Path("/proc/self/statm").read_text().split()[0])
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # other pools reserve addresses ahead
    resource.setrlimit(resource.RLIMIT_AS, (own * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        pa.set_memory_pool(pool)
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_lack_of_memory_is_not_reported_as_damage(tmp_path: Path) -> None:
    """A lack of memory raises MemoryError while unpacking or mapping, and no object or copy is called damaged."""
    rows = 60_001
    size, larger_size = struct.pack("<q", 8 * rows), struct.pack("<q", 192 << 20)
    table = pa.table({part_codec.HASH: pa.array([7] * rows, pa.uint64()), part_codec.VARIABLE: ["v"] * rows})
    table = table.append_column("n", pa.array([os.urandom(16) for _ in range(rows)]))
    data = part_codec.encode(table, packed=True).replace(size, larger_size, 1)
    with of_memory(64 << 20), pytest.raises(MemoryError):
        part_codec.open_part(data, "part")
    with (tmp_path / "file").open("wb") as file:
        file.truncate(256 << 20)
    with of_memory(64 << 20), pytest.raises(MemoryError):
        PartFiles(tmp_path).data(StackedPart("file", 0, 256 << 20, 0, 1, 1))


def test_a_part_that_claims_more_rows_than_its_bytes_hold_is_refused() -> None:
    """A part that claims more rows than its bytes can hold is refused, because a column of NULLs takes no bytes."""
    table = pa.table({part_codec.HASH: pa.array([], pa.uint64())})
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.open_part(written(pa.table({"n": pa.nulls(1 << 25)})), "part")
    assert part_codec.open_part(part_codec.encode(table), "part").num_rows == 0


@pytest.mark.parametrize(
    ("options", "metadata"),
    [
        ({"use_legacy_format": True}, None),
        ({"metadata_version": pa.ipc.MetadataVersion.V4}, None),
        ({}, {"ARROW:experimental_compression": "ZSTD"}),
    ],
)
def test_a_part_in_a_deprecated_arrow_format_is_refused(
    options: dict[str, Any], metadata: dict[str, str] | None
) -> None:
    """A part in a deprecated Arrow format is refused, because its unpacked size is not in the checked place."""
    rows = pa.record_batch({"n": pa.repeat(0, 5000)}).replace_schema_metadata({"riffle.format": "1"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd", **options)) as writer:
        writer.write_batch(rows, custom_metadata=metadata)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == 5000
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.open_part(sink.getvalue(), "part")


def shared(schema: pa.Schema) -> bytes:
    """Return the message of a schema whose columns all refer to the description of the first one."""
    data = bytearray(schema.serialize().to_pybytes())
    message = memoryview(data)[8:]
    table = arrow_messages._follow_offset(
        message, arrow_messages._all_field_positions(message, arrow_messages._follow_offset(message, 0))[2]
    )
    first, *later = arrow_messages._iterate_tables(message, arrow_messages._all_field_positions(message, table)[1])
    of_list = arrow_messages._follow_offset(message, arrow_messages._all_field_positions(message, table)[1]) + 4
    assert len(later) == len(schema) - 1
    for place in range(of_list, of_list + 4 * len(schema), 4):
        struct.pack_into("<I", message, place, first - place)
    return bytes(data)


WIDE = [
    pa.field(f"column {number}", kind, metadata={f"key {number}": "value"})
    for number in range(60)
    for kind in (
        pa.timestamp("us", "Europe/Ljubljana"), pa.timestamp("s"), pa.map_(pa.string(), pa.struct([("a", pa.int8())])),
    )
]  # fmt: skip


def test_a_schema_whose_columns_share_one_description_is_refused() -> None:
    """A schema whose columns share one description is refused, because a long name would be repeated very often."""
    named = pa.schema([pa.field("n" * 30_000, pa.int8()), *[pa.field("n", pa.int8())] * 4000])
    with pytest.raises(CorruptStateError, match="RIFFLE-0391"):
        schema_from_text(base64.b64encode(shared(named)).decode())
    part = shared(named.with_metadata({"riffle.format": "1"})) + b"\xff\xff\xff\xff\0\0\0\0"
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.open_part(part, "part")
    for some in (named, pa.schema(WIDE), pa.schema(WIDE, {"riffle.format": "1"})):
        arrow_messages.check_schema(memoryview(some.serialize()))
        table = some.empty_table()
        assert part_codec.open_part(part_codec.encode(table), "part").schema.equals(table.schema)


def test_dictionary_columns_are_refused() -> None:
    """Dictionary columns are refused when they are read, because a small part could expand to gigabytes."""
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), ["x" * 1000])
    for column in (rows, pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), rows)):
        kind = pa.string() if column is rows else pa.list_(pa.string())
        part = part_codec.open_part(part_codec.encode(pa.table({"k": column})), "part")
        with pytest.raises(CorruptStateError, match="RIFFLE-0401"):
            part_codec.fit_columns(part, pa.schema([("k", kind)]))


def test_offsets_beyond_the_end_of_a_part_are_refused() -> None:
    """A part with offsets beyond its end is refused even if its checksum is right."""
    data = part_codec.encode(pa.table({"k": ["aaaa", "bbbb", "cccc"]}))
    wrong = data.replace(struct.pack("<4i", 0, 4, 8, 12), struct.pack("<4i", 0, 1 << 30, 8, 12))
    assert wrong != data
    with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
        part_codec.decode(wrong, part_codec.checksum(wrong), "part")


def test_names_that_are_not_utf8_are_refused_at_any_depth() -> None:
    """Names of columns and nested fields that are not UTF-8 are refused in parts and in schemas of records."""
    kind = pa.struct([("outer", pa.map_(pa.string(), pa.list_(pa.struct([("inner", pa.int8())]))))])
    table = pa.table({"column": pa.nulls(2, kind)})
    data, schema = part_codec.encode(table), table.schema.serialize().to_pybytes()
    for name in (b"column", b"outer", b"inner"):
        wrong = name.replace(b"e", b"\xff").replace(b"u", b"\xfe")
        with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
            part_codec.open_part(data.replace(name, wrong), "part")
        with pytest.raises(CorruptStateError, match="RIFFLE-0391"):
            schema_from_text(base64.b64encode(schema.replace(name, wrong)).decode())


def test_a_part_with_a_duplicate_hash_column_is_refused() -> None:
    """A part with two columns of hashes is refused, because a column is looked up by its name."""
    hashes = pa.array([7], pa.uint64())
    names = [part_codec.HASH, "k", part_codec.HASH]
    data = part_codec.encode(pa.table([hashes, pa.array(["a"]), hashes], names=names))
    with pytest.raises(CorruptStateError, match="part"):
        part_codec.decode(data, part_codec.checksum(data), "part")


def test_a_schema_with_a_duplicate_column_is_refused() -> None:
    """A schema with a duplicate column is refused, because columns are looked up by name."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0391"):
        schema_from_text(schema_to_text(pa.schema([("count", pa.int64()), ("n", pa.int8()), ("count", pa.int8())])))


@pytest.mark.parametrize("name", ["../../x", "a/b", ".hidden", "", "log", "a\0b", "é", "x" * 65, "a..b"])
def test_a_record_whose_store_name_is_not_plain_is_refused(name: str) -> None:
    """A record with a store name that is not a plain name is refused, because object and folder names contain it."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(encode(one_entry(name, Entry())), "log/0")


HEAD = Head(1, "1-" + "0" * 32)


@pytest.mark.parametrize(
    "entry",
    [
        Entry(chain=(Link(Head(1, "1-../../x"), 0, 1, 1, 1),)),
        Entry(chain=(Link(Head(1, "1-0/../x"), 0, 1, 1, 1),)),
        Entry(chain=(Link(HEAD, -1, 1, 1, 1),)),
        Entry(chain=(Link(HEAD, 0, -5, 1, 1),)),
        Entry(Snapshot("../../../x", HEAD, 1, 1, 1)),
        Entry(Snapshot("1-1-0", HEAD, -1, 1, 1)),
        Entry(cut=Head(1, "/etc")),
    ],
)
def test_a_record_with_an_invalid_object_id_or_range_is_refused(entry: Entry) -> None:
    """A record with an attempt or snapshot id that is not a plain name, or with a negative range, is refused."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(encode(one_entry("totals", entry)), "log/0")


def one_entry(store: str, entry: Entry) -> Record:
    """Return a record with one entry."""
    return replace(PLAIN, entries={(store, 3): entry})


def test_names_of_a_world_replace_only_a_number_placeholder() -> None:
    """Names of a world replace only a number placeholder, because Python's formats can read attributes and pad without
    limit.
    """
    world = {"name": "w", "seconds": 9, "config": {}, "tasks": [{"subtopology": "s", "state_bytes": 1}]}
    names = {"m{}": "m0", "m{:04}": "m0000", "{0.__class__}": "{0.__class__}", "{:999999999}": "{:999999999}"}
    for template, name in names.items():
        assert [state.member.id for state in parse_world({**world, "members": [{"id": template}]}).members] == [name]
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        parse_world({**world, "members": [{"id": "m{}", "count": 10**12}]})


def framed_body(text: bytes, form: int = 2) -> bytes:
    """Return a record with this body and a valid checksum."""
    packed = pa.compress(text, codec="zstd", asbytes=True)
    header = {"magic": "riffle-log", "format": form, "xxh3": f"{xxhash.xxh3_64_intdigest(packed):016x}"}
    return json.dumps({**header, "length": len(text)}).encode() + b"\n" + packed


def bodies_that_expand() -> Iterator[bytes]:
    """Yield bodies of valid records that are some hundred KiB when packed and take gigabytes as objects."""
    header, _, packed = encode(PLAIN).partition(b"\n")
    length = json.loads(header)["length"]
    body = json.loads(pa.decompress(packed, decompressed_size=length, codec="zstd", asbytes=True))
    many = 12_000_000
    yield json.dumps({**body, "weights": {"measured": "@"}}).replace('"@"', f"[{','.join(['[]'] * many)}]").encode()
    yield json.dumps({**body, "weights": {"measured": "@"}}).replace("@", "x" * (40 << 20) + "\\ud83d\\ude00").encode()
    yield json.dumps(body).encode() + b" " * (200 << 20)


READ_IN_CHILD = """
import resource, sys
import pyarrow as pa
pa.set_memory_pool(pa.system_memory_pool())
from riffle_spark.errors import CorruptStateError
from riffle_spark.state.log.record import decode
own = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + (480 << 20), -1))
try:
    decode(sys.stdin.buffer.read(), "log/0")
except CorruptStateError as error:
    print(error.problem)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the addresses of a process, which needs Linux")
def test_a_record_that_would_expand_to_gigabytes_is_refused() -> None:
    """Records of empty lists, wide characters or blanks are refused with 480 MiB more addresses, in both formats."""
    for number, body in enumerate(bodies_that_expand()):
        data = framed_body(body, 1 + number % 2)
        assert len(data) < 450 << 10
        done = subprocess.run(
            [sys.executable, "-c", READ_IN_CHILD],
            input=data,
            cwd=CHECKOUT,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, bool(done.stdout)) == (0, True), done


@pytest.mark.long
def test_the_largest_records_are_decoded_again() -> None:
    """Records of 32,768 key-groups, of two stores and with long chains, are decoded again."""
    chance = random.Random(3)
    heads = [Head(version, f"1-{chance.randrange(1 << 128):032x}") for version in range(20)]
    links = [Link(head, 64 * n, 4000, chance.randrange(1 << 64), 9) for n, head in enumerate(heads)]
    chains = [
        tuple(link._replace(checksum=chance.randrange(1 << 64)) for link in links[n % 9 :]) for n in range(32_768)
    ]
    entries = {(f"store{n}", group): Entry(chain=chain) for n in range(2) for group, chain in enumerate(chains)}
    owners = {str(group): f"m{group % 50:012x}" for group in range(32_768)}
    large = replace(
        PLAIN, total=32_768, entries=entries, owners=owners, standbys={k: (v, v) for k, v in owners.items()}
    )
    assert decode(encode(large), "log/0").entries == entries
    grouped = {f"{group}/{number}": owner for group in ("a", "b", "c") for number, owner in owners.items()}
    idle = replace(PLAIN, total=32_768, owners=grouped, standbys={k: (v, v) for k, v in grouped.items()})
    assert decode(encode(idle), "log/0").owners == grouped


def test_a_part_that_compresses_too_well_is_written_unpacked() -> None:
    """A part that would unpack to more than 64 MiB and 255 times its bytes is written unpacked; old packed ones are
    read.
    """
    rows = 1 << 23
    data = part_codec.encode(pa.table({"n": pa.repeat(0, rows)}))
    assert len(data) > 8 * rows
    assert part_codec.open_part(data, "part").num_rows == rows
    packed = io.BytesIO()
    schema = pa.schema([("n", pa.int64())], {"riffle.format": "1"})
    with pa.ipc.new_stream(packed, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.table([pa.repeat(0, rows)], schema=schema))
    assert part_codec.open_part(packed.getvalue(), "part").num_rows == rows
