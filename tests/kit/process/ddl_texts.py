"""DDL texts of schemas: some that Spark's parser accepts, some that it refuses, and some that only riffle refuses."""

from __future__ import annotations

import random

SIMPLE = [
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "string", "binary", "void", "decimal", "dec(5)",
    "numeric(38, 38)", "decimal( 10 , 2 )", "DECIMAL(3,0)",
    "interval day", "interval day to hour", "interval day to second", "interval hour to minute", "interval second",
    "INTERVAL DAY TO MINUTE", "interval minute to second",
]  # fmt: skip
NAMES = ["a", "B", "_x", "a1", "1a", "col_2", "`a b`", "`c``d`", "`1`", "select", "comment", "not", "int"]
TAILS = ["", "", "", " not null", " NOT NULL", " comment 'its a, b'", ' NOT NULL COMMENT "x"', " COMMENT 'é\\' )'"]
REFUSED_FIRST = ["a int comment 'it''s'"]
"""Texts that newer versions of Spark accept and that riffle always refuses."""
REFUSED = [
    "a", "a int,", ",a int", "a int b int", "a: int b: int", "a int not", "a int null",
    "a int comment", "a int comment x", "a array<int", "a array<>", "a map<int>", "a map<int,int,int>", "a struct<int>",
    "blabla",
    "a intt", "a decimal(10", "a decimal(39)", "a decimal(0)", "a decimal(5,6)", "a decimal(5,2,1)", "a decimal()",
    "a char", "a varchar", "a void not null", "a map<void,int>",
    "a varchar()", "a char(x)", "a-b int", "a.b int", "é int", "1 int", "1l int", "2.0d int", "a int)", "(a int)",
    "a interval hour to day", "a interval second to second", "a interval week", "a array", "a map", "a int default 5",
    "a int, int", "a int(4)", "a string(4)", "a 'int'", "'a' int", "a `int`", "a array[int]", "a array(int)", "a;b int",
    "a int; b int",
]  # fmt: skip
NOT_KEPT = [
    "a interval", "a interval year", "a interval year to month", "a variant", "a string collate utf8_lcase", "", " ",
    "`` int", "a char(5)", "a character(1)", "a varchar(20)", "a array<char(5)>", "varchar(3)",
]  # fmt: skip
"""Texts that Spark accepts, but whose types Arrow or a column of state does not have."""


def drawn(count: int, seed: int) -> list[str]:
    """Return ``count`` random valid texts from the whole grammar."""
    chance = random.Random(seed)
    return [_columns(chance) for _ in range(count)]


def _columns(chance: random.Random) -> str:
    names = chance.sample(NAMES, chance.randint(1, 4))
    sign = chance.choice([" ", " ", ": ", " :"])
    comma = chance.choice([",", ", ", " ,\n ", ", -- what follows\n", ", /* more */ "])
    return comma.join(f"{name}{sign}{_type(chance, 0)}{chance.choice(TAILS)}" for name in names)


def _type(chance: random.Random, depth: int) -> str:
    if depth == 3 or chance.random() < 0.6:
        return chance.choice(SIMPLE)
    kind = chance.choice(["array", "ARRAY", "map", "struct", "Struct"])
    if kind.lower() == "array":
        return f"{kind}<{_type(chance, depth + 1)}>"
    if kind == "map":
        return f"map<{_type(chance, depth + 1)}, {_type(chance, depth + 1)}>"
    fields = [
        f"f{number}{chance.choice([' ', ':', ': '])}{_type(chance, depth + 1)}{chance.choice(TAILS)}"
        for number in range(chance.randint(0, 3))
    ]
    return f"{kind}<{', '.join(fields)}>"
