"""Wrong arguments of an operator are refused in the call, with the name of the argument. These tests start no Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from riffle_spark import Settings, Stateful, aggregate, count, together
from riffle_spark.errors import ConfigError

COUNTS: Any = aggregate(n=count())


class NoText:
    """A stand-in for a Spark column: it is not text, and iterating over it fails."""

    def __iter__(self) -> None:
        raise TypeError("Column is not iterable.")


FAULTS: list[tuple[Callable[[], object], str]] = [
    (lambda: Stateful("t", NoText(), COUNTS), "RIFFLE-0377.*key"),  # type: ignore[arg-type]
    (lambda: Stateful("t", [NoText()], COUNTS), "RIFFLE-0377.*key"),  # type: ignore[list-item]
    (lambda: Stateful("t", "k", COUNTS, order_by=3), "RIFFLE-0377.*order_by is 3"),  # type: ignore[arg-type]
    (lambda: Stateful("t", ["k", "j", "k"], COUNTS), "RIFFLE-0379.*'k'"),
    (lambda: Stateful("t", "k", print), "compute = .*print"),  # type: ignore[arg-type]
    (lambda: Stateful("t", "k", COUNTS, settings={"root": "file:///r"}), "RIFFLE-0381.*'root'"),  # type: ignore[arg-type]
    (lambda: Stateful("t", "k", COUNTS, settings=Settings(root="/tmp/x")), "RIFFLE-0442"),
    (lambda: Stateful("t", "k", COUNTS, settings=Settings(root="hdfs://b2/p")), "RIFFLE-0442"),
    (lambda: together(settings=Settings(root="/tmp/x")), "RIFFLE-0442"),
    (lambda: Stateful("t", "k", COUNTS).into(None), "The sink None"),  # type: ignore[arg-type]
    (lambda: together(Stateful("t", "k", COUNTS)), "RIFFLE-0370"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_wrong_arguments_of_an_operator_are_refused(make: Callable[[], object], message: str) -> None:
    """Columns for names, functions for computations, dictionaries for settings and operators for jobs are refused with
    a remedy.
    """
    with pytest.raises(ConfigError, match=f"(?s){message}") as caught:
        make()
    assert caught.value.remedy
