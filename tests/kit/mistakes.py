"""A mistake of a new user, and the same with the remedy of its error applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import pytest
from pyspark.errors import StreamingQueryException

from riffle_spark.errors import RiffleError

__all__ = ["Mistake", "check_remedy"]

Place = TypeVar("Place")


class Mistake(NamedTuple, Generic[Place]):
    """``act`` makes the mistake when called with ``False``, and follows the remedy when called with ``True``.

    ``says`` is in the problem of the error, ``remedy`` in its remedy.
    """

    says: str
    remedy: str
    act: Callable[[Place, bool], object]


def check_remedy(mistake: Mistake[Place], place: Place, other_place: Place) -> None:
    """Assert that a mistake is refused with its words, and that following the remedy ends the error.

    The mistake is made in one place and mended in ``other``: the same one where its state matters.
    """
    with pytest.raises((RiffleError, StreamingQueryException)) as refused:
        mistake.act(place, False)
    message = str(refused.value)
    problem, separator, remedy = message.partition("What to do: ")
    assert separator, message
    assert mistake.says in problem
    assert mistake.remedy in remedy
    mistake.act(other_place, True)
