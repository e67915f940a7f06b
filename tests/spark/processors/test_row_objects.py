"""riffle makes rows with a faster class, which behaves like PySpark's ``Row``."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
from pyspark.sql import Row

from riffle_spark.spark.processors.row_form import row_maker

pytestmark = pytest.mark.newer_spark

NAMES = ["id", "v", "count", "class", "a b", "__x"]
VALUES = [1, "x", 2, 3, 4, 5]


def rows() -> tuple[Row, Row]:
    """Return the same row made by riffle and by PySpark."""
    return row_maker(NAMES)(VALUES), Row(*NAMES)(*VALUES)


def test_a_row_equals_pysparks_row() -> None:
    """riffle's row equals PySpark's in class, value, fields, text and hash."""
    ours, theirs = rows()
    assert isinstance(ours, Row)
    assert ours == theirs
    assert (repr(ours), hash(ours), len(ours), list(ours)) == (repr(theirs), hash(theirs), len(theirs), list(theirs))
    assert ours.__fields__ == list(theirs.__fields__)
    assert ours.asDict() == theirs.asDict()
    assert {ours: 1}[theirs] == 1
    assert (("id" in ours), ("nothing" in ours)) == (("id" in theirs), ("nothing" in theirs))


def test_rows_can_be_made_while_garbage_is_collected() -> None:
    """Rows can be made while the garbage collector runs."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(50):
            assert row_maker([f"a{number}", f"b{number}"])((1, 2))[f"b{number}"] == 2
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("name", NAMES)
def test_fields_are_found_by_name_as_in_pyspark(name: str) -> None:
    """Fields are read by ``[]`` and as attributes, as in PySpark. Methods of the same name stay methods."""
    ours, theirs = rows()
    assert ours[name] == theirs[name]
    if name == "count":
        assert ours.count(1) == theirs.count(1) == 1
    elif name != "__x":
        assert getattr(ours, name) == getattr(theirs, name)


def test_unknown_fields_and_assignments_raise_pysparks_errors() -> None:
    """Unknown fields and assignments raise PySpark's errors."""
    ours, _ = rows()
    with pytest.raises(AttributeError):
        ours.nothing  # noqa: B018
    with pytest.raises(ValueError, match="nothing"):
        ours["nothing"]
    with pytest.raises(RuntimeError):
        ours.id = 5


def test_a_copied_or_pickled_row_is_pysparks_own() -> None:
    """A copied or pickled row is PySpark's own ``Row``."""
    ours, theirs = rows()
    for same in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert (same, repr(same), type(same)) == (theirs, repr(theirs), Row)


def test_the_first_of_two_fields_of_the_same_name_is_returned() -> None:
    """If two fields have the same name, the first is returned, as in PySpark."""
    assert row_maker(["a", "a"])([1, 2]).a == Row("a", "a")(1, 2).a == 1
