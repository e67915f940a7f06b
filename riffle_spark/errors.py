"""The errors users catch, sorted by who must act. Knows no cause in particular.

    RiffleError
    +-- ConfigError        fix the call, the setting or the job's code
    |   +-- RefusedError        a store, or what is encrypted, opens to others only: give the rights or the key
    |   +-- UserFunctionError   the user's function raised, or returned what it must not
    +-- ConflictError      what was handed in does not fit what is stored: follow the remedy
    |   +-- Misplaced      a slot ran where its copies are not: reassign and run again (internal, retried)
    |   +-- OutOfDate      an attempt is behind its own copies (internal, retried)
    +-- FencedError        a newer driver owns the state: stop
    +-- UnavailableError   something outside did not answer in time: retry later
    |   +-- LocalDiskError an executor's own disk refuses: its work goes elsewhere for a while (internal, retried)
    +-- CorruptStateError  stored bytes are missing or are not what was written: an operator must look

Errors carry fields; the sentence is made in ``__str__``, of printable characters. Each says what to do, in ``remedy``.
"""

import shlex
from typing import Final

from riffle_spark.printable import LINES, shown

__all__ = [
    "ConfigError",
    "ConflictError",
    "CorruptStateError",
    "FencedError",
    "LocalDiskError",
    "Misplaced",
    "OutOfDate",
    "RefusedError",
    "RiffleError",
    "UnavailableError",
    "UserFunctionError",
    "command",
    "raise_if_memory",
]


UNREADABLE: Final = (
    ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, AssertionError, EOFError,
)  # fmt: skip
"""What Python raises where bytes are not what was written: decoders make errors of ours of it."""
_NO_MEMORY = "Cannot allocate memory", "not enough memory", "allocation_failed"
"""What Arrow repeats of the system, zstd and LZ4 where memory was refused, as an ``OSError`` without a number."""


def raise_if_memory(error: BaseException) -> None:
    """Raise ``MemoryError`` if an error says that memory was refused: of the bytes that were read it says nothing, and
    nobody may drop or restore them for it. Arrow's own is an ``ArrowException`` among others.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and any(map(str(error).count, _NO_MEMORY))):
        raise MemoryError(str(error)) from error


def command(verb: str, *flags: str, **options: object) -> str:
    """Return a command for a remedy, as a shell takes it.

    >>> command("rollback", "--execute", root="file:///my state", checkpoint="CHECKPOINT", to=7)
    "riffle rollback --root 'file:///my state' --checkpoint CHECKPOINT --to 7 --execute"
    """
    given = (f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items())
    return " ".join(["riffle", verb, *given, *flags])


class RiffleError(Exception):
    """The root of every error that riffle raises on purpose.

    Attributes:
        problem: one sentence that states what is wrong, with the offending value.
        remedy: one imperative sentence that says what to do; empty if there is nothing to do.
        where: the object, setting, store or key-group concerned; empty if there is none.
        id: the message's stable id, such as ``RIFFLE-0123``; ``docs/errors.md`` lists all of them.
    """

    id: str = ""

    def __init__(self, problem: str, *, remedy: str = "", where: str = "", id: str = "") -> None:
        super().__init__(problem, remedy, where)
        self.id = id
        self.problem = problem
        self.remedy = remedy
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args), self.__dict__)

    def __str__(self) -> str:
        place = f" [{shown(self.where)}]" if self.where else ""
        remedy = f"\n  What to do: {shown(self.remedy)}" if self.remedy else ""
        label = f"[{self.id}] " if self.id else ""
        return f"{label}{shown(self.problem, LINES)}{place}{remedy}"


def _rebuild(kind: type[RiffleError], args: tuple[object, ...]) -> RiffleError:
    """Return an error without its fields, which follow: a subclass may be made with others."""
    return kind.__new__(kind, *args)


class ConfigError(RiffleError):
    """The call, a setting or the job's code is wrong."""


class RefusedError(ConfigError):
    """Rights, credentials or a key are missing: nothing is known of what could not be read."""


class UserFunctionError(ConfigError):
    """The user's function raised or broke its declaration; the batch failed and nothing was committed."""


class ConflictError(RiffleError):
    """What was handed in does not fit what is stored."""


class Misplaced(ConflictError):
    """A slot ran on an executor that lacks its copies while a live one has them."""


class OutOfDate(ConflictError):
    """An attempt found copies that are already beyond the base it was given."""


class FencedError(RiffleError):
    """A driver with a higher epoch has taken over this root."""


class UnavailableError(RiffleError):
    """A store or service did not answer within its bounded retries."""


class LocalDiskError(UnavailableError):
    """The disk that local copies lie on refuses: it is full, read-only, over its quota or broken. Nothing is lost."""


class CorruptStateError(RiffleError):
    """Stored bytes are missing, truncated or altered."""
