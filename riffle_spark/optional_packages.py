"""Checks for optional packages before a query starts."""

from importlib import import_module

from riffle_spark.errors import ConfigError


def check_importable(module: str, needed_by: str, requirement: str, alternative: str = "", where: str = "") -> None:
    """Raise ``ConfigError`` if a module of an optional package cannot be imported.

    ``needed_by`` is the feature that needs it, ``requirement`` the package for pip, and ``alternative`` the end of the
    remedy: where to install it, or what to do instead.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{needed_by} needs {module}, which cannot be imported: {error}.",
            remedy=f"Run pip install '{requirement}'{alternative}.",
            where=where,
            id="RIFFLE-0162",
        ) from error
