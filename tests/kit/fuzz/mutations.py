"""Mutations of real encodings: bit flips, truncations, splices, inserted lengths, parts of other kinds, other JSON."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence

__all__ = ["mutated", "varied"]

_NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**63 - 1, 2**63, -(2**63), 10**30)
_TEXTS = (
    "",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a\0b",
    "é²٣",
    "x" * 5000,
    "1" * 5000,
    "1-" + "0" * 32,
    "{:999999999}",
    "{0.__class__}",
)
_SCRAPS = (
    b"",
    b"\0",
    b"\n",
    b"{}",
    b"[]",
    b"null",
    b"[" * 5000,
    b'{"a":' * 3000,
    b"\xff" * 16,
    b"-1",
    b"1e999",
    b"NaN",
)
Chance = random.Random


_SEALED = 0.8
"""The share of guided inputs that get a right checksum. Without one, the code after the check is never reached."""


def mutated(chance: Chance, seeds: Sequence[bytes], other_seeds: Sequence[bytes]) -> bytes:
    """Return a mutation of one of ``seeds``. ``other_seeds`` are encodings of other kinds."""
    return _mutated(chance, chance.choice(seeds), seeds, other_seeds)


def varied(
    chance: Chance,
    data: bytes,
    kinds: tuple[Sequence[bytes], Sequence[bytes]],
    bits: Callable[[bytes], bytes],
    sealed: Callable[[bytes], bytes],
) -> bytes:
    """Return a mutation, mostly of ``data``, which had new coverage.

    ``kinds`` are ``seeds`` and ``other_seeds`` of ``mutated``. ``bits`` is the byte mutation of libFuzzer, which uses
    the comparisons that it saw. ``sealed`` adds the right checksum.
    """
    way = chance.random()
    if way < 0.4:
        flipped = bits(data)
    elif way < 0.8:
        flipped = _mutated(chance, data, *kinds)
    else:
        flipped = mutated(chance, *kinds)
    return sealed(flipped) if chance.random() < _SEALED else flipped


def _mutated(chance: Chance, data: bytes, seeds: Sequence[bytes], other_seeds: Sequence[bytes]) -> bytes:
    if chance.random() < 0.4 and (changed := _other_json(chance, data, seeds)) is not None:
        return changed
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        data = chance.choice(_WAYS)(chance, data, other_seeds if chance.random() < 0.2 else seeds)
    return data


def _place(chance: Chance, data: bytes) -> int:
    return chance.randrange(len(data) + 1) if chance.random() < 0.6 else chance.randrange(min(len(data), 400) + 1)


def _flipped(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    if not data:
        return data
    position = min(_place(chance, data), len(data) - 1)
    return data[:position] + bytes([data[position] ^ (1 << chance.randrange(8))]) + data[position + 1 :]


def _overwritten(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    position = _place(chance, data)
    scrap = chance.randbytes(chance.randrange(1, 9))
    return data[:position] + scrap + data[position + len(scrap) :]


def _number(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    """Overwrite bytes with a number that may be read as a length, count or offset, mostly at an aligned position."""
    layout, width = chance.choice((("<q", 8), ("<i", 4), ("<h", 2)))
    position = _place(chance, data)
    position -= position % width if chance.random() < 0.7 else 0
    number = chance.choice(_NUMBERS) + chance.choice((0, 0, 1, -1, 8))
    wrapped = (number + (1 << (8 * width - 1))) % (1 << (8 * width)) - (1 << (8 * width - 1))
    return data[:position] + struct.pack(layout, wrapped) + data[position + width :]


def _truncated(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: _place(chance, data)]


def _cut_out(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((_place(chance, data), _place(chance, data)))
    return data[:start] + data[end:]


def _repeated(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((_place(chance, data), _place(chance, data)))
    return data[:end] + data[start:end] * chance.choice((1, 2, 30)) + data[end:] if end - start < 2000 else data


def _spliced(chance: Chance, data: bytes, other_seeds: Sequence[bytes]) -> bytes:
    other_seed = chance.choice(other_seeds)
    return data[: _place(chance, data)] + other_seed[_place(chance, other_seed) :]


def _swapped(chance: Chance, _: bytes, other_seeds: Sequence[bytes]) -> bytes:
    return chance.choice(other_seeds)


def _scrap(chance: Chance, data: bytes, _: Sequence[bytes]) -> bytes:
    position = _place(chance, data)
    return data[:position] + chance.choice(_SCRAPS) + data[position:]


_WAYS: tuple[Callable[[Chance, bytes, Sequence[bytes]], bytes], ...] = (
    _flipped,
    _flipped,
    _overwritten,
    _number,
    _number,
    _truncated,
    _cut_out,
    _repeated,
    _spliced,
    _swapped,
    _scrap,
)


def _other_json(chance: Chance, data: bytes, seeds: Sequence[bytes]) -> bytes | None:
    """Return lines of JSON with some values replaced, or ``None`` if the drawn line is not JSON."""
    lines = data.split(b"\n")
    index = chance.randrange(len(lines))
    try:
        body = json.loads(lines[index])
        parsed = json.loads(chance.choice(seeds).split(b"\n")[0])
        for _ in range(chance.choice((1, 1, 2, 4))):
            body = _changed(chance, body, parsed)
        lines[index] = json.dumps(body).encode(errors="surrogatepass")
    except (ValueError, RecursionError):  # some scraps are nested too deeply
        return None
    return b"\n".join(lines)


def _changed(chance: Chance, body: object, donor: object) -> object:
    """Return a JSON tree with one changed node at any depth."""
    inner = isinstance(body, dict | list) and len(body) > 0 and chance.random() < 0.85
    if isinstance(body, dict) and inner:
        name = chance.choice(list(body))
        if chance.random() < 0.15:
            return _renamed(chance, body, name)
        return {**body, name: _changed(chance, body[name], donor)}
    if isinstance(body, list) and inner:
        index = chance.randrange(len(body))
        if chance.random() < 0.2:
            return chance.choice((body[:index], [*body, body[index]], body[index:], body[:index] + body[index + 1 :]))
        return [*body[:index], _changed(chance, body[index], donor), *body[index + 1 :]]
    return _value(chance, body, donor)


def _renamed(chance: Chance, body: dict[str, object], name: str) -> dict[str, object]:
    rest = {key: value for key, value in body.items() if key != name}
    return rest if chance.random() < 0.5 else {**rest, chance.choice((*_TEXTS, "later", name + "x")): body[name]}


def _value(chance: Chance, body: object, donor: object) -> object:
    if isinstance(body, bool | float) or body is None:
        return chance.choice((None, True, False, 1.5, float("inf"), float("nan"), [], {}, "x", 3))
    if isinstance(body, int) and chance.random() < 0.7:
        return chance.choice(_NUMBERS)
    if isinstance(body, str) and chance.random() < 0.7:
        return chance.choice(_TEXTS) if chance.random() < 0.6 or not body else body[: chance.randrange(len(body))]
    return chance.choice(
        (None, True, chance.choice(_NUMBERS), chance.choice(_TEXTS), [], [body], {}, {"x": body}, donor, 1e400)
    )
