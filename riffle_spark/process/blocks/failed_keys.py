"""Errors of a user function for single keys. They are collected, so a single repeated run finds all dead letters."""

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from riffle_spark.errors import RiffleError, UserFunctionError

Collects: TypeAlias = Callable[[Exception], bool]
"""Returns whether rows may have caused an error. If so, the other keys are processed too."""
_FRAMES: Final = 3
_CHARACTERS_MAX: Final = 2_000


class Failure(NamedTuple):
    """An exception as text: its class, its message and its innermost frames."""

    error: str
    message: str
    traceback: str

    @staticmethod
    def of(error: BaseException) -> "Failure":
        """Return an exception as text, so that its frames can be freed."""
        cls = type(error)
        name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - the class of a user may raise anything
            message = "(str() of the error failed)"
        frames = "".join(traceback.format_tb(error.__traceback__, -_FRAMES))
        return Failure(
            name,
            _replace_unencodable(message[:_CHARACTERS_MAX]),
            sys.intern(_replace_unencodable(frames[-_CHARACTERS_MAX:])),
        )


def _replace_unencodable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode replaced by escapes."""
    return text.encode("utf-8", "replace").decode()


class FailedKeys(UserFunctionError):
    """The failures of single keys. ``by_key`` maps the number of a key to its failure.

    ``by_key`` is empty if the failing key is unknown, for example if the output of all keys does not fit its columns.
    """

    def __init__(self, first_error: RiffleError, by_key: Mapping[int, Failure]) -> None:
        super().__init__(first_error.problem, remedy=first_error.remedy, where=first_error.where, id=first_error.id)
        self.by_key = by_key
