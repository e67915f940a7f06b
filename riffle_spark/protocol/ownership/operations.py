"""What an operator asks of a running query, from any thread. Knows what can be asked and refuses what cannot work. Does
not know how it is done: the driver looks before each batch, and where none comes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.groups import GROUP, named
from riffle_spark.protocol.ownership.readiness import MemberState
from riffle_spark.protocol.ports import Lock
from riffle_spark.settings import LIVE, Settings, check_names

__all__ = ["Operations", "OperatorRequests"]


@dataclass(frozen=True, slots=True)
class OperatorRequests:
    """What stands asked for: pins by task, drained members, slots an executor at most, live settings, and a count
    of the requests that want an assignment.
    """

    pins: Mapping[TaskId, str] = field(default_factory=dict)
    drained: frozenset[str] = frozenset()
    slots: int | None = None
    settings: Settings | None = None
    requests: int = 0


class Operations:
    """The orders that stand, and the checks of new ones. Every method may be called from any thread, and again: what an
    order is checked against, or adds to, is looked at while no other thread can change it.
    """

    def __init__(self, key_groups: int, dispatch: str, lock: Lock) -> None:
        self._key_groups = key_groups
        self._dispatch = dispatch
        self._lock = lock
        self.orders = OperatorRequests()
        self.members: tuple[MemberState, ...] = ()
        self._known: dict[str, str] = {}

    def saw(self, members: tuple[MemberState, ...]) -> None:
        """Take the members as the driver sees them, to check orders against."""
        self.members = members

    def known_as(self, names: Mapping[str, str]) -> None:
        """Let orders that name executors which had answered no census yet hold for the members that these are now."""
        with self._lock:
            self._known.update(names)
            orders, name_of = self.orders, self._name_of
            pins = {t: name_of(member) for t, member in orders.pins.items()}
            self.orders = replace(orders, pins=pins, drained=frozenset(map(name_of, orders.drained)))

    def pin(self, key_group: int, member: str, group: str = GROUP) -> None:
        """Keep a group's key-group on a member (or the executor that holds one). Raises ``ConfigError`` if that cannot
        be.
        """
        if self._dispatch == "hashed":
            raise _refused("in `hashed` dispatch the owner follows from the membership alone", "use `partition`")
        self._check_key_group(key_group)

        def pinned(orders: OperatorRequests) -> OperatorRequests:
            name = self._member(member)
            if name in orders.drained:
                raise _refused(f"member {name} is being drained", "undrain it first, or pin to another one")
            return replace(orders, pins={**orders.pins, TaskId(group, key_group): name})

        self._change(pinned)

    def unpin(self, key_group: int, group: str = GROUP) -> dict[str, str]:
        """Let a group's key-group go where it is best again; return the members of those that are pinned still. Raises
        ``ConfigError`` for a key-group that there is not.
        """
        one = TaskId(group, key_group)
        self._check_key_group(key_group)
        orders = self._change(lambda o: replace(o, pins={t: m for t, m in o.pins.items() if t != one}))
        return {named(t): member for t, member in sorted(orders.pins.items())}

    def drain(self, member: str) -> None:
        """Move everything away from a member (or the executor that holds it), warm, before it goes.

        Raises ``ConfigError`` if it is unknown, or the last one that is not drained.
        """

        def drained(orders: OperatorRequests) -> OperatorRequests:
            name = self._member(member)
            if not any(m.state == "live" and self._name_of(m.id) not in orders.drained | {name} for m in self.members):
                raise _refused(f"member {name} is the last one", "add an executor first")
            pinned = [named(t) for t, to in sorted(orders.pins.items()) if to == name]
            if pinned:
                raise _refused(f"key-groups {', '.join(pinned)} are pinned to member {name}", "unpin them first")
            return replace(orders, drained=orders.drained | {name})

        self._change(drained)

    def undrain(self, member: str) -> tuple[str, ...]:
        """Let a member take part again; return those that are drained still. One that is gone may be named, too.

        Raises ``ConfigError`` for what is neither a member nor drained.
        """

        def undrained(orders: OperatorRequests) -> OperatorRequests:
            found = next((m.id for m in self.members if member in (m.id, m.executor)), None)
            name = self._name_of(found or member)
            if found is None and name not in orders.drained:
                told = ", ".join(sorted(orders.drained)) or "nobody"
                raise _refused(f"there is no member {member!r}, and drained is {told}", "name one that members() lists")
            return replace(orders, drained=orders.drained - {name})

        return tuple(sorted(self._change(undrained).drained))

    def add_worker(self) -> int:
        """Let every executor run one more slot; return how many. Raises ``ConfigError`` beyond its cores."""
        return self._set_slots(1)

    def remove_worker(self) -> int:
        """Let every executor run one slot less; return how many. Raises ``ConfigError`` below one."""
        return self._set_slots(-1)

    def _set_slots(self, step: int) -> int:
        self._check_running()
        most = max(member.cores for member in self.members)
        with self._lock:
            slots = (self.orders.slots or most) + step
            if not 1 <= slots <= most:
                reason = f"an executor has {most} cores" if step > 0 else "it runs one slot"
                raise _refused(f"an executor cannot run {slots} slots: {reason}", "change executors instead")
            self.orders = replace(self.orders, slots=None if slots == most else slots)
        return slots

    def request_rebalance(self) -> None:
        """Ask for an assignment before the next batch."""
        self._check_running()
        self._change(lambda orders: orders)

    def reconfigure(self, settings: Settings, changes: Mapping[str, object]) -> Settings:
        """Change live settings from the next batch on; return what will be in force.

        Raises ``ConfigError`` for settings that need a restart, and for names and values that are not allowed.
        """
        check_names(changes, "code")
        fixed = sorted(set(changes) - LIVE)
        if fixed:
            raise _refused(f"{', '.join(fixed)} cannot change while a query runs", "set it and restart the query")

        def changed(orders: OperatorRequests) -> OperatorRequests:
            return replace(orders, settings=(orders.settings or settings).but(**changes))

        return self._change(changed).settings or settings

    def take_over(self, orders: OperatorRequests, *, alone: bool) -> None:
        """Let what was asked of another driver stand: ``alone``, or beside what was asked of this one already."""
        self._change(
            lambda mine: replace(orders, requests=mine.requests) if alone else replace(
                mine, pins={**orders.pins, **mine.pins}, drained=orders.drained | mine.drained,
                slots=mine.slots or orders.slots, settings=mine.settings or orders.settings,
            )
        )  # fmt: skip

    def _member(self, name: str) -> str:
        self._check_running()
        for member in self.members:
            if name in (member.id, member.executor) and member.state != "awaited":
                return self._name_of(member.id)
        known = ", ".join(f"{m.id} (executor {m.executor})" for m in self.members if m.state != "awaited")
        raise _refused(f"there is no live member {name!r}", f"choose one of {known}")

    def _name_of(self, member: str) -> str:
        return self._known.get(member, member)

    def _check_key_group(self, key_group: int) -> None:
        if not 0 <= key_group < self._key_groups:
            raise _refused(f"there is no key-group {key_group}", f"choose 0 to {self._key_groups - 1}")

    def _check_running(self) -> None:
        if not self.members:
            raise _refused("the query has not run a batch yet", "ask again once it has")

    def _change(self, change: Callable[[OperatorRequests], OperatorRequests]) -> OperatorRequests:
        with self._lock:
            self.orders = replace(change(self.orders), requests=self.orders.requests + 1)
            return self.orders


def _refused(problem: str, remedy: str) -> ConfigError:
    return ConfigError(problem, remedy=remedy, id="RIFFLE-0237")
