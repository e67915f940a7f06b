"""Spark's pickles for executors have orders as text, the user's computation and names of functions."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from riffle_spark.messages.slot_orders import result_schema
from riffle_spark.messages.upkeep_orders import CensusOrder, UpkeepOrder
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.spark.engine.spark_batch import read_function
from riffle_spark.spark.engine.task import StoreWork, census_function, slot_function, upkeep_function, warm_function
from riffle_spark.testing import home_of
from tests.kit.worker.slot_member import OUTPUT, Member, rows_of

HOME = home_of("memory://pickled", Path("/nowhere"))


class _Names(pickle.Unpickler):
    """An unpickler that collects the names of this project's classes and functions."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.named: set[str] = set()

    def find_class(self, module: str, name: str) -> object:
        if module.startswith("riffle_spark"):
            self.named.add(f"{module}.{name}")
        return super().find_class(module, name)


def named_in(sent: object) -> set[str]:
    """Return the names of this project's classes and functions in a pickle."""
    names = _Names(cloudpickle.dumps(sent))
    names.load()
    return names.named


def test_a_pickled_slot_names_no_class_of_riffle(tmp_path: Path) -> None:
    """Apart from the user's computation, the pickle of a slot names one function and no class of riffle."""
    member = Member(tmp_path, aggregate(n=count()))
    member.feed(rows_of(("a", 1, 0), ("b", 1, 0)))
    compute = member.operator.compute
    function = slot_function([StoreWork(member.order(), compute, result_schema(OUTPUT))])
    assert named_in(function) - named_in(compute) == {"riffle_spark.spark.engine.task._run"}


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        (census_function(CensusOrder(HOME)), "task._census"),
        (upkeep_function({0: UpkeepOrder(HOME, "", 1, 0, {})}), "task._upkeep"),
        (warm_function(HOME), "task._warm"),
        (read_function(HOME, "totals", pa.schema([])), "spark_batch._read"),
    ],
)
def test_other_pickled_jobs_name_no_class_of_riffle(sent: object, name: str) -> None:
    """The pickles of other jobs on executors name one function each and no class of riffle."""
    assert named_in(sent) - {"riffle_spark.spark.engine.task._answers"} == {f"riffle_spark.spark.engine.{name}"}
