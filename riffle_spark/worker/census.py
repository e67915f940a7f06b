"""What an executor finds on its own machine: its folder, the copies in it, where it stands. Knows disk and environment.
Does not know who asks, or what the copies are for.
"""

import functools
import http.client
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from riffle_spark.errors import RiffleError
from riffle_spark.messages.upkeep_orders import Census, CensusOrder
from riffle_spark.state.copies.abandoned import remove_folders
from riffle_spark.state.copies.disk import use_of
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.restore.copy_progress import head_of
from riffle_spark.worker.member_folders import drop_unreadable, folder_of, keys_of
from riffle_spark.worker.memory_use import memory_use

__all__ = ["rack_of_environment", "tags_of_environment", "take_census", "zone_of_ec2"]

EC2_METADATA = "169.254.169.254:80"
_RACK = "RIFFLE_RACK"
_TAG = "RIFFLE_TAG_"
_SECONDS_A_WAIT = 0.25
"""A silent service costs one such wait, a slow one at most four: to connect, and for each of two answers and bodies."""
_ANSWER_BYTES_MAX = 4096


def take_census(order: CensusOrder, executor: str) -> Census:
    """Tell what this executor holds, and tidy its folder; it gets one if it has none. Whatever fails is told in
    ``error``.

    A disk that refuses a small file is such a failure: slots there would fail batches. A copy that is not whole
    is removed, so is what processes that died left half done, and what the listed keys do not open. Folders of other
    roots are left alone, whoever owned them.
    """
    rack, tags = _rack(ec2_metadata=order.ec2_metadata), tags_of_environment()
    try:
        folder = folder_of(order.home, executor)
        used_before = time.time() - order.folder_cleanup_seconds
        folder.tidy(used_before)
        with folder.used():
            folder.try_disk()
            with suppress(RiffleError, OSError):  # without the right keys batches fail, and say why
                drop_unreadable(folder, keys_of(order.home), anew=True)
            copies, sealed = _copies(folder), folder.sealed_attempts()
            disk = use_of(folder.path)
            removed = remove_folders(folder.path.parent, order.home.live, used_before)
    except Exception as trouble:  # noqa: BLE001 - a census is asked of every executor; one that cannot answer says why
        return Census(executor, rack=rack, tags=tags, error=str(trouble))
    return Census(executor, folder.member, copies, sealed, rack, tags, disk, memory_use(), removed)


def _rack(*, ec2_metadata: bool) -> str | None:
    return rack_of_environment() or (_zone() if ec2_metadata else None)


def _zone() -> str | None:
    """Return the zone that the metadata service told once; where it did not, it is asked again."""
    try:
        return _known_zone()
    except LookupError:
        return None


@functools.cache
def _known_zone() -> str:
    zone = zone_of_ec2()
    if zone is None:
        raise LookupError
    return zone


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


def zone_of_ec2(address: str | None = None) -> str | None:
    """Return this machine's availability zone, or ``None`` if nobody tells within about a second."""
    connection = http.client.HTTPConnection(address or EC2_METADATA, timeout=_SECONDS_A_WAIT)
    try:
        token = _said(connection, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        where = "/latest/meta-data/placement/availability-zone"
        return _said(connection, "GET", where, {"X-aws-ec2-metadata-token": token}) if token else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _said(connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    connection.request(method, path, headers=dict(headers))
    answer = connection.getresponse()
    text = answer.read(_ANSWER_BYTES_MAX).decode("ascii").strip()
    return text if answer.status == http.client.OK and text.isprintable() else None
