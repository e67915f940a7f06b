"""Work beside the batches that is of one claim of the log. Knows the claim. Does not know what the work is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from riffle_spark.protocol.ports import Background

__all__ = ["ClaimWork"]


@dataclass(frozen=True, slots=True)
class _Found:
    claim: str
    found: object


class ClaimWork:
    """Submits work under the newest claim. In a root that was restored meanwhile the numbers that work of an earlier
    one goes by are those of other records: what has not begun is not done any more, and nobody hears what is found.
    """

    def __init__(self, background: Background) -> None:
        self._background = background
        self._claim = ""

    def begin(self, claim: str) -> None:
        """Begin anew after the record of this commit id; what has come of earlier work is dropped."""
        self._background.collect()
        self._claim = claim

    def submit(self, work: Callable[[], object]) -> None:
        """Have something done beside the batches."""
        claim = self._claim
        self._background.submit(lambda: _Found(claim, work()) if claim == self._claim else None)

    def collect(self) -> Iterator[object]:
        """Yield what came of all work, of this kind and of others, since the last call; failures as exceptions."""
        for result in self._background.collect():
            if not isinstance(result, _Found):
                yield result
            elif result.claim == self._claim:
                yield result.found
