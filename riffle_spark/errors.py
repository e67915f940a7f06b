"""The errors that users catch, one class per required reaction.

    RiffleError
    +-- ConfigError        fix the call, the setting or the job's code
    |   +-- RefusedError        a store, or encrypted state, needs rights or a key that this process lacks
    |   +-- UserFunctionError   the user's function raised or broke its declaration
    +-- ConflictError      the call does not match the stored state: follow the remedy
    |   +-- Misplaced      a slot ran without its copies: reassign and run again (internal, retried)
    |   +-- OutOfDate      local copies are newer than the attempt's base (internal, retried)
    +-- FencedError        a newer driver owns the state: stop
    +-- UnavailableError   a service did not answer in time: retry later
    |   +-- LocalDiskError an executor's disk failed: its work moves for a while (internal, retried)
    +-- CorruptStateError  stored bytes are missing or were altered: an operator must investigate

``__str__`` builds the text from the fields and escapes unprintable characters.
"""

import shlex
from typing import Final

from riffle_spark.printable import LINE_BREAKS, escape_unprintable

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
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    AssertionError,
    EOFError,
)
"""The errors of decoders for altered bytes. Readers convert them to ``CorruptStateError`` or ``ConfigError``."""
_NO_MEMORY = ("Cannot allocate memory", "not enough memory", "allocation_failed")
"""Texts of ``OSError`` that Arrow raises if the system, zstd or LZ4 could not allocate memory."""


def raise_if_memory(error: BaseException) -> None:
    """Raise ``MemoryError`` if ``error`` is a failed allocation of Arrow or the system. Otherwise return.

    It does not mean that the bytes read are damaged, so no copy may be dropped or restored because of it.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and any(map(str(error).count, _NO_MEMORY))):
        raise MemoryError(str(error)) from error


def command(verb: str, *flags: str, root: str, **options: object) -> str:
    """Return the command line of ``riffle`` for a remedy, quoted for a shell. ``root`` is the first argument.

    >>> command("rollback", "--execute", root="file:///my state", checkpoint="CHECKPOINT", to=7)
    "riffle rollback 'file:///my state' --checkpoint CHECKPOINT --to 7 --execute"
    """
    arguments = (f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in options.items())
    return " ".join(["riffle", verb, shlex.quote(root), *arguments, *flags])


class RiffleError(Exception):
    """The base class of all errors of riffle_spark.

    Attributes:
        problem: one sentence with the fact and the offending value.
        remedy: one imperative sentence; empty if there is nothing to do.
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
        """Pickle the error with its fields, so that it can be sent between processes."""
        return (_rebuild, (type(self), self.args), self.__dict__)

    def __str__(self) -> str:
        """Return the id, the problem, the place and the remedy, with unprintable characters escaped."""
        place = f" [{escape_unprintable(self.where)}]" if self.where else ""
        remedy = f"\n  What to do: {escape_unprintable(self.remedy)}" if self.remedy else ""
        label = f"[{self.id}] " if self.id else ""
        return f"{label}{escape_unprintable(self.problem, LINE_BREAKS)}{place}{remedy}"


def _rebuild(kind: type[RiffleError], args: tuple[object, ...]) -> RiffleError:
    """Return an unpickled error of class ``kind`` without calling its constructor, whose parameters differ by
    subclass.
    """
    return kind.__new__(kind, *args)


class ConfigError(RiffleError):
    """The call, a setting or the job's code is wrong."""


class RefusedError(ConfigError):
    """Rights, credentials or a key are missing, so the state could not be read."""


class UserFunctionError(ConfigError):
    """The user's function raised an error or broke its declaration. The batch failed; nothing was committed."""


class ConflictError(RiffleError):
    """The call or the job does not match the stored state."""


class Misplaced(ConflictError):
    """A slot ran on an executor that lacks its copies, while another live executor has them."""


class OutOfDate(ConflictError):
    """The local copies or the folder of an executor changed under an attempt or a piece of upkeep.

    The work runs again.
    """


class FencedError(RiffleError):
    """A driver with a higher epoch has taken over this root."""


class UnavailableError(RiffleError):
    """A store or service did not answer within its bounded retries."""


class LocalDiskError(UnavailableError):
    """The disk with local copies is full, read-only, over its quota or broken. No data is lost."""


class CorruptStateError(RiffleError):
    """Stored bytes are missing, truncated or altered."""
