"""Methods that both kinds of store schema have."""

from __future__ import annotations

import pyarrow as pa

from riffle_spark.keygroups import key_hashes
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import make_recorded_text, read_meanings, schema_of_text
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

KEY = pa.schema([("k", pa.string())])
N = pa.schema([("n", pa.int64())])
PLAIN = PlainColumns("s", KEY, N)
TIMED = VariableColumns("s", KEY, (Variable("seen", "value", N),), indexed=True)
LONG = "l" * 2_000


def plain_rows() -> pa.Table:
    """Return the rows of a snapshot, one of them with a long key."""
    return pa.table([["b", LONG, "a"], [1, 2, 3]], schema=PLAIN.part_schema())


def timed_rows(*dues: int | None) -> pa.Table:
    """Return snapshot rows of one variable with their due times, the first of them with a long key."""
    rows = [
        {"k": LONG if not index else f"k{index}", "__variable": "seen", "__due": due, "__state_seen": {"n": index}}
        for index, due in enumerate(dues)
    ]
    return pa.Table.from_pylist(rows, schema=TIMED.part_schema())


def test_a_snapshot_is_sorted_by_hash() -> None:
    """The rows of a snapshot are sorted by hash, so that a binary search finds them."""
    columns = PLAIN.sealed(plain_rows())
    assert columns.column_names == ["__hash", "k", "n"]
    assert columns["__hash"].to_pylist() == sorted(key_hashes([plain_rows()["k"]]).tolist())
    assert columns.drop_columns(["__hash"]).sort_by("n").equals(plain_rows().sort_by("n"))
    variables = TIMED.sealed(timed_rows(7, None, 3))
    assert variables["__hash"].to_pylist() == sorted(key_hashes([timed_rows(7, None, 3)["k"]]).tolist())


def test_a_store_of_variables_reports_its_earliest_due_time() -> None:
    """A store of variables reports its earliest due time, and a store of plain columns has none."""
    assert PLAIN.earliest_ms(plain_rows()) is None
    assert TIMED.earliest_ms(timed_rows(None, 9, 7)) == TIMED.earliest_ms(TIMED.sealed(timed_rows(None, 9, 7))) == 7
    assert TIMED.earliest_ms(timed_rows(None)) is None
    assert TIMED.earliest_ms(timed_rows()) is None


def test_recorded_meanings_of_columns_stay_until_new_ones_are_passed() -> None:
    """A driver that passes no meanings of columns keeps the recorded ones, and new meanings replace them."""
    first = make_recorded_text(None, PLAIN, 0, {"n": "count(1)"})
    assert read_meanings(first) == {"n": "count(1)"}
    assert make_recorded_text(first, PLAIN, 1) == make_recorded_text(first, PLAIN, 1, {"n": "count(1)"}) == first
    assert make_recorded_text(first, PLAIN, 1, {"n": "count(x)"}) == {**first, "meanings": '{"n": "count(x)"}'}
    wide = PlainColumns("s", KEY, pa.schema([*N, ("t", pa.int64())]))
    changed = make_recorded_text(first, wide, 4, {"n": "count(1)", "t": "sum(x)"})
    assert read_meanings(changed) == {"n": "count(1)", "t": "sum(x)"}
    assert schema_of_text("s", changed).history.names_declared_after(3) == {("t",)}
    assert read_meanings(make_recorded_text(None, PLAIN, 0)) == {}


def test_a_column_hides_only_values_older_than_its_declaration() -> None:
    """A column hides only values that were written before the epoch that declared it."""
    wide = PlainColumns("s", KEY, pa.schema([*N, ("t", pa.int64())]))
    schema = schema_of_text("s", make_recorded_text(make_recorded_text(None, PLAIN, 0), wide, 4))
    rows = pa.table([["a"], [1], [2]], schema=wide.part_schema())
    assert schema.without_later_names(rows, 4).column_names == ["k", "n", "t"]
    assert schema.without_later_names(rows, 3).column_names == ["k", "n"]


def test_new_meanings_keep_the_history_of_the_columns() -> None:
    """New meanings keep the history of columns, so that a column that was dropped and declared again hides its old
    values.
    """
    wide = PlainColumns("s", KEY, pa.schema([*N, ("t", pa.int64())]))
    changed = make_recorded_text(make_recorded_text(None, PLAIN, 0), wide, 4, {"t": "sum(x)"})
    renewed = make_recorded_text(changed, wide, 5, {"t": "sum(y)"})
    assert read_meanings(renewed) == {"t": "sum(y)"}
    assert schema_of_text("s", renewed).history == schema_of_text("s", changed).history


def test_keys_that_share_a_hash_are_sorted_by_their_stored_bytes() -> None:
    """Keys with the same hash are sorted by their stored bytes. (NULL, 5) and (5, NULL) share a hash."""
    schema = PlainColumns("s", pa.schema([("a", pa.int64()), ("b", pa.int64())]), N)
    rows = pa.table([[5, None], [None, 5], [1, 2]], schema=schema.part_schema())
    for table in (rows, rows.take([1, 0])):
        sealed = schema.sealed(table)
        assert len(set(sealed["__hash"].to_pylist())) == 1
        assert sealed["n"].to_pylist() == [2, 1]


def test_a_deleted_timer_is_never_due() -> None:
    """A timer that its batch has deleted does not make a key-group due."""
    rows = [
        {"k": "a", "__variable": "__timer", "__due": 3, "__deleted": True},
        {"k": "a", "__variable": "__timer", "__due": 9, "__deleted": False},
    ]
    delta = TIMED.sealed(pa.Table.from_pylist(rows, schema=TIMED.part_schema(delta=True)))
    assert TIMED.earliest_ms(delta) == 9
    assert TIMED.earliest_ms(delta.filter(delta["__deleted"])) is None
