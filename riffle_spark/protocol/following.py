"""Which copies have to follow, and on which executor. Knows the assignment and where copies are. Does not know when."""

from __future__ import annotations

from collections.abc import Iterable

from riffle_spark.assign.model import MemberId
from riffle_spark.protocol.seating import Seating
from riffle_spark.state.manifest import EMPTY_HEAD, Manifest
from riffle_spark.worker.upkeep import Follow

__all__ = ["follows"]


def follows(seating: Seating, manifest: Manifest, stores: Iterable[str]) -> dict[MemberId, list[Follow]]:
    """Return what each member has to fold or fetch so that its standbys and warm-ups are where the log is.

    Pointer standbys hold nothing that could follow, unless they are to own. Warm-ups come first: owners wait for them.
    """
    present, live = seating.present, seating.members.live
    kept = {t: tuple(m for m in members if m == present.target.get(t)) for t, members in present.standbys.items()}
    roles = [present.warmups, kept if seating.points else present.standbys]
    wanted: dict[MemberId, list[Follow]] = {}
    named = sorted(stores)
    for copies in roles:
        for t, members in sorted(copies.items()):
            for member in (m for m in members if m in live):
                for store in named:
                    address = (store, t.key_group)
                    entry = manifest.entry(*address)
                    if entry.head != EMPTY_HEAD and seating.copies.missing(member, address, entry) != ():
                        follow = Follow(*address, seating.copies.entry_to_follow(member, address, entry))
                        wanted.setdefault(member, []).append(follow)
    return wanted
