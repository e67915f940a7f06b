"""A store's schema from the text that a record keeps. Knows which kinds of store there are."""

from collections.abc import Mapping

from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["schema_of_text"]


def schema_of_text(store: str, text: Mapping[str, str]) -> StoreSchema:
    """Return a store's schema from what ``StoreSchema.to_text`` gave."""
    return VariableColumns.of_text(store, text) if "variables" in text else PlainColumns.of_text(store, text)
