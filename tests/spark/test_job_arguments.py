"""Wrong arguments of an operator are refused in the call, with the name of the argument. These tests start no Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

from riffle_spark import Settings, Stateful, aggregate, count, together, top_k
from riffle_spark.errors import ConfigError

COUNTS: Any = aggregate(n=count())
BATCH: Any = None


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
    (lambda: Stateful("t", "k", COUNTS, watermark="at"), "RIFFLE-0367.*'at'"),  # type: ignore[arg-type]
    (lambda: Stateful("t", "k", COUNTS)(BATCH, 0), "RIFFLE-0368.*'t'"),
    (lambda: top_k(0, "n long"), "RIFFLE-0318.*0 rows"),
]


@pytest.mark.parametrize(("make", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_wrong_arguments_of_an_operator_are_refused(make: Callable[[], object], message: str) -> None:
    """Columns for names, functions for computations, dictionaries for settings and operators for jobs are refused with
    a remedy.
    """
    with pytest.raises(ConfigError, match=f"(?s){message}") as caught:
        make()
    assert caught.value.remedy


def test_a_pickled_job_keeps_its_operators_and_is_not_paused() -> None:
    """Spark Connect pickles a job. The copy has the operators and settings, and is neither running nor paused."""
    job = Stateful("t", "k", COUNTS, settings=Settings(root="file:///r")).into(lambda rows, batch_id: None)  # noqa: ARG005
    job.pause()
    copy = pickle.loads(cloudpickle.dumps(job))
    assert [(operator.store, operator.key) for operator, _ in copy.parts] == [("t", ("k",))]
    assert (copy.settings, copy.members(), copy.paused, job.paused) == (job.settings, (), False, True)
