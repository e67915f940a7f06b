"""The history of a store's declared names.

A column or variable that was removed and declared again is new. It starts empty, whatever older parts hold under
its name.

A declaration changes only when a driver starts, so epochs order the declarations, also after another query adopted the
state. In a root that was restored from a backup, epochs repeat with other declarations. So each declaration has an id,
a hash of its names and of all declarations before it. Local copies store that id.
"""

import json
from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import xxhash

Name: TypeAlias = tuple[str, ...]
"""A column, a variable, or a variable and a field of it."""
FIRST: Final = -1
"""The epoch and the id of a store's first declaration."""
_ID_BITS = 63


@dataclass(frozen=True, slots=True)
class History:
    """The changes of a store's declaration.

    ``changes`` are their epochs, ascending, and ``ids`` the ids of the declarations after them (in older records the
    epochs). ``since`` has the epoch of each declared name that the first declaration did not have, or not all the time.
    """

    changes: tuple[int, ...] = ()
    since: tuple[tuple[Name, int], ...] = ()
    ids: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        """The id of the current declaration."""
        return self.ids[-1] if self.ids else FIRST

    def includes(self, declaration: int) -> bool:
        """Return whether the declaration with this id is the current one or an earlier one of this history.

        Declarations that a rollback discarded are not included.
        """
        return declaration == FIRST or declaration in self.ids

    def with_change(self, old_names: Set[Name], new_names: Set[Name], epoch: int) -> "History":
        """Return the history after the driver of ``epoch`` changed the declared names from ``old_names`` to
        ``new_names``.
        """
        since = {name: added for name, added in self.since if name in new_names}
        since |= dict.fromkeys(new_names - old_names, epoch)
        text = json.dumps([self.ids, epoch, sorted(new_names)]).encode()
        declaration = xxhash.xxh3_64_intdigest(text) % (1 << _ID_BITS)
        return History((*self.changes, epoch), tuple(sorted(since.items())), (*self.ids, declaration))

    def names_declared_after(self, epoch: int) -> Set[Name]:
        """Return the names that were declared after ``epoch``.

        Values of this epoch under these names belong to earlier declarations.
        """
        return {name for name, since in self.since if since > epoch}

    def to_text(self) -> str:
        """Return the history as JSON text, for ``of_text``."""
        return json.dumps({"changes": self.changes, "since": self.since, "ids": self.ids})

    @staticmethod
    def of_text(text: str | None) -> "History":
        """Return the history that ``to_text`` wrote. ``None`` means that nothing changed."""
        if text is None:
            return NEVER_CHANGED
        body = json.loads(text)
        changes = tuple(body["changes"])
        since = tuple((tuple(name), epoch) for name, epoch in body["since"])
        return History(changes, since, tuple(body.get("ids", changes)))


NEVER_CHANGED = History()
