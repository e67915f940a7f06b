"""Recognise the errors that Spark's JVM raises, by their texts, and raise the one that Spark recognises as a stop.

PySpark wraps errors of the JVM in classes that differ by version, and it hides some of them behind an error of its own.
So an error is known only by a text in its own message or in that of one of its causes. No function calls the JVM.
"""

from typing import Final

_INTERRUPTIONS: Final = ("java.lang.InterruptedException", "java.nio.channels.ClosedByInterruptException")


class Py4JJavaError(Exception):
    """An error that Spark recognises, by its traceback, as an interruption of ``foreachBatch``."""

    def __str__(self) -> str:
        """Return a text that Spark recognises as an interruption."""
        return "An error occurred while calling foreachBatch.\n: java.lang.InterruptedException: the query was stopped"


Py4JJavaError.__module__ = "py4j.protocol"


def is_interruption(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, is Spark's interruption of the batch."""
    return mentions(error, *_INTERRUPTIONS)


def mentions(error: BaseException, *texts: str) -> bool:
    """Return whether the message of an error, or of a cause of it, contains any of the texts."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in visited:
            continue
        message = str(cause)
        if any(text in message for text in texts):
            return True
        visited.add(id(cause))
        waiting += [cause.__cause__, cause.__context__, getattr(cause, "_cause", None)]
    return False


def is_unwrapped(error: Exception) -> bool:
    """Return whether this is an error of the JVM for which PySpark has no class of its own."""
    return hasattr(error, "java_exception")


def first_line(error: Exception) -> str:
    """Return the first line of an error, or of the JVM's error that Py4J wraps in it."""
    return str(getattr(error, "java_exception", error)).split("\n")[0]
