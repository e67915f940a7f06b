"""Initial states by name: which come with a batch, and what its record says of them. Pure; knows records and operators
only.

Theory of operation. A store's record lists the names of the initial states that were loaded. One that it does not list
comes with the next batch, whichever that is, and is listed by that batch's own record: a crash before it loads it
again, after it never, and a rollback to before it takes it back. The usual name stands for Spark's rule: it comes with
a store's first batch or not at all.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.log.record import Record

__all__ = ["check_initial", "is_due", "loaded", "with_initial"]


def with_initial(operator: Operator, columns: pa.Schema | None, name: str = USUAL_INITIAL) -> Operator:
    """Return the operator with an initial state of these columns, or without one.

    Raises ``ConfigError`` unless the operator's key is among them, for a name that is none, and for operators that
    have no use for it.
    """
    if columns is None:
        return operator
    if not isinstance(name, str) or not name.strip():
        raise _refused(operator, f"{name!r} is no name of an initial state", "leave it out, or name it as you like")
    if not operator.takes_initial:
        raise _refused(operator, "only a processor can take initial state", "leave initial_state out")
    if not operator.durable:
        raise _refused(operator, "a store that is not durable has no state where it has no copy", "make it durable")
    for field in operator.schema.key:
        found = columns.field(field.name).type if field.name in columns.names else None
        if found != field.type:
            raise _refused(
                operator,
                f"the initial state has {found or 'no column'} where the key has {field.name}: {field.type}",
                "give initial_state a frame with the key's columns, of the same names and types",
            )
    return replace(operator, initial=columns, initial_name=name)


def is_due(tail: Record, operator: Operator) -> bool:
    """Tell whether the operator's initial state comes with the batch after this record."""
    if operator.initial is None:
        return False
    if operator.initial_name == USUAL_INITIAL:
        return operator.store not in tail.schemas
    return operator.initial_name not in tail.initial_states.get(operator.store, ())


def loaded(tail: Record, operators: Sequence[Operator]) -> dict[str, tuple[str, ...]]:
    """Return the names of the initial states that are loaded once the batch after this record is committed, by
    store.
    """
    came = {operator.store: (operator.initial_name,) for operator in operators if is_due(tail, operator)}
    stores = sorted({*tail.initial_states, *came})
    return {store: (*tail.initial_states.get(store, ()), *came.get(store, ())) for store in stores}


def check_initial(tail: Record | None, dispatch: str, operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` if initial state is to be loaded where state lies by partitions: it cannot say its own."""
    if dispatch == "key_group":
        return
    for operator in operators:
        if operator.initial is not None and (tail is None or is_due(tail, operator)):
            raise _refused(
                operator,
                f"rows of initial state have no partition, and dispatch = {dispatch} goes by partitions",
                "use dispatch = key_group (riffle dispatch switches a stopped query), or leave initial_state out and "
                "bring these rows through the source",
            )


def _refused(operator: Operator, problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, where=operator.store, id="RIFFLE-0226")
