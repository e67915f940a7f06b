"""Columns by the names that users give, as Spark finds them. Knows schemas. Does not know frames or operators.

Spark takes upper and lower case for the same unless ``spark.sql.caseSensitive``, and ``s.x`` for field x of column s. A
name that is a column's as it stands, dots and all, is that column here. Two columns of one name are two to Spark;
inside, where all go by names, each of them has one of its own.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError

__all__ = ["Column", "Input", "check_fields", "column_of", "found_column", "input_of", "is_same_name", "source_of"]

_PARTS = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")


class Column(NamedTuple):
    """A column that an operator asks for: its name inside, and where it is: a column, or fields below one."""

    name: str
    path: tuple[str, ...]


class Input(NamedTuple):
    """The columns of an input, each under a name of its own, with its fields that are columns for an operator.

    ``shown`` are the names inside of the input's own columns, each with the one that it came under.
    """

    rows: pa.Schema
    shown: Mapping[str, str]
    fields: tuple[Column, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Tell whether all columns are the input's, under their names."""
        return not self.fields and all(name == given for name, given in self.shown.items())

    def with_fields(self, columns: Sequence[Column]) -> "Input":
        """Return the input with more columns: those that are fields of others. Raises ``ConfigError`` for two of one
        name.
        """
        added = [column for column in dict.fromkeys(columns) if column.path[1:] and column not in self.fields]
        check_fields([*self.fields, *added])
        kinds = [pa.field(column.name, _type_of(self.rows, column.path)) for column in added]
        return Input(pa.schema([*self.rows, *kinds]), self.shown, (*self.fields, *added))


def is_same_name(one: str, other: str, *, case_sensitive: bool) -> bool:
    """Tell whether Spark takes two names for the same: unless case counts, it compares them in lower case (``ß`` is not
    ``SS``), as Python does.
    """
    return one == other or (not case_sensitive and one.lower() == other.lower())


def check_fields(columns: Collection[Column]) -> None:
    """Raise ``ConfigError`` for two fields of one name."""
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"two fields of columns would be the column {twice!r}",
            remedy="give one of them a name of its own before the query: withColumn(...)",
            where=twice,
            id="RIFFLE-0228",
        )


def input_of(rows: pa.Schema) -> Input:
    """Return the columns of a schema; those of one name are numbered inside."""
    names: list[str] = []
    for at, name in enumerate(rows.names):
        inside = name if rows.names.count(name) == 1 else f"{name} ({at})"
        while inside in names or (inside != name and inside in rows.names):
            inside += "'"
        names.append(inside)
    fields = [field.with_name(name) for field, name in zip(rows, names, strict=True)]
    return Input(pa.schema(fields), dict(zip(names, rows.names, strict=True)))


def column_of(name: str, rows: pa.Schema, where: str, *, case_sensitive: bool = False) -> Column:
    """Return the column of this name. Raises ``ConfigError`` if there is none, or more than one."""
    found = found_column(name, rows, where, case_sensitive=case_sensitive)
    if found is None:
        raise ConfigError(
            f"there is no column {name!r} in the input",
            remedy=f"use one of {', '.join(rows.names)}",
            where=where,
            id="RIFFLE-0229",
        )
    return found


def found_column(name: str, rows: pa.Schema, where: str, *, case_sensitive: bool = False) -> Column | None:
    """Return the column of this name, if there is one. Raises ``ConfigError`` if there is more than one."""
    found = _found(name, rows, where, case_sensitive=case_sensitive)
    if found is not None and found.path[1:] and found.name in rows.names:
        raise ConfigError(
            f"{name!r} would be column {found.name!r}, and the input has another of that name",
            remedy=f'give the field a name of its own: withColumn("...", col("{name}"))',
            where=where,
            id="RIFFLE-0230",
        )
    return found


def source_of(name: str, rows: pa.Schema, where: str, *, case_sensitive: bool = False) -> Column | None:
    """Return the column of this name, if there is one, under a name inside that no column has: for one that is read
    and never shown. Raises ``ConfigError`` if there is more than one.
    """
    found = _found(name, rows, where, case_sensitive=case_sensitive)
    if found is None or not found.path[1:]:
        return found
    inside = ".".join(found.path)
    while inside in rows.names:
        inside += "'"
    return Column(inside, found.path)


def _found(name: str, rows: pa.Schema, where: str, *, case_sensitive: bool) -> Column | None:
    whole = _match(name, rows.names, name, where, case_sensitive=case_sensitive)
    if whole is not None:
        return Column(whole, (whole,))
    path: list[str] = []
    fields = list(rows)
    for part in _parts(name):
        match = _match(part, [field.name for field in fields], name, where, case_sensitive=case_sensitive)
        if match is None:
            return None
        path.append(match)
        kind = next(field.type for field in fields if field.name == match)
        fields = list(kind) if pa.types.is_struct(kind) else []
    return Column(path[-1], tuple(path)) if path else None


def _parts(name: str) -> list[str]:
    """Return the parts of a name between dots; what stands in backticks is one part. Nothing for what is no name."""
    parts = [quoted.replace("``", "`") or plain for quoted, plain in _PARTS.findall(name)]
    told = ".".join(text for text in (match.group() for match in _PARTS.finditer(name)))
    return parts if told == name else []


def _match(part: str, names: Sequence[str], name: str, where: str, *, case_sensitive: bool) -> str | None:
    """Return which of these names is meant. Raises ``ConfigError`` if several are."""
    found = [one for one in names if is_same_name(one, part, case_sensitive=case_sensitive)]
    if len(found) > 1:
        raise ConfigError(
            f"column {name!r} may be any of {', '.join(found)}",
            remedy="rename or drop all but one of them before the query",
            where=where,
            id="RIFFLE-0231",
        )
    return found[0] if found else None


def _type_of(rows: pa.Schema, path: Sequence[str]) -> pa.DataType:
    kind = rows.field(path[0]).type
    for part in path[1:]:
        kind = kind.field(part).type
    return kind
