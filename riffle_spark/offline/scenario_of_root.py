"""Convert a query's root to a scenario for the assignor, and read its sizes. Writes nothing."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from riffle_spark.assign.model import Lag, Member, Task, TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.batch.stored_requests import apply_stored_settings, read_requests
from riffle_spark.protocol.ownership.groups import GROUP, Groups
from riffle_spark.protocol.ownership.reported_copies import lag_without_copy
from riffle_spark.protocol.ownership.view import assign_settings, recorded_assignment
from riffle_spark.protocol.ownership.weights import Weights
from riffle_spark.settings import Settings
from riffle_spark.simulate.scenario import Client, Event, Scenario
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.unknown_names import check_known


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to the membership for a simulation.

    ``add`` members are added, in ``add_racks``. ``drop`` names members, executors or hosts to remove, ``drop_racks``
    racks.
    """

    add: int = 0
    drop: tuple[str, ...] = ()
    drop_racks: tuple[str, ...] = ()
    add_racks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RootState:
    """Bytes and rows of a root's snapshots and later deltas, and its number of key-groups."""

    state_bytes: int
    rows: int
    key_groups: int


def sizes_of_root(root: str, options: StoreOptions | None = None) -> RootState:
    """Return the size of the state below a root. Raises ``ConfigError`` if it has no state."""
    log, tail = open_log(root, options)
    entries = list(log.manifest.entries.values())
    snapshots = [entry.snapshot for entry in entries if entry.snapshot is not None]
    links = [link for entry in entries for link in entry.chain]
    return RootState(
        sum(snapshot.length for snapshot in snapshots) + sum(link.length for link in links),
        sum(snapshot.rows for snapshot in snapshots) + sum(link.rows for link in links),
        len(tail.shards) if tail.dispatch == "partition" else tail.total,
    )


def scenario_of_root(root: str, settings: Settings, changes: Changes, options: StoreOptions | None = None) -> Scenario:
    """Return the scenario of the query below a root, with ``changes`` as an event.

    ``settings`` are the query's: the log stores only settings that were changed live. There are at least as many
    standbys as the newest record lists. Owners have their copies. Standbys count as caught up, because the log does not
    store lags. Raises ``ConfigError`` for a root without state or members, for ``hashed`` dispatch, and for unknown
    names.
    """
    log, tail = open_log(root, options)
    if tail.dispatch == "hashed":
        raise ConfigError(
            "Cannot simulate a query with dispatch = hashed, because hashes choose its owners.",
            remedy="Name the root of a query with another dispatch.",
            where=root,
            id="RIFFLE-0149",
        )
    members = recorded_members(log, tail)
    if not members:
        raise ConfigError(
            "The log lists no member yet.", remedy="Wait until the query has run a batch.", where=root, id="RIFFLE-0150"
        )
    groups = _groups(tail, settings, root)
    tasks = _tasks(log, tail, groups)
    assignment = recorded_assignment(tail)
    requests = read_requests(tail.orders)
    owned = defaultdict[str, list[TaskId]](list)
    standbys = defaultdict[str, list[TaskId]](list)
    for task, owner in assignment.owners.items():
        owned[owner].append(task)
    for task, holders in assignment.standbys.items():
        for holder in holders:
            standbys[holder].append(task)
    clients = tuple(_client(member, sorted(owned[member.id]), sorted(standbys[member.id])) for member in members)
    events = (_event(changes, members),) if changes != Changes() else ()
    decided_by = assign_settings(apply_stored_settings(settings, requests.settings)[0], frozenset(requests.drained))
    most_standbys = max(map(len, assignment.standbys.values()), default=0)
    decided_by = replace(decided_by, num_standbys=max(decided_by.num_standbys, most_standbys))
    names = _task_names(tail, tasks)
    return Scenario(root, "root", decided_by, clients, tasks, events, names, groups.restrict(requests.pins))


def _task_names(tail: Record, tasks: Sequence[Task]) -> dict[TaskId, str]:
    """Return the name of each task: its key-group or partition, and its group if there are several."""
    names = {}
    for task in tasks:
        name = str(task.id.key_group)
        if task.id.key_group < len(tail.shards):
            topic, partition = tail.shards[task.id.key_group]
            name = f"{topic}/{partition}"
        names[task.id] = name if task.id.group == GROUP else f"{task.id.group}/{name}"
    return names


def open_log(root: str, options: StoreOptions | None) -> tuple[Log, Record]:
    """Return the log below a root, and its newest record. Raises ``ConfigError`` if there is none."""
    root = only_root(root, options or StoreOptions())
    log = Log(open_store(root, options or StoreOptions()), root)
    tail = log.open()
    if tail is None:
        # Cause: The root is wrong, or the query has not committed a batch yet.
        raise ConfigError(
            f"{root} holds no state.", remedy="Name the root of a query that has run.", where=root, id="RIFFLE-0151"
        )
    return log, tail


def recorded_members(log: Log, tail: Record) -> tuple[RecordedMember, ...]:
    """Return the members of the newest full record, and members that only later records name.

    The latter have a name, and neither host nor rack.
    """
    full = tail if tail.full == tail.sequence else log.read(tail.full)
    members = {member.id: member for member in (tail.members or full.members)}
    standbys = {holder for holders in tail.standbys.values() for holder in holders}
    later = {*tail.owners.values(), *standbys} - members.keys() - {""}
    slots = max((member.slots for member in members.values()), default=1)
    return (*members.values(), *(RecordedMember(name, "", "", slots) for name in sorted(later)))


def _groups(tail: Record, settings: Settings, root: str) -> Groups:
    """Return the co-location groups of the root's stores and of the caches in ``settings``. The log omits caches.

    Raises ``ConfigError`` if the owners in the log have other groups.
    """
    caches = [store for store, _ in settings.store_groups if store not in tail.schemas]
    groups = Groups.of_query([*tail.schemas, *caches], settings.store_groups)
    recorded_groups = {task.group for task in recorded_assignment(tail).owners}
    unrecorded_groups = {groups.of(store) for store in tail.schemas} - recorded_groups - {GROUP}
    if unrecorded_groups or recorded_groups - {*groups.names}:
        raise ConfigError(
            f"The stores below {root} have other co-location groups than store_groups sets.",
            remedy="Give the command the store_groups that the query runs with.",
            where="store_groups",
            id="RIFFLE-0152",
        )
    return Groups({store: group for store, group in groups.of_stores.items() if group in recorded_groups})


def _tasks(log: Log, tail: Record, groups: Groups) -> tuple[Task, ...]:
    """Return a task for each key-group, or with ``partition`` dispatch for each partition that was read."""
    sizes: Counter[TaskId] = Counter()
    for address, entry in log.manifest.entries.items():
        sizes[groups.task(*address)] += lag_without_copy(entry).records
    weights = Weights()
    weights.resume(log.weights, groups)
    count = len(tail.shards) if tail.dispatch == "partition" else tail.total
    return tuple(Task(id, size=sizes[id], weight=weights.in_use.get(id)) for id in groups.tasks(range(count)))


def _client(member: RecordedMember, owns: Sequence[TaskId], standbys: Sequence[TaskId]) -> Client:
    """Return a member of the scenario, with the tasks that it owns and those that it keeps as a standby."""
    lags: dict[TaskId, Lag] = dict.fromkeys((*owns, *standbys), 0)
    memory = member.facts.get("memory_bytes")
    memory_bytes = memory if isinstance(memory, int) else None
    return Client(
        Member(member.id, member.slots, member.rack, dict(member.tags), memory_bytes),
        tuple(owns),
        tuple(standbys),
        lags,
    )


def _event(changes: Changes, members: Sequence[RecordedMember]) -> Event:
    """Return the event that makes the changes.

    Raises ``ConfigError`` for unknown names, and if no member would remain.
    """
    names = {name for member in members for name in (member.id, member.executor, member.host) if name}
    check_known("member, executor or host", changes.drop, sorted(names), source="--drop")
    racks = sorted({member.rack for member in members if member.rack is not None})
    check_known("rack", changes.drop_racks, racks, source="--drop-rack")
    dropped_members = [
        member.id
        for member in members
        if {member.id, member.executor, member.host} & set(changes.drop) or member.rack in changes.drop_racks
    ]
    if len(dropped_members) == len(members) and not changes.add:
        raise ConfigError(
            "No member would remain.", remedy="Drop fewer members, or --add some.", where="--drop", id="RIFFLE-0153"
        )
    remaining_racks = [rack for rack in racks if rack not in changes.drop_racks]
    new_racks = changes.add_racks or tuple(remaining_racks) or (None,)
    slots = max((member.slots for member in members), default=1)
    added_clients = (Client(Member(f"new{n}", slots, new_racks[n % len(new_racks)])) for n in range(changes.add))
    return Event(drop=tuple(dropped_members), add=tuple(added_clients))
