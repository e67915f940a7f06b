"""One version of a root's state, which can be read while the query runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, RiffleError, UnavailableError
from riffle_spark.state.log.manifest import Entry, Manifest
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.recorded_savepoints import find_savepoint
from riffle_spark.state.log.savepoints import read_savepoint
from riffle_spark.state.objects.encryption import Keys as EncryptionKeys
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import StoreSchema, read_encryption_key, read_meanings, schema_of_text
from riffle_spark.state.schemas.variable_kinds import TIMER
from riffle_spark.state_tables.current_rows import RowsOf, rows_of_plain, rows_of_variable
from riffle_spark.state_tables.requested_keys import RequestedKeys
from riffle_spark.state_tables.retained_records import RetainedRecords, parse_time_ms
from riffle_spark.state_tables.table_columns import TableColumns, columns_of_plain, columns_of_variable
from riffle_spark.worker.member_folders import keys_in

_MISSING_OBJECT = "RIFFLE-0462"
_SAVEPOINT = "savepoint:"


@dataclass(frozen=True)
class StateRoot:
    """A root that is read: its objects, and the encryption keys of this process."""

    root: str
    objects: ObjectStore
    keys: EncryptionKeys | None

    @cached_property
    def records(self) -> RetainedRecords:
        """The retained records. The first use reads the newest record, with one LIST and one GET."""
        return RetainedRecords(self.objects, self.root)

    def view(self, version: int | str | None = None, time: datetime | str | None = None) -> "StateView":
        """Return the state after batch ``version``, or at a time; by default after the newest batch.

        ``savepoint:NAME`` is the batch that a savepoint keeps. Raises ``ConfigError`` if the version is not retained,
        or if both are set.
        """
        if version is not None and time is not None:
            raise ConfigError(
                f"Both a batch ({version}) and a time ({time}) are set.", remedy="Set one of them.", id="RIFFLE-1559"
            )
        if time is not None:
            return self.view_of(self.records.find_time(parse_time_ms(time)))
        return self.view_of(self.records.tail if version is None else self._find_version(version))

    def view_of(self, record: Record) -> "StateView":
        """Return the state as of a record."""
        return StateView(self, record, self.records.manifest_of(record))

    def _find_version(self, version: int | str) -> Record:
        """Return the newest record of a batch, or the record that a savepoint keeps."""
        if isinstance(version, str):
            prefix, colon, name = version.partition(":")
            if prefix + colon != _SAVEPOINT:
                raise ConfigError(
                    f"{version!r} is neither a batch nor a savepoint.",
                    remedy=f"Give the number of a batch, or {_SAVEPOINT}NAME.",
                    where="version",
                    id="RIFFLE-1710",
                )
            return read_savepoint(self.objects, find_savepoint(self.records.tail.savepoints, name))
        return self.records.tail if version == self.records.tail.version else self.records.find_batch(version)

    def explain(self, error: CorruptStateError, record: Record) -> RiffleError:
        """Return the error to raise for one that occurred while the objects of ``record`` were read.

        A missing object is not damage if the query's retention deleted it during the read.
        """
        if error.id != _MISSING_OBJECT:
            return error
        tail = RetainedRecords(self.objects, self.root).tail
        if tail.promised <= record.sequence or any(
            savepoint.sequence == record.sequence for savepoint in tail.savepoints
        ):
            return error
        # Cause: The read took longer than the retention of its version.
        return UnavailableError(
            f"The query deleted objects of batch {record.version} while they were read: the batch is no longer "
            "retained.",
            remedy="Read again. If that fails too, raise retained_versions, or read some key-groups at a time.",
            where=error.where,
            id="RIFFLE-1555",
        )


@dataclass(frozen=True)
class StateView:
    """The state of all stores of a root as of a record."""

    root: StateRoot
    record: Record
    manifest: Manifest

    def choose_store(self, store: str | None) -> str:
        """Return the store with this name; without a name the only store. Raises ``ConfigError`` otherwise."""
        names = sorted(self.record.schemas)
        if store is None and len(names) == 1:
            return names[0]
        if store in names:
            return str(store)
        if not names:
            # Cause: The state before the first batch has no stores.
            raise ConfigError(
                f"The state of batch {self.record.version} has no stores.",
                remedy="Choose a later batch, or wait until the query has run one.",
                where=self.root.root,
                id="RIFFLE-1785",
            )
        problem = "The store is not named, but the query has several." if store is None else f"Unknown store {store!r}."
        raise ConfigError(
            f"{problem} Stores of batch {self.record.version}: {', '.join(names)}.",
            remedy="Name one of them.",
            where=self.root.root,
            id="RIFFLE-1550",
        )

    def schema(self, store: str) -> StoreSchema:
        """Return the columns of a store."""
        return schema_of_text(store, self.record.schemas[store])

    def entries(self, store: str, key_groups: Iterable[int] | None = None) -> dict[int, Entry]:
        """Return the entries of a store's key-groups that have state, ascending; by default of all key-groups."""
        entries = {number: entry for (name, number), entry in self.manifest.entries.items() if name == store}
        numbers = sorted(entries if key_groups is None else entries.keys() & set(key_groups))
        return {number: entries[number] for number in numbers}

    def table(self, store: str | None, variable: str | None = None) -> "StateTable":
        """Return the table of a store, or of one of its variables.

        Raises ``ConfigError`` for an unknown name, and if one is needed; ``RefusedError`` if the store is encrypted and
        this process has no keys.
        """
        name = self.choose_store(store)
        text = self.record.schemas[name]
        if read_encryption_key(text) is not None and self.root.keys is None:
            # Cause: Reading encrypted state takes the right to the query's keys.
            raise RefusedError(
                f"Store {name!r} is encrypted, and this process has no keys.",
                remedy="Give the source of the query's keys (encryption_keys), as in the query's settings.",
                where=self.root.root,
                id="RIFFLE-1558",
            )
        schema = self.schema(name)
        variable = _choose_variable(schema, variable)
        columns = schema.either(
            lambda plain: columns_of_plain(plain, read_meanings(text)),
            lambda variables: columns_of_variable(variables, str(variable)),
        )
        return StateTable(self, name, variable, schema, columns)

    def new_reader(self) -> Reader:
        """Return a reader of the root's objects."""
        return Reader(self.root.objects, self.root.keys)


@dataclass(frozen=True)
class StateTable:
    """A store's state, or a variable of it, as a table."""

    view: StateView
    store: str
    variable: str | None
    store_schema: StoreSchema
    columns: TableColumns

    @property
    def key_names(self) -> Sequence[str]:
        """The names of the key's columns."""
        return list(self.store_schema.key.names)

    def find_key_groups(self, keys: RequestedKeys | None, key_groups: Iterable[int] | None) -> set[int] | None:
        """Return the key-groups to read for these keys and key-groups, ``None`` for all.

        Without dispatch by key, the key does not decide its key-group. Raises ``ConfigError`` for a number that is not
        one of a key-group.
        """
        record = self.view.record
        chosen = None if key_groups is None else {*key_groups}
        total = record.total if record.dispatch == "key_group" else len(record.shards)
        wrong = [number for number in chosen or () if type(number) is not int or not 0 <= number < total]
        if wrong:
            raise ConfigError(
                f"{wrong[0]!r} is not a key-group: there are {total}, from 0.",
                remedy="Give numbers of key-groups.",
                where="key_groups",
                id="RIFFLE-1557",
            )
        if keys is None or record.dispatch != "key_group":
            return chosen
        of_keys = {*keys.find_key_groups(self.store_schema.routing, record.total)}
        return of_keys if chosen is None else of_keys & chosen

    def rows_of(self, keys: RequestedKeys | None) -> RowsOf:
        """Return the function that computes the current rows of a key-group from its parts."""
        return self.store_schema.either(
            lambda plain: rows_of_plain(plain, self.columns, keys, self.schema),
            lambda variables: rows_of_variable(variables, str(self.variable), keys, self.schema),
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, as an Arrow schema."""
        return self.columns.make_schema(self._metadata())

    def _metadata(self) -> Mapping[bytes, bytes]:
        """Return the metadata of the table's schema."""
        metadata = {b"riffle.store": self.store.encode(), b"riffle.version": str(self.view.record.version).encode()}
        return metadata if self.variable is None else {**metadata, b"riffle.variable": self.variable.encode()}


def _choose_variable(schema: StoreSchema, variable: str | None) -> str | None:
    """Return the variable to read: the one with this name, else the only one. Raises ``ConfigError`` otherwise."""
    names: tuple[str, ...] = schema.either(lambda _: (), lambda variables: variables.names)
    declared = [name for name in names if name != TIMER]
    if variable is None and len(declared) == 1:
        return declared[0]
    if variable in names or (variable is None and not names):
        return variable
    if not names:
        raise ConfigError(
            f"Store {schema.store!r} has one row per key and no variable {variable!r}.",
            remedy="Name no variable.",
            where="variable",
            id="RIFFLE-1563",
        )
    unknown = "" if variable is None else f"no variable {variable!r} but "
    raise ConfigError(
        f"Store {schema.store!r} has {unknown}the variables {', '.join(declared)}, and {TIMER} for the timers.",
        remedy="Name one of them as the variable.",
        where="variable",
        id="RIFFLE-1551",
    )


def parse_version(text: str) -> int | str:
    """Return the batch that a text names as a number, and other text as it is, for ``StateRoot.view``."""
    try:
        return int(text)
    except ValueError:
        return text


def open_root(root: str, options: StoreOptions | None = None, encryption_keys: str | None = None) -> StateRoot:
    """Return a root to read, with its newest record. ``encryption_keys`` is the setting of that name.

    Sends one LIST and one GET, and two LISTs more if the root may hold the roots of several queries. Raises
    ``ConfigError`` if the root has no log, or if the options are a dictionary.
    """
    options = options or StoreOptions()
    if not isinstance(options, StoreOptions):
        raise ConfigError(
            f"options is a {type(options).__name__}.",
            remedy="Pass riffle_spark.state.objects.options.StoreOptions, such as "
            'StoreOptions(s3=S3Options(endpoint="http://127.0.0.1:9000")).',
            where="options",
            id="RIFFLE-1750",
        )
    keys = keys_in(encryption_keys, options.s3.region)
    opened = StateRoot(root, open_store(root, options), keys)
    try:
        opened.records  # noqa: B018 - read here, so that a root without a log is refused
    except ConfigError:
        query_root = only_root(root, options)
        if query_root == root:
            raise
        opened = StateRoot(query_root, open_store(query_root, options), keys)
        opened.records  # noqa: B018
    return opened
