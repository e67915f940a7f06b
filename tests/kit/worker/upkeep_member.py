"""A member that executes pieces of upkeep, and the store whose committed state it follows."""

from __future__ import annotations

import uuid
from pathlib import Path

from riffle_spark.messages.upkeep_orders import Drop, Follow, SnapshotOrder, UpkeepOrder, UpkeepReceipt
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Entry, Head, Manifest
from riffle_spark.testing import home_of
from riffle_spark.worker.member_folders import folder_of, use_store
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.state.drawn_records import PLAIN, drafted
from tests.kit.state.members import SCHEMA, Place

STORE = SCHEMA.store


class UpkeepMember:
    """Runs upkeep on the state that ``place`` commits. By default executor "1" does a piece."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(folder / "committer")
        self.store = self.place.store
        self.home = home_of(f"memory://{uuid.uuid4().hex}", folder / "executors")
        use_store(self.home, self.store)
        self.log_of = self.opened()
        self.log_of.append(PLAIN, Manifest())

    def opened(self) -> Log:
        """Return the log as it is in the store."""
        log = Log(self.store, self.home.root)
        log.open()
        return log

    def folder(self, executor: str = "1") -> Folder:
        """Return the folder of an executor."""
        return folder_of(self.home, executor)

    def follows(self, entries: dict[int, Entry] | None = None) -> tuple[Follow, ...]:
        """Return the orders to follow these entries, or everything that was committed."""
        entries = self.place.entries if entries is None else entries
        return tuple(Follow(STORE, kg, entry) for kg, entry in sorted(entries.items()))

    def order(self, **changes: object) -> UpkeepOrder:
        """Return an upkeep order to follow everything, with plenty of time."""
        fields: dict[str, object] = {"follows": self.follows(), "seconds": 1000.0, **changes}
        return UpkeepOrder(self.home, "", 1, 1, {STORE: SCHEMA.to_text()}, **fields)  # type: ignore[arg-type]

    def run(self, executor: str = "1", **changes: object) -> UpkeepReceipt:
        """Run a piece of upkeep that must have no error, and return its receipt."""
        receipt = run_upkeep(self.order(**changes), executor)
        assert (receipt.errors, receipt.failed, receipt.failed_snapshots) == ((), (), ())
        return receipt

    def troubled(self, **changes: object) -> UpkeepReceipt:
        """Run a piece of upkeep that must report an error, and return its receipt."""
        receipt = run_upkeep(self.order(**changes), "1")
        assert receipt.errors
        return receipt

    def held(self, key_group: int, executor: str = "1") -> dict[str, int] | None:
        """Return the rows in the copy of a key-group, or ``None`` if there is no copy."""
        copy = self.place.local(key_group, self.folder(executor))
        return copy and copy[1]

    def is_warm(self, receipt: UpkeepReceipt) -> bool:
        """Return whether the piece left every copy at the head of its entry, with the committed rows and no stray
        files.
        """
        heads = {(STORE, kg, *entry.head) for kg, entry in self.place.entries.items()}
        holds = all(self.held(kg) == rows for kg, rows in self.place.wanted.items())
        return set(receipt.copies) == heads and receipt.unfinished == () and holds and self.strays() == []

    def strays(self) -> list[str]:
        """Return the part files that belong to no copy."""
        folder, stacks = self.folder(), self.folder().stacks(STORE)
        copies = [stacks.read(key_group) for key_group in stacks.key_groups()]
        listed_files = {part.file for stack in copies if stack for part in stack.parts}
        files = (str(path.relative_to(folder.path)) for path in folder.path.glob("stacks/*/*.part"))
        return [file for file in files if file not in listed_files]

    def incoming(self) -> list[Path]:
        """Return the files of snapshots that are not completely fetched."""
        return sorted(self.folder().path.glob("incoming/*/*"))

    def log(self) -> None:
        """Append a record that lists everything that was committed."""
        entries = {(STORE, kg): entry for kg, entry in self.place.entries.items()}
        self.log_of.append(drafted("listed"), Manifest(entries))

    def gets(self, prefix: str) -> int:
        """Return the number of gets of objects with this prefix since the last call."""
        count = sum(method == "get" and name.startswith(prefix) for method, name in self.store.calls)
        self.store.calls.clear()
        return count

    def drop(self, key_group: int, head: Head | None = None) -> Drop:
        """Return the order to drop a copy."""
        return Drop(STORE, key_group, head)

    def snapshot(self, key_group: int) -> SnapshotOrder:
        """Return the order to take a snapshot."""
        return SnapshotOrder(STORE, key_group, self.place.entries[key_group])
