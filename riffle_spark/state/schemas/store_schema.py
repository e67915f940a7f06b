"""The interface of a store's columns, and their text in records."""

import json
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError
from riffle_spark.state.schemas.history import History, Name
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variables import VariableColumns

_MEANINGS = "meanings"
_OPERATOR = "operator"
_KEY = "encryption_key"
_NO_KEY = ("", "plain")

Result = TypeVar("Result")


class StoreSchema(Protocol):
    """A store's columns, as copies and snapshots need them."""

    @property
    def store(self) -> str:
        """The store's name."""
        ...

    @property
    def key(self) -> pa.Schema:
        """The key's columns."""
        ...

    @property
    def routing(self) -> tuple[str, ...]:
        """The key columns that rows are routed by."""
        ...

    @property
    def one_row_a_key(self) -> bool:
        """Whether a key's state is one row, so that its newest row in a chain is the whole state."""
        ...

    @property
    def due(self) -> str | None:
        """The column with a row's due time, or ``None``."""
        ...

    @property
    def history(self) -> History:
        """The history of the declared names."""
        ...

    @property
    def column_and_field_names(self) -> frozenset[Name]:
        """The names in this schema, as tuples: (column,) for plain columns; (variable,) and (variable, field) for
        variables.
        """
        ...

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """Return a part's rows without values under names that are declared since a later epoch.

        ``epoch`` is that of the part's newest rows.
        """
        ...

    def either(
        self, columns: Callable[[PlainColumns], Result], variables: Callable[[VariableColumns], Result]
    ) -> Result:
        """Return the result of the function for this kind of schema: ``columns`` for one row per key, ``variables`` for
        state variables.
        """
        ...

    def to_text(self) -> dict[str, str]:
        """Return the schema as the texts of a log record. ``schema_of_text`` reads them."""
        ...

    def can_read(self, text: Mapping[str, str]) -> bool:
        """Return whether state that was written with the schema of this text can be read with this schema."""
        ...

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of a table's rows: binary, in the order of the keys."""
        ...

    def sealed(self, table: pa.Table) -> pa.Table:
        """Return a snapshot's rows sorted in the order of snapshots, ready to encode."""
        ...

    def earliest_ms(self, table: pa.Table) -> int | None:
        """Return the earliest due time in a snapshot's rows (ms), ``None`` if there is none."""
        ...

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        ...


def schema_of_text(store: str, text: Mapping[str, str]) -> StoreSchema:
    """Return the schema that ``StoreSchema.to_text`` wrote. Raises ``CorruptStateError`` for other text."""
    try:
        return VariableColumns.of_text(store, text) if "variables" in text else PlainColumns.of_text(store, text)
    except UNREADABLE as error:
        raise _unreadable_error("schema", error, f"store {store}") from error


def _unreadable_error(field: str, error: Exception, where: str = "schemas") -> CorruptStateError:
    """Return the error for a ``field`` of a stored schema that cannot be read."""
    # Cause: A newer version of riffle-spark wrote the record, or the record was altered.
    return CorruptStateError(
        f"Cannot read the stored {field} of a store: {error!r}",
        remedy="Run the version of riffle-spark that wrote it, or a newer one. Or restore the log from a backup.",
        where=where,
        id="RIFFLE-0467",
    )


def make_recorded_text(
    stored: Mapping[str, str] | None,
    schema: StoreSchema,
    epoch: int,
    meanings: Mapping[str, str] | None = None,
    operator: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Return a declared schema as the driver of an epoch records it: its text, with the history of the declared names.

    ``stored`` is the store's text in the newest record. ``meanings`` describe the columns of a wrapped query, and
    ``operator`` the results of any other operator.
    """
    text = schema.to_text()
    described = {_MEANINGS: meanings, _OPERATOR: operator}
    descriptions = {name: json.dumps(dict(texts)) for name, texts in described.items() if texts}
    if stored is None:
        return {**text, **descriptions}
    if all(stored.get(name) == value for name, value in text.items()):
        is_same = all(stored.get(name) == value for name, value in descriptions.items())
        return stored if is_same else {**stored, **descriptions}
    former = schema_of_text(schema.store, stored)
    history = former.history.with_change(former.column_and_field_names, schema.column_and_field_names, epoch).to_text()
    return {**text, **descriptions, "history": history}


def read_meanings(text: Mapping[str, str]) -> dict[str, str]:
    """Return the meaning of each column of a wrapped query in a stored schema. Other operators store none."""
    return _names_in(text, _MEANINGS)


def read_operator_meanings(text: Mapping[str, str]) -> dict[str, str]:
    """Return the meaning of each result of an operator in a stored schema. Older versions stored none."""
    return _names_in(text, _OPERATOR)


def _names_in(text: Mapping[str, str], field: str) -> dict[str, str]:
    """Return the names and texts in a field of a stored schema; empty without it.

    Raises ``CorruptStateError`` if they cannot be read.
    """
    try:
        return {str(name): str(meaning) for name, meaning in json.loads(text.get(field, "{}")).items()}
    except UNREADABLE as error:
        raise _unreadable_error(field, error) from error


def with_encryption_key(text: Mapping[str, str], key: str) -> Mapping[str, str]:
    """Return a stored schema with the encryption key (``Keys.write_key``) of the store's newest parts."""
    if key in _NO_KEY:
        return {name: value for name, value in text.items() if name != _KEY} if _KEY in text else text
    return {**text, _KEY: key}


def read_encryption_key(text: Mapping[str, str]) -> str | None:
    """Return the encryption key of the store's newest parts from a stored schema, ``None`` if they are not
    encrypted.
    """
    return text.get(_KEY)


def check_encryption_key(text: Mapping[str, str], key: str, where: str) -> None:
    """Raise ``ConfigError`` if ``key`` has the id of the encryption key in a stored schema, but other bytes.

    Older versions stored keys without their check. Such keys match every key of that id.
    """
    stored_key = read_encryption_key(text) or ""
    name, _, check = stored_key.partition("/")
    if check and stored_key != key and name == key.partition("/")[0]:
        # Cause: A new key got this id after the state was written.
        raise ConfigError(
            f"Key {name!r} is not the key that the state was encrypted with.",
            remedy="Set the former key under this id. Give a new key a new id.",
            where=where,
            id="RIFFLE-0468",
        )
