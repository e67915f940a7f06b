"""Arrow schemas from Spark's DDL and JSON, parsed without a JVM."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.process.types.kept_types import check_columns, refuse_void, remedy_for
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
"""The name of the column if a text is a single type, as in Spark."""

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


_Result = TypeVar("_Result")
_REMEDY: Final = 'Use Spark\'s DDL with supported types, such as "count long, tags array<string>".'


class Unreadable(ValueError):
    """A syntax error or an unsupported type at character ``position`` of a DDL text."""

    def __init__(self, problem: str, position: int, remedy: str = _REMEDY) -> None:
        super().__init__(problem)
        self.position = position
        self.remedy = remedy


def _unsupported(name: str, position: int) -> Unreadable:
    remedy = remedy_for(name, "value", "declared")
    return Unreadable(f"type {name!r} is not supported", position, remedy or _REMEDY)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def schema_of_ddl(text: str) -> pa.Schema:
    """Return the schema of a DDL text: columns, or a single type, as a column named ``value``.

    A single struct is its fields. Raises ``ConfigError`` with the position of the problem.
    """
    try:
        return schema_of_fields(_Parser(text).columns(), text)
    except Unreadable as error:
        try:
            kind = type_of_ddl(text)
        except Unreadable as other:
            raise _schema_error(text, max(error, other, key=lambda unreadable: unreadable.position)) from None
    return schema_of_fields(list(kind) if pa.types.is_struct(kind) else [pa.field(BARE, kind)], text)


def type_of_ddl(text: str) -> pa.DataType:
    """Return the type of a DDL text. Raises ``Unreadable`` if it is not a supported type."""
    return _Parser(text).only_type()


def schema_of_fields(fields: list[pa.Field], where: str) -> pa.Schema:
    """Return the fields as a schema. Raises ``ConfigError`` for no field, repeated names, or void in a nested type."""
    names = [field.name for field in fields]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or not names:
        problem = f"The schema repeats columns: {', '.join(repeated)}." if repeated else "The schema has no column."
        raise ConfigError(
            problem, remedy="Declare at least one column, and each once.", where=where[:200], id="RIFFLE-0205"
        )
    for field in fields:
        for inner in inner_types(field.type):
            if _contains_void(inner):
                raise refuse_void(field.name, where[:200])
    return pa.schema(fields)


def _contains_void(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or any(map(_contains_void, inner_types(kind)))


def _schema_error(text: str, error: Unreadable) -> ConfigError:
    return ConfigError(
        f"Cannot parse the schema: {error}\n  {text}\n  {' ' * error.position}^", remedy=error.remedy, id="RIFFLE-0206"
    )


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unreadable(f"unexpected {text[position]!r}", position)
        kind = str(match.lastgroup)
        if kind != "space":
            yield _Token(kind, match.group(), position)
        position = match.end()
    yield _Token("end", "", len(text))


class _Parser:
    """A recursive-descent parser of a DDL text."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._index = 0

    def columns(self) -> list[pa.Field]:
        """Parse the whole text as columns."""
        return self._whole(self._columns)

    def only_type(self) -> pa.DataType:
        """Parse the whole text as a type."""
        return self._whole(self._type)

    def _whole(self, parse: Callable[[], _Result]) -> _Result:
        """Parse with a method, and check that no text is left."""
        try:
            result = parse()
        except RecursionError:
            raise Unreadable("types are nested too deeply", self._next.start) from None
        if self._next.kind != "end":
            raise self._unexpected("',' or the end")
        return result

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self, *texts: str) -> bool:
        """Consume the next token if it is among the given signs or words."""
        is_next = self._next.kind in ("sign", "word") and self._next.text.lower() in texts
        self._index += is_next
        return is_next

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(repr(text))

    def _unexpected(self, expected: str) -> Unreadable:
        actual = repr(self._next.text) if self._next.text else "the end"
        return Unreadable(f"expected {expected}, got {actual}", self._next.start)

    def _columns(self) -> list[pa.Field]:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        return fields

    def _column(self) -> pa.Field:
        """Parse ``name [:] type [NOT NULL] [COMMENT '...']``."""
        name = self._name()
        self._take(":")
        kind = self._type()
        nullable = not self._take("not")
        if not nullable:
            self._need("null")
        if self._take("comment"):
            if self._next.kind != "string":
                raise self._unexpected("a quoted comment")
            self._index += 1
        if not nullable and pa.types.is_null(kind):
            raise self._unexpected("a nullable column of type void")
        return pa.field(name, kind, nullable=nullable)

    def _name(self) -> str:
        kind, text, _ = self._next
        if kind == "quoted" and text != "``":
            text = text[1:-1].replace("``", "`")
        elif kind != "word" or _LITERAL.fullmatch(text):
            raise self._unexpected("a name")
        self._index += 1
        return text

    def _type(self) -> pa.DataType:
        kind, text, start = self._next
        word = text.lower()
        if kind != "word":
            raise self._unexpected("a type")
        self._index += 1
        if word in _DECIMALS:
            return self._decimal(start)
        if word in _TEXTS:
            self._need("(")
            length = self._number()
            self._need(")")
            raise _unsupported(f"{word}({length})", start)
        if word == "interval":
            return self._interval(start)
        if word in ("array", "map", "struct") and self._take("<"):
            return self._nested(word)
        if word == "string" and self._take("collate"):
            raise _unsupported(f"string collate {self._name()}", start)
        if word not in SIMPLE:
            raise _unsupported(text, start)
        return SIMPLE[word]

    def _decimal(self, start: int) -> pa.DataType:
        digits: list[int] = []
        if self._take("("):
            digits.append(self._number())
            while self._take(","):
                digits.append(self._number())
            self._need(")")
        try:
            return decimal_of(*digits)
        except ValueError as error:
            raise Unreadable(str(error), start) from error

    def _number(self) -> int:
        if self._next.kind != "number":
            raise self._unexpected("a number")
        self._index += 1
        return int(self._tokens[self._index - 1].text)

    def _interval(self, start: int) -> pa.DataType:
        units = [self._next.text.lower()]
        if not self._take(*_DAY_TO_SECOND):
            raise _unsupported(f"interval {units[0]}" if units[0] in _YEAR_TO_MONTH else "interval", start)
        if self._take("to"):
            units.append(self._next.text.lower())
            if not self._take(*_DAY_TO_SECOND) or _DAY_TO_SECOND.index(units[0]) >= _DAY_TO_SECOND.index(units[1]):
                raise Unreadable(f"interval {' to '.join(units)} is not valid", start)
        return INTERVAL

    def _nested(self, word: str) -> pa.DataType:
        """Parse the rest of a type after ``array<``, ``map<`` or ``struct<``."""
        if word == "struct":
            fields = [] if self._next.text == ">" else self._columns()
            self._need(">")
            return pa.struct(fields)
        key = self._type()
        if word == "map":
            if pa.types.is_null(key):
                raise self._unexpected("a type of keys")
            self._need(",")
            key = map_of(key, self._type())
        self._need(">")
        return list_of(key) if word == "array" else key


def schema_of_json(text: str) -> pa.Schema:
    """Return the schema of a ``StructType``'s JSON. Another type becomes a column named ``value``.

    Raises ``ConfigError`` if the text cannot be parsed or state cannot keep a type.
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
            f"Cannot parse the schema: {error}",
            remedy="Pass a StructType with supported types.",
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
        return map_of(_type_of(body["keyType"]), _type_of(body["valueType"]), nullable=body["valueContainsNull"])
    if body["type"] != "struct":
        raise TypeError(f"type {body['type']!r} is not supported")
    return pa.struct([_field_of(field) for field in body["fields"]])


def _field_of(body: dict[str, object]) -> pa.Field:
    return pa.field(str(body["name"]), _type_of(body["type"]), nullable=bool(body["nullable"]))


def decimal_of(*digits: int) -> pa.DataType:
    """Return the decimal of this precision and scale, by default (10, 0). Raises ``ValueError`` if not valid."""
    precision, scale = (*digits, *_DEFAULT_DECIMAL[len(digits) :])[:2]
    if len(digits) > len(_DEFAULT_DECIMAL) or not 0 < precision <= _PRECISION_MAX or scale > precision:
        raise ValueError(f"decimal({', '.join(map(str, digits))}) is not valid")
    return pa.decimal128(precision, scale)


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the array type of elements of a type."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the map type of two types."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable))
