"""Pandas frames of ``transformWithStateInPandas``: those that a processor gets, and the conversion of those that it
returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark
import pytest
from pandas.testing import assert_frame_equal
from pyspark.errors import PySparkTypeError, PySparkValueError

from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.spark.processors import pandas_form
from riffle_spark.spark.processors.pandas_conf import pandas_options
from riffle_spark.spark.processors.pandas_form import PandasForm, PandasOptions

pytestmark = [pytest.mark.newer_spark, pytest.mark.smoke]

OUTPUT = schema_of_ddl("id string, n long")
NOON = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
ROWS = pa.table(
    {
        "s": ["x", None, "z", "w"],
        "i": pa.array([1, 2, 3, 4], pa.int32()),
        "n": pa.array([1, None, 3, 4], pa.int16()),
        "f": pa.array([0.5, None, 1.5, 2.5], pa.float32()),
        "b": [True, False, True, False],
        "d": pa.array([date(2024, 1, 2)] * 4),
        "t": pa.array([NOON] * 4, pa.timestamp("us", "UTC")),
        "u": pa.array([NOON.replace(tzinfo=None)] * 4, pa.timestamp("us")),
        "p": pa.array([Decimal("1.50")] * 4),
        "a b": pa.array([[1, 2]] * 4),
        "r": pa.array([{"x": 1}] * 4),
    }
)


def frames_of(rows: pa.Table, positions: list[int], **options: Any) -> list[list[pd.DataFrame]]:
    """Return the frames of each key."""
    return [list(of_key) for of_key in PandasForm(OUTPUT, PandasOptions(**options)).rows(rows, positions)]


def returned(*output: Iterable[Any], schema: pa.Schema = OUTPUT, **options: Any) -> list[dict[str, Any]]:
    """Return the output rows for the results of some calls."""
    form = PandasForm(schema, PandasOptions(**options))
    for one in output:
        form.collect(one)
    return form.output().to_pylist()


def frame(**columns: Any) -> pd.DataFrame:
    """Return a frame with these columns."""
    return pd.DataFrame(columns)


def test_columns_have_the_types_that_pyspark_gives() -> None:
    """Columns have the types that pandas infers from Python values, as in PySpark 4.1 and newer."""
    ((found,),) = frames_of(ROWS, [0, 4], timezone="Europe/Berlin")
    times = "datetime64[us]" if pyspark.__version__.startswith("3.") else "datetime64[ns]"
    assert found.dtypes.astype(str).to_dict() == {
        "s": "object", "i": "int64", "n": "float64", "f": "float64", "b": "bool", "d": "object",
        "t": times, "u": "datetime64[ns]", "p": "object", "a b": "object", "r": "object",
    }  # fmt: skip
    first = found.iloc[0].to_dict()
    assert (first["d"], first["p"], first["r"]) == (date(2024, 1, 2), Decimal("1.50"), {"x": 1})
    assert (first["t"], first["u"]) == (pd.Timestamp("2024-05-01 14:00"), pd.Timestamp("2024-05-01 12:00"))
    assert list(first["a b"]) == [1, 2]
    assert found["s"].tolist() == ["x", None, "z", "w"]


def test_a_processor_may_write_into_its_frame() -> None:
    """A processor may change its frame in place without a change of other keys' rows and without a warning."""
    form = PandasForm(OUTPUT, PandasOptions())
    keys: Iterator[Iterator[Any]] = form.rows(ROWS.select(["i", "s"]), [0, 2, 4])
    first = next(next(keys))
    first["i"] = 0
    first.loc[0, "s"] = "mine"
    first.drop(columns="i", inplace=True)
    first.index.name = first.columns.name = "mine"
    second = next(next(keys))
    assert (second.index.name, second.columns.name) == (None, None)
    assert (second["i"].tolist(), second["s"].tolist()) == ([3, 4], ["z", "w"])


@pytest.mark.parametrize("rows_max", [1, 3, 0])
def test_a_key_with_many_rows_gets_several_frames(rows_max: int) -> None:
    """A key gets its rows in frames of at most the configured number of rows, where 0 is unlimited. No frame has rows
    of two keys.
    """
    sizes = [3, 0, 8, 1, 1, 2]
    positions = [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    frames = frames_of(pa.table({"v": list(range(15))}), positions, rows_max=rows_max)
    for of_key, (start, end) in zip(frames, pairwise(positions), strict=True):
        assert [v for one in of_key for v in one["v"]] == list(range(start, end))
        assert all(one.index.tolist() == list(range(len(one))) for one in of_key)
        assert all(0 < len(one) <= (rows_max or 100) for one in of_key)


def test_slices_equal_those_of_pandas_public_methods() -> None:
    """Slices by pandas' private methods equal those of its public methods."""
    whole = pandas_form.frame_of(ROWS, "UTC")
    slices = pandas_form.Slices(whole)
    for start, stop in [(0, 1), (1, 4), (0, 4), (2, 2)]:
        assert_frame_equal(slices[start, stop], whole.iloc[start:stop].reset_index(drop=True))


def test_keys_are_tuples_of_values() -> None:
    """Keys are tuples of Python values with pandas timestamps. NULL in one key does not change another key's type."""
    keys = pa.table(
        {"a": ["x", None], "b": pa.array([1, None]), "t": pa.array([NOON, None], pa.timestamp("us", "UTC"))}
    )
    first, second = PandasForm(OUTPUT, PandasOptions(timezone="Europe/Berlin")).keys(keys)
    assert first == ("x", 1, pd.Timestamp("2024-05-01 14:00"))
    assert type(first[1]) is int
    assert second[:2] == (None, None)


def test_values_stay_in_their_rows_if_frames_differ_in_types() -> None:
    """Values stay in their rows if the frames of several calls have different types."""
    frames = [frame(n=[n * 1.0 if at % 3 else n for n in range(40)], id=list(map(str, range(40)))) for at in range(9)]
    found = returned(frames)
    assert [row["n"] for row in found] == [int(row["id"]) for row in found] == [*range(40)] * 9


def test_categories_and_extension_types_have_the_values_of_their_rows() -> None:
    """Categories and pandas' own nullable types have the values of their rows, over several frames and with NULL."""
    one = frame(id=pd.Categorical(["a", "b"]), n=pd.array([1, None], "Int64"))
    other = frame(id=pd.Categorical(["b", "a"], ["a", "b"]), n=pd.array([3, 4], "Int64"))
    rows = returned([one], [other])
    assert [(row["id"], row["n"]) for row in rows] == [("a", 1), ("b", None), ("b", 3), ("a", 4)]


def test_columns_are_matched_by_name() -> None:
    """Output columns are matched by name, in any order and with extra columns, if any label is a string."""
    frames = [frame(n=[1], id=["a"]), frame(id=["b"], extra=[None], n=[2])]
    assert returned(frames) == [{"id": "a", "n": 1}, {"id": "b", "n": 2}]


def test_columns_are_matched_by_position_if_no_label_is_a_string() -> None:
    """Output columns are matched by position if no label is a string, or if Spark's setting says so."""
    expected = [{"id": "a", "n": 1}]
    assert returned([pd.DataFrame([["a", 1]])]) == expected
    assert returned([frame(x=["a"], y=[1])], by_name=False) == expected


def test_columns_keep_their_values_however_pandas_stores_them() -> None:
    """Columns have their own values however pandas stores them: created, reordered, sliced, extended or transposed."""
    made = pd.DataFrame({"m": [1, 2], "n": [3, 4], "k": [5, 6]})
    added = made[["n"]].copy()
    added["k"], added["m"] = [5, 6], [1, 2]
    frames = [
        made, made.iloc[:, ::-1], made[["k", "m", "n"]], made.iloc[:, [1, 0, 2]], made.sort_index(axis=1), added,
        made.T.T, made[1:], made[::-1], pd.DataFrame([[5, 1, 3], [6, 2, 4]], columns=["k", "m", "n"]),
    ]  # fmt: skip
    rows = returned(*([frame] for frame in frames), schema=schema_of_ddl("k long, m long, n long"))
    assert rows == [row for frame in frames for row in frame[["k", "m", "n"]].to_dict("records")]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("timestamp", [pd.Timestamp("2024-05-01 14:00"), None], [NOON, None]),
        ("timestamp", [pd.Timestamp("2024-05-01 12:00", tz="UTC")], [NOON]),
        ("timestamp_ntz", [pd.Timestamp("2024-05-01 14:00")], [datetime(2024, 5, 1, 14)]),
        ("date", [date(2024, 1, 2), None], [date(2024, 1, 2), None]),
        ("decimal(5,2)", [Decimal("1.5")], [Decimal("1.50")]),
        ("array<int>", [np.array([1, 2]), [3], None], [[1, 2], [3], None]),
        ("struct<x:int>", [{"x": 1}, None], [{"x": 1}, None]),
        ("map<string,int>", [{"k": 1}], [[("k", 1)]]),
        ("double", [1, 2], [1.0, 2.0]),
        ("int", np.array([1, 2], dtype=np.int64), [1, 2]),
        ("string", ["x", None], ["x", None]),
        ("boolean", [True, None], [True, None]),
        ("binary", [b"x"], [b"x"]),
    ],
    ids=str,
)
def test_values_are_converted_as_pyspark_does(kind: str, values: Any, expected: list[object]) -> None:
    """Values are converted by PySpark's converters, with timestamps in the session's time zone."""
    found = returned([frame(a=values)], schema=schema_of_ddl(f"a {kind}"), timezone="Europe/Berlin")
    assert [row["a"] for row in found] == expected


@pytest.mark.parametrize(
    "result", [None, 5, [1], {"id": "a", "n": 1}, pd.Series([1])], ids=lambda one: type(one).__name__
)
def test_a_result_that_is_not_a_frame_is_refused(result: object) -> None:
    """A result that is not a frame raises PySpark's error."""
    with pytest.raises(PySparkValueError, match=r"pandas\.DataFrame"):
        returned([result])


def test_a_missing_column_is_refused() -> None:
    """A missing output column is refused by its name, or by the number of columns."""
    with pytest.raises(KeyError, match="'n'"):
        returned([frame(id=["a"])])
    with pytest.raises(IndexError, match="2 are declared"):
        returned([pd.DataFrame([["a"]])])


@pytest.mark.parametrize(
    ("columns", "name"), [({"id": ["a"], "n": ["many"]}, "n"), ({"id": [1], "n": [1]}, "id")], ids=["text", "number"]
)
def test_a_value_of_the_wrong_type_is_refused(columns: dict[str, list[Any]], name: str) -> None:
    """A value of the wrong type raises PySpark's error, which names the column."""
    with pytest.raises((PySparkTypeError, PySparkValueError), match=f"column '{name}'"):
        returned([frame(**columns)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [("tinyint", 300), ("int", 2**31), ("decimal(5,2)", Decimal("12345.67")), ("decimal(5,2)", Decimal("1.005"))],
    ids=str,
)
def test_a_value_beyond_its_declared_type_is_refused(kind: str, value: object) -> None:
    """A value beyond the range of its type is refused, as PySpark does by default."""
    with pytest.raises(PySparkValueError, match="column 'a'"):
        returned([frame(a=pd.Series([value], dtype=object))], schema=schema_of_ddl(f"a {kind}"), **pandas_options({}))


def test_a_lossy_conversion_is_refused_with_sparks_safe_setting() -> None:
    """A conversion that loses information is refused if ``spark.sql.execution.pandas.convertToArrowArraySafely`` is
    set.
    """
    assert returned([frame(id=["a"], n=[1.5])]) == [{"id": "a", "n": 1}]
    with pytest.raises(PySparkValueError):
        returned([frame(id=["a"], n=[1.5])], safe=True)
