"""NULL structs that have NOT NULL fields, as output and state of processors and functions of groups."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from riffle_spark import (
    Stateful,
    StatefulProcessor,
    arrow_function,
    transform_with_state,
    transform_with_state_in_pandas,
)
from riffle_spark.process.types.spark_schemas import schema_of_ddl
from riffle_spark.process.types.stage_specs import GroupsSpec
from riffle_spark.spark.processors.grouped_frames import GroupedFrames
from riffle_spark.spark.processors.pandas_output import PandasOptions, PandasOutput
from riffle_spark.testing import Harness
from tests.kit.streams.streaming import CollectingSink, Feed, run_to_end, settings_in

STRUCT = "struct<a: bigint not null, t: string not null>"
OUTPUT = f"k string, v {STRUCT}, vs array<{STRUCT}>"
ROWS = pa.schema([("k", pa.string()), ("n", pa.int64())])
FULL = {"a": 1, "t": "x"}


class Latest(StatefulProcessor):
    """A processor that outputs its stored value and then stores a NULL struct for odd numbers and a full one for even
    ones.
    """

    pandas = False

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.kept = handle.getValueState("kept", f"v {STRUCT}, vs array<{STRUCT}>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: ARG002
        """Output the stored values and store new ones."""
        for row in rows:
            n = int(row["n"].iloc[-1]) if self.pandas else row.n
            yield self.told(key[0], *(self.kept.get() or (None, None)))
            value = None if n % 2 else (1, "x")
            self.kept.update((value, [value, (1, "x")]))

    def told(self, key: str, value: Any, values: Any) -> Any:
        """Return a row of output."""
        if not self.pandas:
            return Row(k=key, v=value, vs=values)
        value = None if value is None else dict(zip("at", value, strict=True))
        return pd.DataFrame({"k": [key], "v": [value], "vs": [values]})

    def close(self) -> None:
        """Do nothing."""


class InPandas(Latest):
    """The processor with pandas frames."""

    pandas = True


def grouped(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Do as the processor does, as a function of groups."""
    for frame in frames:
        value = state.get[0] if state.exists else None
        yield pd.DataFrame({"k": [key[0]], "v": [value and dict(zip("at", value, strict=True))], "vs": [None]})
        state.update((None if frame["n"].iloc[-1] % 2 else (1, "x"),))


def of_groups() -> Stateful:
    """Return an operator with the function of groups."""
    shown = tuple((name, name) for name in ROWS.names)
    spec = GroupsSpec("groups.k", pa.schema([ROWS.field("k")]), ROWS, shown, schema_of_ddl(OUTPUT))
    return Stateful("groups.k", "k", GroupedFrames(spec, grouped, schema_of_ddl(f"v {STRUCT}"), "NoTimeout", {}))


OPERATORS = {
    "groups": of_groups,
    "rows": lambda: transform_with_state(Latest(), key="k", output=OUTPUT),
    "pandas": lambda: transform_with_state_in_pandas(InPandas(), key="k", output=OUTPUT),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_null_structs_with_not_null_fields_are_stored_and_returned(name: str) -> None:
    """NULL structs are stored and returned in every batch, also after local copies are lost."""
    with Harness(OPERATORS[name](), ROWS, executors=1) as query:
        for n, value in ((1, None), (2, None), (3, FULL), (4, None)):
            (row,) = query.feed([{"k": "a", "n": n}])
            assert row["v"] == value
            if name == "rows" and n > 1:
                assert row["vs"] == [value, FULL]
            query.crash(lose_copies=True)


def of_arrow(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Do as the processor does, as a function on Arrow."""
    last = rows.group_by("k", use_threads=False).aggregate([("n", "last")])
    nothing: dict[str, Any] = {"v": None, "vs": None}
    known = {row.pop("k"): row for row in state.to_pylist()}
    output = [{"k": k, **known.get(k, nothing)} for k in last["k"].to_pylist()]
    kept = [{"k": k, "v": v, "vs": [v, FULL]} for k, v in zip(*_kept(last), strict=True)]
    schema = schema_of_ddl(OUTPUT)
    return pa.Table.from_pylist(output, schema), pa.Table.from_pylist(kept, schema)


def _kept(last: pa.Table) -> tuple[list[Any], list[Any]]:
    return last["k"].to_pylist(), [None if n % 2 else FULL for n in last["n_last"].to_pylist()]


def in_spark(name: str, folder: Path) -> Stateful:
    """Return the operator for a query in Spark."""
    settings = settings_in(folder)
    if name == "rows":
        return transform_with_state(Latest(), key="k", output=OUTPUT, settings=settings)
    if name == "pandas":
        return transform_with_state_in_pandas(InPandas(), key="k", output=OUTPUT, settings=settings)
    output = schema_of_ddl(OUTPUT)
    compute = arrow_function(of_arrow, state=pa.schema(list(output)[1:]), output=output)
    return Stateful("latest", "k", compute, settings=settings)


@pytest.mark.spark
@pytest.mark.newer_spark
@pytest.mark.smoke
@pytest.mark.parametrize("name", ["pandas", "rows", "arrow"])
@pytest.mark.sample("pandas")
def test_sparks_sinks_get_null_structs_after_a_restart(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark's sinks get NULL structs after a restart without local copies."""
    feed, sink = Feed(tmp_path / "in", "k string, n long"), CollectingSink()
    for first in (1, 3):
        for n in (first, first + 1):
            feed.add([{"k": k, "n": n + at} for at, k in enumerate("ab")])
        run_to_end(feed.stream(spark), in_spark(name, tmp_path).into(sink), tmp_path / "checkpoint")
        shutil.rmtree(tmp_path / "local")
    rows = [{row["k"]: row.asDict(recursive=True) for row in rows} for rows in sink.deliveries.values()]
    assert [batch["a"]["v"] for batch in rows] == [None, None, FULL, None]
    assert [batch["b"]["v"] for batch in rows] == [None, FULL, None, FULL]
    assert [batch["b"]["vs"] for batch in rows] == [None, [FULL, FULL], [None, FULL], [FULL, FULL]]


NAN = float("nan")
FLOATS = "struct<a: double not null, b: double>"


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (FLOATS, {"a": NAN, "b": NAN}, {"a": NAN, "b": None}),
        ("struct<s: struct<f: float not null>>", {"s": {"f": NAN}}, {"s": {"f": NAN}}),
        (f"array<{FLOATS}>", [{"a": NAN, "b": NAN}, None], [{"a": NAN, "b": None}, None]),
        (f"map<string, {FLOATS}>", {"x": {"a": NAN, "b": 1.0}}, [("x", {"a": NAN, "b": 1.0})]),
        ("array<double>", [NAN, 1.0], [None, 1.0]),
    ],
)
def test_nan_from_pandas_stays_nan_in_a_not_null_field(kind: str, value: Any, expected: Any) -> None:
    """NaN from pandas stays NaN in a NOT NULL field. In a nullable field it becomes NULL, as in Spark."""
    output = PandasOutput(schema_of_ddl(f"v {kind}"), PandasOptions(safe=True))
    output.add(pd.DataFrame({"v": pd.Series([value, None], dtype=object)}))
    assert repr(output.table().column("v").to_pylist()) == repr([expected, None])
