"""Resolve the column names of users as Spark does.

1. Upper and lower case are the same unless ``spark.sql.caseSensitive`` is set.
2. ``s.x`` is field x of column s, unless a column has that whole name.
3. Spark allows several columns with the same name. Inside riffle_spark each gets a unique name.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError

_PARTS = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


class Column(NamedTuple):
    """A column of an operator: its name inside riffle_spark, and its path in the input.

    The path has one element for a column, and further elements for a struct field below it.
    """

    name: str
    path: tuple[str, ...]


class Input(NamedTuple):
    """The columns of an input under unique names, and the struct fields that an operator uses as columns.

    ``shown`` maps the inner name of each column to its name in the input.
    """

    rows: pa.Schema
    shown: Mapping[str, str]
    fields: tuple[Column, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Return whether every column is a column of the input under the same name.

        False with struct fields as columns, and with numbered names.
        """
        return not self.fields and all(inner == name for inner, name in self.shown.items())

    def with_fields(self, columns: Sequence[Column]) -> "Input":
        """Return the input with those ``columns`` that are struct fields as further columns.

        Raises ``ConfigError`` if two struct fields would get the same name.
        """
        added_fields = [column for column in dict.fromkeys(columns) if column.path[1:] and column not in self.fields]
        check_fields([*self.fields, *added_fields])
        kinds = [pa.field(column.name, _type_of(self.rows, column.path)) for column in added_fields]
        return Input(pa.schema([*self.rows, *kinds]), self.shown, (*self.fields, *added_fields))


def is_same_name(first: str, second: str, *, case_sensitive: bool) -> bool:
    """Return whether two names are the same to Spark. Spark compares them in lower case (``ß`` is not ``SS``)."""
    return first == second or (not case_sensitive and first.lower() == second.lower())


def check_fields(columns: Collection[Column]) -> None:
    """Raise ``ConfigError`` if two of these struct fields would get the same column name."""
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"Two struct fields would both be the column {twice!r}.",
            remedy="Rename one of them before the query: withColumn(...).",
            where=twice,
            id="RIFFLE-0228",
        )


def input_of(rows: pa.Schema) -> Input:
    """Return the ``Input`` for an input with schema ``rows``. Columns with equal names get numbered inner names."""
    names: list[str] = []
    for number, name in enumerate(rows.names):
        inner = name if rows.names.count(name) == 1 else f"{name} ({number})"
        while inner in names or (inner != name and inner in rows.names):
            inner += "'"
        names.append(inner)
    fields = [field.with_name(name) for field, name in zip(rows, names, strict=True)]
    return Input(pa.schema(fields), dict(zip(names, rows.names, strict=True)))


def column_of(name: str, rows: pa.Schema, store: str, *, case_sensitive: bool = False) -> Column:
    """Return the column of an input with schema ``rows`` that a user's ``name`` resolves to.

    ``store`` is shown in errors. Raises ``ConfigError`` if no column has the name, or if several have.
    """
    column = find_column(name, rows, store, case_sensitive=case_sensitive)
    if column is None:
        raise ConfigError(
            f"The input has no column {name!r}.",
            remedy=f"Use one of {', '.join(rows.names)}.",
            where=store,
            id="RIFFLE-0229",
        )
    return column


def find_column(name: str, rows: pa.Schema, store: str, *, case_sensitive: bool = False) -> Column | None:
    """Return the column of an input with schema ``rows`` that a user's ``name`` resolves to, or ``None``.

    ``store`` is shown in errors. Raises ``ConfigError`` if several columns have the name.
    """
    column = _resolve(name, rows, store, case_sensitive=case_sensitive)
    if column is not None and column.path[1:] and column.name in rows.names:
        raise ConfigError(
            f"{name!r} would be column {column.name!r}, but the input has another column of that name.",
            remedy=f'Rename the field: withColumn("...", col("{name}")).',
            where=store,
            id="RIFFLE-0230",
        )
    return column


def source_of(name: str, rows: pa.Schema, store: str, *, case_sensitive: bool = False) -> Column | None:
    """Return the column or struct field that ``name`` resolves to, or ``None``.

    A struct field gets an inner name that no column of ``rows`` has, because the user never sees it. Raises
    ``ConfigError`` if several columns have the name.
    """
    column = _resolve(name, rows, store, case_sensitive=case_sensitive)
    if column is None or not column.path[1:]:
        return column
    inner = ".".join(column.path)
    while inner in rows.names:
        inner += "'"
    return Column(inner, column.path)


def _resolve(name: str, rows: pa.Schema, store: str, *, case_sensitive: bool) -> Column | None:
    """Return the column of a name, or the struct field of a dotted path. ``None`` if there is none."""
    column_name = _match(name, rows.names, name, store, case_sensitive=case_sensitive)
    if column_name is not None:
        return Column(column_name, (column_name,))
    path: list[str] = []
    fields = list(rows)
    for part in _parts(name):
        match = _match(part, [field.name for field in fields], name, store, case_sensitive=case_sensitive)
        if match is None:
            return None
        path.append(match)
        kind = next(field.type for field in fields if field.name == match)
        fields = list(kind) if pa.types.is_struct(kind) else []
    return Column(path[-1], tuple(path)) if path else None


def _parts(name: str) -> list[str]:
    """Return the parts of a dotted name. Text in backticks is one part. Return an empty list for an invalid name."""
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _PARTS.findall(name)]
    is_whole_name = ".".join(match.group() for match in _PARTS.finditer(name)) == name
    return parts if is_whole_name else []


def _match(part: str, names: Sequence[str], name: str, store: str, *, case_sensitive: bool) -> str | None:
    """Return the element of ``names`` that Spark takes for the same name as ``part``, or ``None``.

    ``name`` is the user's whole name, for errors. Raises ``ConfigError`` if several elements match.
    """
    matches = [candidate for candidate in names if is_same_name(candidate, part, case_sensitive=case_sensitive)]
    if len(matches) > 1:
        raise ConfigError(
            f"The column {name!r} is ambiguous: {', '.join(matches)}.",
            remedy="Rename or drop all but one of them before the query.",
            where=store,
            id="RIFFLE-0231",
        )
    return matches[0] if matches else None


def _type_of(rows: pa.Schema, path: Sequence[str]) -> pa.DataType:
    """Return the type of the column or struct field at ``path``."""
    column_type = rows.field(path[0]).type
    for part in path[1:]:
        column_type = column_type.field(part).type
    return column_type
