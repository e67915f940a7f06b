"""Copy the state of a batch or a savepoint to a new root, for another query (`riffle fork`).

Theory of operation. The query may run at the same time.

1. The objects that the batch lists are copied under the same names. So their bytes stay as they are, also if they are
   encrypted, because a part is bound to its name below the root and to no root. A store copies from another store of
   its own service without reading the bytes. Otherwise each object is read and written by this process, large ones
   through a file.
2. At the end one record is put, the first of the new log. It lists the copied objects, and belongs to no query until
   ``riffle adopt`` binds it. Until then the new root holds objects and no log, which every query and command refuses.
3. After a crash the same command copies what is missing. An object that is there has the right bytes, because its name
   is unique. If it is shorter than the record lists, it is deleted and copied again.
"""

import mmap
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from riffle_spark.errors import ConfigError, CorruptStateError, command
from riffle_spark.observe.units import show_bytes
from riffle_spark.offline.command_errors import machine_clocks
from riffle_spark.offline.recovery import Plan
from riffle_spark.offline.rollback_targets import find_target
from riffle_spark.offline.running_log import open_running_log
from riffle_spark.offline.savepoints import object_sizes
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import FORK_OF, Record
from riffle_spark.state.objects.open import normalised, open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import CopyingStore, ObjectStore
from riffle_spark.state.restore.reader import in_parallel

_IN_MEMORY_BYTES = 16 << 20
"""Larger objects are copied through a file. Several are copied at once."""
_BIND_IT = (
    "The state belongs to no query yet. Start a query with the new root and a new checkpoint. It is refused, and the "
    "error lists the steps that bind it to the state (riffle adopt)."
)
_BLOCK = 256
"""The number of objects that are copied between two checks for errors."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The copy of a fork's objects: the stores to read and to write, and the least size of each object by name."""

    source: ObjectStore
    target: ObjectStore
    sizes: Mapping[str, int]

    @property
    def is_by_store(self) -> bool:
        """Whether the store copies without reading the bytes."""
        return isinstance(self.target, CopyingStore) and self.target.can_copy_from(self.source)

    def missing(self, existing: Sequence[str]) -> list[str]:
        """Return the names that have to be copied, given the ``existing`` names below the new root."""
        present = sorted(self.sizes.keys() & set(existing))
        are_whole = in_parallel(self._is_whole, present)
        complete = {name for name, is_whole in zip(present, are_whole, strict=True) if is_whole}
        return sorted(self.sizes.keys() - complete)

    def _is_whole(self, name: str) -> bool:
        """Return whether a copied object has at least its size."""
        return len(self.target.get(name, max(self.sizes[name] - 1, 0), 1) or b"") == min(self.sizes[name], 1)

    def run(self, names: Sequence[str]) -> None:
        """Copy these objects, several at once. Raises ``CorruptStateError`` if one is missing."""
        copy = self._copy_by_store if self.is_by_store else self._copy_bytes
        for start in range(0, len(names), _BLOCK):
            block = names[start : start + _BLOCK]
            for name, exists in zip(block, in_parallel(copy, block), strict=True):
                if not exists:
                    # Cause: The batch was retained when the command started, and the query has deleted it since.
                    raise CorruptStateError(
                        "An object of the batch is missing.",
                        remedy="Create a savepoint of the batch first (riffle savepoint create), and fork it with "
                        "--savepoint. If the query has stopped, run riffle verify.",
                        where=name,
                        id="RIFFLE-1586",
                    )

    def _copy_by_store(self, name: str) -> bool:
        return cast("CopyingStore", self.target).copy_from(self.source, name)

    def _copy_bytes(self, name: str) -> bool:
        """Read an object and write it. Return whether it exists."""
        if self.sizes[name] <= _IN_MEMORY_BYTES:
            data = self.source.get(name)
            return data is not None and self._put(name, data)
        with _spooled(partial(self.source.copy_to, name, 0, 1 << 62)) as content:
            return content is not None and self._put(name, content)

    def _put(self, name: str, data: bytes) -> bool:
        """Write an object, unless the same command has just written it in another process. Return ``True``."""
        self.target.put_if_absent(name, data)
        return True


@contextmanager
def _spooled(copy_to: "partial[int | None]") -> Iterator[bytes | None]:
    """Yield the bytes that ``copy_to`` writes, as a mapped temporary file, or ``None`` if there are none to copy."""
    with tempfile.TemporaryFile(prefix="riffle-fork-") as file:
        length = copy_to(file.write)
        if not length:
            yield None
            return
        file.flush()
        with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ) as content:
            yield cast("bytes", content)  # stores take any buffer


def fork(
    root: str,
    new_root: str,
    at: int | str,
    *,
    options: StoreOptions | None = None,
    execute: bool = False,
) -> Plan:
    """Copy the state of a retained batch or a savepoint to ``new_root``, so that another query starts from it.

    The query may run at the same time, and is not changed. The new state belongs to no query until ``adopt`` binds it.

    Args:
        root: where the state is stored.
        new_root: an unused root, or one where the same command was interrupted. It may be in another store.
        at: a batch, ``record:17``, ``savepoint:NAME`` or ``time:2026-11-26T14:00Z``, as in ``rollback``.
        options: how to reach the object stores.
        execute: write the new root. Without it nothing is written.

    Returns:
        The steps, the batch, and the offsets from which the new query must start.

    Raises:
        ConfigError: the batch is not retained, or the new root holds other objects.
        CorruptStateError: an object is missing. The query may have deleted it during the call.

    Example:
        >>> fork("s3://bucket/state/visits", "s3://bucket/state/trial", "savepoint:a", execute=True)  # doctest: +SKIP
    """
    store_options = options or StoreOptions()
    root = only_root(root, store_options)
    _check_apart(root, new_root)
    source = open_store(root, store_options)
    target = open_store(new_root, store_options)
    log, tail = open_running_log(source, root)
    record = find_target(log, tail, at, source)
    manifest = log.manifest_of(record)
    whole = replace(record, full=record.sequence, between=(), entries=manifest.entries, outputs=())
    copy = _Copy(source, target, object_sizes(whole))
    existing = target.list("")
    _check_unused(new_root, existing, copy.sizes)
    names = copy.missing(existing)
    way = "by the store itself" if copy.is_by_store else "through this machine"
    size = show_bytes(sum(copy.sizes[name] for name in names))
    steps = [
        f"copy {len(names)} objects of batch {record.version} (record {record.sequence}), {size}, to {new_root}, {way}",
        f"append the first record of {new_root}. Its state belongs to no query until riffle adopt binds it",
    ]
    if len(names) < len(copy.sizes):
        steps.insert(0, f"keep {len(copy.sizes) - len(names)} objects that an earlier attempt has copied")
    if execute:
        target.delete(sorted(set(names) & set(existing)))
        copy.run(names)
        _append_first(target, new_root, record, manifest)
    return Plan(tuple(steps), execute, record.version, record.offsets, _BIND_IT)


def _append_first(target: ObjectStore, new_root: str, record: Record, manifest: Manifest) -> None:
    """Append the first record of the new log. Raises ``FencedError`` if another command has done so first."""
    commit_id = uuid.uuid4().hex
    draft = replace(
        record,
        kind="adopt",
        previous="",
        commit_id=commit_id,
        log_id=commit_id,
        epoch=record.epoch + 1,  # its claims are later than all copied objects
        query_id=f"{FORK_OF}{record.query_id}",
        rollbacks=0,
        written_ms=time.time_ns() // 1_000_000,
        input_digest=None,
        target=None,
        outputs=(),
        delivers_after_commit=False,
        delivers_as=None,
        promised=0,
        owners={},
        standbys={},
        members=(),
        weights={},
        orders={},
        moves=(),
        savepoints=(),
        purged=0,
        previous_offsets=None,
    )
    Log(target, new_root, machine_clocks).append(draft, manifest)


def _check_apart(root: str, new_root: str) -> None:
    """Raise ``ConfigError`` if one root is the other, or is below it."""
    old_prefix = f"{normalised(root)}/"
    new_prefix = f"{normalised(new_root)}/"
    if old_prefix.startswith(new_prefix) or new_prefix.startswith(old_prefix):
        raise ConfigError(
            f"{new_root} and {root} are the same root, or one is below the other.",
            remedy="Name a new root outside of it.",
            where=new_root,
            id="RIFFLE-1589",
        )


def _check_unused(new_root: str, existing: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Raise ``ConfigError`` if the new root has other objects than those that an interrupted fork has copied."""
    foreign_object = next((name for name in existing if name not in sizes), None)
    if foreign_object is None:
        return
    if foreign_object.startswith(paths.LOG):
        problem = f"{new_root} already holds the state of a query."
        remedy = "Name an unused root. To bind this state to a query, run: " + command(
            "adopt", root=new_root, checkpoint="CHECKPOINT"
        )
    else:
        problem = f"{new_root} has objects that do not belong to this batch."
        remedy = "Name an unused root, or delete the objects below this one. Another fork to it may have failed."
    # Cause: The new root is in use, or a fork of another batch to it was interrupted.
    raise ConfigError(problem, remedy=remedy, where=foreign_object, id="RIFFLE-1588")
