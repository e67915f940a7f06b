"""A cluster with a clock, as a JSON file: members with hosts, racks and bandwidth, tasks with state and load, and what
happens when. Knows what the fields mean. Does not know policies or the assignor.

Chance is a hash of the seed and of what is drawn, so that a world is the same wherever it is read.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import xxhash

from riffle_spark import setting_values as values
from riffle_spark.assign.model import Member, Task, TaskId
from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.settings import SETTING_LINES
from riffle_spark.simulate.scenario import settings_of
from riffle_spark.simulate.scenario_file import Json, items_of
from riffle_spark.simulate.world import PROTOCOL, Happens, World, WorldEvent, WorldMember, WorldTask
from riffle_spark.unknown_names import check_known

__all__ = ["SHIPPED", "chance", "read_world", "world_of"]

_BY_RACK: Final[Mapping[str, Happens]] = {"lose_rack": "lose", "return_rack": "return"}
_FOLDER: Final = Path(__file__).parent / "worlds"
SHIPPED: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
"""The worlds that come with the package, by name."""
_ANY: Final = values.Range(lambda value: value, "anything")
_MOST: Final = 100_000
"""Members, tasks or changes that one line may stand for."""
_NUMBER: Final = re.compile(r"\{(?::0?([1-9]))?\}")
"""Where a name is to have a number, and with how many digits at least."""
_REMEDY: Final = "correct it; docs/simulator.md tells the format"
_POSITIVE: Final = values.number(1e-9)
_TIME: Final = values.seconds(0.001)
_NOT_LESS: Final = values.number(0)
_FILE: Final[Mapping[str, values.Check]] = {
    "name": values.text, "note": values.text, "seed": values.whole(0), "seconds": _TIME, "every": _TIME,
    "config": _ANY, "protocol": _ANY, "members": _ANY, "tasks": _ANY, "events": _ANY, "swing": _NOT_LESS,
    "changes": values.whole(0, _MOST), "policies": values.names, "broker_racks": values.names,
}  # fmt: skip
_MEMBER: Final[Mapping[str, values.Check]] = {
    "id": values.text, "count": values.whole(1, _MOST), "threads": values.whole(1), "host": values.text,
    "racks": values.names, "tags": _ANY, "restore_bytes_per_second": _POSITIVE, "rows_per_second": _NOT_LESS,
    "disk_bytes": _NOT_LESS, "disk_used_bytes": _NOT_LESS, "memory_bytes": _NOT_LESS,
}  # fmt: skip
_TASK: Final[Mapping[str, values.Check]] = {
    "subtopology": values.text, "count": values.whole(1, _MOST), "state_bytes": _NOT_LESS, "spread": values.share,
    "row_bytes": _POSITIVE, "rows_per_second": _NOT_LESS, "memory_bytes": _NOT_LESS, "row_seconds": _NOT_LESS,
    "rows_from": values.names,
}  # fmt: skip
_EVENT: Final[Mapping[str, values.Check]] = {
    "at": values.seconds(0), "join": _ANY, "return": values.names, "leave": values.names, "lose": values.names,
    "remove": values.names, "bounce": values.names, "lose_rack": values.text, "return_rack": values.text,
    "down": values.seconds(0), "apart": values.seconds(0), "load": _NOT_LESS, "tasks": values.names,
    "row_seconds": _NOT_LESS, "rows_from": values.names, "disk_used_bytes": _NOT_LESS, "members": values.names,
}  # fmt: skip
_BELONGS: Final[Mapping[str, tuple[str, ...]]] = {
    "down": ("bounce",), "apart": ("bounce",), "tasks": ("load", "row_seconds", "rows_from"),
    "members": ("disk_used_bytes",),
}  # fmt: skip
"""Fields of an event that say more of others; all else is what happens."""
_HAPPENS: Final = tuple(name for name in _EVENT if name != "at" and name not in _BELONGS)
_MARKS: Final = ("local_disk_limit", "local_memory_limit")
_CHANGES: Final[Mapping[str, Happens]] = {"load": "load", "row_seconds": "time", "disk_used_bytes": "disk"}
"""Fields of an event that say how much something is from then on."""


def chance(seed: int, *what: object) -> float:
    """Return a number from 0 up to 1 that depends on the seed and on what is drawn, and on nothing else."""
    return xxhash.xxh3_64_intdigest("/".join(map(str, what)).encode(), seed) / 2**64


def read_world(name: str, seed: int | None = None) -> World:
    """Read a file, or a world that comes with the package by its name; ``seed`` replaces its own.

    Raises ``ConfigError`` for what is no world.
    """
    path = Path(name)
    if not path.exists():
        check_known("world or file", [name], SHIPPED, source="the command", where=name)
        path = _FOLDER / f"{name}.json"
    try:
        content = cast(Json, json.loads(path.read_text()))
        return world_of(content if seed is None else {**content, "seed": seed})
    except ConfigError as refused:
        raise ConfigError(
            refused.problem, remedy=refused.remedy, where=f"{path}: {refused.where}", id="RIFFLE-0262"
        ) from refused
    except (OSError, *UNREADABLE) as broken:
        raise ConfigError(
            f"not a world: {broken!r}", remedy="see docs/simulator.md for the format", where=str(path), id="RIFFLE-0263"
        ) from broken


def world_of(content: Json) -> World:
    """Turn the parsed content of a file into a world. Raises ``ConfigError`` for unknown names and wrong values."""
    told = _checked("the file", content, _FILE, ("name", "seconds", "members", "tasks"))
    seed, seconds = cast(int, told.get("seed", 0)), cast(float, told["seconds"])
    members = [one for number, each in enumerate(items_of(told, "members"), 1) for one in _members(each, number)]
    tasks = [one for number, each in enumerate(items_of(told, "tasks"), 1) for one in _tasks(each, number, seed)]
    _check_once([one.member.id for one in members], "members")
    _check_once([str(one.task.id) for one in tasks], "tasks")
    events, joined = _events(items_of(told, "events"), members)
    here = frozenset(one.member.id for one in members)
    changes = cast(int, told.get("changes", 0))
    drawn, more = _drawn(changes, seed, seconds, members) if changes else ((), ())
    protocol = _checked("protocol", told.get("protocol") or {}, dict.fromkeys(PROTOCOL, values.seconds(0)), ())
    config = cast(Json, told.get("config") or {})
    if misplaced := [name for name in config if name in PROTOCOL]:
        raise ConfigError(
            f"{misplaced[0]!r} is no setting of assignment",
            remedy="say it in protocol",
            where="config",
            id="RIFFLE-0264",
        )
    marks = {
        name: values.checked(name, value, SETTING_LINES[name].allowed, remedy=_REMEDY, where="config")
        for name, value in config.items()
        if name in _MARKS
    }
    world = World(
        cast(str, told["name"]), seed, seconds, cast(float, told.get("every", 10.0)),
        settings_of({name: value for name, value in config.items() if name not in _MARKS}),
        (*members, *joined, *more), here, tuple(tasks),
        tuple(sorted((*events, *drawn), key=lambda event: event.at)), cast(float, told.get("swing", 0.0)),
        {**PROTOCOL, **cast("dict[str, float]", protocol)}, tuple(cast("Sequence[str]", told.get("policies") or ())),
        cast("dict[str, float]", marks),
    )  # fmt: skip
    _check_events(world)
    _check_racks(world, cast("Sequence[str]", told.get("broker_racks") or ()))
    return world


def _checked(where: str, part: object, fields: Mapping[str, values.Check], needed: Sequence[str]) -> Json:
    """Return a part with its values as they are meant; what is null is as if it were not there."""
    if not isinstance(part, Mapping):
        raise TypeError(f"{where} is no object with {', '.join(fields)}")
    check_known(f"field of {where}", part, tuple(fields), source=where, where=where)
    told = {
        name: values.checked(name, value, fields[name], remedy=_REMEDY, where=where)
        for name, value in part.items()
        if value is not None
    }
    if missing := [name for name in needed if name not in told]:
        remedy = f"it needs {', '.join(needed)}; docs/simulator.md tells the format"
        raise ConfigError(f"not a world: {where} has no {missing[0]!r}", remedy=remedy, where=where, id="RIFFLE-0265")
    return told


def _members(each: Json, number: int) -> Iterator[WorldMember]:
    told = _checked(f"member {number}", each, _MEMBER, ("id",))
    racks = cast("tuple[str, ...]", tuple(cast("Sequence[str]", told.get("racks") or ())))
    count = cast(int, told.get("count", 1))
    for n in range(count):
        name = _numbered(cast(str, told["id"]), n)
        rack = racks[n % len(racks)] if racks else None
        tags = cast("Mapping[str, str]", told.get("tags") or {})
        member = Member(name, slots=cast(int, told.get("threads", 1)), rack=rack, tags=tags)
        host = cast(str, told.get("host", "{}")).replace("{}", name)
        bandwidth = cast(float, told.get("restore_bytes_per_second", 50e6))
        names = ("rows_per_second", "disk_bytes", "disk_used_bytes", "memory_bytes")
        yield WorldMember(member, host, bandwidth, *(cast(float, told.get(name, 0.0)) for name in names))


def _numbered(name: str, number: int) -> str:
    """Return a name with a number put in, and nothing else of what Python's formats could do."""
    return _NUMBER.sub(lambda found: str(number).zfill(int(found[1] or 1)), name)


def _tasks(each: Json, number: int, seed: int) -> Iterator[WorldTask]:
    told = _checked(f"task {number}", each, _TASK, ("subtopology", "state_bytes"))
    group, row_bytes = cast(str, told["subtopology"]), cast(float, told.get("row_bytes", 100.0))
    spread = cast(float, told.get("spread", 0.0))
    for n in range(cast(int, told.get("count", 1))):
        one = TaskId(group, n)
        size, rows = (1 + spread * (2 * chance(seed, what, one) - 1) for what in ("state", "rows"))
        state = cast(float, told["state_bytes"]) * size
        task = Task(one, size=round(state / row_bytes))
        rate, memory, took = (cast(float, told.get(f, 0.0)) for f in ("rows_per_second", "memory_bytes", "row_seconds"))
        rows_from = tuple(cast("Sequence[str]", told.get("rows_from") or ()))
        yield WorldTask(task, state, row_bytes, rate * rows, memory, took, rows_from)


def _check_once(names: Sequence[str], where: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ConfigError(
            f"{twice[0]!r} is there twice", remedy="give each an id of its own", where=where, id="RIFFLE-0266"
        )


def _events(parts: Sequence[Json], members: Sequence[WorldMember]) -> tuple[list[WorldEvent], list[WorldMember]]:
    """Return the events and the members that join with them; racks and bounces are taken apart."""
    events: list[WorldEvent] = []
    joined: list[WorldMember] = []
    for number, each in enumerate(parts, 1):
        told = _checked(f"event {number}", each, _EVENT, ("at",))
        _check_something_happens(told, f"event {number}")
        at = cast(float, told["at"])
        new = [one for spec in items_of(told, "join") for one in _members(spec, number)]
        joined += new
        if new:
            events.append(WorldEvent(at, "join", tuple(one.member.id for one in new)))
        for kind in ("return", "leave", "lose", "remove"):
            if named := tuple(cast("Sequence[str]", told.get(kind) or ())):
                events.append(WorldEvent(at, kind, named))
        for said, happens in _BY_RACK.items():
            if said in told:
                there = tuple(one.member.id for one in (*members, *joined) if one.member.rack == told[said])
                check_known("rack", [told[said]], {one.member.rack for one in members if one.member.rack}, source=said)
                events.append(WorldEvent(at, happens, there))
        down, apart = cast(float, told.get("down", 30.0)), cast(float, told.get("apart", 60.0))
        for step, name in enumerate(cast("Sequence[str]", told.get("bounce") or ())):
            begin = at + step * (down + apart)
            events += [WorldEvent(begin, "leave", (name,)), WorldEvent(begin + down, "return", (name,))]
        events += _changed(at, told)
    return events, joined


def _check_something_happens(told: Json, where: str) -> None:
    said = {name for name, value in told.items() if value not in ((), [])}
    if said.isdisjoint(_HAPPENS):
        raise ConfigError(
            "nothing happens in it", remedy=f"say one of {', '.join(_HAPPENS)}", where=where, id="RIFFLE-0267"
        )
    for name, of in _BELONGS.items():
        if name in said and said.isdisjoint(of):
            remedy = f"leave it out, or say {' or '.join(of)} too"
            raise ConfigError(f"{name!r} has no effect by itself", remedy=remedy, where=where, id="RIFFLE-0268")


def _changed(at: float, told: Json) -> Iterator[WorldEvent]:
    """Yield what changes without a change of members."""
    tasks, racks, on = (tuple(cast("Sequence[str]", told.get(f) or ())) for f in ("tasks", "rows_from", "members"))
    for said, happens in _CHANGES.items():
        if said in told:
            yield WorldEvent(at, happens, on if happens == "disk" else (), cast(float, told[said]), tasks)
    if racks:
        yield WorldEvent(at, "racks", (), 1.0, tasks, racks)


def _drawn(
    changes: int, seed: int, seconds: float, members: Sequence[WorldMember]
) -> tuple[tuple[WorldEvent, ...], tuple[WorldMember, ...]]:
    """Draw changes of membership by chance: losses, returns of who was lost, and new members like the first."""
    here, gone, joined = [one.member.id for one in members], list[str](), list[WorldMember]()
    events: list[WorldEvent] = []
    for n in range(changes):
        at = seconds * (n + chance(seed, "when", n)) / changes
        kind = chance(seed, "kind", n)
        if gone and kind < 0.4:
            back = gone.pop(int(chance(seed, "who", n) * len(gone)))
            here.append(back)
            events.append(WorldEvent(at, "return", (back,)))
        elif kind < 0.7 and len(here) > 1:
            lost = here.pop(int(chance(seed, "who", n) * len(here)))
            gone.append(lost)
            events.append(WorldEvent(at, "lose", (lost,)))
        else:
            like = members[int(chance(seed, "like", n) * len(members))]
            model = like.member
            new = Member(f"new{n:03}", slots=model.slots, rack=model.rack, tags=model.tags)
            joined.append(replace(like, member=new, host=new.id))
            here.append(new.id)
            events.append(WorldEvent(at, "join", (new.id,)))
    return tuple(events), tuple(joined)


def _check_racks(world: World, of_brokers: Sequence[str]) -> None:
    """Rows come from racks that a member is in, or from those that are said to have brokers alone."""
    racks = sorted({*of_brokers, *(one.member.rack for one in world.members if one.member.rack)})
    told = [(f"task {task.task.id}", task.rows_from) for task in world.tasks]
    told += [(f"{event.kind} at {event.at:g} s", event.racks) for event in world.events]
    for where, rows_from in told:
        check_known("rack of a member", rows_from, racks, source="rows_from, or name it in broker_racks", where=where)


def _check_events(world: World) -> None:
    """Follow who is there: only those can go, and only those that went return. Nothing happens after the end."""
    if not world.present:
        raise ConfigError("the world has no members", remedy="give it one at least", where="members", id="RIFFLE-0269")
    here, gone = set(world.present), set[str]()
    tasks = [str(one.task.id) for one in world.tasks]
    _check_once([one.member.id for one in world.members], "members and those that join")
    for event in world.events:
        where = f"{event.kind} at {event.at:g} s"
        if event.at >= world.seconds:
            problem = f"that is after the end: the world lasts {world.seconds:g} s"
            raise ConfigError(
                problem, remedy="let it happen earlier, or make seconds more", where=where, id="RIFFLE-0270"
            )
        if event.kind == "disk":
            check_known("member", event.members, sorted(here), source="disk_used_bytes", where=where)
        elif event.kind in ("load", "time", "racks"):
            check_known("task", event.tasks, tasks, source="tasks", where=where)
        elif event.kind in ("join", "return"):
            if event.kind == "return":
                check_known("member that left", event.members, sorted(gone), source="return", where=where)
            here, gone = here | set(event.members), gone - set(event.members)
        else:
            check_known("member", event.members, sorted(here), source=event.kind, where=where)
            here -= set(event.members)
            gone |= set(event.members) if event.kind != "remove" else set()
