"""One stateful operator, once its input is known. Knows schemas and what is declared. Does not know rows or stores."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import check_key_type
from riffle_spark.process.compute import Compute, Declared
from riffle_spark.state.paths import check_store_name
from riffle_spark.state.schema import StoreSchema
from riffle_spark.worker.order import Watermark

__all__ = ["Operator", "check_schemas", "operator_of", "stored_schema", "with_watermark"]


@dataclass(frozen=True)
class Operator:
    """A store, what is computed on it, and what that declared for the input at hand.

    A store that is not ``durable`` is a cache: it has no objects, and begins empty wherever it is not. ``read_by`` is
    the column with the number of the partition that a row came from, if rows are to be counted by it. ``watermark``
    says by what rows come too late, if they can.
    """

    schema: StoreSchema
    compute: Compute
    declared: Declared
    order_by: tuple[str, ...]
    input: pa.Schema
    durable: bool = True
    read_by: str | None = None
    watermark: Watermark | None = None

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

    def stored(self) -> dict[str, str]:
        """Return the schemas as a record keeps them: Arrow IPC in base64, and as text for people."""
        return {
            "key": _packed(self.schema.key),
            "state": _packed(self.schema.state),
            "text": _text(self.schema.key) + " | " + _text(self.schema.state),
        }


def operator_of(store: str, key: Sequence[str], compute: Compute, order_by: Sequence[str], rows: pa.Schema) -> Operator:
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
    return Operator(StoreSchema(store, schema, declared.state), compute, declared, tuple(order_by), rows)


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


def check_schemas(stored: Mapping[str, Mapping[str, str]], operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` if a stored schema is not the one an operator has now; both are shown."""
    for operator in operators:
        before = stored.get(operator.store)
        if before is not None and not _is_stored(operator.schema, before):
            raise ConfigError(
                f"the state of store {operator.store!r} has another schema\n  stored:   {before['text']}"
                f"\n  declared: {operator.stored()['text']}",
                remedy="keep the key columns and the state columns as they are stored, or use another store name",
                where=operator.store,
            )


def stored_schema(store: str, stored: Mapping[str, str]) -> StoreSchema:
    """Return a store's schema from what ``Operator.stored`` gave a record."""
    return StoreSchema(store, _unpacked(stored["key"]), _unpacked(stored["state"]))


def _is_stored(schema: StoreSchema, stored: Mapping[str, str]) -> bool:
    """Compare the schemas, not their bytes: another release of Arrow may write the same schema in other bytes."""
    now, before = (schema.key, schema.state), (_unpacked(stored["key"]), _unpacked(stored["state"]))
    return all(one.equals(other) for one, other in zip(now, before, strict=True))


def _unpacked(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _packed(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
