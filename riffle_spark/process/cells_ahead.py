"""All elements of a variable, key by key, read ahead. Knows how keys follow each other. Does not know lists or maps.

Whoever asks for one key's elements mostly asks for the next key's too. So the more often that came true, the more keys
are read at once, up to a bound in keys and in elements. A key that has more elements than the bound is never held
whole: its elements are read again piece by piece, each time they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise
from typing import Final, Generic, NamedTuple, TypeVar

from riffle_spark.process.cells import Scope
from riffle_spark.state.variable_keys import due_of

__all__ = ["ELEMENTS_MAX", "Ahead", "Found"]

ELEMENTS_MAX: Final = 65_536
KEYS_MAX: Final = 8192
_Element = TypeVar("_Element")


class Found(NamedTuple):
    """Elements as they are stored: whole stored keys, what of them names the element, and values."""

    keys: list[bytes]
    elements: list[bytes]
    values: list[bytes]

    def take(self, stored: Iterator[tuple[bytes, bytes]], prefix_bytes: int, count: int) -> int:
        """Take so many more, or what is left; return how many there are now."""
        pairs = list(islice(stored, count))
        self.keys.extend([key for key, _ in pairs])
        self.elements.extend([key[prefix_bytes:] for key, _ in pairs])
        self.values.extend([value for _, value in pairs])
        return len(self.keys)


class Ahead(Generic[_Element]):
    """Reads elements of a variable. ``decode`` returns one element, or ``None`` for one that is expired, for each that
    it gets.
    """

    def __init__(self, scope: Scope, variable: str, decode: Callable[[Found], Iterable[_Element | None]]) -> None:
        self._scope = scope
        self._variable = variable
        self._decode = decode
        self._known: dict[int, list[_Element]] = {}
        self._keys_at_once = 1
        self._next = 0

    def of(self, number: int) -> Iterable[_Element]:
        """Return the elements of a key, in the order of their stored keys."""
        known = self._known.get(number)
        return known if known is not None else self._read(number)

    def has_any(self, number: int) -> bool:
        """Tell whether the key has an element, without reading them all."""
        if number in self._known:
            return bool(self._known[number])
        scope = self._scope
        stored = scope.reading.under(scope.prefix(self._variable, number))
        return any(not scope.schema.indexed or not scope.is_expired(due_of(value)) for _, value in stored)

    def _read(self, number: int) -> Iterable[_Element]:
        follows = 0 <= number - self._next <= self._keys_at_once
        self._keys_at_once = min(self._keys_at_once * 2, KEYS_MAX) if follows else 1
        found, ends = Found([], [], []), [0]
        for following in range(number, min(number + self._keys_at_once, len(self._scope.group_keys))):
            prefix = self._scope.prefix(self._variable, following)
            stored = self._scope.reading.under(prefix)
            count = found.take(stored, len(prefix), ELEMENTS_MAX + 1 - ends[-1])
            if count > ELEMENTS_MAX:
                break
            ends.append(count)
        if len(ends) == 1:
            return self._pieces(found, stored, len(prefix))
        self._next = number + len(ends) - 1
        self._known = self._cut(number, found, ends)
        return self._known[number]

    def _cut(self, number: int, found: Found, ends: list[int]) -> dict[int, list[_Element]]:
        whole = Found(*(column[: ends[-1]] for column in found))
        elements = list(self._decode(whole)) if whole.keys else []
        spans = enumerate(pairwise(ends), number)
        return {key: [one for one in elements[start:end] if one is not None] for key, (start, end) in spans}

    def _pieces(self, found: Found, rest: Iterator[tuple[bytes, bytes]], prefix_bytes: int) -> Iterator[_Element]:
        while found.keys:
            yield from (element for element in self._decode(found) if element is not None)
            found = Found([], [], [])
            found.take(rest, prefix_bytes, ELEMENTS_MAX)
