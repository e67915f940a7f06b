"""A check that code runs without a warning: neither Python's warnings nor warnings in riffle_spark's log."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["KeptWarnings", "no_warnings"]


class KeptWarnings(logging.Handler):
    """Keeps the level, the logger and the text of each log record of level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record as text."""
        self.messages.append(f"{record.levelname} of {record.name}: {record.getMessage()}")


@contextmanager
def no_warnings() -> Iterator[None]:
    """Fail after the block if Python warned in it, or if riffle_spark logged a warning on any thread."""
    logger = logging.getLogger("riffle_spark")
    handler = KeptWarnings()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            # PySpark leaves sockets to the garbage collector (see setup.cfg). Python hides this warning from users.
            warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            # PySpark 3.5 compares versions with the distutils of setuptools.
            warnings.filterwarnings("ignore", "distutils Version classes", DeprecationWarning)
            yield
    finally:
        logger.removeHandler(handler)
    messages = [
        f"{warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})" for warning in warned
    ]
    messages += handler.messages
    assert not messages, "\n".join(messages)
