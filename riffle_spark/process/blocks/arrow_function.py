"""A user's function on Arrow, once a key-group. Knows what it gets and may return. Does not know where it runs."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.batch_times import TimeMode, parse_time_mode
from riffle_spark.errors import ConfigError, UserFunctionError
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.types.conform import called, conform, name_of
from riffle_spark.state.formats.arrow_values import readable_row
from riffle_spark.state.formats.key_codec import encode_keys

__all__ = ["ArrowFunction", "Context", "arrow_function"]

_ROWS: Final = ("rows", "state", "context")
_EXPIRED: Final = ("state", "context")


@dataclass(frozen=True, slots=True)
class Context:
    """What a call may know besides its rows. Times are the batch's own, so that a repeated batch sees the same."""

    key_group: int
    version: int
    time_ms: int
    watermark_ms: int | None
    store: str


def arrow_function(
    function: Callable[..., object], *, state: pa.Schema, output: pa.Schema, due: str | None = None,
    time_mode: str = "None", expired: Callable[..., object] | None = None,
) -> "ArrowFunction":  # fmt: skip
    """Declare a stateful function on Arrow, called once for each key-group that a batch touches.

    ``function(rows, state)``, or ``function(rows, state, context)`` if its third parameter has no default, gets the
    rows of one key-group, in the declared order if there is one, and the state of the keys they touch: a table of key
    columns and state columns, one row a key that has state. It returns ``(output, new_state)`` or
    ``(output, new_state, deleted)``: rows for the sink; key and state columns of the keys to write, while others stay
    as they are; key columns of the keys to forget. The schema ``state`` names the state columns without the key's,
    ``output`` all columns of the rows for the sink. The function must be deterministic in its arguments.

    ``due`` names a column of state or key, of timestamps or of ms as 64-bit integers, that says when a key's time is
    over by ``time_mode``: ``EventTime`` is the watermark, ``ProcessingTime`` the batch's time; null is never. Such keys
    are forgotten. ``expired(state)`` or ``expired(state, context)`` gets them before, after the batch's own rows, and
    returns rows for the sink or ``(output, new_state)``: keys of ``new_state`` stay until the time that it gives them,
    and where that is past, until the next batch.
    """
    for name, schema in (("state", state), ("output", output)):
        if not isinstance(schema, pa.Schema):
            raise ConfigError(
                f"arrow_function({name}=...) was given a {type(schema).__name__}",
                remedy=f"Give an Arrow schema: {name}=pa.schema([('total', pa.int64())]).",
                id="RIFFLE-0163",
            )
    mode = parse_time_mode(time_mode)
    if (expired is not None or mode != "None") and due is None:
        raise ConfigError(
            "arrow_function() was told of time, and of no column that says when keys are due",
            remedy="Name it: due='until'; or leave out time_mode and expired.",
            id="RIFFLE-0164",
        )
    return ArrowFunction(
        function, state, output, _arguments("the function", function, _ROWS), due, mode, expired,
        _arguments("expired", expired, _EXPIRED) if expired is not None else 0,
    )  # fmt: skip


def _arguments(what: str, function: Callable[..., object], wanted: Sequence[str]) -> int:
    """Return how many of these arguments the function takes, all but the last at least; refuse what cannot."""
    if not callable(function):
        problem = f"arrow_function(): {what} is a {type(function).__name__}, not a function"
        raise ConfigError(problem, remedy="Give it a function.", id="RIFFLE-0165")
    signature = inspect.signature(function)
    for count in (len(wanted) - 1, len(wanted)):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise ConfigError(
        f"{name_of(function)}{signature} cannot be called with {len(wanted) - 1} or {len(wanted)} arguments",
        remedy=f"Write it as function({', '.join(wanted[:-1])}) or function({', '.join(wanted)}).",
        id="RIFFLE-0166",
    )


@dataclass(frozen=True, slots=True)
class ArrowFunction:
    """A ``BlockComputation`` of a user's function; made by ``arrow_function``."""

    function: Callable[..., object]
    state: pa.Schema
    output: pa.Schema
    arguments: int
    due: str | None = None
    time_mode: TimeMode = "None"
    on_expired: Callable[..., object] | None = None
    expired_arguments: int = 0

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:  # noqa: ARG002 - the function may read any column
        """Declare the schemas as given; ``ConfigError`` where they cannot be stored or told from the key's columns."""
        for what, names in (("state", [*key.names, *self.state.names]), ("output", self.output.names)):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise ConfigError(
                    f"The {what} has more than one column named {', '.join(repeated)}",
                    remedy="Name each column once; the state schema is given without the key columns.",
                    id="RIFFLE-0167",
                )
        if not self.state.names:
            raise ConfigError(
                "The state has no column",
                remedy="Declare at least one, such as ('seen', pa.bool_()).",
                id="RIFFLE-0168",
            )
        meanings = {name: f"column {name!r} of a function" for name in self.state.names}
        return Declared(
            self.state,
            self.output,
            columns=None,
            per_key_group=True,
            time_mode=self.time_mode,
            due=self.due,
            meanings=meanings,
        )

    def __call__(self, batch: Batch) -> Update:
        """Call the function and check what it returns; ``UserFunctionError`` where it breaks its declaration."""
        where, stored = _where(batch), self._stored(batch)
        returned = called(self.function, (batch.rows, self._known(batch), _context(batch))[: self.arguments], where)
        output, new_state, deleted = _parts(returned, batch.keys.schema, where)
        output = conform(output, self.output, "output", where)
        new_state = conform(new_state, stored, "new state", where)
        deleted = conform(deleted, batch.keys.schema, "table of deleted keys", where)
        encoded = encode_keys(batch.keys.columns)
        changed = _own_keys(new_state.select(batch.keys.column_names), encoded, "new state", where)
        removed = _own_keys(deleted, encoded, "table of deleted keys", where)
        _refuse_both(changed, removed, batch.keys, where)
        return Update(output, changed, new_state.select(self.state.names), removed[batch.found[removed]])

    def expired(self, batch: Batch) -> Update:
        """Call the function of expired keys, if there is one, and check what it returns, as for rows."""
        where, stored = _where(batch), self._stored(batch)
        returned: object = self.output.empty_table()
        if self.on_expired is not None:
            returned = called(self.on_expired, (self._known(batch), _context(batch))[: self.expired_arguments], where)
        if isinstance(returned, tuple) and len(returned) != 2:
            raise _misshapen(returned, "rows for the sink or (output, new_state)", where)
        output, new_state = returned if isinstance(returned, tuple) else (returned, stored.empty_table())
        new_state = conform(new_state, stored, "new state", where)
        encoded = encode_keys(batch.keys.columns)
        kept = _own_keys(new_state.select(batch.keys.column_names), encoded, "new state", where)
        return Update(conform(output, self.output, "output", where), kept, new_state.select(self.state.names), kept[:0])

    def _stored(self, batch: Batch) -> pa.Schema:
        return pa.schema([*batch.keys.schema, *self.state])

    def _known(self, batch: Batch) -> pa.Table:
        """Return the state of those keys that have some."""
        columns = [*batch.keys.columns, *batch.state.select(self.state.names).columns]
        return pa.table(columns, schema=self._stored(batch)).filter(pa.array(batch.found))


def _where(batch: Batch) -> str:
    return f"store {batch.store!r}, key-group {batch.key_group}"


def _context(batch: Batch) -> Context:
    assert batch.key_group is not None
    return Context(batch.key_group, batch.version, batch.time_ms, batch.watermark_ms, batch.store)


def _parts(returned: object, key: pa.Schema, where: str) -> tuple[object, object, object]:
    if isinstance(returned, tuple) and len(returned) == 2:
        return *returned, key.empty_table()
    if isinstance(returned, tuple) and len(returned) == 3:
        return returned
    raise _misshapen(returned, "(output, new_state) or (output, new_state, deleted)", where)


def _misshapen(returned: object, wanted: str, where: str) -> UserFunctionError:
    told = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
    remedy = f"Return {wanted}, all Arrow tables."
    return UserFunctionError(f"The function returned {told}", remedy=remedy, where=where, id="RIFFLE-0169")


def _own_keys(keys: pa.Table, encoded: pa.Array, what: str, where: str) -> npt.NDArray[np.int64]:
    """Return the place of each key among the batch's; refuse foreign keys and repeated ones."""
    places = pc.index_in(encode_keys(keys.columns), value_set=encoded)
    if places.null_count:
        foreign = pc.index(places.is_null(), True).as_py()
        raise UserFunctionError(
            f"The {what} holds a key that is not its own: {_key(keys, foreign)}",
            remedy="Return only keys of the rows that the call was given; every other key belongs to another call.",
            where=where,
            id="RIFFLE-0170",
        )
    indices: npt.NDArray[np.int64] = places.to_numpy(zero_copy_only=False).astype(np.int64)
    repeated = np.flatnonzero(np.bincount(indices, minlength=len(encoded))[indices] > 1)
    if len(repeated):
        raise UserFunctionError(
            f"The {what} holds the same key twice: {_key(keys, int(repeated[0]))}",
            remedy="Return one row a key.",
            where=where,
            id="RIFFLE-0171",
        )
    return indices


def _refuse_both(changed: npt.NDArray[np.int64], removed: npt.NDArray[np.int64], keys: pa.Table, where: str) -> None:
    both = np.intersect1d(changed, removed)
    if len(both):
        raise UserFunctionError(
            f"A key is both in the new state and deleted: {_key(keys, int(both[0]))}",
            remedy="Return it in one of the two.",
            where=where,
            id="RIFFLE-0172",
        )


def _key(keys: pa.Table, index: int) -> str:
    return str(readable_row(keys, index))
