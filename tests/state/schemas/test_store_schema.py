"""What both kinds of store answer for themselves."""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.keygroups import key_hashes
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

KEY = pa.schema([("k", pa.string())])
N = pa.schema([("n", pa.int64())])
PLAIN = PlainColumns("s", KEY, N)
TIMED = VariableColumns("s", KEY, (Variable("seen", "value", N),), indexed=True)
LONG = "l" * 2_000


def plain_rows() -> pa.Table:
    """Return a snapshot's rows, one of a key that is cut in a copy."""
    return pa.table([["b", LONG, "a"], [1, 2, 3]], schema=PLAIN.part_schema())


def timed_rows(*dues: int | None) -> pa.Table:
    """Return a snapshot's rows of one variable, the first of a key that is cut in a copy, with when they are due."""
    rows = [
        {"k": LONG if not at else f"k{at}", "__variable": "seen", "__due": due, "__state_seen": {"n": at}}
        for at, due in enumerate(dues)
    ]
    return pa.Table.from_pylist(rows, schema=TIMED.part_schema())


def test_a_snapshot_of_columns_is_sorted_by_hash_and_one_of_variables_by_stored_key() -> None:
    """So columns are found by a binary search, and variables lie as their copies list them."""
    columns = PLAIN.sealed(plain_rows())
    assert columns.column_names == ["__hash", "k", "n"]
    assert columns["__hash"].to_pylist() == sorted(key_hashes([plain_rows()["k"]]).tolist())
    assert columns.drop_columns(["__hash"]).sort_by("n").equals(plain_rows().sort_by("n"))
    variables = TIMED.encode(TIMED.sealed(timed_rows(7, None, 3)))
    assert variables.keys == sorted(variables.keys)


def test_the_earliest_due_row_is_told_where_rows_can_be_due() -> None:
    """Columns never are; of variables those that have a time count."""
    assert PLAIN.earliest_ms(plain_rows()) is None
    assert TIMED.earliest_ms(timed_rows(None, 9, 7)) == 7
    assert TIMED.earliest_ms(timed_rows(None)) is None
    assert TIMED.earliest_ms(timed_rows()) is None
