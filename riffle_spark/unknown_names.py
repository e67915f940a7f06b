"""Errors for unknown names, with the nearest known name."""

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from riffle_spark.errors import ConfigError

_SIMILARITY_MIN: Final = 0.6
_LISTED_MAX: Final = 12


def nearest(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that is most similar to ``name``, or '' if no name is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(known_names), n=1, cutoff=_SIMILARITY_MIN)), "")


def unknown(kind: str, name: object, known_names: Iterable[str], *, source: str, where: str = "") -> ConfigError:
    """Return the error for a name that is not among ``known_names``, with the nearest known name.

    ``kind`` is the kind of object that the name stands for, such as ``task``. ``source`` is the place to correct it.
    """
    similar = nearest(str(name), known_names)
    if similar:
        remedy = f"Did you mean {similar!r}? Correct it in {source}."
    else:
        remedy = f"Remove it from {source}."
        if 0 < len(names := sorted(known_names)) <= _LISTED_MAX:
            remedy += f" Known names: {', '.join(names)}."
    return ConfigError(f"Unknown {kind} {name!r}.", remedy=remedy, where=where or str(name), id="RIFFLE-0480")


def check_known(
    kind: str, names: Iterable[object], known_names: Collection[str], *, source: str, where: str = ""
) -> None:
    """Raise ``ConfigError`` for the first of ``names`` that is not among ``known_names``.

    ``kind`` is the kind of object that the names stand for, such as ``task``. ``source`` is the place to correct them.
    """
    for name in names:
        if name not in known_names:
            raise unknown(kind, name, known_names, source=source, where=where)
