"""Escape characters that a terminal would interpret.

Names, records and answers of servers can contain control characters and characters that change the text direction.
"""

import json
from typing import Final

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
