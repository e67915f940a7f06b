"""Words of file and class names that the glossary does not know."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.imports import Product

__all__ = ["glossary_words", "unknown_names", "words_of"]

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_LISTED = re.compile(r"^\|([^|]+)\|", re.MULTILINE)


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake or camel case, in small letters and one number.

    >>> words_of("LiveMembers"), words_of("key_codec"), words_of("copies")
    (['live', 'member'], ['key', 'codec'], ['copy'])
    """
    return [_one(part.lower()) for part in _PARTS.findall(name)]


def _one(word: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("s", "")):
        if word.endswith(ending) and not word.endswith(("ss", "us", "is")) and len(word) > len(ending) + 1:
            return word.removesuffix(ending) + instead
    return word


def glossary_words(page: Path) -> set[str]:
    """Return all words that stand in the first column of the glossary's tables."""
    listed = " ".join(_LISTED.findall(page.read_text()))
    return {word for part in re.findall(r"[A-Za-z0-9]+", listed) for word in words_of(part)}


def unknown_names(product: Product, known: set[str]) -> dict[str, list[str]]:
    """Return the names of files, rooms and public classes with a word that is in no glossary, and these words."""
    found = {name: sorted(set(words_of(name.rpartition(".")[2])) - known) for name in _names(product)}
    return {name: words for name, words in found.items() if words}


def _names(product: Product) -> Iterator[str]:
    yield from (room for room in product.rooms if room)
    for name, module in product.modules.items():
        yield name
        classes = (node.name for node in module.tree.body if isinstance(node, ast.ClassDef))
        yield from (f"{name}.{one}" for one in classes if not one.startswith("_"))
