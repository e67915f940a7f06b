"""User functions on Arrow tables, called once per key-group: ``arrow_function(...)``."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode, parse_time_mode
from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.blocks.block import Batch, Declared, IndexArray, Update
from riffle_spark.process.types.conform import call_user_function, conform_table, function_name
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.formats.key_codec import encode_keys

_PARAMETERS: Final = ("rows", "state", "context")
_EXPIRED_PARAMETERS: Final = ("state", "context")


@dataclass(frozen=True, slots=True)
class Context:
    """The batch of a call. All times are those of the batch, so a repeated batch has the same times."""

    key_group: int
    version: int
    time_ms: int
    watermark_ms: int | None
    store: str


def arrow_function(
    function: Callable[..., object],
    *,
    state: pa.Schema,
    output: pa.Schema,
    due: str | None = None,
    time_mode: str = "None",
    expired: Callable[..., object] | None = None,
) -> "ArrowFunction":
    """Declare a stateful function on Arrow tables. It is called once for each key-group with rows in a batch.

    ``function(rows, state)`` or ``function(rows, state, context)`` gets the rows of a key-group, in the order of the
    operator's order columns, and the state of their keys: key and state columns, one row per key with state. It returns
    ``(output, new_state)`` or ``(output, new_state, deleted)``. ``new_state`` has the key and state columns of the keys
    to write, and ``deleted`` the key columns of those to delete. Other keys keep their state. The function must be
    deterministic in its arguments.

    ``expired(state)`` or ``expired(state, context)`` gets the expired keys after the rows of the batch. It returns the
    output, or ``(output, new_state)``. Keys in ``new_state`` stay until their new due time, at least until the next
    batch. All other expired keys are deleted.

    Args:
        function: the function on rows; ``context`` is a ``Context`` with key-group, batch id, times and store.
        state: the state columns, without the key columns.
        output: all columns of the output. A timestamp without a zone becomes a ``timestamp_ntz`` of Spark.
        due: the state or key column with the time at which a key expires: timestamps, or milliseconds as int64. A key
            whose value is null never expires.
        time_mode: the time that ``due`` is compared with: ``EventTime`` (the watermark) or ``ProcessingTime`` (the time
            of the batch).
        expired: the function on expired keys. Without it they are deleted without output.

    Returns:
        The ``compute`` argument of ``Stateful``.

    Raises:
        ConfigError: if a schema is not a ``pa.Schema``, if a function does not take these arguments, or if
            ``time_mode`` or ``expired`` is set without ``due``.

    >>> import pyarrow as pa
    >>> from riffle_spark import arrow_function
    >>> def largest(rows, state):
    ...     rows = pa.concat_tables([state, rows.select(["key", "value"])])
    ...     new_state = rows.group_by("key").aggregate([("value", "max")]).rename_columns(["key", "value"])
    ...     return new_state, new_state
    >>> schema = pa.schema([("value", pa.int64())])
    >>> compute = arrow_function(largest, state=schema, output=pa.schema([("key", pa.string()), *schema]))
    """
    for name, schema in (("state", state), ("output", output)):
        if not isinstance(schema, pa.Schema):
            raise ConfigError(
                f"arrow_function({name}=...) is a {type(schema).__name__}, not a pyarrow.Schema.",
                remedy=f"Pass an Arrow schema: {name}=pa.schema([('total', pa.int64())]).",
                id="RIFFLE-0163",
            )
    mode = parse_time_mode(time_mode)
    if (expired is not None or mode != "None") and due is None:
        raise ConfigError(
            "arrow_function() has time_mode or expired, but no due column.",
            remedy="Name the column: due='until'. Or leave out time_mode and expired.",
            id="RIFFLE-0164",
        )
    argument_count = _count_arguments("the function", function, _PARAMETERS)
    expired_argument_count = _count_arguments("expired", expired, _EXPIRED_PARAMETERS) if expired is not None else 0
    return ArrowFunction(function, state, output, argument_count, due, mode, expired, expired_argument_count)


def _count_arguments(role: str, function: Callable[..., object], parameters: Sequence[str]) -> int:
    """Return how many arguments to pass to a user's function: all ``parameters``, or all but the last.

    Raises ``ConfigError`` if the function accepts neither. ``role`` names the function in the error.
    """
    if not callable(function):
        raise ConfigError(
            f"arrow_function(): {role} is a {type(function).__name__}, not a function.",
            remedy="Pass a function.",
            id="RIFFLE-0165",
        )
    signature = inspect.signature(function)
    count_max = len(parameters)
    count_min = count_max - 1
    for count in (count_min, count_max):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    all_parameters = ", ".join(parameters)
    without_last = ", ".join(parameters[:-1])
    raise ConfigError(
        f"{function_name(function)}{signature} cannot be called with {count_min} or {count_max} arguments.",
        remedy=f"Define it as function({without_last}) or function({all_parameters}).",
        id="RIFFLE-0166",
    )


@dataclass(frozen=True, slots=True)
class ArrowFunction:
    """A ``BlockComputation`` of a user's function, made by ``arrow_function``."""

    function: Callable[..., object]
    state: pa.Schema
    output: pa.Schema
    argument_count: int
    due: str | None = None
    time_mode: TimeMode = "None"
    on_expired: Callable[..., object] | None = None
    expired_argument_count: int = 0

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - the function may read any column
        """Declare the user's state and output columns.

        Raises ``ConfigError`` if names repeat or there is no state column.
        """
        for schema, names in (("state", [*key.names, *self.state.names]), ("output", self.output.names)):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ConfigError(
                    f"The {schema} has more than one column named {', '.join(repeated)}.",
                    remedy="Use each name once. The state schema does not include the key columns.",
                    id="RIFFLE-0167",
                )
        if not self.state.names:
            raise ConfigError(
                "The state has no column.",
                remedy="Declare at least one, such as ('seen', pa.bool_()).",
                id="RIFFLE-0168",
            )
        return Declared(
            self.state,
            self.output,
            columns=None,
            per_key_group=True,
            time_mode=self.time_mode,
            due=self.due,
            meanings={name: f"column {name!r} of a function" for name in self.state.names},
        )

    def __call__(self, batch: Batch) -> Update:
        """Call the user's function with the rows and state of one key-group.

        Raises ``UserFunctionError`` if it fails or its result is not as declared.
        """
        where = _error_place(batch)
        state_schema = self._state_schema(batch)
        arguments = (batch.rows, _state_table(batch, state_schema), _make_context(batch))[: self.argument_count]
        returned = call_user_function(self.function, arguments, where)
        if isinstance(returned, tuple) and len(returned) == 2:
            returned = (*returned, batch.keys.schema.empty_table())
        if not isinstance(returned, tuple) or len(returned) != 3:
            raise _result_shape_error(returned, "(output, new_state) or (output, new_state, deleted)", where)
        output = conform_table(returned[0], self.output, "output", where)
        new_state = conform_table(returned[1], state_schema, "new state", where)
        deleted = conform_table(returned[2], batch.keys.schema, "table of deleted keys", where)
        encoded = encode_keys(batch.keys.columns)
        changed = _find_keys(new_state.select(batch.keys.column_names), encoded, "new state", where)
        removed = _find_keys(deleted, encoded, "table of deleted keys", where)
        _check_disjoint(changed, removed, batch.keys, where)
        return Update(output, changed, new_state.select(self.state.names), removed[batch.has_state[removed]])

    def expire_keys(self, batch: Batch) -> Update:
        """Call the user's function for expired keys, if there is one, and delete the keys.

        Raises ``UserFunctionError`` like ``__call__``.
        """
        where = _error_place(batch)
        schema = self._state_schema(batch)
        returned: object = self.output.empty_table()
        if self.on_expired is not None:
            arguments = (_state_table(batch, schema), _make_context(batch))[: self.expired_argument_count]
            returned = call_user_function(self.on_expired, arguments, where)
        if isinstance(returned, tuple) and len(returned) != 2:
            raise _result_shape_error(returned, "the output or (output, new_state)", where)
        output, new_state = returned if isinstance(returned, tuple) else (returned, schema.empty_table())
        new_state = conform_table(new_state, schema, "new state", where)
        encoded = encode_keys(batch.keys.columns)
        remaining = _find_keys(new_state.select(batch.keys.column_names), encoded, "new state", where)
        state = new_state.select(self.state.names)
        return Update(conform_table(output, self.output, "output", where), remaining, state, deleted=remaining[:0])

    def _state_schema(self, batch: Batch) -> pa.Schema:
        """Return the key columns and state columns of a state table."""
        return pa.schema([*batch.keys.schema, *self.state])


def _state_table(batch: Batch, schema: pa.Schema) -> pa.Table:
    """Return the state of the keys that have state, with their key columns. ``schema`` has both."""
    columns = [*batch.keys.columns, *batch.state.select(schema.names[batch.keys.num_columns :]).columns]
    return pa.table(columns, schema=schema).filter(pa.array(batch.has_state))


def _error_place(batch: Batch) -> str:
    """Return the store and key-group of a call, for errors."""
    return f"store {batch.store!r}, key-group {batch.key_group}"


def _make_context(batch: Batch) -> Context:
    """Return the ``context`` argument of the user's function for a call with one key-group."""
    assert batch.key_group is not None
    return Context(batch.key_group, batch.version, batch.time_ms, batch.watermark_ms, batch.store)


def _result_shape_error(returned: object, expected: str, where: str) -> UserFunctionError:
    """Return the error for a user's function that did not return what the text ``expected`` describes."""
    shape = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
    return UserFunctionError(
        f"The function returned {shape}.",
        remedy=f"Return {expected} as Arrow tables.",
        where=where,
        id="RIFFLE-0169",
    )


def _find_keys(keys: pa.Table, encoded: pa.Array, table: str, where: str) -> IndexArray:
    """Return the index of each row of ``keys`` among the batch's keys (``encoded``). The user's function returned
    ``keys``.

    Raises ``UserFunctionError`` for a key that is not among them or is repeated. ``table`` names the returned table.
    """
    if not keys.num_rows:
        return np.empty(0, np.int64)
    places = pc.index_in(encode_keys(keys.columns), value_set=encoded)
    if places.null_count:
        unknown = pc.index(places.is_null(), True).as_py()
        # Cause: The function returned a key that has neither a row nor state in this call, such as a key of another
        # call.
        raise UserFunctionError(
            f"The {table} has a key that is not in the input of the call: {_key_text(keys, unknown)}.",
            remedy="Return only keys of the given rows.",
            where=where,
            id="RIFFLE-0170",
        )
    indices: IndexArray = places.to_numpy(zero_copy_only=False).astype(np.int64)
    repeated = np.flatnonzero(np.bincount(indices, minlength=len(encoded))[indices] > 1)
    if len(repeated):
        raise UserFunctionError(
            f"The {table} has a key twice: {_key_text(keys, int(repeated[0]))}.",
            remedy="Return one row per key.",
            where=where,
            id="RIFFLE-0171",
        )
    return indices


def _check_disjoint(changed: IndexArray, removed: IndexArray, keys: pa.Table, where: str) -> None:
    """Raise ``UserFunctionError`` if a key is both changed and removed. Both hold indices into ``keys``."""
    both = np.intersect1d(changed, removed) if len(removed) else removed
    if len(both):
        raise UserFunctionError(
            f"A key is in the new state and in the deleted keys: {_key_text(keys, int(both[0]))}.",
            remedy="Return it in one of the two.",
            where=where,
            id="RIFFLE-0172",
        )


def _key_text(keys: pa.Table, index: int) -> str:
    """Return the key at this index as text for errors."""
    return str(readable_row(keys, index))
