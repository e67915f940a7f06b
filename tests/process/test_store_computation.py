"""The methods of a computation decide how the slot calls it and which columns its store has."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from riffle_spark.batch_times import Times
from riffle_spark.process.blocks.block import Batch, Computation, Declared, ElementBatch, ElementUpdate, Update
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.store_computation import SlotState, StoreComputation
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

KEY = pa.schema([("k", pa.string())])
N = pa.schema([("n", pa.int64())])
VARIABLES = (Variable("seen", "list", N),)


class OwnBlock:
    """A user's block without a base class of riffle_spark."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare one column of state."""
        return Declared(N, pa.schema([*key, *rows]), columns=None, per_key_group=False)

    def __call__(self, batch: Batch) -> Update:
        """Raise an error, because the test never calls it."""
        raise NotImplementedError


class OwnVariables:
    """A computation that declares variables."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - it is a Computation
        """Declare a list and timers."""
        return Declared(pa.schema([]), key, None, per_key_group=False, time_mode="EventTime", variables=VARIABLES)


class OwnProcessor(OwnVariables):
    """A computation that runs a processor."""

    def make_processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """Raise an error with the arguments."""
        raise LookupError(schema, times, where)


class OwnElements(OwnVariables):
    """A computation on elements."""

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Raise an error, because the test never calls it."""
        raise NotImplementedError


class EchoSlot:
    """A slot that returns the name of the called method and its arguments."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (name, *arguments)


@pytest.mark.parametrize(
    ("compute", "method"),
    [(OwnBlock(), "over_tables"), (aggregate(rows=count()), "over_tables"), (OwnElements(), "over_elements")],
)
def test_blocks_store_columns_and_element_computations_store_variables(compute: Computation, method: str) -> None:
    """Blocks store plain columns, and computations on elements store variables. Neither takes initial state."""
    declared = compute.declare(KEY, KEY)
    computation = StoreComputation(compute)
    schema = computation.schema("s", KEY, declared)
    variables = VariableColumns("s", KEY, VARIABLES, indexed=True)
    assert schema == (variables if declared.variables else PlainColumns("s", KEY, declared.state))
    assert not computation.takes_initial
    assert computation.run("s", schema.to_text(), cast("SlotState[Any]", EchoSlot())) == (method, schema, compute)


def test_a_processor_stores_variables_and_takes_initial_state() -> None:
    """A processor stores variables and takes initial state."""
    compute = OwnProcessor()
    computation = StoreComputation(compute)
    schema = computation.schema("s", KEY, compute.declare(KEY, KEY))
    assert computation.takes_initial
    method, columns, processing = computation.run("s", schema.to_text(), cast("SlotState[Any]", EchoSlot()))
    assert (method, columns) == ("over_readings", schema)
    with pytest.raises(LookupError) as error:
        processing(Times("EventTime", 1), "here")
    assert error.value.args == (schema, Times("EventTime", 1), "here")
