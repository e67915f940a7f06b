"""Find the roots of queries below a prefix, as `riffle ls` does."""

from collections import deque
from dataclasses import dataclass

from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import normalised, open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

FOLDERS_MAX = 1_000
"""The most folders that a search lists."""
_RECORDS = f"{paths.LOG}00000000"
"""The prefix of the names of all records. The numbers of records have at most 12 digits."""


@dataclass(frozen=True, slots=True)
class RootSearch:
    """The roots below a prefix, sorted. ``is_complete`` is false if some folders were not listed."""

    roots: tuple[str, ...]
    is_complete: bool


def find_roots(
    prefix: str, options: StoreOptions | None = None, depth: int = 3, folders_max: int = FOLDERS_MAX
) -> RootSearch:
    """Return the roots of queries below a prefix, down to ``depth`` folders.

    A root has a folder ``log`` with a record of a query. Below a root only the roots of wrapped queries are searched.
    Sends one LIST for each of at most ``folders_max`` folders, those near the prefix first, and one more for each with
    a folder ``log``.
    """
    objects = open_store(prefix, options or StoreOptions())
    place = normalised(prefix)
    roots: list[str] = []
    folders_to_list = deque([("", 0)])
    looks = 0
    while folders_to_list and looks < folders_max:
        folder, level = folders_to_list.popleft()
        looks += 1
        names = objects.list_folders(folder)
        is_root = paths.LOG.rstrip("/") in names and _has_record(objects, folder)
        if is_root:
            roots.append(f"{place}/{folder}".rstrip("/"))
        queries = [name for name in names if name.startswith(paths.QUERY)]
        following = queries if queries or is_root else names
        if level < depth:
            folders_to_list += [(f"{folder}{name}/", level + 1) for name in following]
    return RootSearch(tuple(sorted(roots)), is_complete=not folders_to_list)


def _has_record(objects: ObjectStore, folder: str) -> bool:
    """Return whether the folder ``log`` in a folder has a record. A log of another program has other names."""
    names = objects.list(f"{folder}{_RECORDS}")
    return any(paths.parse_record_name(name.removeprefix(folder)) is not None for name in names)
