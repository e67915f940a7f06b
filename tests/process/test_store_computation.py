"""What a user gave, on its store: each kind is known by its methods, and asks a slot for what it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pytest

from riffle_spark.batch_times import Times
from riffle_spark.errors import ConfigError
from riffle_spark.process.blocks.block import (
    Batch,
    Computation,
    Declared,
    ElementBatch,
    ElementComputation,
    ElementUpdate,
    Update,
)
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.process.processors.processing import Processing
from riffle_spark.process.store_computation import on_store
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import Variable
from riffle_spark.state.schemas.variables import VariableColumns

KEY = pa.schema([("k", pa.string())])
N = pa.schema([("n", pa.int64())])
VARIABLES = (Variable("seen", "value", N),)


class Own:
    """A user's own block: it derives from nothing of ours."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare one column of state."""
        return Declared(N, pa.schema([*key, *rows]), columns=None, per_key_group=False)

    def __call__(self, batch: Batch) -> Update:
        """Compute nothing."""
        raise NotImplementedError


class OwnProcessor:
    """A processor's computation of nobody's."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - it is a Computation
        """Declare one variable, and timers."""
        return Declared(pa.schema([]), key, None, per_key_group=False, time_mode="EventTime", variables=VARIABLES)

    def processing(self, schema: VariableColumns, times: Times, where: str) -> Processing:
        """Tell what it was given, as no processing would be made of it here."""
        raise LookupError(schema, times, where)


class OwnElements:
    """A computation on elements of nobody's."""

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - it is a Computation
        """Declare one list that is never due."""
        return Declared(pa.schema([]), key, (), per_key_group=False, variables=(Variable("seen", "list", N),))

    def over_elements(self, batch: ElementBatch) -> ElementUpdate:
        """Compute nothing."""
        raise NotImplementedError


class Asked:
    """A slot that only tells what it was asked for."""

    def over_tables(self, schema: PlainColumns, call: Callable[[Batch], Update]) -> object:
        """See ``SlotState``."""
        return schema, call

    def over_readings(self, schema: VariableColumns, processing: Callable[[Times, str], Processing]) -> object:
        """See ``SlotState``."""
        return schema, processing

    def over_elements(self, schema: VariableColumns, compute: ElementComputation) -> object:
        """See ``SlotState``."""
        return schema, compute


@pytest.mark.parametrize("given", [Own(), aggregate(rows=count())], ids=["a user's own", "aggregates"])
def test_a_block_asks_for_the_state_of_its_keys_whole(given: Computation) -> None:
    """It keeps plain columns, has no use for initial state, and is called with tables."""
    declared = given.declare(KEY, KEY)
    computation = on_store(given, "s")
    schema = computation.schema("s", KEY, declared)
    assert schema == PlainColumns("s", KEY, declared.state)
    assert not computation.takes_initial
    assert computation.run("s", schema.to_text(), Asked()) == (schema, given)


def test_a_processor_asks_for_readings_of_key_groups() -> None:
    """It keeps variables, by time where it has timers, takes initial state, and is begun with the store's columns."""
    given = OwnProcessor()
    computation = on_store(given, "s")
    schema = computation.schema("s", KEY, given.declare(KEY, KEY))
    assert schema == VariableColumns("s", KEY, VARIABLES, indexed=True)
    assert computation.takes_initial
    asked = computation.run("s", schema.to_text(), Asked())
    columns, begun = cast("tuple[VariableColumns, Callable[[Times, str], Processing]]", asked)
    assert columns == schema
    times = Times("EventTime", 1)
    with pytest.raises(LookupError) as told:
        begun(times, "here")
    assert told.value.args == (schema, times, "here")


def test_what_computes_on_elements_asks_for_those_of_its_keys() -> None:
    """It keeps variables, has no use for initial state, and is called with columns of all key-groups."""
    given = OwnElements()
    computation = on_store(given, "s")
    schema = computation.schema("s", KEY, given.declare(KEY, KEY))
    assert schema == VariableColumns("s", KEY, (Variable("seen", "list", N),))
    assert not computation.takes_initial
    assert computation.run("s", schema.to_text(), Asked()) == (schema, given)


def test_what_can_neither_be_called_nor_processes_is_refused() -> None:
    """The driver says so before the first batch, not a slot."""

    class Neither:
        declare = Own.declare

    with pytest.raises(ConfigError, match="RIFFLE-0197") as caught:
        on_store(Neither(), "s")
    assert caught.value.where == "s"
