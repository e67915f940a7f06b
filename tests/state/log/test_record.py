"""Encoded records decode to equal records, and any other bytes are refused."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Block, Entry, Head, Link, link_in_block
from riffle_spark.state.log.owner_columns import owners_from_json
from riffle_spark.state.log.record import FORMAT, Record, decode, encode
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint
from tests.kit.state.drawn_records import LINKS, PLAIN, RECORDS, link


@given(RECORDS)
def test_a_decoded_record_equals_the_encoded_one(record: Record) -> None:
    """A decoded record equals the encoded one in every field, and equal records have equal bytes."""
    assert decode(encode(record), "log/0") == record
    assert encode(decode(encode(record), "log/0")) == encode(record)


@given(RECORDS, st.data())
def test_a_flipped_bit_is_damage_or_changes_nothing(record: Record, data: st.DataObject) -> None:
    """A flipped bit is reported as damage or leaves the decoded record unchanged."""
    good = encode(record)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ (1 << data.draw(st.integers(0, 7)))]) + good[place + 1 :]
    with contextlib.suppress(CorruptStateError):
        assert decode(bad, "log/0") == record


@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_as_a_record(data: bytes) -> None:
    """Bytes that riffle did not write are refused."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0415"):
        decode(data, "log/0")


def packed(body: object, version: int = 2, **header: object) -> bytes:
    """Return the bytes of a record with any body. Checksum and length are right unless ``header`` changes them."""
    plain = body if isinstance(body, bytes) else json.dumps(body).encode()
    data = pa.compress(plain, codec="zstd", asbytes=True)
    header_fields = {"magic": "riffle-log", "format": version, "xxh3": f"{xxhash.xxh3_64_intdigest(data):016x}"}
    header_fields |= {"length": len(plain)} if version > 1 else {}
    return json.dumps({**header_fields, **header}).encode() + b"\n" + data


def body_of(record: Record) -> dict[str, object]:
    """Return the body of an encoded record."""
    body: dict[str, object] = json.loads(
        pa.input_stream(pa.BufferReader(encode(record).split(b"\n", 1)[1]), compression="zstd").read()
    )
    return body


@pytest.mark.parametrize(("body", "version"), [(b"{}", 1), (b"[]", 2), (b'{"entries": 1}', 2), (b"\xff\xff", 1)])
def test_a_wrong_body_with_a_valid_checksum_is_damage(body: bytes, version: int) -> None:
    """A wrong body with a valid checksum raises only CorruptStateError."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed(body, version), "log/0")


SAVEPOINT = RecordedSavepoint("release", f"{7:020d}-1-{7:032x}", 3, 7, 1, 2, "ann@laptop")
SINCE_2 = {"promised", "members", "weights", "watermarks", "orders"}
WRONG = [True, 1, 1.5, "x", None, [1], [[1]], {"x": 1}, {"x": [1, "y"]}, {"x": {"y": 1}}]


@pytest.mark.parametrize("name", sorted(field.name for field in fields(Record)))
def test_a_wrong_value_in_a_field_is_damage_or_kept_unchanged(name: str) -> None:
    """A wrong value in any field raises CorruptStateError, or is encoded again unchanged."""
    body, refused = body_of(PLAIN), 0
    for wrong in WRONG:
        try:
            read = decode(packed({**body, name: wrong}, FORMAT), "log/0")
        except CorruptStateError:
            refused += 1
        else:
            assert body_of(read) == {**body, name: wrong} or (body_of(read) == body and getattr(read, name) is wrong)
    assert refused >= len(WRONG) - (3 if name in SINCE_2 | {"schemas", "edit"} else 2)


def test_a_record_of_format_1_is_read() -> None:
    """A record of format 1 is read; it has no body length, its owners are a map, and it stores default values."""
    older = {**body_of(PLAIN), "owners": {"0": "m1"}, "standbys": {}, "target": None}
    assert decode(packed(older, 1), "log/0") == replace(PLAIN, owners={"0": "m1"})


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "../log"},
        {"name": "a" * 65},
        {"id": "7"},
        {"id": f"{7:020d}-1-{7:032x}/x"},
        {"user": "a\nb"},
        {"sequence": "7"},
        {"created_ms": None},
    ],
    ids=str,
)
def test_a_savepoint_with_an_invalid_name_id_or_number_is_refused(changes: dict[str, Any]) -> None:
    """A savepoint with an invalid name, id or number is refused, because its id becomes an object name."""
    body = {**body_of(PLAIN), "savepoints": [replace(SAVEPOINT, **changes).to_json()]}
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed(body, 9), "log/0")


MEMBER: list[object] = ["m1", "1", "host", 2, "rack", {"zone": "a"}, {}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("members", [*MEMBER[:3], "2", *MEMBER[4:]]),
        ("members", [*MEMBER[:4], 7, *MEMBER[5:]]),
        ("members", [*MEMBER[:5], {"zone": 7}, {}]),
        ("members", MEMBER[:6]),
        ("shards", [7, 0]),
        ("shards", ["events", "0"]),
        ("shards", ["events", True]),
    ],
)
def test_a_record_with_an_impossible_member_or_partition_is_refused(field: str, value: list[object]) -> None:
    """A record is refused if a member or a partition has another form, because other values would be taken for it."""
    good = MEMBER if field == "members" else ["events", 0]
    decode(packed({**body_of(PLAIN), field: [good]}, 9), "log/0")
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed({**body_of(PLAIN), field: [value]}, 9), "log/0")


@pytest.mark.parametrize(
    "row",
    [
        [],
        [1, "owner", "", "m1", "r", "g"],
        ["1", "owner", "", "m1", "r", "g", ["3"]],
        [1, "owner", None, "m1", "r", "g", ["3"]],
        [1, "owner", "", "m1", "r", "g", [3]],
        [1, "owner", "", "m1", "r", "g", ["x"]],
    ],
)
def test_a_record_with_damaged_moves_is_refused(row: list[object]) -> None:
    """A record is refused if a row of its moves has another form or an invalid task."""
    body = {**body_of(PLAIN), "moves": [row]}
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed(body, 6), "log/0")


def test_a_record_too_large_to_be_read_is_not_written() -> None:
    """A record that would take too much memory when it is read is not written; one of half the size is."""
    lists: list[object] = [[]] * (1 << 21)
    with pytest.raises(ConfigError, match="RIFFLE-0414"):
        encode(replace(PLAIN, watermarks={"x": lists}))
    half = replace(PLAIN, watermarks={"x": lists[::2]})
    assert decode(encode(half), "log/0") == half


def test_a_record_with_repetitive_chains_is_written_and_read() -> None:
    """A record with repetitive chains of 90 MB, which are compressed by a factor of 600, is written and read."""
    heads = [Head(version, f"1-{version:032x}") for version in range(16)]
    chain = tuple(link_in_block(head, 0, 7, 1, Block(900_000, 16_384)) for head in heads)
    entries = {
        ("totals", group): Entry(chain=tuple(link._replace(start=group) for link in chain)) for group in range(16_384)
    }
    record = replace(PLAIN, total=16_384, entries=entries)
    assert decode(encode(record), "log/0").entries == entries


def test_the_error_names_an_unknown_field_kind_or_column() -> None:
    """A record with an unknown field, kind or column is refused instead of losing it silently."""
    body = body_of(PLAIN)
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed({**body, "later": 1}), "log/0")
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed({**body, "kind": "later"}), "log/0")
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed({**body, "entries": {"heads": [], "stores": {}, "keys": ["k1"]}}), "log/0")


@pytest.mark.parametrize("length", [0, 1, 1 << 40, "7"])
def test_a_wrong_length_is_refused_before_the_body_is_unpacked(length: object) -> None:
    """A wrong length is refused before the body is unpacked, because the header bounds the memory of the body."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(packed(body_of(PLAIN), length=length), "log/0")


def test_a_header_of_deeply_nested_lists_is_refused() -> None:
    """A header of deeply nested lists is refused without a crash."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0415"):
        decode(b"[" * 200_000, "log/0")


def test_a_newer_format_is_refused_with_the_version_that_reads_it() -> None:
    """A record of a newer format is refused with the version that reads it."""
    newer = encode(PLAIN).replace(b'"format":10', b'"format":11', 1)
    with pytest.raises(CorruptStateError, match="RIFFLE-0416"):
        decode(newer, "log/0")


SEVENTH = replace(PLAIN, sequence=7, full=7, promised=7, target=7)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(SEVENTH, full=8),
        replace(SEVENTH, promised=-1),
        replace(SEVENTH, target=8),
        replace(SEVENTH, sequence=1 << 20),
        replace(SEVENTH, written_ms=1 << 63),
    ],
)
def test_a_record_refers_only_to_earlier_records_and_a_near_full_one(wrong: Record) -> None:
    """A record may refer only to earlier records, and its full record must be near, because readers enumerate the
    numbers between.
    """
    assert decode(encode(SEVENTH), paths.record_name(7)) == SEVENTH
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        decode(encode(wrong), "log/0")


@pytest.mark.parametrize("name", ["", "01", "²", "heavy/", "query/3", "3\n"])
def test_a_record_with_an_invalid_key_group_name_is_refused(name: str) -> None:
    """A record with an invalid name of a key-group is refused, because the next driver would fail after its claim."""
    well = replace(PLAIN, owners={"3": "m", "heavy/3": "m"}, weights={"assigned": {"0": 1}})
    assert decode(encode(well), paths.record_name(0)) == well
    for wrong in (
        replace(well, owners={name: "m"}),
        replace(well, standbys={name: ("m",)}),
        replace(well, weights={"assigned": {name: 1}}),
    ):
        with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
            decode(encode(wrong), paths.record_name(0))


def test_a_record_with_a_byte_range_beyond_2_63_is_refused() -> None:
    """A record with a byte range beyond 2**63 is refused, because no file has such an offset."""
    for far in (link(1, start=1 << 63), link(1, length=1 << 63), link(1 << 63), link(1, start=1 << 62, length=1 << 62)):
        with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
            decode(encode(replace(PLAIN, entries={("totals", 3): Entry(chain=(far,))})), "log/0")


def test_a_record_under_another_number_is_refused() -> None:
    """A record under the number of another record is refused, because it is a copy."""
    with pytest.raises(CorruptStateError, match="RIFFLE-0419"):
        decode(encode(PLAIN), paths.record_name(7))


@given(RECORDS, st.lists(LINKS, max_size=3))
def test_changed_entries_are_those_whose_last_link_is_of_the_batch(record: Record, links: list[Link]) -> None:
    """Reading only changed entries returns those whose last link is of this batch, with that link alone."""
    own = [Link(Head(record.version, f"{record.epoch}-{7:032x}"), *link[1:]) for link in links]
    changed = {("totals", number): Entry(None, (*own[:number], link)) for number, link in enumerate(own)}
    unchanged = {address: entry for address, entry in record.entries.items() if entry.chain and address not in changed}
    written = replace(record, entries={**unchanged, **changed})
    read = decode(encode(written), "r", changed_only=True)
    is_own = {
        address: entry
        for address, entry in written.entries.items()
        if entry.chain[-1].head[0] == record.version and entry.chain[-1].head.epoch == record.epoch
    }
    assert changed.keys() <= is_own.keys()
    assert read.entries == {address: Entry(None, entry.chain[-1:], entry.timer_ms) for address, entry in is_own.items()}
    assert replace(read, entries={}) == replace(record, entries={})


@pytest.mark.parametrize(
    "columns",
    [{"0": "m1"}, [None, {"0": "m1"}, [0]], [None, ["m1"], [-1]], [None, ["m1"], [1]], [None, ["m1"], [0.0]],
     [["0"], ["m1"], [0, 0]], [["0"], ["m1"]]],
)  # fmt: skip
def test_impossible_owners_are_refused(columns: object) -> None:
    """Owners are refused if an index does not name a listed member."""
    with pytest.raises((TypeError, ValueError)):
        owners_from_json(columns)
