"""Errors on their way from an executor: each arrives as what its public ancestor tells users to do, fields intact."""

from __future__ import annotations

import pickle
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pytest

import riffle_spark
from riffle_spark import errors
from riffle_spark.errors import ConfigError, CorruptStateError, RiffleError, UserFunctionError
from riffle_spark.process.blocks.block import Batch, Declared, Update
from riffle_spark.process.merging.aggregates import aggregate, count
from riffle_spark.process.processors.processing import Processing
from riffle_spark.protocol.receipts import check_receipts
from riffle_spark.state.copies.disk import DamagedCopy
from tests.kit.worker.slot_member import Member, rows_of

PROBLEM, REMEDY, WHERE = "what is wrong\nin two lines", "what to do", "store 's', key-group 7"


def every_kind() -> list[type[RiffleError]]:
    """Return every class of error that any module of ours defines."""
    for module in pkgutil.walk_packages(riffle_spark.__path__, "riffle_spark."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kinds: set[type[RiffleError]] = {RiffleError, *below(RiffleError)}
    ours = [kind for kind in kinds if kind.__module__.startswith("riffle_spark.")]
    return sorted(ours, key=lambda kind: kind.__qualname__)


def below(kind: type[RiffleError]) -> Iterator[type[RiffleError]]:
    """Yield all subclasses, at any depth."""
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def error_of_kind(kind: type[RiffleError]) -> RiffleError:
    """Return an error of a class, however its own constructor is called."""
    error = kind.__new__(kind)
    RiffleError.__init__(error, PROBLEM, remedy=REMEDY, where=WHERE)
    return error


class Raising:
    """A computation that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Declare what a count does."""
        return aggregate(count=count()).declare(key, rows)

    def __call__(self, batch: Batch) -> Update:  # noqa: ARG002 - whatever the batch is
        """Raise it."""
        raise self.error


def arrived(error: BaseException, folder: Path) -> RiffleError:
    """Return what a driver raises where a slot raised ``error``."""
    _, receipt = Member(folder, Raising(error)).answer(rows_of(("a", 1, 0)))
    with pytest.raises(RiffleError) as raised:
        check_receipts([receipt], [])
    return raised.value


def test_every_kind_of_error_arrives_as_itself_or_its_public_ancestor(tmp_path: Path) -> None:
    """Who must act is the same on the driver, whatever class a module made of it; problem and remedy are, too."""
    kinds = every_kind()
    public = [kind for kind in map(vars(errors).get, errors.__all__) if isinstance(kind, type)]
    assert {DamagedCopy, *public} <= set(kinds)
    for number, kind in enumerate(kinds):
        told = arrived(error_of_kind(kind), tmp_path / str(number))
        nearest = next(each for each in kind.__mro__ if each.__module__ == errors.__name__)
        assert type(told) is nearest, kind
        assert (told.problem, told.remedy) == (PROBLEM, REMEDY)
        assert told.where == f"{WHERE}, executor 1"


def test_a_damaged_copy_is_for_an_operator_to_look_at(tmp_path: Path) -> None:
    """What is damaged after it was rebuilt is what the store holds, and nothing to try again."""
    assert type(arrived(error_of_kind(DamagedCopy), tmp_path)) is CorruptStateError


class NotOurs(ConfigError):
    """An error of a user's own, below one of ours."""

    def __init__(self, amount: int) -> None:
        super().__init__(f"{amount} is too much", remedy="send less")
        self.amount = amount


def test_a_users_own_kind_arrives_as_the_public_one_below_it(tmp_path: Path) -> None:
    """The driver need not be able to import it."""
    told = arrived(NotOurs(7), tmp_path)
    assert type(told) is ConfigError
    assert (told.problem, told.remedy) == ("7 is too much", "send less")


class Odd(RiffleError):
    """A user's error that says nothing of who must act."""


def test_a_users_own_kind_out_of_a_processor_is_the_users_error() -> None:
    """It is told with its class and traceback, as any other exception of the user's; riffle's own stay as they are."""
    processing = Processing.__new__(Processing)
    processing._where = "store 's'"  # private: no slot needed
    for error in (Odd("odd"), NotOurs(7), ValueError("odd")):
        told = processing._as_riffle_error(error, "for key 'a'")  # private: called for each key
        assert type(told) is UserFunctionError
        assert type(error).__name__ in told.problem
        assert told.where == "store 's'"
    ours = error_of_kind(DamagedCopy)
    assert processing._as_riffle_error(ours, "for key 'a'") is ours  # private: called for each key


def test_what_is_no_error_of_ours_fails_the_task(tmp_path: Path) -> None:
    """Spark's retries are right for it: there is no receipt."""
    for error in (ZeroDivisionError("a bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            arrived(error, tmp_path)


def test_every_kind_of_error_survives_being_sent_between_processes() -> None:
    """Whatever its constructor takes, a copy is of the same class and has the same fields."""
    for kind in [*every_kind(), NotOurs]:
        error = error_of_kind(kind)
        error.more = 7  # type: ignore[attr-defined]
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), copied.__dict__) == (kind, str(error), error.__dict__)
