"""What an executor finds on its own machine: its folder, the copies in it, its rack and its tags."""

import functools
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from riffle_spark.errors import RiffleError
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.state.copies.abandoned import remove_folders
from riffle_spark.state.copies.disk import read_disk_use
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.restore.copy_progress import head_of
from riffle_spark.worker.member_folders import drop_unreadable, folder_of, keys_of
from riffle_spark.worker.memory_use import memory_use

__all__ = ["rack_of_environment", "tags_of_environment", "take_census"]

_RACK = "RIFFLE_RACK"
_TAG = "RIFFLE_TAG_"


def take_census(order: CensusOrder, executor: str) -> Census:
    """Tell what this executor holds, and tidy its folder; it gets one if it has none. Whatever fails is told in
    ``error``.

    A disk that refuses a small file is such a failure: slots there would fail batches. A copy that is not whole
    is removed, so is what processes that died left half done, and what the listed keys do not open. Folders of other
    roots are left alone, whoever owned them.
    """
    rack, tags = rack_of_environment(), tags_of_environment()
    try:
        folder = folder_of(order.home, executor)
        used_before = time.time() - order.folder_cleanup_seconds
        folder.tidy(used_before)
        with folder.used():
            folder.probe_disk()
            with suppress(RiffleError, OSError):  # without the right keys batches fail, and say why
                drop_unreadable(folder, keys_of(order.home), anew=True)
            copies, sealed = _copies(folder), folder.sealed_attempts()
            disk = read_disk_use(folder.path)
            removed = remove_folders(folder.path.parent, order.home.live, used_before)
    except Exception as trouble:  # noqa: BLE001 - a census is asked of every executor; one that cannot answer says why
        return Census(executor, rack=rack, tags=tags, error=str(trouble))
    return Census(executor, folder.member, copies, sealed, rack, tags, disk, memory_use(), removed)


def _copies(folder: Folder) -> tuple[tuple[str, int, int, str], ...]:
    stacks = functools.cache(folder.stacks)
    found = ((store, key_group, head_of(folder, stacks(store), key_group)) for store, key_group in folder.copies())
    return tuple((store, key_group, *head) for store, key_group, head in found if head is not None)


def rack_of_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what ``RIFFLE_RACK`` says, ``None`` where it is unset or empty."""
    return environment.get(_RACK) or None


def tags_of_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what ``RIFFLE_TAG_<NAME>`` say, by name in lower case; empty ones are left out."""
    return {
        name[len(_TAG) :].lower(): value
        for name, value in sorted(environment.items())
        if name.startswith(_TAG) and name != _TAG and value
    }
