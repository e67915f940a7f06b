"""Keys that a user's function fails on, where their rows are to become dead letters: all have their turn first, so that
one more run is enough. Knows what was raised. Does not know rows, or what becomes of them.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from riffle_spark.errors import RiffleError, UserFunctionError

__all__ = ["Collects", "FailedKeys", "Failure"]

Collects: TypeAlias = Callable[[Exception], bool]
"""Tells of an error whether it may be some rows' fault: then the other keys have their turn."""
_FRAMES: Final = 3
_CHARACTERS_MAX: Final = 2_000


class Failure(NamedTuple):
    """What a function raised, as texts: its class, what it says, and where that was, the innermost frames."""

    error: str
    message: str
    traceback: str

    @staticmethod
    def of(error: BaseException) -> "Failure":
        """Return it without the error itself, which would hold all that its frames do."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            message = str(error)
        except Exception:  # noqa: BLE001 - a user's class may do anything there
            message = "it cannot be told"
        frames = "".join(traceback.format_tb(error.__traceback__, -_FRAMES))
        return Failure(name, _text(message[:_CHARACTERS_MAX]), sys.intern(_text(frames[-_CHARACTERS_MAX:])))


def _text(text: str) -> str:
    """Return what can be written, whatever is in it."""
    return text.encode("utf-8", "replace").decode()


class FailedKeys(UserFunctionError):
    """Says what each key failed with, by its number. Without any, what all did together cannot be had, as where their
    output does not fit its columns, and nobody knows yet whose it is.
    """

    def __init__(self, first: RiffleError, by_key: Mapping[int, Failure]) -> None:
        super().__init__(first.problem, remedy=first.remedy, where=first.where, id=first.id)
        self.by_key = by_key
