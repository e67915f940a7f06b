"""A slot's result in chunks has the same rows in the same order. Chunks of large rows are small."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from riffle_spark.messages.slot_orders import ATTEMPT, LETTER, RECEIPT, letter_field, result_schema
from riffle_spark.worker import result_chunks
from riffle_spark.worker.result_chunks import chunk_results, chunked_schema, letters_column, rows_column

NUMBER = 7
FLAGS = pa.list_(pa.struct([("a", pa.bool_())]))
COUNTS = pa.map_(pa.string(), pa.int32())
NESTED = pa.schema([("k.`x", pa.string()), ("l", FLAGS), ("m", COUNTS), ("d", pa.decimal128(38, 3))])
VALUES: dict[str, list[object]] = {
    "k.`x": [None, "b"],
    "l": [[{"a": True}], None],
    "m": [[("q", 1)], None],
    "d": [Decimal("1.500"), None],
}
ROWS = pa.table([pa.array(VALUES[field.name] * 1500, field.type) for field in NESTED], schema=NESTED)


def result_of(rows: pa.Table) -> pa.Table:
    """Return the result of a slot with these output rows."""
    schema = result_schema(rows.schema)
    numbers = pa.repeat(pa.scalar(NUMBER, pa.int64()), rows.num_rows)
    plain = pa.table([numbers, pa.nulls(rows.num_rows, pa.string()), *rows.columns], schema=schema)
    last = {ATTEMPT: NUMBER, RECEIPT: "{}"}
    receipt = pa.table([pa.array([last.get(field.name)], field.type) for field in schema], schema=schema)
    return pa.concat_tables([plain, receipt])


def chunked(results: Sequence[pa.Table]) -> pa.Table:
    """Return results in chunks."""
    return chunk_results(results, [result.schema for result in results])


def rows_in(chunks: pa.Table, column: str = rows_column(0)) -> list[object]:
    """Return the rows in the array column of a chunked result."""
    return [row for rows in chunks.column(column).to_pylist() for row in rows or ()]


@pytest.mark.parametrize(("limit", "count"), [(1 << 25, 4), (10, 3001)], ids=["small", "large"])
def test_chunks_have_all_rows_in_order(monkeypatch: pytest.MonkeyPatch, limit: int, count: int) -> None:
    """Chunks have all rows in order, also of sliced tables. A result that may be large has chunks of one row."""
    monkeypatch.setattr(result_chunks, "CHUNK_BYTES", limit)
    rows = pa.concat_tables([ROWS.slice(5, 1000), ROWS.slice(1, 2000)])
    chunks = chunked([result_of(rows)])
    chunks.validate(full=True)
    assert chunks.schema == chunked_schema([result_schema(NESTED)])
    assert rows_in(chunks) == rows.to_pylist()
    assert set(chunks.column(ATTEMPT).to_pylist()) == {NUMBER}
    assert chunks.column(RECEIPT).drop_null().to_pylist() == ["{}"]
    assert chunks.num_rows == count


@pytest.mark.parametrize(
    ("values", "most"),
    [
        (pa.array([[True] * 1000]), 1000 * 40),
        (pa.array([[{"a": True}] * 1000], FLAGS), 2 * 1000 * 40),
        (pa.array([[("", 1)] * 1000], COUNTS), 2 * 1000 * 40),
    ],
    ids=["list", "structs", "map"],
)
def test_the_size_estimate_includes_the_overhead_of_spark(values: pa.Array, most: int) -> None:
    """The size estimate includes what Spark adds: Arrow stores a flag in one bit, and Spark a struct with one in 24
    bytes.
    """
    assert most <= result_chunks._variable_bytes(values) <= 2 * most


def test_fixed_size_columns_count_as_zero_variable_bytes() -> None:
    """Fixed-size columns count as 0 variable bytes, however many values they have."""
    assert result_chunks._variable_bytes(pa.array(range(100_000))) == 0


def test_dead_letters_have_separate_chunks() -> None:
    """A chunk has either output rows or dead letters."""
    rows = pa.schema([("n", pa.int64())])
    output = rows.append(letter_field(rows))
    letters = pa.array([None, {"error": "ValueError"}, None], output.field(LETTER).type)
    chunks = chunked([result_of(pa.table([pa.array([1, None, 3]), letters], schema=output))])
    assert rows_in(chunks) == [{"n": 1}, {"n": 3}]
    assert [letter["error"] for letter in rows_in(chunks, letters_column(0))] == ["ValueError"]  # type: ignore[index]


def test_a_result_without_rows_has_only_its_receipt() -> None:
    """A result without rows or without columns has only its receipt."""
    for schema in (NESTED, pa.schema([])):
        chunks = chunked([result_of(schema.empty_table())])
        assert (chunks.num_rows, rows_in(chunks)) == (1, [])


def test_each_chunk_has_rows_of_one_store() -> None:
    """Each chunk has rows of one store and the attempt of that store. Each store has a receipt."""
    numbers, texts = pa.schema([("n", pa.int64())]), pa.schema([("t", pa.string()), ("n", pa.int64())])
    output = numbers.append(letter_field(numbers))
    letters = pa.array([None, {"error": "ValueError"}], output.field(LETTER).type)
    results = [
        result_of(pa.table([pa.array([1, None]), letters], schema=output)),
        result_of(texts.empty_table()),
        result_of(pa.table([pa.array(["x", "y"]), pa.array([1, 2])], schema=texts)),
    ]
    results = [
        result.set_column(0, ATTEMPT, pa.repeat(pa.scalar(place, pa.int64()), result.num_rows))
        for place, result in enumerate(results)
    ]
    chunks = chunked(results)
    chunks.validate(full=True)
    assert chunks.schema == chunked_schema([result.schema for result in results])
    assert [rows_in(chunks, rows_column(place)) for place in range(3)] == [
        [{"n": 1}],
        [],
        [{"t": "x", "n": 1}, {"t": "y", "n": 2}],
    ]
    assert [letter["error"] for letter in rows_in(chunks, letters_column(0))] == ["ValueError"]  # type: ignore[index]
    for chunk in chunks.to_pylist():
        filled = [name for name, value in chunk.items() if value is not None and name not in (ATTEMPT, RECEIPT)]
        assert len(filled) == (chunk[RECEIPT] is None)
        assert all(name.endswith(f"_{chunk[ATTEMPT]}") for name in filled)
    receipts = chunks.filter(chunks.column(RECEIPT).is_valid())
    assert receipts.column(ATTEMPT).to_pylist() == [0, 1, 2]
