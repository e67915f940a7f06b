"""The stored key: both ways, in order, and never fooled by damaged bytes."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.formats.key_codec import decode_keys, encode_keys
from tests.kit.state.drawn_tables import damaged, keys, some
from tests.kit.state.key_ranks import ranks, types_of


@some
@given(keys())
def test_stored_keys_compare_as_the_keys_do(columns: list[pa.Array]) -> None:
    """Stored keys are less, equal and greater exactly where the keys are, column by column."""
    stored, wanted = encode_keys(columns).to_pylist(), ranks(columns)
    for left in range(len(stored)):
        for right in range(left):
            assert (stored[left] < stored[right]) == (wanted[left] < wanted[right])
            assert (stored[left] == stored[right]) == (wanted[left] == wanted[right])


@some
@given(keys())
def test_no_stored_key_begins_another(columns: list[pa.Array]) -> None:
    """No stored key is the beginning of a different one, so a scan by whole key finds that key only."""
    stored = sorted(set(encode_keys(columns).to_pylist()))
    assert not any(longer.startswith(key) for key, longer in itertools.pairwise(stored))


@some
@given(keys())
def test_keys_come_back_from_what_is_stored(columns: list[pa.Array]) -> None:
    """Decoding gives the columns that were encoded, with one zero and one NaN, from slices and lists of bytes too."""
    stored = encode_keys(columns)
    stored.validate(full=True)
    decoded = decode_keys(stored, types_of(columns))
    for column in decoded:
        column.validate(full=True)
    assert types_of(decoded) == types_of(columns)
    assert ranks(decoded) == ranks(columns)
    assert ranks(decode_keys(stored.to_pylist(), types_of(columns))) == ranks(columns)
    assert ranks(decode_keys(stored[1:], types_of(columns))) == ranks(columns)[1:]
    assert encode_keys([column[1:] for column in columns]).equals(stored[1:])


@some
@given(keys(), st.data())
def test_damaged_keys_raise_or_are_other_keys(columns: list[pa.Array], data: st.DataObject) -> None:
    """A stored key with bytes changed, cut off or added raises, or reads as valid columns, not as what is beyond it."""
    stored = [damaged(data, key) for key in encode_keys(columns).to_pylist()]
    try:
        decoded = decode_keys(stored, types_of(columns))
    except CorruptStateError:
        return
    for column in decoded:
        column.validate()
        assert len(column) == len(stored)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (b"", pa.int64()),
        (b"\x01" + bytes(7), pa.int64()),
        (b"\x01" + bytes(9), pa.int64()),
        (b"\x02" + bytes(8), pa.int64()),
        (b"\x01\x02", pa.bool_()),
        (b"\x01", pa.string()),
        (b"\x01abc", pa.string()),
        (b"\x01abc\x00", pa.string()),
        (b"\x01abc\x00\x00x", pa.string()),
        (b"\x03abc\x00\x00", pa.string()),
        (b"\x01\xff\x00\x00", pa.string()),
    ],
)
def test_bytes_that_are_no_key_are_refused(stored: bytes, kind: pa.DataType) -> None:
    """Keys too short, too long, without an end, with an unknown tag or with text that is no UTF-8 raise."""
    with pytest.raises(CorruptStateError):
        decode_keys([encode_keys([pa.array([None], kind)])[0].as_py(), stored], [kind])


def test_stored_keys_are_the_documented_bytes() -> None:
    """The bytes of the document are the bytes written."""
    columns = [pa.array([1, -1, None]), pa.array(["a\x00b", "", None]), pa.array([1.5, -1.5, None])]
    assert [key.hex(" ") for key in encode_keys(columns).to_pylist()] == [
        "01 80 00 00 00 00 00 00 01 01 61 00 ff 62 00 00 01 bf f8 00 00 00 00 00 00",
        "01 7f ff ff ff ff ff ff ff 01 00 00 01 40 07 ff ff ff ff ff ff",
        "00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
    ]


def test_keys_without_columns_or_of_wrong_types_are_refused() -> None:
    """A key needs a column, and one that Spark can group by."""
    with pytest.raises(ConfigError):
        encode_keys([])
    with pytest.raises(ConfigError, match="list"):
        encode_keys([pa.array([[1]])])
