"""Mistakes of new users, and the same code after the remedy of the error was applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import pytest
from pyspark.errors import StreamingQueryException

from riffle_spark.errors import RiffleError

__all__ = ["Mistake", "check_remedy"]

Place = TypeVar("Place")


@dataclass(frozen=True)
class Mistake(Generic[Place]):
    """A mistake of a user: ``act(False)`` makes it, and ``act(True)`` follows the remedy of its error ``id``."""

    id: str
    act: Callable[[Place, bool], object]


def check_remedy(mistake: Mistake[Place], place: Place, other_place: Place) -> None:
    """Assert that a mistake raises the error with its id, and that code that follows the remedy succeeds.

    The remedy is followed in ``other_place``. It is the same place as that of the mistake if the state there matters.
    """
    with pytest.raises((RiffleError, StreamingQueryException)) as refused:
        mistake.act(place, False)
    message = str(refused.value)
    assert f"[{mistake.id}]" in message
    assert "What to do: " in message
    mistake.act(other_place, True)
