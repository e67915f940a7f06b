"""The kind of a store by its recorded schema: what a key's rows stand for, and whether a value can be set."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import pyarrow as pa

from riffle_spark.state.schemas.store_schema import StoreSchema, read_meanings

StoreKind: TypeAlias = Literal["columns", "distinct", "distinct values", "join", "processor", "session"]
_OF_KEY = "key "
"""The start of the meaning of a grouping column."""
_WHY_NOT_SET: Mapping[StoreKind, str] = {
    "distinct": "a de-duplication stores only its keys",
    "distinct values": "a group with count(DISTINCT ...) has a row per counted value",
    "join": "a join stores rows of its inputs",
    "session": "its rows are lists of open sessions",
}


def kind_of_store(schema: StoreSchema, text: Mapping[str, str]) -> StoreKind:
    """Return the kind of a store.

    ``text`` is its schema in a record. ``columns`` are aggregates, tables, and functions with one row per key.
    """
    meanings = read_meanings(text)
    if not schema.one_row_a_key:
        return "join" if "join" in meanings else "processor"
    if schema.routing != tuple(schema.key.names):
        return "distinct values"
    state = schema.either(lambda plain: plain.state, lambda _: pa.schema([]))
    values = [field for field in state if field.name != schema.due]
    if not values:
        return "distinct"
    # The start and the end of a session are parts of the grouping key, but not of the stored key.
    has_window = any(meanings.get(field.name, "").startswith(_OF_KEY) for field in values)
    return "session" if has_window and all(pa.types.is_list(field.type) for field in values) else "columns"


def why_not_set(kind: StoreKind) -> str | None:
    """Return why a key of such a store cannot be given a value, ``None`` if it can."""
    return _WHY_NOT_SET.get(kind)
