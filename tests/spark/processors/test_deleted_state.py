"""State that ``init`` deleted, or that is used where no key is at work: Spark's errors, call by call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from riffle_spark.spark.processors.pandas_form import PandasForm, PandasOptions
from riffle_spark.spark.processors.row_form import RowForm
from riffle_spark.spark.processors.spark_processor import declare
from tests.kit.processors.both_forms import collect, sparks_own
from tests.kit.processors.deleted_states import TOLD, Gone
from tests.kit.streams import sparks_operator as native
from tests.kit.streams.processor_runs import Run, Told

pytestmark = pytest.mark.newer_spark

CONF = native.CONF
FORMS = {"rows": RowForm, "pandas": lambda output: PandasForm(output, PandasOptions())}


def noted(path: Path) -> list[tuple[str, dict[str, str]]]:
    """Return where the processor was and what it was told there, in order."""
    return [(place, told) for place, told in map(json.loads, path.read_text().splitlines())]


@pytest.mark.parametrize("form", FORMS)
def test_deleted_state_answers_as_sparks(form: str, tmp_path: Path) -> None:
    """On the driver, in ``init`` on executors, and with rows."""
    run = Run(Gone(tmp_path / "told"), form=FORMS[form])  # type: ignore[arg-type]
    run.batch({"a": [1]})
    assert noted(tmp_path / "told") == [("init", TOLD), ("init", TOLD), ("rows", TOLD)]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("form", ["pandas"] if spark_version.startswith("4.0.") else ["rows", "pandas"])
def test_sparks_own_operator_answers_the_same(spark: SparkSession, form: str, tmp_path: Path) -> None:
    """Its own operator, on the Spark at hand, at every place."""
    rows = pa.table({"id": ["a"]})
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in" / "rows.parquet")
    grouped = spark.readStream.schema(from_arrow_schema(rows.schema)).parquet(str(tmp_path / "in")).groupBy("id")
    result = sparks_own(grouped, form)(Gone(tmp_path / "told"), "id string", "update", "None")
    writer = result.writeStream.outputMode("update").foreachBatch(collect)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(native.END_SECONDS)
    told = noted(tmp_path / "told")
    assert {place for place, _ in told} == {"init", "rows"}
    assert [answers for _, answers in told] == [TOLD] * len(told)


@pytest.mark.parametrize("call", ["put", "appendList"])
def test_several_elements_for_a_deleted_list_are_refused(call: str) -> None:
    """In the words of one element; and that there are none is not looked at."""

    def init(one: Any, handle: Any) -> None:
        one.gone = handle.getListState("l", "n int")
        handle.deleteIfExists("l")
        for elements in ([(1,)], []):
            with pytest.raises(PySparkRuntimeError, match=r"^Error updating value state: List state l is not init"):
                getattr(one.gone, call)(elements)

    declare(Told(init=init), "None")


USES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "v.exists": ("checking value state exists", lambda one: one.v.exists()),
    "v.get": ("getting value state", lambda one: one.v.get()),
    "v.update": ("updating value state", lambda one: one.v.update((1,))),
    "v.clear": ("clearing value state", lambda one: one.v.clear()),
    "l.exists": ("checking value state exists", lambda one: one.l.exists()),
    "l.put": ("updating value state", lambda one: one.l.put([(1,)])),
    "l.appendValue": ("updating value state", lambda one: one.l.appendValue((1,))),
    "l.appendList": ("updating value state", lambda one: one.l.appendList([(1,)])),
    "l.clear": ("clearing value state", lambda one: one.l.clear()),
    "m.exists": ("checking map state exists", lambda one: one.m.exists()),
    "m.getValue": ("getting value", lambda one: one.m.getValue(("a",))),
    "m.containsKey": ("checking if map state contains key", lambda one: one.m.containsKey(("a",))),
    "m.updateValue": ("updating map state value", lambda one: one.m.updateValue(("a",), (1,))),
    "m.removeKey": ("removing key from map state", lambda one: one.m.removeKey(("a",))),
    "m.clear": ("clearing map state", lambda one: one.m.clear()),
}


@pytest.mark.parametrize("operation", USES)
def test_state_without_a_key_is_refused_in_the_words_of_the_call(operation: str) -> None:
    """On the driver its phase is told, and on executors that there is no key."""
    doing, use = USES[operation]

    def init(one: Any, handle: Any) -> None:
        one.v, one.l = handle.getValueState("v", "n int"), handle.getListState("l", "n int")
        one.m = handle.getMapState("m", "k string", "n int")
        with pytest.raises(PySparkRuntimeError, match=f"^Error {doing}: ") as caught:
            use(one)
        expected = {
            "PRE_INIT": f"operation={operation} with invalid handle state=PRE_INIT. SQLSTATE: 42802",
            "CREATED": f"Implicit key not found in state store for stateName={operation[0]} SQLSTATE: XX000",
        }
        assert expected[handle.phase] in str(caught.value)

    Run(Told(init=init)).batch({"a": [1]})
