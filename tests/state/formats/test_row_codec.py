"""The stored row: both ways, for every schema, and never fooled by damaged bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.formats.row_codec import RowCodec
from tests.kit.state.drawn_tables import damaged, some, tables


@some
@given(tables())
def test_rows_come_back_from_what_is_stored(table: pa.Table) -> None:
    """Decoding gives the rows that were encoded, from arrays, lists of bytes, slices and chunks."""
    codec = RowCodec(table.schema)
    stored = codec.encode(table)
    stored.validate(full=True)
    assert len(stored) == table.num_rows
    for values in (stored, stored.to_pylist()):
        decoded = codec.decode(values)
        decoded.validate(full=True)
        assert decoded.equals(table)
    assert codec.decode(stored[1:]).equals(table[1:])
    assert codec.encode(table[1:]).equals(stored[1:])
    assert codec.encode(pa.concat_tables([table[:1], table[1:]])).equals(stored)


@some
@given(tables())
def test_values_are_all_of_one_length_where_the_schema_is(table: pa.Table) -> None:
    """A schema of fixed-width columns and structs of them gives values of one length, and says which."""
    codec = RowCodec(table.schema)
    lengths = {len(value) for value in codec.encode(table).to_pylist()}
    assert codec.fixed_bytes is None or lengths <= {codec.fixed_bytes}


@some
@given(tables(), st.data())
def test_damaged_rows_raise_or_are_other_rows(table: pa.Table, data: st.DataObject) -> None:
    """A value with bytes changed, cut off or added raises, or reads as valid rows, never as what lies beyond it."""
    codec = RowCodec(table.schema)
    stored = [damaged(data, value) for value in codec.encode(table).to_pylist()]
    try:
        decoded = codec.decode(stored)
    except CorruptStateError:
        return
    decoded.validate()
    assert codec.decode(codec.encode(decoded)).num_rows == len(stored)


def test_fixed_rows_are_packed() -> None:
    """A row of fixed width is its null bits and its values, little-endian, without gaps; a null is zeros."""
    table = pa.table({"n": pa.array([1, None]), "b": pa.array([None, True]), "s": pa.array([2, 3], pa.int16())})
    codec = RowCodec(table.schema)
    assert codec.fixed_bytes == 12
    assert [value.hex(" ") for value in codec.encode(table).to_pylist()] == [
        "02 01 00 00 00 00 00 00 00 00 02 00",
        "01 00 00 00 00 00 00 00 00 01 03 00",
    ]


def test_bodies_follow_the_head() -> None:
    """Text and lists have a length in the head and a body after it; a list says its elements' number and lengths."""
    lists = pa.array([["x", None], None], pa.list_(pa.string()))
    table = pa.table({"t": pa.array(["ab", None]), "n": pa.array([7, 8], pa.int8()), "l": lists})
    row, nulls = RowCodec(table.schema).encode(table).to_pylist()
    element, no_element = "00 01 00 00 00 78", "01 00 00 00 00"
    body = f"02 00 00 00 06 00 00 00 05 00 00 00 {element} {no_element}"
    assert row.hex(" ") == f"00 02 00 00 00 07 17 00 00 00 61 62 {body}"
    assert nulls.hex(" ") == "05 00 00 00 00 08 04 00 00 00 00 00 00 00"


@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        ("", pa.int8()),
        ("00", pa.int8()),
        ("00 01 02", pa.int8()),
        ("02 01", pa.int8()),
        ("00 02", pa.bool_()),
        ("00 02 00 00 00 61", pa.string()),
        ("00 00 00 00 00 61", pa.string()),
        ("00 ff ff ff ff 61", pa.string()),
        ("00 01 00 00 00 ff", pa.string()),
        ("00 03 00 00 00 00 00 00", pa.list_(pa.int8())),
        ("00 04 00 00 00 ff ff ff ff", pa.list_(pa.int8())),
        ("00 04 00 00 00 01 00 00 00", pa.list_(pa.string())),
        ("00 08 00 00 00 01 00 00 00 ff 00 00 00", pa.list_(pa.string())),
        ("00 0a 00 00 00 01 00 00 00 02 00 00 00 00 01", pa.list_(pa.string())),
        ("00 06 00 00 00 01 00 00 00 00 01", pa.list_(pa.int8(), 2)),
    ],
)
def test_bytes_that_are_no_row_are_refused(stored: str, kind: pa.DataType) -> None:
    """Values too short, too long, with wrong lengths or counts, or with text that is no UTF-8 raise."""
    codec = RowCodec(pa.schema([("c", kind)]))
    good = codec.encode(pa.table([pa.array([None], kind)], names=["c"]))[0].as_py()
    with pytest.raises(CorruptStateError):
        codec.decode([good, bytes.fromhex(stored)])


def test_rows_of_no_columns_are_counted() -> None:
    """A schema without columns stores empty values, and as many rows come back."""
    codec = RowCodec(pa.schema([]))
    rows = pa.table({"a": [1, 2, 3]}).select([])
    assert codec.encode(rows).to_pylist() == [b"", b"", b""]
    assert codec.decode([b"", b"", b""]).num_rows == 3
    with pytest.raises(CorruptStateError):
        codec.decode([b"", b"x"])


def test_large_values_come_back() -> None:
    """Values of ten megabytes, text and lists, come back, beside small ones."""
    table = pa.table({"t": ["x" * 10_000_000, None, "y"], "l": pa.array([[1] * 1_000_000, [], None])})
    codec = RowCodec(table.schema)
    assert codec.decode(codec.encode(table).to_pylist()).equals(table)


def test_rows_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where values hold more than Arrow's 32-bit offsets, rows come in several chunks and none is lost."""
    monkeypatch.setattr("riffle_spark.state.formats.row_codec.PIECE_BYTES_MAX", 50)
    table = pa.table({"t": ["a" * (n % 70) for n in range(40)], "n": range(40)})
    codec = RowCodec(table.schema)
    decoded = codec.decode(codec.encode(table))
    assert decoded.column("t").num_chunks > 10
    assert decoded.equals(table)


def test_schema_comes_back_whole() -> None:
    """Names, nullability and metadata of the schema are those the codec was made with."""
    field = pa.field("a", pa.int64(), nullable=False, metadata={"unit": "cents"})
    schema = pa.schema([field], metadata={"store": "totals"})
    codec = RowCodec(schema)
    assert codec.decode(codec.encode(pa.table([[1]], schema=schema))).schema.equals(schema, check_metadata=True)


def test_rows_of_another_schema_are_refused() -> None:
    """Rows with other names, types or order of columns are an error that shows both."""
    codec = RowCodec(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    for rows in (pa.table({"a": [1]}), pa.table({"b": ["x"], "a": [1]}), pa.table({"a": ["1"], "b": ["x"]})):
        with pytest.raises(ConfigError, match="a int64, b string"):
            codec.encode(rows)


REFUSED = [
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.run_end_encoded(pa.int16(), pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_columns_that_cannot_be_stored_are_refused(kind: pa.DataType) -> None:
    """Types that Spark does not have, deep inside too, are refused when the codec is made."""
    for schema in (pa.schema([("c", kind)]), pa.schema([("c", pa.list_(pa.struct([("d", kind)])))])):
        with pytest.raises(ConfigError, match="cannot hold"):
            RowCodec(schema)


class Identity(pa.ExtensionType):
    """Sixteen bytes with a meaning."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "identity")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Identity:
        return cls()


def test_extension_types_keep_their_storage() -> None:
    """A column of an extension type is stored as its storage and comes back as itself."""
    storage = pa.array([b"0123456789abcdef", None], pa.binary(16))
    table = pa.table({"id": pa.ExtensionArray.from_storage(Identity(), storage)})
    codec = RowCodec(table.schema)
    assert codec.fixed_bytes == 17
    assert codec.decode(codec.encode(table)).equals(table)


def test_what_stands_below_a_null_is_not_stored() -> None:
    """Equal rows give equal bytes, whatever Arrow keeps below null lists and structs."""
    lists = pa.ListArray.from_arrays([0, 2, 4, 4], [1, 2, 3, 4], mask=pa.array([True, False, False]))
    structs = pa.StructArray.from_arrays([pa.array([7, 8, 9])], ["a"], mask=pa.array([True, False, False]))
    fixed = pa.FixedSizeListArray.from_arrays([1, 2, 3], 1, mask=pa.array([True, False, False]))
    table = pa.table({"l": lists, "s": structs, "f": fixed})
    plain = pa.table([pa.array(column.to_pylist(), column.type) for column in table.columns], schema=table.schema)
    codec = RowCodec(table.schema)
    assert codec.encode(table).equals(codec.encode(plain))
    assert codec.decode(codec.encode(table)).equals(plain)
