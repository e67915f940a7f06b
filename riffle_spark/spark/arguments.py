"""What users hand over when they make an operator. Knows its shape. Does not know what is done with it."""

from __future__ import annotations

from collections.abc import Sequence

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings

__all__ = ["check_compute", "check_settings", "column_names", "key_names"]


def column_names(argument: str, given: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names of columns that an argument gives, one or several. Raises ``ConfigError`` for what is none."""
    try:
        names = (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        names = None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{argument} = {given!r} is not allowed: it must be names of columns",
            remedy='give text or a list of texts; what is computed becomes a column first: withColumn("k", ...)',
            where=store,
        )
    return names


def key_names(given: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names of a key's columns. Raises ``ConfigError`` if there is none, or one twice."""
    names = column_names("key", given, store)
    if not names:
        raise ConfigError("an operator needs at least one key column", remedy="name them in `key`", where=store)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"key names column {twice!r} twice", remedy="name it once", where=store)
    return names


def check_compute(given: object, store: str) -> None:
    """Raise ``ConfigError`` for what is no computation, as a plain function."""
    if not callable(getattr(given, "declare", None)):
        raise ConfigError(
            f"compute = {given!r} is no computation",
            remedy="give aggregate(...), or a function of yours as arrow_function(function, state=..., output=...)",
            where=store,
        )


def check_settings(given: object, where: str) -> None:
    """Raise ``ConfigError`` for what is neither ``Settings`` nor nothing."""
    if given is not None and not isinstance(given, Settings):
        raise ConfigError(f"settings = {given!r} is not allowed", remedy="give Settings(root=..., ...)", where=where)
