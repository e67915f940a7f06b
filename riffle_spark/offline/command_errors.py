"""Errors of commands that change a root, translated for an operator."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from riffle_spark.errors import CorruptStateError, FencedError, RefusedError, RiffleError, UnavailableError
from riffle_spark.state.log.log import Log


@contextmanager
def translated_errors(log: Log, action: str, conflict: type[RiffleError] = FencedError) -> Iterator[None]:
    """Translate the errors of the block, a command that reads a root and appends one record, for an operator.

    ``action`` is the action of the command, as an infinitive. If the query continued at the same time, it has taken the
    record's number or deleted objects that the command reads. That raises ``conflict``. If the store failed after the
    record may have been written, the text of the error has this fact.
    """
    tail = log.tail
    try:
        yield
    except (FencedError, CorruptStateError) as error:
        if isinstance(error, CorruptStateError) and log.next_is_absent():
            raise
        raise conflict(
            f"The query continued while a command tried to {action}. Nothing was changed. {error.problem}",
            remedy="Stop the query, wait until it has ended, and run the command again.",
            where=error.where,
            id="RIFFLE-0508",
        ) from error
    except (RefusedError, UnavailableError) as error:
        is_refused = isinstance(error, RefusedError)
        if log.tail is tail and (is_refused or not log.is_unclear):
            raise
        refusal = error if is_refused else error.__cause__
        first = refusal.remedy if isinstance(refusal, RefusedError) else "Make the store reachable."
        raise type(error)(
            f"A command tried to {action}, and it is unknown whether that succeeded. {error.problem}",
            remedy=f"{first} Run the command again before you start the query. A record that was written does no harm.",
            where=error.where,
            id="RIFFLE-0509",
        ) from error


def machine_clocks() -> tuple[float, ...]:
    """Return the seconds of this machine's monotonic clock and of its wall clock, for a ``Log``."""
    return time.monotonic(), time.time()
