"""What a copy lacks: one decision for owners, standbys, warm-ups and whoever takes snapshots. Pure.

Theory of operation. A copy may be folded on only from a head that is on the chain of its entry; every other copy is
left as it is, dropped or made anew. The first line that fits decides:

| where the copy is                                         | the entry    | plan                                     |
| --------------------------------------------------------- | ------------ | ---------------------------------------- |
| on the chain                                              | any          | fold the links after its head, if any    |
| off it, of a newer epoch than the driver's, or of the     | any          | beyond: leave it (not where nobody has   |
| same and a later version                                  |              | committed after the entry)               |
| off it, or there is no copy that can be trusted           | is cut       | cut: ask again of the whole entry        |
| off it, or there is no copy that can be trusted           | is empty     | drop                                     |
| off it, or there is no copy that can be trusted           | is not empty | restore: the snapshot, then all links    |

A copy that is off the chain and not beyond is behind the snapshot, of an attempt that was never listed, or of a line
that a rollback gave up. One on the chain of the whole entry is never beyond, for epochs and versions only grow along a
chain, up to the driver's own. So that an entry is cut changes no decision, and the whole one is got only where it is
needed. A cache's is always cut, and nothing is behind it: its copy that is off the chain goes.

What is done about *beyond* differs with the caller. A slot, which computes from the entry, stops: its driver is fenced
or its attempt late (``OutOfDate``). A standby stays where it is: the log it follows is further on than the order. A
snapshot is taken of it as it is: a copy holds committed effects only. Of one that a newer driver has moved none is
taken: what that declares the older one does not know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from riffle_spark.state.log.manifest import EMPTY_HEAD, Entry, Head, Link

__all__ = ["CopyPlan", "plan_copy", "plan_of_entry"]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """How a copy gets to its entry's head: from ``base`` through ``links``, where the action is one of the first two;
    ``restore`` makes a new copy and fills it from the entry's snapshot, if it has one, before them.
    """

    action: Literal["fold", "restore", "beyond", "cut", "drop"]
    entry: Entry
    base: Head = EMPTY_HEAD
    links: tuple[Link, ...] = ()


def plan_of_entry(head: Head | None, entry: Entry, epoch: int, *, newest: bool = False) -> CopyPlan:
    """Decide what the copy at ``head`` (``None``: no copy, or none to be trusted) lacks, for a driver of ``epoch``.

    ``newest``: nobody has committed after the entry, so that a copy beyond it is of a line that was given up.
    """
    links = None if head is None else entry.after(head)
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
    head: Head | None, entry: Entry, epoch: int, whole: Callable[[], Entry], *, newest: bool = False
) -> CopyPlan:
    """Decide as ``plan_of_entry`` does, of the ``whole`` entry where the cut one does not say enough but that the copy
    is not beyond it. Raises what ``whole`` raises.
    """
    plan = plan_of_entry(head, entry, epoch, newest=newest)
    if plan.action == "cut":
        plan = plan_of_entry(head, whole(), epoch, newest=True)
        assert plan.action != "cut", "the whole entry is cut"
    return plan


def _is_beyond(found: Head, wanted: Head, epoch: int) -> bool:
    return found.epoch > epoch or (found.epoch == epoch and found.version > wanted.version)
