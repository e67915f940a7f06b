"""Describe a stateful operator after its input is known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import check_key_type, key_column, key_groups
from riffle_spark.messages.slot_orders import USUAL_INITIAL, LateRule, Watermark, letter_field
from riffle_spark.process.blocks.block import Computation, Declared, NamesColumns
from riffle_spark.process.store_computation import StoreComputation, check_names
from riffle_spark.protocol.input_columns import Column, Input, column_of, find_column, input_of, source_of
from riffle_spark.state.formats.arrow_schemas import check_storable, inner_types
from riffle_spark.state.log.paths import check_store_name
from riffle_spark.state.schemas.store_schema import StoreSchema, make_recorded_text

TIMERS: Final = "timers"
"""The name in ``Operator.results`` of the time mode of timers and TTLs, for a store of variables."""


@dataclass(frozen=True)
class Operator:
    """A store, its computation, and the declarations of the computation for the input.

    A store that is not ``durable`` is a cache: it has no objects, and is empty on a member without a copy. ``read_by``
    is the column with the partition number that rows are counted by. ``watermark`` makes rows late by our own
    watermark, ``late`` by Spark's. ``shift_ms`` is added to Spark's watermark, because rows behind a join are later
    than those before it. ``initial`` are the columns of the initial state ``initial_name``. ``fields`` are columns of
    the input that are struct fields. ``shown`` maps the input's columns to the names that a processor sees, if they
    differ. ``meanings`` describe the columns of state, ``None`` if only the user knows them. Without ``delivers`` the
    results go to another operator instead of a sink.
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
        """Return the name of the store."""
        return self.schema.store

    @property
    def result_meanings(self) -> Mapping[str, str]:
        """Return the meaning of each result by name, such as ``sum of amount``, to compare it with the stored one.

        A store of variables also has its time mode under ``TIMERS``. Empty for user code, whose meaning is unknown.
        """
        if self.declared.variables is None or self.declared.time_mode == "None":
            return self.declared.meanings
        return {**self.declared.meanings, TIMERS: f"times by {self.declared.time_mode}"}

    @property
    def compared_columns(self) -> tuple[str, ...]:
        """Return the input columns whose values the computation compares, without the columns of ``order_by``."""
        return self.compute.compared_columns if isinstance(self.compute, NamesColumns) else ()

    @property
    def runs_on_watermark(self) -> bool:
        """Return whether it has to run when the watermark has moved, even without rows.

        Aggregates without a key do so, as in Spark, unless they return all state in each batch.
        """
        is_answered = self.declared.keyless and not self.declared.whole
        return self.late is not None or self.declared.time_mode == "EventTime" or is_answered

    @property
    def takes_initial(self) -> bool:
        """Return whether the computation accepts initial state."""
        return StoreComputation(self.compute).takes_initial

    def schema_after(self, stored: Mapping[str, Mapping[str, str]], epoch: int) -> Mapping[str, str]:
        """Return the schema of this store, as text by part, that the driver of an ``epoch`` records.

        ``stored`` has the recorded schemas by store.
        """
        return make_recorded_text(stored.get(self.store), self.schema, epoch, self.meanings, self.result_meanings)

    def key_group_of(self, key: object, total: int) -> int:
        """Return a key's key-group, out of ``total``.

        The key is a value, or for several columns a tuple or a mapping by name. The columns that rows are routed by are
        enough. Raises ``ConfigError`` for an invalid key.
        """
        routing = self.declared.routed_by or tuple(self.schema.key.names)
        values = key if isinstance(key, Mapping) else self._by_column(key, routing)
        try:
            arrays = [key_column(values[name], self.schema.key.field(name).type) for name in routing]
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            columns = ", ".join(f"{name} ({self.schema.key.field(name).type})" for name in routing)
            raise ConfigError(
                f"{key!r} is not a valid key of store {self.store!r}: {error!r}.",
                remedy=f"Pass {columns}: a value, or for several columns a tuple or a mapping by name.",
                where=self.store,
                id="RIFFLE-0232",
            ) from None
        return int(key_groups(arrays, total)[0])

    def _by_column(self, key: object, routing: Sequence[str]) -> dict[str, object]:
        """Return the values of ``key`` by column: of the columns that rows are routed by, or of all key columns.

        Empty if ``key`` has another number of values.
        """
        values = list(key) if isinstance(key, (tuple, list)) else [key]
        names = next((names for names in (routing, self.schema.key.names) if len(names) == len(values)), ())
        return dict(zip(names, values, strict=False))

    @property
    def rows(self) -> pa.Schema:
        """Return the input columns that its slots need, in input order.

        Other columns are dropped before the shuffle.
        """
        if self.declared.columns is None:
            return self.input
        needed_names = {*self.schema.key.names, *self.declared.columns, *self.order_by, self.read_by}
        needed_names |= {rule.column for rule in (self.watermark, self.late) if rule}
        return pa.schema([column for column in self.input if column.name in needed_names])


def operator_of(
    store: str,
    key: Sequence[str],
    compute: Computation,
    order_by: Sequence[str],
    rows: pa.Schema,
    *,
    case_sensitive: bool = False,
) -> Operator:
    """Return the operator of a store with computation ``compute``, for an input with schema ``rows``.

    ``key`` and ``order_by`` are names of input columns. Raises ``ConfigError`` for unsupported columns.
    """
    check_store_name(store)
    key_columns = [column_of(name, rows, store, case_sensitive=case_sensitive) for name in key]
    order_columns = [column_of(name, rows, store, case_sensitive=case_sensitive) for name in order_by]
    compute, sources = _resolve_columns(compute, rows, store, case_sensitive=case_sensitive)
    operator_input = input_of(rows).with_fields([*key_columns, *order_columns, *sources])
    input_schema = operator_input.rows
    key_schema = pa.schema([pa.field(column.name, input_schema.field(column.name).type) for column in key_columns])
    for key_field in key_schema:
        check_key_type(key_field.name, key_field.type)
    for column in order_columns:
        _check_order_type(column.name, input_schema.field(column.name).type, store)
    check_names(store, input_schema.names)
    declared = compute.declare(key_schema, input_schema)
    check_names(store, [*declared.state.names, *declared.output.names])
    for state_field in declared.state:
        check_storable(state_field.type, f"column {state_field.name!r}", with_dictionaries=True)
    _check_repeated_columns(store, declared, rows)
    return Operator(
        StoreComputation(compute).schema(store, key_schema, declared),
        compute,
        declared,
        tuple(column.name for column in order_columns),
        input_schema,
        fields=operator_input.fields,
        shown={} if operator_input.is_plain else operator_input.shown,
        case_sensitive=case_sensitive,
    )


def _check_order_type(name: str, column_type: pa.DataType, store: str) -> None:
    """Raise ``ConfigError`` for an ``order_by`` column with lists or maps, because Arrow cannot sort them."""
    if any(pa.types.is_nested(inner) and not pa.types.is_struct(inner) for inner in _nested_types(column_type)):
        raise ConfigError(
            f"order_by cannot use column {name!r} of type {column_type}.",
            remedy="Order by plain columns, such as fields of the column or its size.",
            where=store,
            id="RIFFLE-0233",
        )


def _nested_types(data_type: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types nested in it."""
    yield data_type
    for inner in inner_types(data_type):
        yield from _nested_types(inner)


def _resolve_columns(
    compute: Computation, rows: pa.Schema, store: str, *, case_sensitive: bool
) -> tuple[Computation, list[Column]]:
    """Return a computation that uses the input's inner column names, and the columns that it reads."""
    if not isinstance(compute, NamesColumns):
        return compute, []
    resolved_columns = {name: source_of(name, rows, store, case_sensitive=case_sensitive) for name in compute.sources}
    columns = {name: column for name, column in resolved_columns.items() if column is not None}
    return compute.with_column_names({name: column.name for name, column in columns.items()}), list(columns.values())


def _check_repeated_columns(store: str, declared: Declared, rows: pa.Schema) -> None:
    """Raise ``ConfigError`` if a function on Arrow tables would get two columns with the same name."""
    twice = sorted({name for name in rows.names if rows.names.count(name) > 1})
    if twice and declared.columns is None and declared.variables is None:
        raise ConfigError(
            f"The input has more than one column {twice[0]!r}.",
            remedy="Rename or drop all but one, or declare the columns that the function needs.",
            where=store,
            id="RIFFLE-0234",
        )


def with_dead_letters(operator: Operator) -> Operator:
    """Return the operator with dead letters: its output also has the rows of keys that its function fails on.

    If the names of two columns differ only in case, the second keeps its unique inner name.
    """
    columns: dict[str, pa.Field] = {}
    for column, name in (operator.shown or {name: name for name in operator.rows.names}).items():
        letter_name = column if name.lower() in columns else name
        columns[letter_name.lower()] = operator.rows.field(column).with_name(letter_name)
    output = operator.declared.output.append(letter_field(columns.values()))
    return replace(operator, declared=replace(operator.declared, output=output))


def with_watermark(operator: Operator, watermark: Watermark | None) -> Operator:
    """Return the operator with a watermark. Raises ``ConfigError`` if its column is not a timestamp of the input."""
    if watermark is None:
        return operator
    added = {column.name for column in operator.fields}
    own_columns = pa.schema([column for column in operator.input if column.name not in added])
    column = find_column(watermark.column, own_columns, operator.store, case_sensitive=operator.case_sensitive)
    extended_input = Input(operator.input, {}, operator.fields).with_fields([column] if column else [])
    kind = extended_input.rows.field(column.name).type if column else None
    _check_timestamp(kind, f"The watermark column {watermark.column!r}", operator.store)
    assert column is not None
    shown = operator.shown or {name: name for name in own_columns.names}
    watermark = watermark._replace(column=column.name)
    if extended_input.fields == operator.fields:
        return replace(operator, watermark=watermark)
    return replace(operator, watermark=watermark, input=extended_input.rows, fields=extended_input.fields, shown=shown)


def with_late(operator: Operator, late: LateRule | None, shift_ms: int = 0) -> Operator:
    """Return the operator with a rule of late rows by Spark's watermark, moved by ``shift_ms``.

    Raises ``ConfigError`` if the rule's column is not a timestamp, of the key for late keys, else of the input.
    """
    if late is not None:
        columns = operator.schema.key if late.by == "keys" else operator.input
        kind = columns.field(late.column).type if late.column in columns.names else None
        _check_timestamp(kind, f"The column {late.column!r} of late {late.by}", operator.store)
    return replace(operator, late=late, shift_ms=shift_ms)


def _check_timestamp(column_type: pa.DataType | None, column: str, store: str) -> None:
    """Raise ``ConfigError`` if a column's type is not a timestamp. ``None`` means that the column is missing.

    ``column`` describes the column in the error.
    """
    if column_type is None or not pa.types.is_timestamp(column_type):
        raise ConfigError(
            f"{column} is {f'of type {column_type}, not a timestamp' if column_type else 'missing'}.",
            remedy="Name a timestamp column, or cast one.",
            where=store,
            id="RIFFLE-0235",
        )
