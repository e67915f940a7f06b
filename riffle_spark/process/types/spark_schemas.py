"""Arrow schemas from Spark's DDL and JSON, parsed without a JVM."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.process.types.kept_types import check_columns, find_type_remedy, void_error
from riffle_spark.state.formats.arrow_schemas import inner_types

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


def _unsupported_type_error(name: str, position: int) -> Unreadable:
    remedy = find_type_remedy(name, "value", "declared")
    return Unreadable(f"type {name!r} is not supported", position, remedy or _REMEDY)


class _Token(NamedTuple):
    """A token of a DDL text: its kind (such as ``word``), its text, and its position."""

    kind: str
    text: str
    start: int


def schema_of_ddl(text: str) -> pa.Schema:
    """Return the schema of a DDL text: columns, or a single type, which becomes a column named ``value``.

    The fields of a single struct type become the columns. Raises ``ConfigError`` with the position of the problem.
    """
    try:
        return schema_of_fields(_Parser(text).parse_columns(), text)
    except Unreadable as error:
        try:
            kind = type_of_ddl(text)
        except Unreadable as other:
            raise _syntax_error(text, max(error, other, key=lambda unreadable: unreadable.position)) from None
    return schema_of_fields(list(kind) if pa.types.is_struct(kind) else [pa.field(BARE, kind)], text)


def type_of_ddl(text: str) -> pa.DataType:
    """Return the type of a DDL text. Raises ``Unreadable`` if it is not a supported type."""
    return _Parser(text).parse_single_type()


def schema_of_fields(fields: list[pa.Field], where: str) -> pa.Schema:
    """Return the fields as a schema.

    ``where`` is the DDL text for errors. Raises ``ConfigError`` for no field, repeated names, or void in a nested type.
    """
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
                raise void_error(field.name, where[:200])
    return pa.schema(fields)


def _contains_void(kind: pa.DataType) -> bool:
    """Return whether a type is void or contains void."""
    return pa.types.is_null(kind) or any(map(_contains_void, inner_types(kind)))


def _syntax_error(text: str, error: Unreadable) -> ConfigError:
    """Return the error for a DDL text that cannot be parsed, with a pointer to the position."""
    pointer = " " * error.position + "^"
    return ConfigError(
        f"Cannot parse the schema: {error}\n  {text}\n  {pointer}",
        remedy=f"Correct the schema. {error.remedy}",
        id="RIFFLE-0206",
    )


def _tokenize(text: str) -> Iterator[_Token]:
    """Yield the tokens of a DDL text, then an end token. Raises ``Unreadable`` for an unexpected character."""
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
    """A recursive-descent parser of a DDL text.

    Its methods raise ``Unreadable`` for syntax errors and unsupported types.
    """

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokenize(text))
        self._index = 0

    def parse_columns(self) -> list[pa.Field]:
        """Parse the whole text as a list of columns."""
        return self._parse_all(self._parse_columns)

    def parse_single_type(self) -> pa.DataType:
        """Parse the whole text as one type."""
        return self._parse_all(self._parse_type)

    def _parse_all(self, parse: Callable[[], _Result]) -> _Result:
        """Parse with ``parse``, and check that no text is left."""
        try:
            result = parse()
        except RecursionError:
            raise Unreadable("types are nested too deeply", self._next.start) from None
        if self._next.kind != "end":
            raise self._unexpected_error("',' or the end")
        return result

    @property
    def _next(self) -> _Token:
        """The next token, which is not consumed yet."""
        return self._tokens[self._index]

    def _take_if(self, *texts: str) -> bool:
        """Consume the next token if it is one of these signs or words. Return whether it was consumed."""
        is_next = self._next.kind in ("sign", "word") and self._next.text.lower() in texts
        self._index += is_next
        return is_next

    def _expect(self, text: str) -> None:
        """Consume the next token. Raises ``Unreadable`` unless it is this sign or word."""
        if not self._take_if(text):
            raise self._unexpected_error(repr(text))

    def _unexpected_error(self, expected: str) -> Unreadable:
        """Return the error for a next token that is not what ``expected`` describes."""
        actual = repr(self._next.text) if self._next.text else "the end"
        return Unreadable(f"expected {expected}, got {actual}", self._next.start)

    def _parse_columns(self) -> list[pa.Field]:
        """Parse columns that are separated by commas."""
        fields = [self._parse_column()]
        while self._take_if(","):
            fields.append(self._parse_column())
        return fields

    def _parse_column(self) -> pa.Field:
        """Parse ``name [:] type [NOT NULL] [COMMENT '...']``."""
        name = self._parse_name()
        self._take_if(":")
        kind = self._parse_type()
        nullable = not self._take_if("not")
        if not nullable:
            self._expect("null")
        if self._take_if("comment"):
            if self._next.kind != "string":
                raise self._unexpected_error("a quoted comment")
            self._index += 1
        if not nullable and pa.types.is_null(kind):
            raise self._unexpected_error("a nullable column of type void")
        return pa.field(name, kind, nullable=nullable)

    def _parse_name(self) -> str:
        """Parse the name of a column, with or without backquotes."""
        kind, text, _ = self._next
        if kind == "quoted" and text != "``":
            text = text[1:-1].replace("``", "`")
        elif kind != "word" or _LITERAL.fullmatch(text):
            raise self._unexpected_error("a name")
        self._index += 1
        return text

    def _parse_type(self) -> pa.DataType:
        kind, text, start = self._next
        word = text.lower()
        if kind != "word":
            raise self._unexpected_error("a type")
        self._index += 1
        if word in _DECIMALS:
            return self._parse_decimal(start)
        if word in _TEXTS:
            self._expect("(")
            length = self._parse_number()
            self._expect(")")
            raise _unsupported_type_error(f"{word}({length})", start)
        if word == "interval":
            return self._parse_interval(start)
        if word in ("array", "map", "struct") and self._take_if("<"):
            return self._parse_nested(word)
        if word == "string" and self._take_if("collate"):
            raise _unsupported_type_error(f"string collate {self._parse_name()}", start)
        if word not in SIMPLE:
            raise _unsupported_type_error(text, start)
        return SIMPLE[word]

    def _parse_decimal(self, start: int) -> pa.DataType:
        """Parse the rest of a decimal type, which starts at ``start``: nothing, or precision and scale in brackets."""
        digits: list[int] = []
        if self._take_if("("):
            digits.append(self._parse_number())
            while self._take_if(","):
                digits.append(self._parse_number())
            self._expect(")")
        try:
            return make_decimal_type(*digits)
        except ValueError as error:
            raise Unreadable(str(error), start) from error

    def _parse_number(self) -> int:
        if self._next.kind != "number":
            raise self._unexpected_error("a number")
        self._index += 1
        return int(self._tokens[self._index - 1].text)

    def _parse_interval(self, start: int) -> pa.DataType:
        """Parse the rest of an interval type, which starts at ``start``. Only day-time intervals are supported."""
        units = [self._next.text.lower()]
        if not self._take_if(*_DAY_TO_SECOND):
            raise _unsupported_type_error(f"interval {units[0]}" if units[0] in _YEAR_TO_MONTH else "interval", start)
        if self._take_if("to"):
            units.append(self._next.text.lower())
            if not self._take_if(*_DAY_TO_SECOND) or _DAY_TO_SECOND.index(units[0]) >= _DAY_TO_SECOND.index(units[1]):
                raise Unreadable(f"interval {' to '.join(units)} is not valid", start)
        return INTERVAL

    def _parse_nested(self, word: str) -> pa.DataType:
        """Parse the rest of a type after ``array<``, ``map<`` or ``struct<``."""
        if word == "struct":
            fields = [] if self._next.text == ">" else self._parse_columns()
            self._expect(">")
            return pa.struct(fields)
        key = self._parse_type()
        if word == "map":
            if pa.types.is_null(key):
                raise self._unexpected_error("a type of keys")
            self._expect(",")
            key = make_map_type(key, self._parse_type())
        self._expect(">")
        return make_list_type(key) if word == "array" else key


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
    """Return the type in Spark's JSON. Raises ``TypeError`` or ``Unreadable`` if it is not supported."""
    if isinstance(body, str):
        return type_of_ddl(body)
    if not isinstance(body, dict):
        raise TypeError(f"{body!r} is not a type")
    if body["type"] == "array":
        return make_list_type(_type_of(body["elementType"]), nullable=body["containsNull"])
    if body["type"] == "map":
        return make_map_type(_type_of(body["keyType"]), _type_of(body["valueType"]), nullable=body["valueContainsNull"])
    if body["type"] != "struct":
        raise TypeError(f"type {body['type']!r} is not supported")
    fields = body["fields"]
    return pa.struct([pa.field(str(f["name"]), _type_of(f["type"]), nullable=bool(f["nullable"])) for f in fields])


def make_decimal_type(*digits: int) -> pa.DataType:
    """Return the decimal type with ``digits``: precision and scale, by default (10, 0).

    Raises ``ValueError`` if they are not valid.
    """
    precision, scale = (*digits, *_DEFAULT_DECIMAL[len(digits) :])[:2]
    if len(digits) > len(_DEFAULT_DECIMAL) or not 0 < precision <= _PRECISION_MAX or scale > precision:
        raise ValueError(f"decimal({', '.join(map(str, digits))}) is not valid")
    return pa.decimal128(precision, scale)


def make_list_type(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the array type with elements of a type. ``nullable``: whether elements may be null."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def make_map_type(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the map type of a key and a value type. ``nullable``: whether values may be null."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable))
