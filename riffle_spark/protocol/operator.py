"""One stateful operator, once its input is known. Knows schemas and what is declared. Does not know rows or stores."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import check_key_type, key_groups
from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark, letter_field
from riffle_spark.process.blocks.block import Computation, Declared, NamesColumns
from riffle_spark.process.store_computation import check_names, on_store
from riffle_spark.protocol.input_columns import Column, Input, column_of, found_column, input_of, source_of
from riffle_spark.state.formats.arrow_schemas import check_storable, inner_types
from riffle_spark.state.log.paths import check_store_name
from riffle_spark.state.schemas.store_schema import StoreSchema, text_after

__all__ = ["TIMERS", "Operator", "operator_of", "with_dead_letters", "with_late", "with_watermark"]

TIMERS: Final = "timers"
"""The name in ``Operator.results`` under which a store of variables has the time mode of its timers and TTLs."""


@dataclass(frozen=True)
class Operator:
    """A store, what is computed on it, and what that declared for the input at hand.

    A store that is not ``durable`` is a cache: it has no objects, and begins empty wherever it is not. ``read_by`` is
    the column with the number of the partition that a row came from, if rows are to be counted by it. ``watermark``
    says by what rows come too late, if they can; where the query's watermark is Spark's, ``late`` says it, and the
    operator's own watermark is Spark's moved by ``shift_ms``, since rows behind a join come later than those before it.
    ``initial`` are the columns of the initial state ``initial_name``. ``fields`` are columns of its input that are
    fields of others; ``shown`` are the input's own columns with the names that a processor sees, where they are not
    simply all. ``meanings`` say what is kept in columns of state, ``None`` where nobody but the user knows. One that
    does not ``deliver`` has its results read by another operator, and by no sink.
    """

    schema: StoreSchema
    compute: Computation
    declared: Declared
    order_by: tuple[str, ...]
    input: pa.Schema
    durable: bool = True
    read_by: str | None = None
    watermark: Watermark | None = None
    late: LateRule | None = None
    shift_ms: int = 0
    initial: pa.Schema | None = None
    initial_name: str = USUAL_INITIAL
    fields: tuple[Column, ...] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    case_sensitive: bool = False
    meanings: Mapping[str, str] | None = None
    delivers: bool = True

    @property
    def store(self) -> str:
        """The store's name."""
        return self.schema.store

    @property
    def results(self) -> Mapping[str, str]:
        """What the state of each result holds, and the time mode of a store of variables. State that user code defines
        has no entry.
        """
        if self.declared.variables is None or self.declared.time_mode == "None":
            return self.declared.meanings
        return {**self.declared.meanings, TIMERS: f"times by {self.declared.time_mode}"}

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns of its input whose values it compares, beside those of ``order_by``."""
        return self.compute.compared if isinstance(self.compute, NamesColumns) else ()

    @property
    def goes_by_watermark(self) -> bool:
        """Whether a watermark that moved makes a difference to it, be there rows or not: as in Spark, what groups by
        nothing answers then, where it does not answer all that there is with each batch of rows.
        """
        is_answered = self.declared.keyless and not self.declared.whole
        return self.late is not None or self.declared.time_mode == "EventTime" or is_answered

    @property
    def takes_initial(self) -> bool:
        """Whether what is computed has a use for initial state."""
        return on_store(self.compute, self.store).takes_initial

    def schema_after(self, stored: Mapping[str, Mapping[str, str]], epoch: int) -> Mapping[str, str]:
        """Return the schema as the driver of an epoch tells and records it, where ``stored`` are those by store."""
        return text_after(stored.get(self.store), self.schema, epoch, self.meanings, self.results)

    def key_group_of(self, key: object, total: int) -> int:
        """Return the key-group, of ``total``, of a key: its value, or of several columns a tuple or a mapping by name.

        Where only some of the key's columns decide, these are enough. Raises ``ConfigError`` for what is no key of this
        store.
        """
        deciding = self.declared.routed_by or tuple(self.schema.key.names)
        named = key if isinstance(key, Mapping) else self._named(key, deciding)
        try:
            arrays = [pa.array([named[name]], type=self.schema.key.field(name).type) for name in deciding]
        except (LookupError, ValueError, TypeError, OverflowError) as wrong:
            told = ", ".join(f"{name} ({self.schema.key.field(name).type})" for name in deciding)
            raise ConfigError(
                f"{key!r} is no key of store {self.store!r}: {wrong!r}",
                remedy=f"give {told}: a value, or of several columns a tuple or a mapping by name",
                where=self.store,
                id="RIFFLE-0232",
            ) from None
        return int(key_groups(arrays, total)[0])

    def _named(self, key: object, deciding: Sequence[str]) -> dict[str, object]:
        """Return a key's values by column: of all its columns, or of those that decide."""
        several = list(key) if isinstance(key, (tuple, list)) else [key]
        names = next((names for names in (deciding, self.schema.key.names) if len(names) == len(several)), ())
        return dict(zip(names, several, strict=False))

    @property
    def rows(self) -> pa.Schema:
        """The input columns its slots need, in input order: the others are dropped before the shuffle."""
        if self.declared.columns is None:
            return self.input
        event_time, late = (told and told.column for told in (self.watermark, self.late))
        needed = {*self.schema.key.names, *self.declared.columns, *self.order_by, self.read_by, event_time, late}
        return pa.schema([one for one in self.input if one.name in needed])


def operator_of(
    store: str, key: Sequence[str], compute: Computation, order_by: Sequence[str],
    rows: pa.Schema, *, case_sensitive: bool = False,
) -> Operator:  # fmt: skip
    """Return the operator for input of schema ``rows``. Raises ``ConfigError`` for missing or unsupported columns."""
    check_store_name(store)
    keys, orders = (
        [column_of(name, rows, store, case_sensitive=case_sensitive) for name in names] for names in (key, order_by)
    )
    compute, sources = _on_columns(compute, rows, store, case_sensitive=case_sensitive)
    given = input_of(rows).with_fields([*keys, *orders, *sources])
    of_key = pa.schema([pa.field(column.name, given.rows.field(column.name).type) for column in keys])
    for one in of_key:
        check_key_type(one.name, one.type)
    for column in orders:
        _check_order_type(column.name, given.rows.field(column.name).type, store)
    check_names(store, given.rows.names)
    declared = compute.declare(of_key, given.rows)
    check_names(store, [*declared.state.names, *declared.output.names])
    for column in declared.state:
        check_storable(column.type, f"column {column.name!r}", with_dictionaries=True)
    _check_repeated(store, declared, rows)
    schema = on_store(compute, store).schema(store, of_key, declared)
    return Operator(
        schema, compute, declared, tuple(column.name for column in orders), given.rows, fields=given.fields,
        shown={} if given.is_plain else given.shown, case_sensitive=case_sensitive,
    )  # fmt: skip


def _check_order_type(name: str, kind: pa.DataType, store: str) -> None:
    """Raise ``ConfigError`` for a column of ``order_by`` that Arrow cannot sort by: lists and maps, also in structs."""
    if any(pa.types.is_nested(one) and not pa.types.is_struct(one) for one in _with_inner(kind)):
        raise ConfigError(
            f"order_by cannot use column {name!r} of type {kind}",
            remedy="order by plain columns, such as fields of the column or its size",
            where=store,
            id="RIFFLE-0233",
        )


def _with_inner(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for one in inner_types(kind):
        yield from _with_inner(one)


def _on_columns(
    compute: Computation, rows: pa.Schema, store: str, *, case_sensitive: bool
) -> tuple[Computation, list[Column]]:
    """Return what names columns on those that are meant, and these; what is not found ``declare`` refuses."""
    if not isinstance(compute, NamesColumns):
        return compute, []
    found = {name: source_of(name, rows, store, case_sensitive=case_sensitive) for name in compute.sources}
    columns = {name: column for name, column in found.items() if column is not None}
    return compute.on({name: column.name for name, column in columns.items()}), list(columns.values())


def _check_repeated(store: str, declared: Declared, rows: pa.Schema) -> None:
    """Raise ``ConfigError`` where a function on Arrow would get two columns of one name: it could not tell them."""
    twice = sorted({name for name in rows.names if rows.names.count(name) > 1})
    if twice and declared.columns is None and declared.variables is None:
        raise ConfigError(
            f"the input has more than one column {twice[0]!r}",
            remedy="rename or drop all but one, or declare the columns that the function needs",
            where=store,
            id="RIFFLE-0234",
        )


def with_dead_letters(operator: Operator) -> Operator:
    """Return the operator whose slots answer, beside its output, the rows of keys that its function fails on. Of two
    columns that have one name, or names that differ in case alone, the second has another there.
    """
    columns: dict[str, pa.Field] = {}
    for column, name in (operator.shown or {name: name for name in operator.rows.names}).items():
        told = column if name.lower() in columns else name
        columns[told.lower()] = operator.rows.field(column).with_name(told)
    output = operator.declared.output.append(letter_field(columns.values()))
    return replace(operator, declared=replace(operator.declared, output=output))


def with_watermark(operator: Operator, watermark: Watermark | None) -> Operator:
    """Return the operator with a watermark. Raises ``ConfigError`` if its column is no timestamp of the input."""
    if watermark is None:
        return operator
    added = {column.name for column in operator.fields}
    own = pa.schema([one for one in operator.input if one.name not in added])
    column = found_column(watermark.column, own, operator.store, case_sensitive=operator.case_sensitive)
    known = Input(operator.input, {}, operator.fields).with_fields([column] if column else [])
    kind = known.rows.field(column.name).type if column else None
    _check_timestamp(kind, f"the watermark is on {watermark.column!r}", operator.store)
    assert column is not None
    shown = operator.shown or {name: name for name in own.names}
    watermark = watermark._replace(column=column.name)
    if known.fields == operator.fields:
        return replace(operator, watermark=watermark)
    return replace(operator, watermark=watermark, input=known.rows, fields=known.fields, shown=shown)


def with_late(operator: Operator, late: LateRule | None, shift_ms: int = 0) -> Operator:
    """Return the operator with what is late by Spark's watermark, and how far its own is moved.

    Raises ``ConfigError`` if the rule's column is no timestamp: of the key where keys are late, else of the input.
    """
    if late is not None:
        columns = operator.schema.key if late.by == "keys" else operator.input
        kind = columns.field(late.column).type if late.column in columns.names else None
        _check_timestamp(kind, f"{late.by} are late by {late.column!r}", operator.store)
    return replace(operator, late=late, shift_ms=shift_ms)


def _check_timestamp(kind: pa.DataType | None, told: str, store: str) -> None:
    """Raise ``ConfigError`` for a column of another type, or one that is not there, after what was told of it."""
    if kind is None or not pa.types.is_timestamp(kind):
        raise ConfigError(
            f"{told}, and " + (f"that is {kind}" if kind else "there is no such column"),
            remedy="name a timestamp column of the input, or cast one",
            where=store,
            id="RIFFLE-0235",
        )
