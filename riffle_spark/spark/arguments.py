"""Check the arguments of ``Stateful`` and of the functions that take the same ones."""

from collections.abc import Sequence

from riffle_spark.errors import ConfigError
from riffle_spark.settings import Settings
from riffle_spark.state.objects.open import normalised


def column_names(argument: str, columns: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names in an argument for column names, which is one name or several.

    ``argument`` is the name of the argument, ``columns`` its value. Raise ``ConfigError`` for anything but text.
    """
    try:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
    except TypeError:
        names = None
    if names is None or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            f"{argument} is {columns!r}, but must be the name of a column, or a list of names.",
            remedy='Pass text or a list of texts. Make computed columns first: withColumn("k", ...).',
            where=store,
            id="RIFFLE-0377",
        )
    return names


def key_names(columns: str | Sequence[str], store: str) -> tuple[str, ...]:
    """Return the names of the key columns. Raise ``ConfigError`` if there is no name, or a name is repeated."""
    names = column_names("key", columns, store)
    if not names:
        raise ConfigError("The key has no column.", remedy="Name at least one column.", where=store, id="RIFFLE-0378")
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigError(
            f"The key has column {duplicate!r} twice.", remedy="Name it once.", where=store, id="RIFFLE-0379"
        )
    return names


def check_compute(compute: object, store: str) -> None:
    """Raise ``ConfigError`` unless ``compute`` is a computation. A plain function is not."""
    if not callable(getattr(compute, "declare", None)):
        raise ConfigError(
            f"compute = {compute!r} is not a computation.",
            remedy="Pass aggregate(...), or arrow_function(function, state=..., output=...) for your own function.",
            where=store,
            id="RIFFLE-0380",
        )


def check_settings(settings: object, where: str) -> None:
    """Raise ``ConfigError`` unless ``settings`` is ``None``, or ``Settings`` with a valid root or none.

    ``where`` is the place in the error.
    """
    if settings is None:
        return
    if not isinstance(settings, Settings):
        raise ConfigError(
            f"settings = {settings!r} is not a Settings object.",
            remedy="Pass Settings(root=..., ...).",
            where=where,
            id="RIFFLE-0381",
        )
    if settings.root:
        normalised(settings.root)
