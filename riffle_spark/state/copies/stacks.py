"""Read the stacks of one store in a member's folder, and replace them by compare-and-swap."""

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from riffle_spark.private_folders import make_private
from riffle_spark.state.copies.journal import Change, Listing
from riffle_spark.state.copies.journal_file import JournalFile, JournalLocked
from riffle_spark.state.copies.stack import PART, STACKS, Stack, StackedPart


class Stacks:
    """The stacks of one ``store`` in one member's folder, as one task sees them.

    The journal is read once, and again after ``refresh``, ``has`` and each change. If two processes replace the stack
    of a key-group, only one succeeds.
    """

    def __init__(self, folder: Path, store: str) -> None:
        self.store = store
        self._prefix = f"{STACKS}/{store}/"
        self._path = f"{folder}/{self._prefix}"
        self._journal = JournalFile(self._path, store)
        self._listing: Listing | None = None

    def refresh(self) -> None:
        """Read the journal again when a stack is needed next."""
        self._listing = None

    def listing(self) -> Listing:
        """Return all stacks of the store. The result does not change."""
        if self._listing is None:
            self._listing = self._journal.read()
        return self._listing

    def key_groups(self) -> list[int]:
        """Return the key-groups that have a stack, sorted."""
        return sorted(self.listing().stacks)

    def has(self, key_group: int) -> bool:
        """Return whether a key-group has a stack on the disk now."""
        self.refresh()
        return key_group in self.listing().stacks

    def read(self, key_group: int) -> Stack | None:
        """Return a key-group's stack, or ``None`` if it has none."""
        return self.listing().stacks.get(key_group)

    def replace(self, key_group: int, expected: Stack | None, stack: Stack) -> bool:
        """Replace the stack of one key-group, as ``replace_many`` does. Return whether it was replaced."""
        return bool(self.replace_many({key_group: (expected, stack)}))

    def replace_many(self, replacements: Mapping[int, tuple[Stack | None, Stack]]) -> set[int]:
        """Replace stacks by key-group, with one write. A replacement is the expected present stack and the new one.

        Return the key-groups whose stacks were as expected and are replaced; the others stay as they are. Nothing is
        replaced if another process holds the lock of the journal. Files that no stack of the store uses any more are
        deleted. A new file that several key-groups share must be listed for all of them with one call.

        Raises ``OSError`` if the disk refuses; then nothing is replaced, and the files that only the new stacks would
        have used are deleted.
        """
        replaced: dict[int, tuple[Stack | None, Stack]] = {}

        def compare(listing: Listing) -> list[Change]:
            replaced.clear()
            for key_group, (expected, stack) in replacements.items():
                current = listing.stacks.get(key_group)
                if current is expected or current == expected:
                    replaced[key_group] = expected, stack
            return [Change.between(key_group, *pair) for key_group, pair in replaced.items()]

        try:
            before, after = self._journal.change(compare) if replacements else (self.listing(), self.listing())
        except JournalLocked:
            return set()
        except OSError:
            used = {part.file for expected, _ in replacements.values() if expected for part in expected.parts}
            new = {part.file for _, stack in replacements.values() for part in stack.parts}
            self._remove_unlisted(new - used)
            raise
        self._remove_replaced(replaced, before, after)
        return set(replaced)

    def replace_parts(self, key_group: int, parts: Sequence[StackedPart], merged: StackedPart) -> Stack | None:
        """Replace adjacent parts by their merged part, and return the new stack.

        Return ``None`` and change nothing if the stack no longer holds these parts.
        """
        return self.replace_parts_of_many({key_group: (parts, merged)}).get(key_group)

    def replace_parts_of_many(
        self, merges: Mapping[int, tuple[Sequence[StackedPart], StackedPart]]
    ) -> dict[int, Stack]:
        """Replace adjacent parts of stacks by their merged parts, by key-group, with one write.

        Return the new stacks. A key-group whose stack no longer holds the parts stays as it is.
        """
        merged_stacks: dict[int, Stack] = {}

        def merge(listing: Listing) -> list[Change]:
            merged_stacks.clear()
            for key_group, (parts, merged) in merges.items():
                current = listing.stacks.get(key_group)
                start = _find_adjacent(parts, current.parts) if current is not None else None
                if current is not None and start is not None:
                    rest = current.parts[start + len(parts) :]
                    merged_stacks[key_group] = Stack(current.head, (*current.parts[:start], merged, *rest))
            return [Change.between(kg, listing.stacks[kg], stack) for kg, stack in merged_stacks.items()]

        try:
            before, after = self._journal.change(merge)
        except JournalLocked:
            return {}
        except OSError:
            self._remove_unlisted({merged.file for _, merged in merges.values()})
            raise
        self._remove_replaced(merged_stacks, before, after)
        return merged_stacks

    def drop(self, *key_groups: int) -> bool:
        """Delete the stacks of key-groups, if they exist, with the files that no other stack uses.

        Return ``False`` if another process holds the lock of the journal. Then the stacks stay on the disk, but this
        task sees none until ``refresh``. Raises ``OSError`` if the disk refuses.
        """
        dropped: list[int] = []

        def drop_existing(listing: Listing) -> list[Change]:
            dropped[:] = [key_group for key_group in key_groups if key_group in listing.stacks]
            return [Change(key_group, None) for key_group in dropped]

        current = self._journal.read()
        if any(key_group in current.stacks for key_group in key_groups):
            try:
                before, after = self._journal.change(drop_existing)
            except JournalLocked:
                self._listing = current.with_changes(drop_existing(current))
                return False
            self._remove_replaced(dropped, before, after)
        self.refresh()
        return True

    def remove_leftovers(self) -> None:
        """Remove older journals and lists that no longer count. Raises ``OSError`` if the disk refuses."""
        self._journal.remove_leftovers()

    def new_file(self, key_group: int, snapshot_id: str = "") -> Path:
        """Return a new path for a file of this key-group alone: a snapshot, or a merged part if there is no id."""
        infix = f".{snapshot_id}" if snapshot_id else ""
        path = Path(f"{self._path}{key_group:04d}.{uuid.uuid4().hex}{infix}{PART}")
        make_private(path.parent)
        return path

    def relative_name(self, path: Path) -> str:
        """Return the name of a file below the member's folder, as ``StackedPart.file`` holds it."""
        return self._prefix + path.name

    def _remove_replaced(self, key_groups: Iterable[int], before: Listing, after: Listing) -> None:
        """Delete the files that stacks of these key-groups used ``before``, and that no stack uses ``after``."""
        stacks = [before.stacks[key_group] for key_group in key_groups if key_group in before.stacks]
        self._listing = after
        self._remove_unlisted({part.file for stack in stacks for part in stack.parts})

    def _remove_unlisted(self, files: Iterable[str]) -> None:
        """Delete those of the files that belong to this store and that no stack uses. A file that the disk does not
        delete is deleted when the folder is claimed next.
        """
        listed = self.listing().files
        for file in files:
            if file.startswith(self._prefix) and file not in listed:
                with suppress(OSError):
                    os.unlink(self._path + file[len(self._prefix) :])  # noqa: PTH108 - half the time of Path.unlink


def _find_adjacent(adjacent: Sequence[StackedPart], parts: Sequence[StackedPart]) -> int | None:
    """Return the index of the first of the parts ``adjacent`` within ``parts``, or ``None`` if they are not there side
    by side.
    """
    count = len(adjacent)
    starts = (i for i in range(len(parts) - count + 1) if tuple(parts[i : i + count]) == tuple(adjacent))
    return next(starts, None)
