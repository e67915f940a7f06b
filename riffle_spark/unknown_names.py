"""Names that somebody wrote and that there are not. Knows how to find the nearest one. Does not know what is named."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Final, ParamSpec, TypeVar

from riffle_spark.errors import ConfigError

__all__ = ["check_known", "checks_keywords", "nearest", "unknown"]

_NEAR: Final = 0.6
"""How alike two names are, from 0 to 1, if one may have been meant by the other."""
_FEW: Final = 12
_P = ParamSpec("_P")
_R = TypeVar("_R")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was most likely meant, '' if none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)), "")


def unknown(what: str, name: object, known: Iterable[str], *, source: str, where: str = "") -> ConfigError:
    """Return the error for a name that is not among ``known``; ``source`` says where to correct it."""
    names = sorted(known)
    near, others = nearest(str(name), names), f", or say one of {', '.join(names)}" if 0 < len(names) <= _FEW else ""
    meant = f"did you mean {near!r}? Correct it in {source}" if near else f"leave it out of {source}{others}"
    return ConfigError(f"there is no {what} {name!r}", remedy=meant, where=where or str(name))


def check_known(what: str, given: Iterable[object], known: Collection[str], *, source: str, where: str = "") -> None:
    """Raise ``ConfigError`` for the first name given that is not among ``known``."""
    for name in given:
        if name not in known:
            raise unknown(what, name, known, source=source, where=where)


def checks_keywords(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function refuse a keyword that it does not have with ``ConfigError`` and the nearest that it has."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]

    @functools.wraps(function)
    def checked(*args: _P.args, **keywords: _P.kwargs) -> _R:
        name = function.__qualname__.removesuffix(".__init__")
        check_known(f"argument of {name}", keywords, known, source="code")
        return function(*args, **keywords)

    return checked
