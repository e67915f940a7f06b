"""Since when each name of a store's state is declared: a column or variable that went and comes back is a new one,
which begins empty whatever older parts hold under its name. Knows names and epochs. Does not know parts.

A declaration changes with a driver, so epochs tell the order, also after a state was taken over by another query. In a
root that was restored from a backup they come again, with other declarations: so each has an id, of what it names and
of all before it, by which local copies know theirs.
"""

import json
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import xxhash

__all__ = ["FIRST", "NEVER_CHANGED", "History", "Name"]

Name: TypeAlias = tuple[str, ...]
"""A column or a variable, or a variable and one of its fields."""
FIRST: Final = -1
"""Stands for the epoch of a store's first declaration, and is its id."""
_ID_BITS = 63


@dataclass(frozen=True, slots=True)
class History:
    """``changes`` are the epochs in which another declaration came, ascending; ``since`` says of those names that were
    not there from the first on in which they came last. ``ids`` are those of the declarations that came with the
    changes: where records of before do not tell them, the epochs.
    """

    changes: tuple[int, ...] = ()
    since: tuple[tuple[Name, int], ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The id of the declaration of today."""
        return self.ids[-1] if self.ids else FIRST

    def leads_from(self, declaration: int) -> bool:
        """Tell whether the declaration of that id is today's, or one before it in this line."""
        return declaration == FIRST or declaration in self.ids

    def changed(self, before: Set[Name], now: Set[Name], epoch: int) -> "History":
        """Return the history after the names that are declared have changed in an epoch."""
        kept = {name: since for name, since in self.since if name in now}
        came = dict.fromkeys(now - before, epoch)
        told = json.dumps([self.ids, epoch, sorted(now)]).encode()
        declaration = xxhash.xxh3_64_intdigest(told) % (1 << _ID_BITS)
        return History((*self.changes, epoch), tuple(sorted((kept | came).items())), (*self.ids, declaration))

    def later_than(self, epoch: int) -> Set[Name]:
        """Return the names that are declared since a later epoch: what was written then is not of theirs."""
        return {name for name, since in self.since if since > epoch}

    def to_text(self) -> str:
        """Return the history as JSON; ``of_text`` reads it."""
        return json.dumps({"changes": self.changes, "since": self.since, "ids": self.ids})

    @staticmethod
    def of_text(text: str | None) -> "History":
        """Return the history that ``to_text`` gave; without a text nothing has ever changed."""
        if text is None:
            return NEVER_CHANGED
        body = json.loads(text)
        changes, since = tuple(body["changes"]), tuple((tuple(name), since) for name, since in body["since"])
        return History(changes, since, tuple(body.get("ids", changes)))


NEVER_CHANGED = History()
