"""What is known of any store's columns, whatever kind of store it is."""

import json
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError, CorruptStateError
from riffle_spark.state.schemas.history import History, Name
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = [
    "StoreSchema",
    "check_key",
    "key_in",
    "meanings_in",
    "operator_in",
    "schema_of_text",
    "text_after",
    "with_key",
]

_MEANINGS = "meanings"
_OPERATOR = "operator"
_KEY, _NO_KEY = "encryption_key", ("", "plain")

Result = TypeVar("Result")


class StoreSchema(Protocol):
    """What is known of any store's columns: enough to keep its copies and to take its snapshots."""

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
        """The columns of the key by which rows go to their key-groups."""
        ...

    @property
    def one_row_a_key(self) -> bool:
        """Whether a key's state is one row, so that its newest row in a chain is all of it."""
        ...

    @property
    def due(self) -> str | None:
        """The column of rows that says when they are due, if there is one."""
        ...

    @property
    def history(self) -> History:
        """Since when its names are declared."""
        ...

    @property
    def names_read(self) -> frozenset[Name]:
        """The names whose values it reads."""
        ...

    def without_later_names(self, table: pa.Table, epoch: int) -> pa.Table:
        """Return the rows of a part, the newest of them of this epoch, without what they hold under names that are
        declared since a later one.
        """
        ...

    def either(
        self, columns: Callable[[PlainColumns], Result], variables: Callable[[VariableColumns], Result]
    ) -> Result:
        """Return what the one of the two makes of it whose kind it is: their rows are read and merged differently."""
        ...

    def to_text(self) -> dict[str, str]:
        """Return the schema as a record keeps it; ``schema_of_text`` reads it. ``text`` is for a person."""
        ...

    def can_read(self, text: Mapping[str, str]) -> bool:
        """Tell whether state that was written with the schema of this text can be read with this one."""
        ...

    def encoded(self, table: pa.Table) -> pa.Array:
        """Return the whole keys of a table's rows (binary, order-preserving)."""
        ...

    def sealed(self, table: pa.Table) -> pa.Table:
        """Return a snapshot's rows as they are encoded: in the order that snapshots have."""
        ...

    def earliest_ms(self, table: pa.Table) -> int | None:
        """Return when the first of a snapshot's rows is due (ms), ``None`` if none is."""
        ...

    def part_schema(self, *, delta: bool = False) -> pa.Schema:
        """Return the schema of a snapshot, or of a delta's part."""
        ...


def schema_of_text(store: str, text: Mapping[str, str]) -> StoreSchema:
    """Return a store's schema from what ``StoreSchema.to_text`` gave. Raises ``CorruptStateError`` for other text."""
    try:
        return VariableColumns.of_text(store, text) if "variables" in text else PlainColumns.of_text(store, text)
    except UNREADABLE as error:
        raise _unreadable("the columns of a state", error, f"store {store}") from error


def _unreadable(what: str, error: Exception, where: str = "schemas") -> CorruptStateError:
    return CorruptStateError(
        f"{what} cannot be read: {error!r}",
        remedy="run the version of riffle-spark that wrote it, or a newer one; or restore the log from a backup",
        where=where,
        id="RIFFLE-0467",
    )


def text_after(
    before: Mapping[str, str] | None,
    schema: StoreSchema,
    epoch: int,
    meanings: Mapping[str, str] | None = None,
    operator: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Return a declared schema as the driver of an epoch records it, with its history.

    ``before`` is the store's text in the newest record, if it has one. ``meanings`` say what a wrapped query keeps in
    columns. ``operator`` says what the results of any other operator are.
    """
    own, described = schema.to_text(), {_MEANINGS: meanings, _OPERATOR: operator}
    meant = {name: json.dumps(dict(texts)) for name, texts in described.items() if texts}
    if before is None:
        return {**own, **meant}
    if all(before.get(name) == text for name, text in own.items()):
        return before if all(before.get(name) == text for name, text in meant.items()) else {**before, **meant}
    known = schema_of_text(schema.store, before)
    history = known.history.changed(known.names_read, schema.names_read, epoch).to_text()
    return {**own, **meant, "history": history}


def meanings_in(text: Mapping[str, str]) -> dict[str, str]:
    """Return the meanings that a wrapped query has stored of its columns; no other operator stores any."""
    return _names_in(text, _MEANINGS)


def operator_in(text: Mapping[str, str]) -> dict[str, str]:
    """Return the stored meanings of an operator's results: none if an older version wrote the schema."""
    return _names_in(text, _OPERATOR)


def _names_in(text: Mapping[str, str], field: str) -> dict[str, str]:
    try:
        return {str(name): str(meaning) for name, meaning in json.loads(text.get(field, "{}")).items()}
    except UNREADABLE as error:
        raise _unreadable("what is kept in the columns of a state", error) from error


def with_key(text: Mapping[str, str], key: str) -> Mapping[str, str]:
    """Return a stored schema that names the key (``Keys.write_key``) of the store's newest parts."""
    if key in _NO_KEY:
        return {name: told for name, told in text.items() if name != _KEY} if _KEY in text else text
    return {**text, _KEY: key}


def key_in(text: Mapping[str, str]) -> str | None:
    """Return what is told of the key that a store's newest parts are encrypted with, ``None`` if they are not."""
    return text.get(_KEY)


def check_key(text: Mapping[str, str], told: str, where: str) -> None:
    """Raise ``ConfigError`` if the key that is ``told`` has the id of the stored one and is another. One that is stored
    without its check, as it once was, is any of that id.
    """
    stored = key_in(text) or ""
    name, _, check = stored.partition("/")
    if check and stored != told and name == told.partition("/")[0]:
        raise ConfigError(
            f"key {name!r} is not the one that the state was encrypted with",
            remedy="give the id back the key that it had; a new key gets a new id",
            where=where,
            id="RIFFLE-0468",
        )
