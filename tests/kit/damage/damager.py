"""Random damage to the files of members' folders."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

__all__ = ["Damager"]

PAGE_BYTES = 4096
NEWEST = 6


class Damager:
    """Damages files below ``<base>/<root id>/<member>/<folder>``. It spares the claims, which are not in such folders.

    ``remember`` stores the contents of the files, so that a later damage can replace a file by an older version.
    """

    def __init__(self, base: Path, chance: random.Random) -> None:
        self._base = base
        self._chance = chance
        self._older: dict[Path, list[bytes]] = {}

    def folders(self) -> list[Path]:
        """Return the folders below members' folders that contain files at any depth, sorted."""
        return [folder for folder in sorted(self._base.glob("*/m*/*/")) if files_in(folder)]

    def remember(self) -> None:
        """Store the contents of each file that changed since the last call."""
        for folder in self.folders():
            for path in files_in(folder):
                versions, now = self._older.setdefault(path, []), path.read_bytes()
                if versions[-1:] != [now]:
                    versions.append(now)
        self._older = {path: versions[-3:] for path, versions in self._older.items() if path.exists()}

    def damage(self) -> str:
        """Damage one file and return a description of the damage, or an empty text if there is no file."""
        files = [path for folder in self.folders() for path in files_in(folder)]
        if not files:
            return ""
        path = self._drawn(files)
        kinds: list[Callable[[Path], str]] = [
            self._flipped, self._another_byte, self._truncated, self._zeroed, self._swapped, self._removed,
            self._older_one,
        ]  # fmt: skip
        before = path.stat()
        description = self._chance.choice(kinds)(path)
        if path.exists() and self._chance.random() < 0.5:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            description += ", its time put back"
        return f"{path.relative_to(self._base)}: {description}"

    def _drawn(self, files: list[Path]) -> Path:
        """Draw a file. Half of the draws prefer large files, the others take one of the newest, which are read next."""
        if self._chance.random() < 0.5:
            return self._chance.choices(files, [path.stat().st_size for path in files])[0]
        return self._chance.choice(sorted(files, key=lambda path: (path.stat().st_mtime_ns, path))[-NEWEST:])

    def _place(self, path: Path) -> int:
        """Draw the position of a byte, preferably of one that is not zero."""
        data = path.read_bytes()
        drawn = [self._chance.randrange(len(data)) for _ in range(4)]
        return next((offset for offset in drawn if data[offset]), drawn[0])

    def _written(self, path: Path, offset: int, data: bytes) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def _flipped(self, path: Path) -> str:
        offset, bit = self._place(path), self._chance.randrange(8)
        self._written(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))
        return f"bit {bit} of byte {offset} flipped"

    def _another_byte(self, path: Path) -> str:
        offset = self._place(path)
        self._written(path, offset, bytes([path.read_bytes()[offset] ^ self._chance.randrange(1, 256)]))
        return f"byte {offset} is another"

    def _truncated(self, path: Path) -> str:
        size = self._chance.randrange(path.stat().st_size)
        os.truncate(path, size)
        return f"truncated to {size}"

    def _zeroed(self, path: Path) -> str:
        size = path.stat().st_size
        offset = self._place(path) // PAGE_BYTES * PAGE_BYTES
        self._written(path, offset, bytes(min(PAGE_BYTES, size - offset)))
        return f"a page zeroed at {offset}"

    def _swapped(self, path: Path) -> str:
        candidates = [other for folder in self.folders() for other in files_in(folder) if other != path]
        alike = [other for other in candidates if other.name == path.name or other.parent == path.parent]
        if not candidates:
            return self._removed(path)
        other, passing = self._chance.choice(alike or candidates), path.with_name("passing")
        path.rename(passing)
        other.rename(path)
        passing.rename(other)
        return f"swapped with {other.relative_to(self._base)}"

    def _removed(self, path: Path) -> str:
        path.unlink()
        return "removed"

    def _older_one(self, path: Path) -> str:
        older = [data for data in self._older.get(path, []) if data != path.read_bytes()]
        if not older:
            return self._zeroed(path)
        passing = path.with_name("passing")
        passing.write_bytes(self._chance.choice(older))
        passing.replace(path)
        return "replaced by an older one"


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder that are not empty, sorted. Links are left out."""
    paths = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if path.is_file() and not path.is_symlink() and path.stat().st_size)
