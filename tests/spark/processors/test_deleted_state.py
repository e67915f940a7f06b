"""State that ``init`` deleted, and state that is used without a key, raises Spark's errors for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from riffle_spark.spark.processors.pandas_form import PandasForm, PandasOptions
from riffle_spark.spark.processors.row_form import RowForm
from riffle_spark.spark.processors.spark_processor import declare
from tests.kit.streams.processor_runs import Run, ScriptedProcessor, see, seen

pytestmark = pytest.mark.newer_spark

FORMS = {"rows": RowForm, "pandas": lambda output: PandasForm(output, PandasOptions())}
USES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "v.exists": ("checking value state exists", lambda processor: processor.v.exists()),
    "v.get": ("getting value state", lambda processor: processor.v.get()),
    "v.update": ("updating value state", lambda processor: processor.v.update((1,))),
    "v.clear": ("clearing value state", lambda processor: processor.v.clear()),
    "l.exists": ("checking value state exists", lambda processor: processor.l.exists()),
    "l.put": ("updating value state", lambda processor: processor.l.put([(1,)])),
    "l.appendValue": ("updating value state", lambda processor: processor.l.appendValue((1,))),
    "l.appendList": ("updating value state", lambda processor: processor.l.appendList([(1,)])),
    "l.clear": ("clearing value state", lambda processor: processor.l.clear()),
    "m.exists": ("checking map state exists", lambda processor: processor.m.exists()),
    "m.getValue": ("getting value", lambda processor: processor.m.getValue(("a",))),
    "m.containsKey": ("checking if map state contains key", lambda processor: processor.m.containsKey(("a",))),
    "m.updateValue": ("updating map state value", lambda processor: processor.m.updateValue(("a",), (1,))),
    "m.removeKey": ("removing key from map state", lambda processor: processor.m.removeKey(("a",))),
    "m.clear": ("clearing map state", lambda processor: processor.m.clear()),
}
ITERATIONS: list[Callable[[Any], Any]] = [
    lambda processor: processor.l.get(),
    lambda processor: processor.m.iterator(),
    lambda processor: processor.m.keys(),
    lambda processor: processor.m.values(),
]
KINDS = {"v": "Value", "l": "List", "m": "Map"}


def declare_all(processor: Any, handle: Any) -> None:
    """Declare a variable of each kind."""
    processor.v = handle.getValueState("v", "n int")
    processor.l = handle.getListState("l", "n int")
    processor.m = handle.getMapState("m", "k string", "n int")


@pytest.mark.parametrize("form", FORMS)
def test_calls_on_deleted_state_raise_sparks_errors(form: str) -> None:
    """Calls on deleted state raise the errors recorded of Spark 4.0.5 and 4.3.0, on the driver, in ``init`` and with
    rows.
    """

    def check(processor: Any) -> None:
        for operation, (doing, use) in USES.items():
            name = operation[0]
            with pytest.raises(PySparkRuntimeError) as caught:
                use(processor)
            assert str(caught.value) == f"Error {doing}: {KINDS[name]} state {name} is not initialized."
        assert [list(iterate(processor)) for iterate in ITERATIONS] == [[]] * 4
        see("checked")

    def init(processor: Any, handle: Any) -> None:
        declare_all(processor, handle)
        for name in KINDS:
            handle.deleteIfExists(name)
        check(processor)

    Run(ScriptedProcessor(init=init, rows=lambda processor, *_: check(processor)), form=FORMS[form]).batch({"a": [1]})  # type: ignore[arg-type]
    assert seen() == "checked"


@pytest.mark.parametrize("call", ["put", "appendList"])
def test_several_elements_for_a_deleted_list_are_refused(call: str) -> None:
    """Several elements for a deleted list raise the error of one element, and so does an empty list."""

    def init(processor: Any, handle: Any) -> None:
        processor.gone = handle.getListState("l", "n int")
        handle.deleteIfExists("l")
        for elements in ([(1,)], []):
            with pytest.raises(PySparkRuntimeError, match=r"^Error updating value state: List state l is not init"):
                getattr(processor.gone, call)(elements)

    declare(ScriptedProcessor(init=init), "None")


@pytest.mark.parametrize("operation", USES)
def test_state_without_a_key_is_refused_with_the_phase_of_the_call(operation: str) -> None:
    """State without a key is refused: the driver's error names the phase, and the executor's says that there
    is no key.
    """
    doing, use = USES[operation]

    def init(processor: Any, handle: Any) -> None:
        declare_all(processor, handle)
        with pytest.raises(PySparkRuntimeError, match=f"^Error {doing}: ") as caught:
            use(processor)
        expected = {
            "PRE_INIT": f"operation={operation} with invalid handle state=PRE_INIT. SQLSTATE: 42802",
            "CREATED": f"Implicit key not found in state store for stateName={operation[0]} SQLSTATE: XX000",
        }
        assert expected[handle.phase] in str(caught.value)

    Run(ScriptedProcessor(init=init)).batch({"a": [1]})
