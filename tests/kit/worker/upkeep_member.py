"""One member that is told to do pieces of upkeep, and the store, with what was committed to it, that it follows."""

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


class Upkept:
    """``place`` commits; pieces are done by executor "1", or another one, of the same host."""

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
        """Return the executor's folder."""
        return folder_of(self.home, executor)

    def follows(self, entries: dict[int, Entry] | None = None) -> tuple[Follow, ...]:
        """Return what brings copies to these entries, or to all that was committed."""
        entries = self.place.entries if entries is None else entries
        return tuple(Follow(STORE, kg, entry) for kg, entry in sorted(entries.items()))

    def order(self, **changes: object) -> UpkeepOrder:
        """Return an order to follow everything, with a lot of time."""
        said: dict[str, object] = {"follows": self.follows(), "seconds": 1000.0, **changes}
        return UpkeepOrder(self.home, "", 1, 1, {STORE: SCHEMA.to_text()}, **said)  # type: ignore[arg-type]

    def run(self, executor: str = "1", **changes: object) -> UpkeepReceipt:
        """Do a piece in which nothing may go wrong."""
        receipt = run_upkeep(self.order(**changes), executor)
        assert (receipt.errors, receipt.failed, receipt.failed_snapshots) == ((), (), ())
        return receipt

    def troubled(self, **changes: object) -> UpkeepReceipt:
        """Do a piece in which something must go wrong, and be told."""
        receipt = run_upkeep(self.order(**changes), "1")
        assert receipt.errors
        return receipt

    def held(self, key_group: int, executor: str = "1") -> dict[str, int] | None:
        """Return what the copy of a key-group holds, ``None`` if there is none."""
        found = self.place.local(key_group, self.folder(executor))
        return found and found[1]

    def is_warm(self, receipt: UpkeepReceipt) -> bool:
        """Tell whether the piece left every copy at its entry's head, holding what was committed."""
        at = {(STORE, kg, *entry.head) for kg, entry in self.place.entries.items()}
        holds = all(self.held(kg) == rows for kg, rows in self.place.wanted.items())
        return set(receipt.copies) == at and receipt.unfinished == () and holds and self.strays() == []

    def strays(self) -> list[str]:
        """Return what lies in the folder and is of no copy."""
        folder, stacks = self.folder(), self.folder().stacks(STORE)
        found = [stacks.read(key_group) for key_group in stacks.key_groups()]
        known = {part.file for stack in found if stack for part in stack.parts}
        files = (str(path.relative_to(folder.path)) for path in folder.path.glob("stacks/*/*.part"))
        return [file for file in files if file not in known]

    def incoming(self) -> list[Path]:
        """Return the half-fetched snapshots."""
        return sorted(self.folder().path.glob("incoming/*/*"))

    def log(self) -> None:
        """Append the record, of sequence 1 at first, that lists what was committed."""
        entries = {(STORE, kg): entry for kg, entry in self.place.entries.items()}
        self.log_of.append(drafted("listed"), Manifest(entries))

    def gets(self, prefix: str) -> int:
        """Return how many gets there were of objects whose names begin so; count anew from here."""
        count = sum(method == "get" and name.startswith(prefix) for method, name in self.store.calls)
        self.store.calls.clear()
        return count

    def drop(self, key_group: int, head: Head | None = None) -> Drop:
        """Return the order to drop a copy."""
        return Drop(STORE, key_group, head)

    def snapshot(self, key_group: int) -> SnapshotOrder:
        """Return the order to take a snapshot."""
        return SnapshotOrder(STORE, key_group, self.place.entries[key_group])
