"""Objects in this process's memory, for tests and simulations."""

import threading
from collections.abc import Callable, Sequence

from riffle_spark.state.objects.store import (
    RequestCounts,
    TaggedObject,
    check_name,
    check_prefix,
    check_range,
    content_tag,
    tag_content,
    write_all,
)


class _Objects:
    """The objects that all memory stores with the same name share."""

    def __init__(self) -> None:
        self.by_name: dict[str, bytes] = {}
        self.lock = threading.Lock()


_NAMED: dict[str, _Objects] = {}


class MemoryStore:
    """A store in memory. Stores with the same name share their objects in this process."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.requests = RequestCounts()
        self._objects = _NAMED.setdefault(name, _Objects()) if name else _Objects()

    def __reduce__(self) -> "tuple[type[MemoryStore], tuple[str]]":
        if not self.name:
            raise TypeError("Cannot pickle a memory store without a name.")
        return MemoryStore, (self.name,)

    def __repr__(self) -> str:
        return f"MemoryStore({self.name!r})"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object if its name is free. Return whether this call wrote it."""
        check_name(name)
        self.requests.add("put")
        with self._objects.lock:
            if name in self._objects.by_name:
                return False
            self._objects.by_name[name] = bytes(data)
            return True

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Return a range of the object, or ``None`` if it does not exist."""
        check_name(name)
        check_range(start, length)
        self.requests.add("get")
        data = self._objects.by_name.get(name)
        return None if data is None else data[start : None if length is None else start + length]

    def get_if_changed(self, name: str, tag: str = "") -> TaggedObject | None:
        """Return the object with its tag, without its bytes if it still has ``tag``; ``None`` if it does not exist."""
        return tag_content(self.get(name), tag)

    def replace_if_unchanged(self, name: str, data: bytes, tag: str) -> TaggedObject | None:
        """Replace the object if it still has ``tag``. Return its new tag, ``None`` if this call did not replace it."""
        check_name(name)
        self.requests.add("put")
        with self._objects.lock:
            current = self._objects.by_name.get(name)
            if current is None or content_tag(current) != tag:
                return None
            self._objects.by_name[name] = bytes(data)
            return TaggedObject(None, content_tag(data))

    def copy_to(self, name: str, start: int, length: int, write: Callable[[bytes], object]) -> int | None:
        """Pass a range of the object to ``write`` in pieces. Return its length, or ``None`` without an object."""
        return write_all(self.get(name, start, length), write)

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        check_name(name)
        self.requests.add("head")
        return name in self._objects.by_name

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``, sorted."""
        check_prefix(prefix)
        self.requests.add("list")
        with self._objects.lock:
            return sorted(name for name in self._objects.by_name if name.startswith(prefix))

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``, sorted."""
        parts = [name[len(prefix) :].partition("/") for name in self.list(prefix)]
        return sorted({folder for folder, slash, _ in parts if slash})

    def delete(self, names: Sequence[str]) -> None:
        """Delete the objects that exist."""
        for name in names:
            check_name(name)
        if not names:
            return
        self.requests.add("delete")
        with self._objects.lock:
            for name in names:
                self._objects.by_name.pop(name, None)
