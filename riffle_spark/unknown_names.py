"""Names that somebody wrote and that there are not. Knows how to find the nearest one. Does not know what is named."""

import difflib
from collections.abc import Collection, Iterable
from typing import Final

from riffle_spark.errors import ConfigError

__all__ = ["check_known", "nearest", "unknown"]

_NEAR: Final = 0.6
"""How alike two names are, from 0 to 1, if one may have been meant by the other."""
_FEW: Final = 12


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was most likely meant, '' if none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)), "")


def unknown(what: str, name: object, known: Iterable[str], *, source: str, where: str = "") -> ConfigError:
    """Return the error for a name that is not among ``known``; ``source`` says where to correct it."""
    names = sorted(known)
    near, others = nearest(str(name), names), f", or say one of {', '.join(names)}" if 0 < len(names) <= _FEW else ""
    meant = f"did you mean {near!r}? Correct it in {source}" if near else f"leave it out of {source}{others}"
    return ConfigError(f"there is no {what} {name!r}", remedy=meant, where=where or str(name), id="RIFFLE-0480")


def check_known(what: str, given: Iterable[object], known: Collection[str], *, source: str, where: str = "") -> None:
    """Raise ``ConfigError`` for the first name given that is not among ``known``."""
    for name in given:
        if name not in known:
            raise unknown(what, name, known, source=source, where=where)
