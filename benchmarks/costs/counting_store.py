"""An object store in memory that counts the bytes of its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from riffle_spark.state.log.paths import parse_object_name
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.store import TaggedObject

__all__ = ["CountingStore", "kind_of"]


class CountingStore(MemoryStore):
    """Counts the put bytes by kind of object (``kind_of``), and the read bytes.

    ``sizes`` has the bytes of each object that exists.
    """

    def __init__(self) -> None:
        super().__init__()
        self.put_bytes: Counter[str] = Counter()
        self.read_bytes = 0
        self.sizes: dict[str, int] = {}

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if its name is free, and count its bytes."""
        is_written = super().put_if_absent(name, data)
        self.put_bytes[kind_of(name)] += len(data)
        if is_written:
            self.sizes[name] = len(data)
        return is_written

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return a range of the object, and count its bytes. ``copy_to`` and ``get_if_changed`` call this."""
        data = super().get(name, start, length)
        self.read_bytes += len(data or b"")
        return data

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """Replace the object if it still has ``tag``, and count its bytes."""
        is_replaced = super().replace_if_unchanged(name, data, tag)
        self.put_bytes[kind_of(name)] += len(data)
        if is_replaced:
            self.sizes[name] = len(data)
        return is_replaced

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist."""
        super().delete(names)
        for name in names:
            self.sizes.pop(name, None)

    def bytes_of(self, names: Iterable[str]) -> int:
        """Return the bytes of those objects among ``names`` that exist. A name that is repeated counts once."""
        return sum(self.sizes.get(name, 0) for name in set(names))


def kind_of(name: str) -> str:
    """Return the kind of an object by its name: ``delta``, ``merged``, ``snapshot``, ``log`` or ``other``."""
    if name.startswith("log/"):
        return "log"
    parsed = parse_object_name(name)
    return parsed.kind if parsed else "other"
