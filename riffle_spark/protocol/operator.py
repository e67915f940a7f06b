"""One stateful operator, once its input is known. Knows schemas and what is declared. Does not know rows or stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import check_key_type
from riffle_spark.process.compute import Compute, Declared
from riffle_spark.process.keyed import Keyed
from riffle_spark.state.paths import check_store_name
from riffle_spark.state.schema import StoreSchema
from riffle_spark.state.variables import VariablesSchema
from riffle_spark.worker.order import USUAL_INITIAL, Watermark

__all__ = ["Operator", "operator_of", "with_watermark"]


@dataclass(frozen=True)
class Operator:
    """A store, what is computed on it, and what that declared for the input at hand.

    A store that is not ``durable`` is a cache: it has no objects, and begins empty wherever it is not. ``read_by`` is
    the column with the number of the partition that a row came from, if rows are to be counted by it. ``watermark``
    says by what rows come too late, if they can. ``initial`` are the columns of the initial state ``initial_name``.
    """

    schema: StoreSchema | VariablesSchema
    compute: Compute | Keyed
    declared: Declared
    order_by: tuple[str, ...]
    input: pa.Schema
    durable: bool = True
    read_by: str | None = None
    watermark: Watermark | None = None
    initial: pa.Schema | None = None
    initial_name: str = USUAL_INITIAL

    @property
    def store(self) -> str:
        """The store's name."""
        return self.schema.store

    @property
    def rows(self) -> pa.Schema:
        """The input columns its slots need, in input order: the others are dropped before the shuffle."""
        if self.declared.columns is None:
            return self.input
        event_time = self.watermark and self.watermark.column
        needed = {*self.schema.key.names, *self.declared.columns, *self.order_by, self.read_by, event_time}
        return pa.schema([field for field in self.input if field.name in needed])


def operator_of(
    store: str, key: Sequence[str], compute: Compute | Keyed, order_by: Sequence[str], rows: pa.Schema
) -> Operator:
    """Return the operator for input of schema ``rows``. Raises ``ConfigError`` for missing or unsupported columns."""
    check_store_name(store)
    for name in (*key, *order_by):
        if name not in rows.names:
            raise ConfigError(
                f"there is no column {name!r} in the input", remedy=f"use one of {', '.join(rows.names)}", where=store
            )
    for name in key:
        check_key_type(name, rows.field(name).type)
    schema = pa.schema([pa.field(name, rows.field(name).type) for name in key])
    declared = compute.declare(schema, rows)
    return Operator(_columns(store, schema, declared), compute, declared, tuple(order_by), rows)


def _columns(store: str, key: pa.Schema, declared: Declared) -> StoreSchema | VariablesSchema:
    if declared.variables is None:
        return StoreSchema(store, key, declared.state)
    return VariablesSchema(store, key, declared.variables, indexed=declared.time_mode != "None")


def with_watermark(operator: Operator, watermark: Watermark | None) -> Operator:
    """Return the operator with a watermark. Raises ``ConfigError`` if its column is no timestamp of the input."""
    if watermark is None:
        return operator
    name = watermark.column
    kind = operator.input.field(name).type if name in operator.input.names else None
    if kind is None or not pa.types.is_timestamp(kind):
        raise ConfigError(
            f"the watermark is on {name!r}, and " + (f"that is {kind}" if kind else "there is no such column"),
            remedy="name a timestamp column of the input, or cast one",
            where=operator.store,
        )
    return replace(operator, watermark=watermark)
