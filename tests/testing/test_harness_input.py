"""The harness checks the rows that it is fed against its schema."""

from __future__ import annotations

import pyarrow as pa
import pytest

from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.errors import ConfigError
from riffle_spark.testing import Harness

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])


def totals() -> Stateful:
    """Return an operator with a count and a sum per user."""
    return Stateful("totals", "user", aggregate(payments=count(), paid=sum_("amount")))


@pytest.mark.parametrize(
    ("row", "message", "remedy"),
    [
        ({"usr": "ann", "amount": 3}, "Unknown column 'usr'", "Did you mean 'user'?"),
        ({"user": "ann", "amount": 3, "x": 1}, "Unknown column 'x'", "amount, user"),
    ],
)
def test_rows_with_unknown_columns_are_refused(row: dict[str, object], message: str, remedy: str) -> None:
    """A row or table with an unknown column is refused with its name and row number, and nothing is committed."""
    with Harness(totals(), SCHEMA) as query:
        with pytest.raises(ConfigError, match=message) as caught:
            query.feed([{"user": "bob", "amount": 1}, row])
        assert (caught.value.where, remedy in caught.value.remedy) == ("row 1", True)
        with pytest.raises(ConfigError, match=message):
            query.feed(pa.table({name: [value] for name, value in row.items()}))
        assert query.state() == {}
        with pytest.raises(ConfigError, match="RIFFLE-0476"):
            query.feed(pa.table({"user": ["ann"]}))
        assert query.feed([{"user": "ann"}]) == [{"user": "ann", "payments": 1, "paid": None}]


def test_a_table_may_have_its_columns_in_another_order() -> None:
    """The columns of a table are found by name."""
    with Harness(totals(), SCHEMA) as query:
        rows = pa.table({"amount": [3], "user": ["ann"]})
        assert query.feed(rows) == [{"user": "ann", "payments": 1, "paid": 3}]


@pytest.mark.parametrize("ddl", ["user string, amount long", "`user` STRING NOT NULL, amount: BIGINT"])
def test_the_schema_may_be_ddl(ddl: str) -> None:
    """The schema may be DDL, which is parsed without a session."""
    with Harness(totals(), ddl) as query:
        assert query.feed([{"user": "ann", "amount": 3}]) == [{"user": "ann", "payments": 1, "paid": 3}]


def test_a_value_of_a_wrong_type_is_refused_with_its_column() -> None:
    """Nothing is committed, so the rows can be fed again."""
    with Harness(Stateful("t", "k", aggregate(total=sum_("n"))), "k string, n long") as query:
        with pytest.raises(ConfigError, match=r"column 'n' \(int64\): Could not convert 'three'") as refused:
            query.feed([{"k": "a", "n": 3}, {"k": "a", "n": "three"}])
        assert refused.value.id == "RIFFLE-1751"
        assert query.feed([{"k": "a", "n": 3}]) == [{"k": "a", "total": 3}]


@pytest.mark.parametrize(
    ("schema", "message"), [("user strin", "RIFFLE-0206"), ("", "schema"), ({"user": "string"}, "RIFFLE-0475")]
)
def test_an_invalid_schema_is_refused(schema: object, message: str) -> None:
    """A schema that cannot be parsed is refused."""
    with pytest.raises(ConfigError, match=message):
        Harness(totals(), schema)
