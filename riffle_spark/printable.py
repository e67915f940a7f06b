"""Escape characters that a terminal would interpret.

Names, records and answers of servers can contain control characters and characters that change the text direction.
"""

import json
import logging
import traceback
from typing import Final

__all__ = ["LINE_BREAKS", "escape_log_records", "escape_unprintable"]

LINE_BREAKS: Final = "\n\t"
"""The control characters that texts of several lines keep."""


def escape_unprintable(text: str, keep: str = "") -> str:
    r"""Escape each character that is not printable as JSON does, except characters in ``keep``. JSON stays valid.

    >>> escape_unprintable("a\x1b[2J\n")
    'a\\u001b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in text)


def escape_log_records() -> None:
    """Add the filter that escapes unprintable characters to the logger ``riffle_spark``. Idempotent."""
    logging.getLogger("riffle_spark").addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    escaped = escape_unprintable(message, LINE_BREAKS)
    if escaped != message:
        record.msg = escaped
        record.args = ()
    if record.exc_info and record.exc_text is None:  # handlers reuse exc_text and do not format the traceback again
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        record.exc_text = escape_unprintable(trace, LINE_BREAKS)
    return True
