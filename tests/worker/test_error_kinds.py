"""Errors of executors arrive on the driver as their public class, with all fields."""

from __future__ import annotations

import errno
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
from riffle_spark.worker.slot_errors import as_riffle_error
from tests.kit.worker.slot_member import Member, rows_of

PROBLEM, REMEDY, WHERE = "what is wrong\nin two lines", "what to do", "store 's', key-group 7"


def every_kind() -> list[type[RiffleError]]:
    """Return every error class that a module of `riffle_spark` defines."""
    for module in pkgutil.walk_packages(riffle_spark.__path__, "riffle_spark."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kinds: set[type[RiffleError]] = {RiffleError, *below(RiffleError)}
    ours = [kind for kind in kinds if kind.__module__.startswith("riffle_spark.")]
    return sorted(ours, key=lambda kind: kind.__qualname__)


def below(kind: type[RiffleError]) -> Iterator[type[RiffleError]]:
    """Yield all direct and indirect subclasses."""
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


def error_of_kind(kind: type[RiffleError]) -> RiffleError:
    """Return an error of a class without a call of its constructor."""
    error = kind.__new__(kind)
    RiffleError.__init__(error, PROBLEM, remedy=REMEDY, where=WHERE)
    return error


class RaisingComputation:
    """A computation that raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def declare(self, key: pa.Schema, rows: pa.Schema) -> Declared:
        """Return the declaration of a count."""
        return aggregate(count=count()).declare(key, rows)

    def __call__(self, batch: Batch) -> Update:  # noqa: ARG002 - whatever the batch is
        """Raise the error."""
        raise self.error


def arrived(error: BaseException, folder: Path) -> RiffleError:
    """Return the error that the driver raises if a slot raises ``error``."""
    _, receipt = Member(folder, RaisingComputation(error)).answer(rows_of(("a", 1, 0)))
    with pytest.raises(RiffleError) as raised:
        check_receipts([receipt], [])
    return raised.value


def test_every_error_arrives_as_its_nearest_public_class(tmp_path: Path) -> None:
    """Every error arrives as its nearest public class, with its problem and remedy."""
    kinds = every_kind()
    public = [kind for kind in map(vars(errors).get, errors.__all__) if isinstance(kind, type)]
    assert {DamagedCopy, *public} <= set(kinds)
    for number, kind in enumerate(kinds):
        error = arrived(error_of_kind(kind), tmp_path / str(number))
        nearest = next(each for each in kind.__mro__ if each.__module__ == errors.__name__)
        assert type(error) is nearest, kind
        assert (error.problem, error.remedy) == (PROBLEM, REMEDY)
        assert error.where == f"{WHERE}, executor 1"


def test_an_unrecoverable_copy_arrives_as_corrupt_state_error(tmp_path: Path) -> None:
    """A damaged copy that cannot be rebuilt arrives as CorruptStateError."""
    assert type(arrived(error_of_kind(DamagedCopy), tmp_path)) is CorruptStateError


class PublicSubclassError(ConfigError):
    """A user's error class that is derived from a public one."""

    def __init__(self, amount: int) -> None:
        super().__init__(f"{amount} is too much", remedy="send less")
        self.amount = amount


def test_a_user_error_class_arrives_as_its_public_base_class(tmp_path: Path) -> None:
    """A user's error class arrives as its public base class, so the driver does not have to import it."""
    error = arrived(PublicSubclassError(7), tmp_path)
    assert type(error) is ConfigError
    assert (error.problem, error.remedy) == ("7 is too much", "send less")


class RiffleSubclassError(RiffleError):
    """A user's error class that is derived from RiffleError."""


def test_a_user_error_of_a_processor_becomes_user_function_error() -> None:
    """A user's error that a processor raises becomes a UserFunctionError with its class. Errors of `riffle_spark` stay
    unchanged.
    """
    processing = Processing.__new__(Processing)
    processing._where = "store 's'"  # private: no slot needed
    for error in (RiffleSubclassError("odd"), PublicSubclassError(7), ValueError("odd")):
        user_error = processing._as_riffle_error(error, "for key 'a'")  # private: called for each key
        assert type(user_error) is UserFunctionError
        assert type(error).__name__ in user_error.problem
        assert user_error.where == "store 's'"
    ours = error_of_kind(DamagedCopy)
    assert processing._as_riffle_error(ours, "for key 'a'") is ours  # private: called for each key


def test_an_error_other_than_a_riffle_error_fails_the_task(tmp_path: Path) -> None:
    """An error that is no RiffleError fails the task, which Spark retries. There is no receipt."""
    for error in (ZeroDivisionError("a bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            arrived(error, tmp_path)


def test_a_pickled_error_has_the_same_class_and_fields() -> None:
    """A pickled error has the same class and fields, whatever its constructor takes."""
    for kind in [*every_kind(), PublicSubclassError]:
        error = error_of_kind(kind)
        error.more = 7  # type: ignore[attr-defined]
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), copied.__dict__) == (kind, str(error), error.__dict__)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (MemoryError("malloc of 7 bytes failed"), "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (RuntimeError("can't start new thread"), "spark.executor.pyspark.memory"),
    ],
)
def test_an_error_of_the_machine_has_a_remedy(error: Exception, remedy: str, tmp_path: Path) -> None:
    """An error of memory, threads or the local disk has a remedy. Other errors, which are mistakes, pass unchanged."""
    raised = as_riffle_error(error, tmp_path)
    assert remedy in f"{raised.remedy} {raised.problem}"
    for other in (OSError(errno.ENOENT, "No such file"), ValueError("a mistake")):
        with pytest.raises(type(other)) as passed:
            as_riffle_error(other, tmp_path)
        assert passed.value is other
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        as_riffle_error(full, None)
