"""A mistake of a new user, and the same with the remedy of its error applied."""

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
    """``act`` makes the mistake when called with ``False``, and follows the remedy when called with ``True``.

    ``id`` is the id of its error.
    """

    id: str
    act: Callable[[Place, bool], object]


def check_remedy(mistake: Mistake[Place], place: Place, other_place: Place) -> None:
    """Assert that a mistake is refused by its id, and that following the remedy ends the error.

    The remedy is followed in ``other_place``, which is the same place if its state matters.
    """
    with pytest.raises((RiffleError, StreamingQueryException)) as refused:
        mistake.act(place, False)
    message = str(refused.value)
    assert f"[{mistake.id}]" in message
    assert "What to do: " in message
    mistake.act(other_place, True)
