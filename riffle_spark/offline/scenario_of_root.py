"""A query's root as a pretended cluster, and its sizes. Knows what the newest full record says of members, owners and
orders. Does not know the assignor, and writes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from riffle_spark.assign.model import Lag, Member, Task, TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.batch.stored_requests import apply_stored_settings, read_requests
from riffle_spark.protocol.ownership.groups import GROUP, Groups
from riffle_spark.protocol.ownership.reported_copies import lag_without_copy
from riffle_spark.protocol.ownership.view import assign_settings, recorded
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.settings import Settings
from riffle_spark.simulate.scenario import Client, Event, Scenario
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.objects.open import StoreOptions, open_store
from riffle_spark.unknown_names import check_known

__all__ = ["Changes", "RootState", "recorded_members", "scenario_of_root", "sizes_of_root"]


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
        len(tail.shards) if tail.dispatch == "partition" else tail.total,
    )


def scenario_of_root(root: str, settings: Settings, changes: Changes, options: StoreOptions | None = None) -> Scenario:
    """Return the query below a root as its newest records know it, and the changes as an event.

    ``settings`` are the query's: the log keeps none but those that were changed live. There are at least as many
    standbys as it lists. Owners have their copies, and standbys are taken to have caught up: how far copies are is no
    matter of the log.
    Raises ``ConfigError`` for a root without state, one of ``hashed`` dispatch, or what it does not know.
    """
    log, tail = _opened(root, options)
    if tail.dispatch == "hashed":
        raise ConfigError(
            "in hashed dispatch owners follow from the members alone, and nothing is assigned",
            remedy="plan a query of another dispatch",
            where=root,
            id="RIFFLE-0149",
        )
    members = recorded_members(log, tail)
    if not members:
        raise ConfigError(
            "no member is known yet", remedy="wait until the query has run a batch", where=root, id="RIFFLE-0150"
        )
    groups = _groups(tail, settings, root)
    tasks = _tasks(log, tail, groups)
    owned, kept = defaultdict[str, list[TaskId]](list), defaultdict[str, list[TaskId]](list)
    present, will = recorded(tail), read_requests(tail.orders)
    for t, owner in present.owners.items():
        owned[owner].append(t)
    for t, held in present.standbys.items():
        for member in held:
            kept[member].append(t)
    clients = tuple(_client(each, sorted(owned[each.id]), sorted(kept[each.id])) for each in members)
    events = (_event(changes, members),) if changes != Changes() else ()
    shards = {kg: f"{topic}/{partition}" for kg, (topic, partition) in enumerate(tail.shards)}
    names = {t: shards.get(t.key_group, str(t.key_group)) for t in (each.id for each in tasks)}
    names = {t: name if t.group == GROUP else f"{t.group}/{name}" for t, name in names.items()}
    pinned = groups.only(will.pins)
    decided_by = assign_settings(apply_stored_settings(settings, will.settings)[0], frozenset(will.drained))
    most_standbys = max(map(len, present.standbys.values()), default=0)
    decided_by = replace(decided_by, num_standbys=max(decided_by.num_standbys, most_standbys))
    return Scenario(root, "root", decided_by, clients, tasks, events, names, pinned)


def _opened(root: str, options: StoreOptions | None) -> tuple[Log, Record]:
    log = Log(open_store(root, options or StoreOptions()), root)
    tail = log.open()
    if tail is None:
        raise ConfigError(
            f"{root} holds no state", remedy="name the root of a query that has run", where=root, id="RIFFLE-0151"
        )
    return log, tail


def recorded_members(log: Log, tail: Record) -> tuple[RecordedMember, ...]:
    """Return the members of the newest full record, and what owns something since, of which only the name is known."""
    full = tail if tail.full == tail.sequence else log.read(tail.full)
    known = {member.id: member for member in (tail.members or full.members)}
    later = {*tail.owners.values(), *(member for held in tail.standbys.values() for member in held)} - known.keys()
    slots = max((member.slots for member in known.values()), default=1)
    return (*known.values(), *(RecordedMember(name, "", "", slots) for name in sorted(later - {""})))


def _groups(tail: Record, settings: Settings, root: str) -> Groups:
    """Return the groups of a root's tasks, by those of its stores and of the caches that settings name, which it does
    not list. Raises ``ConfigError`` where settings name others than its owners.
    """
    caches = [store for store, _ in settings.store_groups if store not in tail.schemas]
    groups = Groups.of_query([*tail.schemas, *caches], settings.store_groups)
    present = {t.group for t in recorded(tail).owners}
    fresh = {groups.of(store) for store in tail.schemas} - present - {GROUP}
    if fresh or present - {*groups.names}:
        raise ConfigError(
            f"the stores below {root} are in other co-location groups than store_groups says",
            remedy="give the settings of the query",
            where="store_groups",
            id="RIFFLE-0152",
        )
    return Groups({store: group for store, group in groups.of_stores.items() if group in present})


def _tasks(log: Log, tail: Record, groups: Groups) -> tuple[Task, ...]:
    """Return a task for each key-group or, where these are partitions, for those that have been found."""
    sizes: Counter[TaskId] = Counter()
    for address, entry in log.manifest.entries.items():
        sizes[groups.task(*address)] += lag_without_copy(entry).records
    weights = Weights()
    weights.go_on(log.weights, groups)
    count = len(tail.shards) if tail.dispatch == "partition" else tail.total
    tasks = groups.tasks(range(count))
    return tuple(Task(t, size=sizes[t], weight=weights.latched.get(t)) for t in tasks)


def _client(each: RecordedMember, owns: Sequence[TaskId], keeps: Sequence[TaskId]) -> Client:
    lags: dict[TaskId, Lag] = dict.fromkeys((*owns, *keeps), 0)
    memory = each.facts.get("memory_bytes")
    member = Member(each.id, each.slots, each.rack, dict(each.tags), memory if isinstance(memory, int) else None)
    return Client(member, tuple(owns), tuple(keeps), lags)


def _event(changes: Changes, members: Sequence[RecordedMember]) -> Event:
    known = {name for each in members for name in (each.id, each.executor, each.host) if name}
    check_known("member, executor or host", changes.drop, sorted(known), source="--drop")
    racks = sorted({each.rack for each in members if each.rack is not None})
    check_known("rack", changes.drop_racks, racks, source="--drop-rack")
    gone = [each.id for each in members if {each.id, each.executor, each.host} & set(changes.drop)]
    gone += [each.id for each in members if each.rack in changes.drop_racks and each.id not in gone]
    if len(gone) == len(members) and not changes.add:
        raise ConfigError("nobody would be left", remedy="drop fewer, or --add some", where="--drop", id="RIFFLE-0153")
    left = [rack for rack in racks if rack not in changes.drop_racks]
    into = changes.add_racks or tuple(left) or (None,)
    slots = max((each.slots for each in members), default=1)
    new = (Client(Member(f"new{n}", slots, into[n % len(into)])) for n in range(changes.add))
    return Event(drop=tuple(gone), add=tuple(new))
