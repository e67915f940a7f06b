"""Choose the initial states that the next batch loads, by name, and list them in its record.

Theory of operation.

1. A record lists, per store, the names of the initial states that were loaded.
2. A name that the newest record does not list is loaded by the next batch, whose record lists it.
3. So a crash before the commit loads it again, a crash after it does not, and a rollback to before it loads it again.
4. The default name follows Spark's rule: it is loaded with a store's first batch or never.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import USUAL_INITIAL
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.log.record import Record


def with_initial_state(operator: Operator, columns: pa.Schema | None, name: str = USUAL_INITIAL) -> Operator:
    """Return the operator with an initial state ``name`` of these columns, or unchanged if ``columns`` is ``None``.

    Raises ``ConfigError`` if the name is empty, a key column is missing, or the operator cannot take initial state.
    """
    if columns is None:
        return operator
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(
            f"Name {name!r} of an initial state is not a non-empty string.",
            remedy="Name the initial state, or leave the name out.",
            where=operator.store,
            id="RIFFLE-0226",
        )
    if not operator.takes_initial:
        raise ConfigError(
            "Only a processor can take initial state.",
            remedy="Leave initial_state out.",
            where=operator.store,
            id="RIFFLE-0804",
        )
    if not operator.durable:
        raise ConfigError(
            "A store with durable = false cannot take initial state.",
            remedy="Make the store durable, or leave initial_state out.",
            where=operator.store,
            id="RIFFLE-0805",
        )
    for field in operator.schema.key:
        given_type = columns.field(field.name).type if field.name in columns.names else None
        if given_type != field.type:
            raise ConfigError(
                f"Initial state has {given_type or 'no column'} for key column {field.name} of type {field.type}.",
                remedy="Give initial_state a frame with the key's columns, of the same names and types.",
                where=operator.store,
                id="RIFFLE-0806",
            )
    return replace(operator, initial=columns, initial_name=name)


def is_initial_state_due(tail: Record, operator: Operator) -> bool:
    """Return whether the batch after record ``tail`` loads the operator's initial state."""
    if operator.initial is None:
        return False
    if operator.initial_name == USUAL_INITIAL:
        return operator.store not in tail.schemas
    return operator.initial_name not in tail.initial_states.get(operator.store, ())


def loaded_names(tail: Record, operators: Sequence[Operator]) -> dict[str, tuple[str, ...]]:
    """Return, by store, the names of the initial states loaded once the batch after record ``tail`` is committed."""
    added_names = {
        operator.store: (operator.initial_name,) for operator in operators if is_initial_state_due(tail, operator)
    }
    stores = sorted({*tail.initial_states, *added_names})
    return {store: (*tail.initial_states.get(store, ()), *added_names.get(store, ())) for store in stores}


def check_initial(tail: Record | None, dispatch: str, operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` if initial state is due but rows are dispatched by partition.

    Rows of initial state have no partition.
    """
    if dispatch == "key_group":
        return
    for operator in operators:
        if operator.initial is not None and (tail is None or is_initial_state_due(tail, operator)):
            raise ConfigError(
                f"Initial state cannot be loaded with dispatch = {dispatch}, because its rows have no partition.",
                remedy="Use dispatch = key_group (riffle dispatch switches a stopped query), or leave initial_state "
                "out and send these rows through the source.",
                where=operator.store,
                id="RIFFLE-0807",
            )
