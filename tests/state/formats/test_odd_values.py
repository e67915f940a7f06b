"""Sealing and reading accept values that Spark has and that Arrow's validation or Python refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark import Stateful, arrow_function
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.arrow_schemas import can_become
from riffle_spark.state.formats.arrow_values import check_buffers, readable_row, readable_rows
from riffle_spark.testing import Harness
from tests.kit.fuzz.odd_values import VARIANTS, raw_values
from tests.kit.fuzz.round_trips import round_trips

EXAMPLES = 200
LATIN = pa.array([b"caf\xe9", b"\xff", None, b"ok"], pa.binary()).view(pa.string())
NO_DECIMAL = pa.Array.from_buffers(pa.decimal128(3, 1), 1, [None, pa.py_buffer(b"\xff" * 15 + b"\x7f")])
NO_TIME = pa.Array.from_buffers(pa.time32("s"), 1, [None, pa.py_buffer(b"\xff\xff\xff\x7f")])
NO_DAY = pa.Array.from_buffers(pa.date64(), 1, [None, pa.py_buffer(b"\x01" + b"\x00" * 7)])


def test_generated_values_are_sealed_and_read_again(tmp_path: Path) -> None:
    """Generated keys, values and order columns are sealed and read again, also after local copies are lost."""
    (tmp_path / "keys").write_text("a = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n")
    result = round_trips(EXAMPLES, seed=1, keys=f"file:{tmp_path}/keys")
    assert result.findings == []
    assert result.examples == EXAMPLES
    assert set(result.by_variant) == set(VARIANTS)


@pytest.mark.parametrize("values", [LATIN, NO_DECIMAL, NO_TIME, NO_DAY], ids=["text", "decimal", "time", "day"])
def test_a_part_keeps_the_bytes_of_invalid_values(values: pa.Array) -> None:
    """A part keeps the bytes of invalid values, alone and in structs, lists and maps."""
    with pytest.raises(pa.ArrowInvalid):
        values.validate(full=True)
    count = len(values)
    struct = pa.StructArray.from_arrays([values], ["v"])
    lists = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), struct)
    maps = pa.MapArray.from_arrays(pa.array(range(count + 1), pa.int32()), pa.array(range(count)), values)
    table = pa.table({"v": values, "s": struct, "l": lists, "m": maps})
    data = part_codec.encode(table)
    decoded = part_codec.decode(data, part_codec.checksum(data), "part")
    assert [raw_values(column) for column in decoded.columns] == [raw_values(column) for column in table.columns]


def test_offsets_of_text_are_checked_although_its_bytes_are_not() -> None:
    """Offsets, lengths and NULL counts of text are checked, although the text itself may be any bytes."""
    ends = pa.array([0, 9, 4], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(b"caf\xe9")])
    for column in (
        text,
        pa.StructArray.from_arrays([text], ["t"]),
        pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), text),
        pa.MapArray.from_arrays(pa.array([0, 2], pa.int32()), text, text),
    ):
        with pytest.raises(pa.ArrowInvalid, match=r"offset"):
            check_buffers(pa.table({"c": column}))
        data = part_codec.encode(pa.table({"c": column}))
        with pytest.raises(CorruptStateError, match="RIFFLE-0399"):
            part_codec.decode(data, part_codec.checksum(data), "part")


def test_a_null_type_column_is_read_only_as_a_null_type_column() -> None:
    """A column without a type can be read only as a column without a type."""
    void, number = (pa.schema([("v", kind)]) for kind in (pa.null(), pa.int64()))
    nested = pa.schema([("v", pa.struct([("n", pa.list_(pa.null()))]))])
    assert can_become(void, void)
    assert can_become(nested, nested)
    assert not can_become(void, number)
    assert not can_become(number, void)


def test_state_with_odd_values_survives_the_loss_of_all_copies() -> None:
    """Text that is not UTF-8, NULL structs of NOT NULL fields and columns without a type survive the loss of all
    copies.
    """
    strict = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("t", pa.string(), nullable=False)])
    rows = pa.table({"k": LATIN, "v": pa.array([None, {"a": 1, "t": "x"}, None, None], strict), "n": pa.nulls(4)})
    state_schema = pa.schema([*list(rows.schema)[1:], ("count", pa.int64())])

    def count(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        counts = state.column("count").to_pylist() or [0] * rows.num_rows
        new = rows.append_column("count", pa.array([number + 1 for number in counts]))
        return new, new

    operator = Stateful(
        "odd", "k", arrow_function(count, state=state_schema, output=pa.schema([rows.schema.field("k"), *state_schema]))
    )
    with Harness(operator, rows.schema, executors=1, key_groups=16) as query:
        for turn in (1, 2, 3):
            query.feed(rows)
            assert query.output.column("count").to_pylist() == [turn] * 4
            assert sorted(map(str, raw_values(query.output.column("k")))) == sorted(map(str, raw_values(LATIN)))
            query.crash(lose_copies=True)
        assert {row["k"] for row in query.delivered()} == {"caf\ufffd", "\ufffd", None, "ok"}


def nothing_but_elements(count: int, kind: pa.DataType = pa.null()) -> pa.Array:
    """Return a list of ``count`` elements that take no bytes: NULLs without a type, or structs without a field."""
    elements = pa.Array.from_buffers(kind, count, [None] * kind.num_buffers)
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), elements)


def growing(values: pa.ChunkedArray) -> Harness:
    """Return a query whose function stores one of these values per row."""
    schema, field = pa.schema([("k", pa.int64())]), pa.field("v", values.type)

    def grow(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
        return rows.slice(0, 0), rows.append_column("v", values.slice(0, rows.num_rows))

    operator = Stateful("large", "k", arrow_function(grow, state=pa.schema([field]), output=schema))
    return Harness(operator, schema, executors=1, key_groups=1)


@pytest.mark.parametrize("kind", [pa.null(), pa.struct([])], ids=str)
def test_a_batch_with_two_million_elements_without_bytes_is_refused(kind: pa.DataType) -> None:
    """A batch that stores two million elements without bytes is refused and commits nothing; one million is allowed."""
    rows = [{"k": 1}]
    with growing(pa.chunked_array([nothing_but_elements(1 << 21, kind)])) as query:
        with pytest.raises(ConfigError, match="RIFFLE-0396"):
            query.feed(rows)
        assert query.table().num_rows == 0
    with growing(pa.chunked_array([nothing_but_elements(1 << 20, kind)])) as query:
        query.feed(rows)
        query.crash(lose_copies=True)
        query.feed(rows)
        assert query.table().num_rows == 1


def test_a_column_with_more_than_2_31_elements_is_refused() -> None:
    """A column with more than 2**31 elements is refused with riffle's error, and nothing is committed."""
    values = pa.chunked_array([nothing_but_elements(1 << 30)] * 3)
    with growing(values) as query:
        with pytest.raises(ConfigError, match="RIFFLE-0394"):
            query.feed([{"k": number} for number in range(3)])
        assert query.table().num_rows == 0


def test_undecodable_text_and_out_of_range_times_are_shown() -> None:
    """Undecodable text is shown as Spark's ``collect`` shows it, and times out of Python's range as their numbers."""
    late = pa.array([1 << 62], pa.int64()).view(pa.timestamp("us"))
    table = pa.table({"t": LATIN.slice(0, 1), "l": pa.array([["a"]]), "at": late, "b": pa.array([b"\xff"])})
    shown = {"t": "caf\ufffd", "l": ["a"], "at": 1 << 62, "b": b"\xff"}
    assert readable_rows(table) == [shown]
    assert readable_row(pa.concat_tables([table, table]), 1) == shown


def test_a_column_may_be_declared_as_a_dictionary_of_its_stored_type() -> None:
    """A column that was stored as text can be read as a dictionary of text."""
    kind = pa.dictionary(pa.int32(), pa.string())
    fitted = part_codec.fit_columns(pa.table({"k": ["a", "b", "a"]}), pa.schema([("k", kind)]))
    assert fitted.column("k").type == kind
    assert fitted.column("k").to_pylist() == ["a", "b", "a"]
    with pytest.raises(CorruptStateError, match="RIFFLE-0401"):
        part_codec.fit_columns(pa.table({"k": ["a"]}), pa.schema([("k", pa.dictionary(pa.int32(), pa.int64()))]))
