"""Records as bytes: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import contextlib
import json

import pyarrow as pa
import pytest
import xxhash
from drawn_records import PLAIN, RECORDS
from hypothesis import given, settings
from hypothesis import strategies as st

from riffle_spark.errors import CorruptStateError
from riffle_spark.state.record import Record, decode, digest, encode


@given(RECORDS)
@settings(deadline=None, max_examples=150)
def test_a_record_is_read_as_it_was_written(record: Record) -> None:
    """Every field comes back equal, entries and outputs included, and equal records have equal bytes."""
    assert decode(encode(record), "log/0") == record
    assert encode(decode(encode(record), "log/0")) == encode(record)


@given(RECORDS, st.data())
@settings(deadline=None, max_examples=150)
def test_a_changed_byte_never_passes_unnoticed(record: Record, data: st.DataObject) -> None:
    """A flipped bit is either told as damage or leaves the record as it was."""
    good = encode(record)
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ (1 << data.draw(st.integers(0, 7)))]) + good[place + 1 :]
    with contextlib.suppress(CorruptStateError):
        assert decode(bad, "log/0") == record


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_a_truncated_record_is_told(length: int) -> None:
    """Whatever of the end is missing, it is damage."""
    good = encode(PLAIN)
    with pytest.raises(CorruptStateError, match=r"record.*log/0.*\n.*What to do"):
        decode(good[: length % len(good)], "log/0")


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_foreign_bytes_are_no_record(data: bytes) -> None:
    """Bytes that riffle did not write are refused as such."""
    with pytest.raises(CorruptStateError, match="not a riffle log record"):
        decode(data, "log/0")


@pytest.mark.parametrize("body", [b"{}", b"[]", b"1", b'{"entries": 1}', b"\xff\xff"])
def test_a_body_that_is_no_record_is_damage(body: bytes) -> None:
    """A right checksum over a wrong body raises nothing but our error."""
    packed = pa.compress(body, codec="zstd", asbytes=True)
    header = {"magic": "riffle-log", "format": 1, "xxh3": f"{xxhash.xxh3_64_intdigest(packed):016x}"}
    with pytest.raises(CorruptStateError, match="cannot be read"):
        decode(json.dumps(header).encode() + b"\n" + packed, "log/0")


def test_a_header_of_nested_lists_is_no_record() -> None:
    """JSON that is too deep to read is refused, not a crash."""
    with pytest.raises(CorruptStateError, match="not a riffle log record"):
        decode(b"[" * 200_000, "log/0")


def test_a_newer_format_is_named_with_the_remedy() -> None:
    """A record of a newer format says which version reads it."""
    newer = encode(PLAIN).replace(b'"format":1', b'"format":2', 1)
    with pytest.raises(CorruptStateError, match="has format 2, this version reads 1") as caught:
        decode(newer, "log/0")
    assert "newer" in caught.value.remedy


def test_a_record_from_before_initial_states_had_names_is_read() -> None:
    """It lists none."""
    header, packed = encode(PLAIN).split(b"\n", 1)
    body = json.loads(pa.input_stream(pa.BufferReader(packed), compression="zstd").read())
    del body["initial_states"]
    older = pa.compress(json.dumps(body).encode(), codec="zstd", asbytes=True)
    told = {**json.loads(header), "xxh3": f"{xxhash.xxh3_64_intdigest(older):016x}"}
    assert decode(json.dumps(told).encode() + b"\n" + older, "log/0") == PLAIN


def test_a_digest_tells_records_apart() -> None:
    """Different bytes have different digests of 32 hexadecimal digits."""
    assert len(digest(b"")) == 32
    assert digest(b"a") != digest(b"b")
