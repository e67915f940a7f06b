"""The request of a frame of state: the options of the data source ``riffle_state``, and the pieces for Spark's tasks.

Spark calls a data source in Python processes without a session, so nothing here uses one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources
from riffle_spark.spark.engine.import_caches import forget_zip_directories
from riffle_spark.state.formats.json_keys import parse_json, table_of_keys
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state_tables.change_feed import changes_schema
from riffle_spark.state_tables.requested_keys import Keys, RequestedKeys, requested_keys
from riffle_spark.state_tables.state_view import StateTable, open_root, parse_version
from riffle_spark.state_tables.table_pieces import ChangesPiece, TablePiece, split_changes, split_table
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import options_of

_OPTIONS: Final = (
    "path",
    "store",
    "variable",
    "version",
    "timestamp",
    "keys",
    "keyGroups",
    "readChangeFeed",
    "changeStartBatchId",
    "changeEndBatchId",
)


@dataclass(frozen=True)
class StateRequest:
    """A request to read state of a root.

    ``json_keys`` are JSON values of keys (``table_of_keys``). ``first_batch`` and ``last_batch`` are those of a change
    feed. Without a last batch it ends with the newest one.
    """

    root: str
    store: str | None = None
    variable: str | None = None
    version: int | str | None = None
    time: datetime | str | None = None
    keys: Keys | None = None
    json_keys: tuple[object, ...] = ()
    key_groups: tuple[int, ...] | None = None
    has_changes: bool = False
    first_batch: int | None = None
    last_batch: int | None = None
    options: StoreOptions = field(default_factory=StoreOptions)
    encryption_keys: str | None = None

    @cached_property
    def table(self) -> StateTable:
        """The table, as of the version when it is first used."""
        version = self.last_batch if self.has_changes else self.version
        return (
            open_root(self.root, self.options, self.encryption_keys)
            .view(version, self.time)
            .table(self.store, self.variable)
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the frame."""
        return changes_schema(self.table) if self.has_changes else self.table.schema

    @property
    def requested(self) -> RequestedKeys | None:
        """The requested keys, ``None`` for all."""
        schema = self.table.store_schema
        if self.json_keys:
            return requested_keys(table_of_keys(self.json_keys, schema.key, schema.store), schema)
        return None if self.keys is None else requested_keys(self.keys, schema)

    def split(self) -> "Sequence[TablePiece | ChangesPiece]":
        """Return the pieces for Spark's tasks."""
        if not self.has_changes:
            return split_table(self.table, self.requested, self.key_groups, self.options, self.encryption_keys)
        if self.requested is not None:
            raise ConfigError(
                "A change feed cannot be read for some keys only.",
                remedy="Filter the frame, or choose key-groups (keyGroups).",
                where="keys",
                id="RIFFLE-1564",
            )
        first = self.first_batch
        if first is None:
            raise ConfigError(
                "The first batch of the change feed is not set.",
                remedy="Set changeStartBatchId.",
                where="changeStartBatchId",
                id="RIFFLE-1565",
            )
        last = self.table.view.record.version
        return split_changes(self.table, first, last, self.key_groups, self.options, self.encryption_keys)

    def between(self, first: int, last: int) -> "StateRequest":
        """Return the request for the changes of these batches, both inclusive."""
        return replace(self, has_changes=True, first_batch=first, last_batch=last)


def read_pieces(pieces: "Sequence[TablePiece | ChangesPiece]") -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces, without metadata."""
    forget_zip_directories()
    for piece in pieces:
        for batch in piece.read():
            fields = [column.remove_metadata() for column in batch.schema]
            yield pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def parse_options(options: Mapping[str, str]) -> StateRequest:
    """Return the request that the options of the data source name, whatever their case.

    Options with the name of a setting are settings of the store, such as ``s3_endpoint``. Raises ``ConfigError`` for
    unknown options and wrong values.
    """
    names = {name.lower(): name for name in _OPTIONS}
    values = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
    store_options = {name: value for name, value in options.items() if name.lower() not in names}
    check_known(
        "option", store_options, [*_OPTIONS, *Settings.__dataclass_fields__], source="the options of riffle_state"
    )
    settings = from_sources(None, {f"{CONF_PREFIX}{name}": value for name, value in store_options.items()})
    if "path" not in values:
        raise _wrong_value_error("path", None, "Set it, or pass the root to load().")
    return StateRequest(
        values["path"],
        values.get("store"),
        values.get("variable"),
        parse_version(values["version"]) if "version" in values else None,
        values.get("timestamp"),
        json_keys=_parse_keys(values.get("keys")),
        key_groups=_parse_key_groups(values.get("keyGroups")),
        has_changes=_parse_flag(values, "readChangeFeed"),
        first_batch=_parse_number(values, "changeStartBatchId"),
        last_batch=_parse_number(values, "changeEndBatchId"),
        options=options_of(settings),
        encryption_keys=settings.encryption_keys,
    )


def _parse_number(values: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number, ``None`` if it is not set. Raises ``ConfigError`` for other text."""
    text = values.get(name)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise _wrong_value_error(name, text, "Give the number of a batch.") from error


def _parse_flag(values: Mapping[str, str], name: str) -> bool:
    """Return an option that is true or false. Raises ``ConfigError`` for other text."""
    text = values.get(name, "false").lower()
    if text not in ("true", "false"):
        raise _wrong_value_error(name, text, "Give true or false.")
    return text == "true"


def _parse_keys(text: str | None) -> tuple[object, ...]:
    """Return the JSON values of keys in a list. Raises ``ConfigError`` for other text."""
    if text is None:
        return ()
    with suppress(ValueError):
        keys = parse_json(text)
        if isinstance(keys, list) and keys:
            return tuple(keys)
    raise _wrong_value_error("keys", text, 'Give a JSON list of keys, such as ["ann", "bob"].')


def _parse_key_groups(text: str | None) -> tuple[int, ...] | None:
    """Return the key-groups in a text such as ``0,3,8-15``. Raises ``ConfigError`` for other text."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise _wrong_value_error("keyGroups", text, "Give numbers and ranges, such as 0,3,8-15.")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _wrong_value_error(name: str, text: object, remedy: str) -> ConfigError:
    return ConfigError(f"Option {name} is {text!r}.", remedy=remedy, where=name, id="RIFFLE-1567")
