"""PySpark's state variables: the values that they return and the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkTypeError, PySparkValueError
from pyspark.sql import Row

from tests.kit.streams.processor_runs import Run, Told, see, seen

pytestmark = pytest.mark.newer_spark


def states(one: Any, handle: Any) -> None:
    """Declare a variable of each kind."""
    one.value = handle.getValueState("v", "n int, s struct<x:int,y:string>")
    one.list = handle.getListState("l", "n int, s struct<x:int,y:string>")
    one.map = handle.getMapState("m", "k string", "n int, s struct<x:int,y:string>")
    one.strict = handle.getValueState("w", "n int not null, b byte")


def ran(*batches: Callable[[Any], Any]) -> list[Any]:
    """Run one batch per function with the same key, and return their results."""
    results: list[Any] = []
    processor = Told(init=states, rows=lambda one, *_: see(seen()(one)))
    run = Run(processor)
    for batch in batches:
        see(batch)
        run.batch({"a": [1]})
        results.append(seen())
    return results


def test_get_value_of_a_map_returns_a_row_and_iterators_return_tuples() -> None:
    """``getValue`` of a map returns a row, and its iterators return tuples, as in PySpark."""

    def write(one: Any) -> Any:
        one.map.updateValue(("b",), (1, None))
        one.map.updateValue(("a",), (2, (3, "d")))
        return one.map.getValue(("a",)), list(one.map.iterator()), list(one.map.keys()), list(one.map.values())

    def read(one: Any) -> Any:
        return one.map.getValue(("a",)), list(one.map.iterator()), list(one.map.keys()), list(one.map.values())

    for value, items, keys, values in ran(write, read):
        assert (value, value.n, value.s.y) == (Row(n=2, s=Row(x=3, y="d")), 2, "d")
        assert items == [(("a",), (2, Row(x=3, y="d"))), (("b",), (1, None))]
        assert {type(part) for item in items for part in item} == {tuple}
        assert (keys, values) == ([("a",), ("b",)], [(2, Row(x=3, y="d")), (1, None)])


def test_values_lists_and_maps_can_be_cleared() -> None:
    """Values, lists and maps can be cleared, with the state of earlier batches."""

    def write(one: Any) -> None:
        one.value.update((1, None))
        one.list.put([(1, None)])
        one.map.updateValue(("a",), (1, None))

    def clear(one: Any) -> Any:
        for state in (one.value, one.list, one.map):
            assert state.exists()
            state.clear()
        return [state.exists() for state in (one.value, one.list, one.map)]

    assert (
        ran(write, clear, lambda one: [state.exists() for state in (one.value, one.list, one.map)])[1:]
        == [[False] * 3] * 2
    )


@pytest.mark.parametrize(
    ("use", "error", "told"),
    [
        (lambda one: one.value.update((1,)), PySparkRuntimeError, "2 fields are required while 1 values are provided"),
        (lambda one: one.list.appendValue((1, None, 2)), PySparkRuntimeError, "STRUCT_ARRAY_LENGTH_MISMATCH"),
        (lambda one: one.value.update((1, (2,))), PySparkRuntimeError, "2 fields are required while 1 values"),
        (lambda one: one.value.update(5), PySparkTypeError, "can not accept object 5"),
        (lambda one: one.value.update(None), PySparkTypeError, "None"),
        (lambda one: one.value.update((1.5, None)), PySparkTypeError, "field n: int32 can not accept object 1.5"),
        (lambda one: one.value.update((True, None)), PySparkTypeError, "in type bool"),
        (lambda one: one.value.update((1, (1, [2]))), PySparkTypeError, "field s.y: string can not accept object .2."),
        (lambda one: one.value.update((2**31, None)), PySparkValueError, "field n: int32 can not accept"),
        (lambda one: one.strict.update((None, 1)), PySparkValueError, "field n: This field is not nullable"),
        (lambda one: one.map.updateValue((1,), (1.0, None)), PySparkTypeError, "field n"),
        (lambda one: one.map.updateValue(([1],), (1, None)), PySparkTypeError, "field k"),
        (lambda one: one.map.getValue(([1],)), PySparkTypeError, "field k"),
        (lambda one: one.map.containsKey(None), PySparkTypeError, "None"),
        (lambda one: one.map.removeKey(("a", "b")), PySparkRuntimeError, "1 fields are required while 2"),
        (lambda one: one.list.put([]), PySparkRuntimeError, "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE.*StateName l"),
        (lambda one: one.list.appendList([]), PySparkRuntimeError, "EMPTY_LIST_VALUE"),
        (lambda one: one.list.appendList(None), TypeError, "None"),
        (lambda one: one.list.put([(1, None), ("x", None)]), PySparkTypeError, "field n"),
    ],
)
def test_a_wrong_value_raises_pysparks_error(
    use: Callable[[Any], Any], error: type[PySparkException], told: str
) -> None:
    """A wrong value raises PySpark's error in the call that passes it, and nothing is written."""

    def guarded(one: Any) -> Any:
        with pytest.raises(error, match=told):
            use(one)
        return [state.exists() for state in (one.value, one.list, one.map, one.strict)]

    assert ran(guarded) == [[False] * 4]
