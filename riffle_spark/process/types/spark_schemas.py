"""Spark's texts of schemas, DDL and JSON, as Arrow schemas. Knows Spark's grammar of columns and types. Does not know
Spark or a JVM.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.process.types.kept_types import RefusedType, check_columns, type_refusal
from riffle_spark.state.formats.arrow_schemas import inner_types

__all__ = [
    "BARE",
    "INTERVAL",
    "SIMPLE",
    "Unreadable",
    "decimal_of",
    "list_of",
    "map_of",
    "schema_of_ddl",
    "schema_of_fields",
    "schema_of_json",
    "type_of_ddl",
]

BARE: Final = "value"
"""The name of the column where a text is one type alone, as Spark calls it."""

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*|/\*(?!\+).*?\*/)
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<string>[rR]?'(?:[^'\\]|\\.)*'|[rR]?"(?:[^"\\]|\\.)*")
      | (?P<number>\d+(?![A-Za-z0-9_]))
      | (?P<word>[A-Za-z0-9_]+)
      | (?P<sign>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)
_LITERAL: Final = re.compile(r"\d+([lLsSyYdDfF]|[bB][dD]|[eE]\d+([dDfF]|[bB][dD])?)")
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TEXTS: Final = ("char", "character", "varchar")
_DAY_TO_SECOND: Final = ("day", "hour", "minute", "second")
_YEAR_TO_MONTH: Final = ("year", "month")
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
SIMPLE: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _TIMESTAMP,
    "timestamp_ltz": _TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
    "void": pa.null(),
}
"""Types of one word."""
INTERVAL: Final = pa.duration("us")
"""An interval of days to seconds."""
_DEFAULT_DECIMAL: Final = (10, 0)
_PRECISION_MAX: Final = 38


_Read = TypeVar("_Read")


_REMEDY: Final = 'write Spark\'s DDL, such as "count long, tags array<string>", of types that can be kept'


class Unreadable(ValueError):
    """A schema cannot be read from character ``at`` on."""

    def __init__(self, problem: str, at: int, remedy: str = _REMEDY) -> None:
        super().__init__(problem)
        self.at = at
        self.remedy = remedy


def _not_kept(name: str, at: int) -> Unreadable:
    refused = type_refusal(name, "value", "declared")
    return Unreadable(f"{name!r} is not a type that can be kept", at, refused.remedy if refused else _REMEDY)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def schema_of_ddl(text: str) -> pa.Schema:
    """Return the schema that a DDL text declares: columns, or one type alone, whose column is named ``value``.

    A struct alone is its fields. Raises ``ConfigError`` that shows where the text cannot be read.
    """
    try:
        return schema_of_fields(_Reader(text).columns(), text)
    except Unreadable as error:
        try:
            kind = type_of_ddl(text)
        except Unreadable as other:
            raise _refused(text, max(error, other, key=lambda one: one.at)) from None
    return schema_of_fields(list(kind) if pa.types.is_struct(kind) else [pa.field(BARE, kind)], text)


def type_of_ddl(text: str) -> pa.DataType:
    """Return the type that a text is; ``Unreadable`` if it is none that can be kept."""
    return _Reader(text).only_type()


def schema_of_fields(fields: list[pa.Field], where: str) -> pa.Schema:
    """Return the fields as a schema.

    Raises ``ConfigError`` if there are none, if two have one name, or if a nested type contains void.
    """
    names = [field.name for field in fields]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        problem = f"a schema names a column twice: {', '.join(repeated)}" if repeated else "a schema has no column"
        raise ConfigError(
            problem, remedy="name at least one column, and each once", where=where[:200], id="RIFFLE-0205"
        )
    for field in fields:
        for inner in inner_types(field.type):
            if _contains_void(inner):
                raise RefusedType.of_void(field.name).error(where[:200])
    return pa.schema(fields)


def _contains_void(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(map(_contains_void, inner_types(kind)))


def _refused(text: str, error: Unreadable) -> ConfigError:
    return ConfigError(
        f"a schema cannot be read: {error}\n  {text}\n  {' ' * error.at}^", remedy=error.remedy, id="RIFFLE-0206"
    )


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unreadable(f"unexpected {text[at]!r}", at)
        kind = str(match.lastgroup)
        if kind != "space":
            yield _Token(kind, match.group(), at)
        at = match.end()
    yield _Token("end", "", len(text))


class _Reader:
    """Reads one text from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def columns(self) -> list[pa.Field]:
        """Read columns up to the end."""
        return self._whole(self._columns)

    def only_type(self) -> pa.DataType:
        """Read one type up to the end."""
        return self._whole(self._type)

    def _whole(self, read: Callable[[], _Read]) -> _Read:
        try:
            found = read()
        except RecursionError:
            raise Unreadable("types are nested too deep", self._next.start) from None
        self._end()
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> bool:
        """Take the next token if it is one of these signs or words."""
        is_next = self._next.kind in ("sign", "word") and self._next.text.lower() in texts
        self._at += is_next
        return is_next

    def _need(self, *texts: str) -> None:
        for text in texts:
            if not self._take(text):
                raise self._unreadable(repr(text))

    def _end(self) -> None:
        if self._next.kind != "end":
            raise self._unreadable("',' or the end")

    def _unreadable(self, wanted: str) -> Unreadable:
        found = repr(self._next.text) if self._next.text else "the end"
        return Unreadable(f"{found} where {wanted} should be", self._next.start)

    def _columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        """Read ``name [:] type [NOT NULL] [COMMENT '...']``."""
        name = self._name()
        self._take(":")
        kind = self._type()
        nullable = not self._take("not")
        if not nullable:
            self._need("null")
        if self._take("comment"):
            if self._next.kind != "string":
                raise self._unreadable("a quoted comment")
            self._at += 1
        if not nullable and pa.types.is_null(kind):
            raise self._unreadable("a value, in a column that has none,")
        return pa.field(name, kind, nullable=nullable)

    def _name(self) -> str:
        kind, text, _ = self._next
        if kind == "quoted" and text != "``":
            text = text[1:-1].replace("``", "`")
        elif kind != "word" or _LITERAL.fullmatch(text):
            raise self._unreadable("a name")
        self._at += 1
        return text

    def _type(self) -> pa.DataType:
        kind, text, start = self._next
        word = text.lower()
        if kind != "word":
            raise self._unreadable("a type")
        self._at += 1
        if word in _DECIMALS:
            return self._decimal(start)
        if word in _TEXTS:
            self._need("(")
            length = self._number()
            self._need(")")
            raise _not_kept(f"{word}({length})", start)
        if word == "interval":
            return self._interval(start)
        if word in ("array", "map", "struct") and self._take("<"):
            return self._nested(word)
        if word == "string" and self._take("collate"):
            raise _not_kept(f"string collate {self._name()}", start)
        if word not in SIMPLE:
            raise _not_kept(text, start)
        return SIMPLE[word]

    def _decimal(self, at: int) -> pa.DataType:
        digits: list[int] = []
        if self._take("("):
            digits.append(self._number())
            while self._take(","):
                digits.append(self._number())
            self._need(")")
        try:
            return decimal_of(*digits)
        except ValueError as error:
            raise Unreadable(str(error), at) from error

    def _number(self) -> int:
        if self._next.kind != "number":
            raise self._unreadable("a number")
        self._at += 1
        return int(self._tokens[self._at - 1].text)

    def _interval(self, at: int) -> pa.DataType:
        units = [self._next.text.lower()]
        if not self._take(*_DAY_TO_SECOND):
            raise _not_kept(f"interval {units[0]}" if units[0] in _YEAR_TO_MONTH else "interval", at)
        if self._take("to"):
            units.append(self._next.text.lower())
            if not self._take(*_DAY_TO_SECOND) or _DAY_TO_SECOND.index(units[0]) >= _DAY_TO_SECOND.index(units[1]):
                raise Unreadable(f"an interval cannot be {' to '.join(units)}", at)
        return INTERVAL

    def _nested(self, word: str) -> pa.DataType:
        """Read what follows ``array<``, ``map<`` or ``struct<``."""
        if word == "struct":
            fields = [] if self._next.text == ">" else self._columns()
            self._need(">")
            return pa.struct(fields)
        key = self._type()
        if word == "map":
            if pa.types.is_null(key):
                raise self._unreadable("a type of keys")
            self._need(",")
            key = map_of(key, self._type())
        self._need(">")
        return list_of(key) if word == "array" else key


def schema_of_json(text: str) -> pa.Schema:
    """Return the schema of a ``StructType``'s JSON; that of another type becomes one column named ``value``.

    Raises ``ConfigError`` for what cannot be read, and for what cannot be kept.
    """
    try:
        body = json.loads(text)
        fields = (
            body["fields"] if isinstance(body, dict) and body["type"] == "struct" else [{"name": BARE, "type": body}]
        )
        check_columns(fields, "declared")
        kind = _type_of(body)
    except UNREADABLE as error:
        raise ConfigError(
            f"a schema cannot be read: {error}",
            remedy="give a StructType of types that can be kept",
            where=text[:200],
            id="RIFFLE-0207",
        ) from error
    return schema_of_fields(list(kind) if pa.types.is_struct(kind) else [pa.field(BARE, kind)], text)


def _type_of(body: object) -> pa.DataType:
    if isinstance(body, str):
        return type_of_ddl(body)
    if not isinstance(body, dict):
        raise TypeError(f"{body!r} is not a type")
    if body["type"] == "array":
        return list_of(_type_of(body["elementType"]), nullable=body["containsNull"])
    if body["type"] == "map":
        key, value = _type_of(body["keyType"]), _type_of(body["valueType"])
        return map_of(key, value, nullable=body["valueContainsNull"])
    if body["type"] != "struct":
        raise TypeError(f"{body['type']!r} is not a type that can be kept")
    return pa.struct([_field_of(field) for field in body["fields"]])


def _field_of(body: dict[str, object]) -> pa.Field:
    return pa.field(str(body["name"]), _type_of(body["type"]), nullable=bool(body["nullable"]))


def decimal_of(*digits: int) -> pa.DataType:
    """Return the decimal of this precision and scale, which have defaults; ``ValueError`` if there is none."""
    precision, scale = (*digits, *_DEFAULT_DECIMAL[len(digits) :])[:2]
    if len(digits) > len(_DEFAULT_DECIMAL) or not 0 < precision <= _PRECISION_MAX or scale > precision:
        raise ValueError(f"a decimal cannot be of {', '.join(map(str, digits))} digits")
    return pa.decimal128(precision, scale)


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of arrays of such elements."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of maps of such keys and values."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable))
