"""Plan the links or the snapshot that a copy lacks: a pure function for owners, standbys, warm-ups and snapshots.

Theory of operation. A copy advances only from a head on the chain of its entry. The first row that fits decides:

| the copy's head                                             | the entry    | plan                                |
| ----------------------------------------------------------- | ------------ | ----------------------------------- |
| on the chain                                                | any          | fold: add the links after it        |
| off it, of a newer epoch than the driver's, or of the same  | any          | beyond: leave it. Not if nothing    |
| and a later version                                         |              | was committed after the entry       |
| off it, or there is no intact copy                          | is cut       | cut: get the whole entry            |
| off it, or there is no intact copy                          | is empty     | drop                                |
| off it, or there is no intact copy                          | is not empty | restore: snapshot, then all links   |

A copy that is off the chain and not beyond is older than the snapshot or than a delta with the whole state, of an
attempt that was never listed, or of batches that a rollback discarded. A copy on the chain of the whole entry is never
beyond, because epochs and versions only grow along a chain. So a cut entry never changes a decision. The whole entry is
read only if it is needed. A cache's entry is always cut and has nothing before it: its copy off the chain is dropped.

Callers treat *beyond* differently:

- A slot computes from the entry, so it stops with ``OutOfDate``: its driver is fenced or its attempt is late.
- A standby keeps its copy: the log is already ahead of the order.
- A snapshot is taken of the present copy, because a copy holds committed effects only. If a newer driver has advanced
  the copy, no snapshot is taken, because the older driver does not know the newer driver's schema.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How a copy reaches its entry's head.

    ``fold`` adds ``links`` to the copy at ``base``. ``restore`` makes a new copy from the entry's snapshot, if there is
    one, and adds ``links``. ``beyond``: the copy is newer than the entry. ``cut``: the cut entry does not decide.
    ``drop``: the key-group has no state, so the copy is deleted.
    """

    action: Literal["fold", "restore", "beyond", "cut", "drop"]
    entry: Entry
    base: Head = EMPTY_HEAD
    links: tuple[Link, ...] = ()


def plan_by_entry(head: Head | None, entry: Entry, epoch: int, *, newest: bool = False) -> CopyPlan:
    """Return the plan for the copy at ``head`` (``None``: no intact copy) by this entry alone, for a driver of
    ``epoch``.

    ``newest``: nothing was committed after the entry, so a copy beyond it is of batches that a rollback discarded.
    """
    links = None if head is None else entry.links_after(head)
    if head is not None and links is not None:
        return CopyPlan("fold", entry, head, links)
    if head is not None and not newest and _is_beyond(head, entry.head, epoch):
        return CopyPlan("beyond", entry)
    if entry.cut is not None:
        return CopyPlan("cut", entry)
    if entry.head == EMPTY_HEAD:
        return CopyPlan("drop", entry)
    return CopyPlan("restore", entry, entry.base, entry.chain)


def plan_copy(
    head: Head | None, entry: Entry, epoch: int, read_whole: Callable[[], Entry], *, newest: bool = False
) -> CopyPlan:
    """Return the plan for the copy at ``head``, as ``plan_by_entry`` does.

    If a cut entry does not decide, ``read_whole`` reads the whole entry.
    """
    plan = plan_by_entry(head, entry, epoch, newest=newest)
    if plan.action == "cut":
        # The plan by the cut entry has shown that the copy is not beyond.
        plan = plan_by_entry(head, read_whole(), epoch, newest=True)
        assert plan.action != "cut", "the whole entry is cut"
    return plan


def _is_beyond(copy_head: Head, entry_head: Head, epoch: int) -> bool:
    """Return whether a copy is newer than the entry: of a later epoch, or of a later version of this ``epoch``."""
    return copy_head.epoch > epoch or (copy_head.epoch == epoch and copy_head.version > entry_head.version)
