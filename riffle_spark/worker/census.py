"""An executor's report of its folder, its local copies, its rack and its tags."""

import functools
import os
import time
from contextlib import suppress

from riffle_spark.errors import RiffleError
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.state.copies.abandoned import remove_folders
from riffle_spark.state.copies.disk import read_disk_use
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.restore.copy_progress import read_head
from riffle_spark.worker.member_folders import drop_unreadable, folder_of, keys_of
from riffle_spark.worker.memory_use import memory_use

_RACK = "RIFFLE_RACK"
_TAG = "RIFFLE_TAG_"


def take_census(order: CensusOrder, executor: str) -> Census:
    """Return this executor's census, and tidy its folder. Create the folder if it has none.

    The rack is ``RIFFLE_RACK`` of the environment. Each variable ``RIFFLE_TAG_<NAME>`` is a tag ``<name>``.

    Removes incomplete copies, files of dead processes, and files that the listed keys cannot decrypt. Folders of other
    roots are not touched. A failure is reported in ``error``. A disk that refuses a small file is a failure too,
    because slots there would fail batches.
    """
    rack = os.environ.get(_RACK) or None
    named = {name.removeprefix(_TAG): value for name, value in os.environ.items() if name.startswith(_TAG)}
    tags = {name.lower(): value for name, value in sorted(named.items()) if name and value}
    try:
        folder = folder_of(order.home, executor)
        used_before = time.time() - order.folder_cleanup_seconds
        folder.remove_unfinished(used_before)
        with folder.hold():
            folder.probe_disk()
            with suppress(RiffleError, OSError):  # batches fail without the right keys, with their own error
                drop_unreadable(folder, keys_of(order.home), anew=True)
            copies = _copies(folder)
            sealed = folder.sealed_attempts()
            disk = read_disk_use(folder.path)
            removed = remove_folders(folder.path.parent, order.home.live, used_before)
    except Exception as error:  # noqa: BLE001 - one executor that fails must not hide the others
        return Census(executor, rack=rack, tags=tags, error=str(error))
    return Census(executor, folder.member, copies, sealed, rack, tags, disk, memory_use(), removed)


def _copies(folder: Folder) -> tuple[tuple[str, int, int, str], ...]:
    """Return (store, key-group, version, attempt) of each whole copy in a folder."""
    stacks = functools.cache(folder.stacks)
    heads = ((store, key_group, read_head(folder, stacks(store), key_group)) for store, key_group in folder.copies())
    return tuple((store, key_group, *head) for store, key_group, head in heads if head is not None)
