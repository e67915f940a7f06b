"""Text as terminals and logs may have it: what comes from names, records or a server's answer may hold characters that
a terminal obeys, or that turn around what follows.
"""

import json
from typing import Final

__all__ = ["LINES", "shown"]

LINES: Final = "\n\t"
"""What texts of several lines keep."""


def shown(text: str, keep: str = "") -> str:
    r"""Return a text with each character that is not printable written as JSON writes it, but for those to ``keep``:
    so JSON stays what it is.

    >>> shown("a\x1b[2J\n")
    'a\\u001b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in text)
