"""A query's root as a pretended cluster, and its sizes. Knows what the newest full record says of members, owners and
orders. Does not know the assignor, and writes nothing.

``recorded_members`` and ``recorded_orders`` are where richer records are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from riffle_spark.assign.model import Lag, Member, MemberId, Task, TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.view import GROUP, assign_settings
from riffle_spark.settings import Settings
from riffle_spark.simulate.scenario import Client, Event, Scenario
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.unknown_names import check_known

__all__ = ["Changes", "RootState", "recorded_members", "recorded_orders", "scenario_of_root", "sizes_of_root"]


@dataclass(frozen=True, slots=True)
class Changes:
    """What if: so many members more, and these gone. ``drop`` are members, executors or hosts."""

    add: int = 0
    drop: tuple[str, ...] = ()
    drop_racks: tuple[str, ...] = ()
    add_racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RootState:
    """A root's state: bytes and rows of snapshots and the changes after them, and its key-groups."""

    state_bytes: int
    rows: int
    key_groups: int


def sizes_of_root(root: str, options: StoreOptions | None = None) -> RootState:
    """Return how large the state below a root is. Raises ``ConfigError`` for a root without any."""
    log, tail = _opened(root, options)
    entries = list(log.manifest.entries.values())
    taken = [entry.snapshot for entry in entries if entry.snapshot is not None]
    links = [link for entry in entries for link in entry.chain]
    return RootState(
        sum(one.length for one in taken) + sum(link.length for link in links),
        sum(one.rows for one in taken) + sum(link.rows for link in links),
        tail.total,
    )


def scenario_of_root(root: str, settings: Settings, changes: Changes, options: StoreOptions | None = None) -> Scenario:
    """Return the query below a root as its newest records know it, and the changes as an event.

    ``settings`` are the query's: the log does not keep them.
    Owners have their copies, and standbys are taken to have caught up: how far copies are is no matter of the log.
    Raises ``ConfigError`` for a root without state, or what it does not know.
    """
    log, tail = _opened(root, options)
    members = recorded_members(log, tail)
    tasks = {kg: _task(log, kg, tail.weights) for kg in range(tail.total)}
    owned = {TaskId(GROUP, int(kg)): owner for kg, owner in tail.owners.items()}
    kept = {TaskId(GROUP, int(kg)): held for kg, held in tail.standbys.items()}
    pins, drained = recorded_orders(tail)
    clients = tuple(_client(each, owned, kept) for each in members)
    events = (_event(changes, members),) if changes != Changes() else ()
    names = {task.id: str(kg) for kg, task in tasks.items()}
    return Scenario(
        root, "root", assign_settings(settings, frozenset(drained)), clients, tuple(tasks.values()), events, names,
        {TaskId(GROUP, kg): member for kg, member in pins.items()},
    )  # fmt: skip


def _opened(root: str, options: StoreOptions | None) -> tuple[Log, Record]:
    log = Log(open_store(root, options or StoreOptions()), root)
    tail = log.open()
    if tail is None:
        raise ConfigError(f"{root} holds no state", remedy="name the root of a query that has run", where=root)
    return log, tail


def recorded_members(log: Log, tail: Record) -> tuple[RecordedMember, ...]:
    """Return the members of the newest full record, and what owns something since, of which only the name is known."""
    full = tail if tail.full == tail.sequence else log.read(tail.full)
    known = {member.id: member for member in (tail.members or full.members)}
    later = {*tail.owners.values(), *(member for held in tail.standbys.values() for member in held)} - known.keys()
    slots = max((member.slots for member in known.values()), default=1)
    return (*known.values(), *(RecordedMember(name, "", "", slots) for name in sorted(later - {""})))


def recorded_orders(tail: Record) -> tuple[dict[int, MemberId], tuple[MemberId, ...]]:
    """Return the pins and the drained members that the log knows of: nothing where it keeps none."""
    pins = cast("Mapping[str, str]", tail.orders.get("pins") or {})
    drained = cast("Sequence[str]", tail.orders.get("drained") or ())
    return {int(kg): member for kg, member in pins.items()}, tuple(drained)


def _task(log: Log, key_group: int, weights: Mapping[str, object]) -> Task:
    entries = [entry for (_, kg), entry in log.manifest.entries.items() if kg == key_group]
    size = sum((one.snapshot.rows if one.snapshot else 0) + sum(link.rows for link in one.chain) for one in entries)
    measured = cast("Mapping[str, float]", weights.get("rows") or {}).get(str(key_group))
    return Task(TaskId(GROUP, key_group), size=size, weight=None if measured is None else round(measured))


def _client(each: RecordedMember, owned: Mapping[TaskId, str], kept: Mapping[TaskId, tuple[str, ...]]) -> Client:
    owns = tuple(task for task, owner in sorted(owned.items()) if owner == each.id)
    keeps = tuple(task for task, held in sorted(kept.items()) if each.id in held)
    lags: dict[TaskId, Lag] = dict.fromkeys((*owns, *keeps), 0)
    memory = each.facts.get("memory_bytes")
    member = Member(each.id, each.slots, each.rack, dict(each.tags), memory if isinstance(memory, int) else None)
    return Client(member, owns, keeps, lags)


def _event(changes: Changes, members: Sequence[RecordedMember]) -> Event:
    known = {name for each in members for name in (each.id, each.executor, each.host) if name}
    check_known("member, executor or host", changes.drop, sorted(known), source="--drop")
    racks = sorted({each.rack for each in members if each.rack is not None})
    check_known("rack", changes.drop_racks, racks, source="--drop-rack")
    gone = [each.id for each in members if {each.id, each.executor, each.host} & set(changes.drop)]
    gone += [each.id for each in members if each.rack in changes.drop_racks and each.id not in gone]
    left = [rack for rack in racks if rack not in changes.drop_racks]
    into = changes.add_racks or tuple(left) or (None,)
    slots = max((each.slots for each in members), default=1)
    new = (Client(Member(f"new{n}", slots, into[n % len(into)])) for n in range(changes.add))
    return Event(drop=tuple(gone), add=tuple(new))
