"""Tables of the reactions of a store to the answers of its server.

``first_match`` returns the first row that matches an answer's operation, HTTP status, error code and text. The row
names the next action and the error to raise if nothing helps.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from riffle_spark.errors import ConfigError, RefusedError

NOT_IMPLEMENTED = frozenset({405, 501, 505})
TRANSIENT = frozenset({408, 409, 425, 429, *range(500, 600)})
"""The statuses of answers after which the request is sent again."""


class Action(Enum):
    """The reaction of a store to an answer that is not a success."""

    ANSWER = "return the answer: the object is absent, or its name is taken"
    AGAIN = "send the same request again, until `s3_patience` ends"
    FRESH_CREDENTIALS = "send it once more with a new client, which reads the credentials again"
    FINAL = "raise the error at once"
    DELETE_SINGLY = "delete each object with its own request from now on"
    FIND_REMAINING = "find the objects that still exist, and delete only them"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of a table. An empty condition matches everything. Codes are patterns of ``fnmatch``.

    ``problem`` may contain ``{operation}``, ``{status}``, ``{code}`` and ``{message}``.
    """

    action: Action
    operations: frozenset[str] = frozenset()
    statuses: frozenset[int] = frozenset()
    codes: tuple[str, ...] = ()
    text: re.Pattern[str] | None = None
    problem: str = ""
    remedy: str = ""
    kind: type[ConfigError] = RefusedError
    id: str = ""

    def matches(self, operation: str, status: int, code: str, message: str) -> bool:
        """Return whether every condition of the row holds."""
        return (
            (not self.operations or operation in self.operations)
            and (not self.statuses or status in self.statuses)
            and (not self.codes or any(fnmatchcase(code, pattern) for pattern in self.codes))
            and (self.text is None or self.text.search(message) is not None)
        )


def first_match(table: Sequence[Rule], operation: str, status: int, code: str, message: str) -> Rule:
    """Return the first row of a table that matches an answer. The last row of a table matches every answer."""
    return next(rule for rule in table if rule.matches(operation, status, code, message))


def is_definite(status: int) -> bool:
    """Return whether an error answer with this status means that the request has changed nothing, and never will."""
    return (status < 500 and status != 408) or status in NOT_IMPLEMENTED
