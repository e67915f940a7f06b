"""Checks for optional packages before a query starts."""

from importlib import import_module

from riffle_spark.errors import ConfigError

__all__ = ["check_importable"]


def check_importable(module: str, needed_by: str, remedy: str, where: str = "") -> None:
    """Import a module of an optional package. If that fails, raises ``ConfigError`` with the feature that needs it."""
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{needed_by} needs {module}, which cannot be imported: {error}.",
            remedy=remedy,
            where=where,
            id="RIFFLE-0162",
        ) from error
