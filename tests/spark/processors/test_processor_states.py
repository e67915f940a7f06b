"""PySpark's state variables: the values that they return and the errors that they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkTypeError, PySparkValueError
from pyspark.sql import Row

from tests.kit.streams.processor_runs import Run, ScriptedProcessor, see, seen

pytestmark = pytest.mark.newer_spark


def states(processor: Any, handle: Any) -> None:
    """Declare a variable of each kind."""
    processor.value = handle.getValueState("v", "n int, s struct<x:int,y:string>")
    processor.list = handle.getListState("l", "n int, s struct<x:int,y:string>")
    processor.map = handle.getMapState("m", "k string", "n int, s struct<x:int,y:string>")
    processor.strict = handle.getValueState("w", "n int not null, b byte")


def ran(*batches: Callable[[Any], Any]) -> list[Any]:
    """Run one batch per function with the same key, and return their results."""
    results: list[Any] = []
    processor = ScriptedProcessor(init=states, rows=lambda used, *_: see(seen()(used)))
    run = Run(processor)
    for batch in batches:
        see(batch)
        run.batch({"a": [1]})
        results.append(seen())
    return results


def test_get_value_of_a_map_returns_a_row_and_iterators_return_tuples() -> None:
    """``getValue`` of a map returns a row, and its iterators return tuples, as in PySpark."""

    def write(processor: Any) -> Any:
        processor.map.updateValue(("b",), (1, None))
        processor.map.updateValue(("a",), (2, (3, "d")))
        return (
            processor.map.getValue(("a",)),
            list(processor.map.iterator()),
            list(processor.map.keys()),
            list(processor.map.values()),
        )

    def read(processor: Any) -> Any:
        return (
            processor.map.getValue(("a",)),
            list(processor.map.iterator()),
            list(processor.map.keys()),
            list(processor.map.values()),
        )

    for value, items, keys, values in ran(write, read):
        assert (value, value.n, value.s.y) == (Row(n=2, s=Row(x=3, y="d")), 2, "d")
        assert items == [(("a",), (2, Row(x=3, y="d"))), (("b",), (1, None))]
        assert {type(part) for item in items for part in item} == {tuple}
        assert (keys, values) == ([("a",), ("b",)], [(2, Row(x=3, y="d")), (1, None)])


def test_values_lists_and_maps_can_be_cleared() -> None:
    """Values, lists and maps can be cleared, with the state of earlier batches."""

    def write(processor: Any) -> None:
        processor.value.update((1, None))
        processor.list.put([(1, None)])
        processor.map.updateValue(("a",), (1, None))

    def clear(processor: Any) -> Any:
        for state in (processor.value, processor.list, processor.map):
            assert state.exists()
            state.clear()
        return [state.exists() for state in (processor.value, processor.list, processor.map)]

    assert (
        ran(
            write,
            clear,
            lambda processor: [state.exists() for state in (processor.value, processor.list, processor.map)],
        )[1:]
        == [[False] * 3] * 2
    )


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (
            lambda processor: processor.value.update((1,)),
            PySparkRuntimeError,
            "2 fields are required while 1 values are provided",
        ),
        (
            lambda processor: processor.list.appendValue((1, None, 2)),
            PySparkRuntimeError,
            "STRUCT_ARRAY_LENGTH_MISMATCH",
        ),
        (
            lambda processor: processor.value.update((1, (2,))),
            PySparkRuntimeError,
            "2 fields are required while 1 values",
        ),
        (lambda processor: processor.value.update(5), PySparkTypeError, "can not accept object 5"),
        (lambda processor: processor.value.update(None), PySparkTypeError, "None"),
        (
            lambda processor: processor.value.update((1.5, None)),
            PySparkTypeError,
            "field n: int32 can not accept object 1.5",
        ),
        (lambda processor: processor.value.update((True, None)), PySparkTypeError, "in type bool"),
        (
            lambda processor: processor.value.update((1, (1, [2]))),
            PySparkTypeError,
            "field s.y: string can not accept object .2.",
        ),
        (lambda processor: processor.value.update((2**31, None)), PySparkValueError, "field n: int32 can not accept"),
        (
            lambda processor: processor.strict.update((None, 1)),
            PySparkValueError,
            "field n: This field is not nullable",
        ),
        (lambda processor: processor.map.updateValue((1,), (1.0, None)), PySparkTypeError, "field n"),
        (lambda processor: processor.map.updateValue(([1],), (1, None)), PySparkTypeError, "field k"),
        (lambda processor: processor.map.getValue(([1],)), PySparkTypeError, "field k"),
        (lambda processor: processor.map.containsKey(None), PySparkTypeError, "None"),
        (lambda processor: processor.map.removeKey(("a", "b")), PySparkRuntimeError, "1 fields are required while 2"),
        (
            lambda processor: processor.list.put([]),
            PySparkRuntimeError,
            "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE.*StateName l",
        ),
        (lambda processor: processor.list.appendList([]), PySparkRuntimeError, "EMPTY_LIST_VALUE"),
        (lambda processor: processor.list.appendList(None), TypeError, "None"),
        (lambda processor: processor.list.put([(1, None), ("x", None)]), PySparkTypeError, "field n"),
    ],
)
def test_a_wrong_value_raises_pysparks_error(
    use: Callable[[Any], Any], error: type[PySparkException], message: str
) -> None:
    """A wrong value raises PySpark's error in the call that passes it, and nothing is written."""

    def guarded(processor: Any) -> Any:
        with pytest.raises(error, match=message):
            use(processor)
        return [state.exists() for state in (processor.value, processor.list, processor.map, processor.strict)]

    assert ran(guarded) == [[False] * 4]
