"""A harness resolves column names as Spark does, and uses Spark's settings of conversions."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import __version__ as spark_version

from riffle_spark import (
    Stateful,
    StatefulProcessor,
    StatefulProcessorHandle,
    aggregate,
    count,
    max_,
    min_,
    sum_,
    transform_with_state,
    transform_with_state_in_pandas,
)
from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.testing import Harness
from tests.kit.processors.columns import Columns

pytestmark = pytest.mark.newer_spark

SAFE = "spark.sql.execution.pandas.convertToArrowArraySafely"
STRUCT = pa.struct([("x", pa.string())])
ROWS = pa.schema([("user", pa.string()), ("s", STRUCT), ("v", pa.int64()), ("v", pa.int64())])


FORMS = {"rows": transform_with_state, "pandas": transform_with_state_in_pandas}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("key", "value"), [("USER", "ann"), ("s.x", "in"), ("S.X", "in")])
def test_rows_keep_all_their_columns_for_any_key(form: str, key: str, value: str) -> None:
    """Rows have all their columns, also two of one name, whether the key is a column or a field of a struct."""
    operator = FORMS[form](Columns(), key=key, output="key string, told string")
    rows = pa.Table.from_arrays([["ann"], pa.array([{"x": "in"}], STRUCT), [1], [2]], schema=ROWS)
    with Harness(operator, ROWS) as query:
        assert query.feed(rows) == [{"key": value, "told": "['user', 's', 'v', 'v', 1, 2]"}]


def test_an_aggregate_finds_its_columns_ignoring_case() -> None:
    """An aggregate finds its columns ignoring case, also as fields of a struct."""
    kind = pa.struct([("x", pa.int64())])
    rows = pa.schema([("user", pa.string()), ("V", pa.int64()), ("s", kind), ("T", kind)])
    declared = aggregate(total=sum_("v"), least=min_("S.X"), most=max_("t.x"), n=count("USER"))
    values = [{"user": "ann", "V": n, "s": {"x": n}, "T": None if n == 3 else {"x": 10 * n}} for n in (1, 2, 3)]
    with Harness(Stateful("totals", "User", declared), rows) as query:
        assert query.feed(values) == [{"user": "ann", "total": 6, "least": 1, "most": 20, "n": 3}]


def test_columns_are_case_sensitive_with_sparks_setting() -> None:
    """With ``spark.sql.caseSensitive`` a column in another case is not found."""
    operator = Stateful("seen", "USER", aggregate(n=count()))
    with pytest.raises(ConfigError, match="RIFFLE-0229"):
        Harness(operator, ROWS, spark_conf={"spark.sql.caseSensitive": "true"})


class OneValue(StatefulProcessor):
    """A processor that emits one value."""

    def __init__(self, value: object) -> None:
        self.value = value

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare no state."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Emit the value."""
        yield pd.DataFrame({"key": [key[0]], "n": [self.value]})


def gives(value: object, kind: str, conf: dict[str, str] | None = None) -> object:
    """Return the value that a harness outputs for a value of this type."""
    operator = transform_with_state_in_pandas(OneValue(value), key="user", output=f"key string, n {kind}")
    with Harness(operator, pa.schema([("user", pa.string())]), spark_conf=conf) as query:
        return query.feed([{"user": "ann"}])[0]["n"]


def test_fractions_in_integer_columns_follow_the_installed_spark() -> None:
    """A fraction in an integer column is truncated until Spark 4.0 and refused from 4.1 on."""
    if spark_version.startswith(("3.5.", "4.0.")):
        assert gives(1.5, "long") == 1
    else:
        with pytest.raises(UserFunctionError, match=r"Cannot convert|truncat"):
            gives(1.5, "long")


def test_conversions_follow_the_setting_of_the_harness() -> None:
    """The harness uses the setting that it is given, with any installed Spark."""
    assert gives(1.5, "long", {SAFE: "false"}) == 1
    with pytest.raises(UserFunctionError, match="RIFFLE-0193"):
        gives(1.5, "long", {SAFE: "true"})


@pytest.mark.skipif(spark_version.startswith(("3.5.", "4.0.")), reason="Spark has the setting since 4.1")
def test_integers_are_accepted_as_decimals_with_sparks_setting() -> None:
    """With Spark's setting an integer is accepted in a decimal column, which Arrow alone would refuse."""
    conf = {"spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "true"}
    assert gives(7, "decimal(1,0)", conf) == Decimal(7)
    with pytest.raises(UserFunctionError):
        gives(7, "decimal(1,0)")
