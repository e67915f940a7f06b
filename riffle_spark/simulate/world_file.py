"""Read a world from a JSON file: members, tasks, and events over time. docs/simulator.md describes the format.

Random values are hashes of the seed and of the name of the draw, so a world is the same on every machine.
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
from riffle_spark.errors import ConfigError
from riffle_spark.settings import SETTING_LINES
from riffle_spark.simulate.scenario import parse_settings
from riffle_spark.simulate.scenario_file import Json, check_fields, check_unique, converted_file_errors, list_items
from riffle_spark.simulate.world import PROTOCOL, EventKind, World, WorldEvent, WorldMember, WorldTask
from riffle_spark.unknown_names import check_known

_BY_RACK: Final[Mapping[str, EventKind]] = {"lose_rack": "lose", "return_rack": "return"}
_FOLDER: Final = Path(__file__).parent / "worlds"
SHIPPED: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
"""The names of the worlds in the package."""
_ANY: Final = values.Range(lambda value: value, "anything")
_MOST: Final = 100_000
"""The largest ``count`` of members or tasks, and the most random changes."""
_NUMBER: Final = re.compile(r"\{(?::0?([1-9]))?\}")
"""The placeholder for a number in a name, with the minimum of digits."""
_PAGE: Final = "docs/simulator.md"
_POSITIVE: Final = values.number(1e-9)
_TIME: Final = values.seconds(0.001)
_NOT_LESS: Final = values.number(0)
_FILE: Final[Mapping[str, values.Check]] = {
    "name": values.text,
    "note": values.text,
    "seed": values.whole(0),
    "seconds": _TIME,
    "every": _TIME,
    "config": _ANY,
    "protocol": _ANY,
    "members": _ANY,
    "tasks": _ANY,
    "events": _ANY,
    "swing": _NOT_LESS,
    "changes": values.whole(0, _MOST),
    "policies": values.names,
    "broker_racks": values.names,
}
_MEMBER: Final[Mapping[str, values.Check]] = {
    "id": values.text,
    "count": values.whole(1, _MOST),
    "threads": values.whole(1),
    "host": values.text,
    "racks": values.names,
    "tags": _ANY,
    "restore_bytes_per_second": _POSITIVE,
    "rows_per_second": _NOT_LESS,
    "disk_bytes": _NOT_LESS,
    "disk_used_bytes": _NOT_LESS,
    "memory_bytes": _NOT_LESS,
}
_TASK: Final[Mapping[str, values.Check]] = {
    "subtopology": values.text,
    "count": values.whole(1, _MOST),
    "state_bytes": _NOT_LESS,
    "spread": values.share,
    "row_bytes": _POSITIVE,
    "rows_per_second": _NOT_LESS,
    "memory_bytes": _NOT_LESS,
    "row_seconds": _NOT_LESS,
    "rows_from": values.names,
}
_EVENT: Final[Mapping[str, values.Check]] = {
    "at": values.seconds(0),
    "join": _ANY,
    "return": values.names,
    "leave": values.names,
    "lose": values.names,
    "remove": values.names,
    "bounce": values.names,
    "lose_rack": values.text,
    "return_rack": values.text,
    "down": values.seconds(0),
    "apart": values.seconds(0),
    "load": _NOT_LESS,
    "tasks": values.names,
    "row_seconds": _NOT_LESS,
    "rows_from": values.names,
    "disk_used_bytes": _NOT_LESS,
    "members": values.names,
}
_BELONGS: Final[Mapping[str, tuple[str, ...]]] = {
    "down": ("bounce",),
    "apart": ("bounce",),
    "tasks": ("load", "row_seconds", "rows_from"),
    "members": ("disk_used_bytes",),
}
"""Fields of an event that only have an effect with one of these fields."""
_ACTIONS: Final = tuple(name for name in _EVENT if name != "at" and name not in _BELONGS)
_MARKS: Final = ("local_disk_limit", "local_memory_limit")
_CHANGES: Final[Mapping[str, EventKind]] = {"load": "load", "row_seconds": "time", "disk_used_bytes": "disk"}
"""Fields of an event that set an amount."""


def draw_number(seed: int, *draw: object) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on ``seed`` and ``draw``, the name of the draw."""
    return xxhash.xxh3_64_intdigest("/".join(map(str, draw)).encode(), seed) / 2**64


def read_world(name: str, seed: int | None = None) -> World:
    """Read the world file at path ``name``, or the world of the package with this name. ``seed`` replaces the seed of
    the file.

    Raises ``ConfigError`` if the file is missing or is not a valid world.
    """
    path = Path(name)
    if not path.exists():
        check_known("world or file", [name], SHIPPED, source="the command", where=name)
        path = _FOLDER / f"{name}.json"
    with converted_file_errors(path, "world", _PAGE):
        content = cast(Json, json.loads(path.read_text()))
        return parse_world(content if seed is None else {**content, "seed": seed})


def parse_world(content: Json) -> World:
    """Return the world in the parsed JSON of a file. Raises ``ConfigError`` for unknown names and wrong values."""
    required = ("name", "seconds", "members", "tasks")
    fields = check_fields("file", content, _FILE, required, source="the file", where="top level", page=_PAGE)
    seed = cast(int, fields.get("seed", 0))
    seconds = cast(float, fields["seconds"])
    members = [m for number, part in enumerate(list_items(fields, "members"), 1) for m in _parse_members(part, number)]
    tasks = [t for number, part in enumerate(list_items(fields, "tasks"), 1) for t in _parse_tasks(part, number, seed)]
    check_unique("task", [str(task.task.id) for task in tasks])
    events, joining = _parse_events(list_items(fields, "events"), members)
    changes = cast(int, fields.get("changes", 0))
    random_events, random_members = _draw_changes(changes, seed, seconds, members) if changes else ((), ())
    delays = dict.fromkeys(PROTOCOL, values.seconds(0))
    own_protocol = fields.get("protocol") or {}
    protocol = check_fields("protocol", own_protocol, delays, (), source="protocol", where="protocol", page=_PAGE)
    config = cast(Json, fields.get("config") or {})
    if misplaced := [name for name in config if name in PROTOCOL]:
        raise ConfigError(
            f"{misplaced[0]!r} belongs in protocol, not in config.",
            remedy="Move it to protocol.",
            where="config",
            id="RIFFLE-0264",
        )
    marks = {
        name: values.checked(name, value, SETTING_LINES[name].allowed, remedy="Correct it in config.", where=name)
        for name, value in config.items()
        if name in _MARKS
    }
    world = World(
        cast(str, fields["name"]),
        seed,
        seconds,
        cast(float, fields.get("every", 10.0)),
        parse_settings({name: value for name, value in config.items() if name not in _MARKS}),
        (*members, *joining, *random_members),
        frozenset(member.member.id for member in members),
        tuple(tasks),
        tuple(sorted((*events, *random_events), key=lambda event: event.second)),
        cast(float, fields.get("swing", 0.0)),
        {**PROTOCOL, **cast("dict[str, float]", protocol)},
        tuple(cast("Sequence[str]", fields.get("policies") or ())),
        cast("dict[str, float]", marks),
    )
    _check_events(world)
    _check_racks(world, cast("Sequence[str]", fields.get("broker_racks") or ()))
    return world


def _check_part(
    kind: str, number: int, part: object, checks: Mapping[str, values.Check], required: tuple[str, ...]
) -> Json:
    """Return the checked fields of element ``number`` of a list of ``kind``. Raises ``ConfigError``."""
    where = f"{kind} {number}"
    return check_fields(kind, part, checks, required, source=where, where=where, page=_PAGE)


def _parse_members(part: Json, number: int) -> Iterator[WorldMember]:
    """Yield the members that element ``number`` of ``members`` describes."""
    fields = _check_part("member", number, part, _MEMBER, ("id",))
    racks = cast("Sequence[str]", fields.get("racks") or ())
    for n in range(cast(int, fields.get("count", 1))):
        name = _fill_number(cast(str, fields["id"]), n)
        rack = racks[n % len(racks)] if racks else None
        tags = cast("Mapping[str, str]", fields.get("tags") or {})
        member = Member(name, slots=cast(int, fields.get("threads", 1)), rack=rack, tags=tags)
        host = cast(str, fields.get("host", "{}")).replace("{}", name)
        bandwidth = cast(float, fields.get("restore_bytes_per_second", 50e6))
        figures = ("rows_per_second", "disk_bytes", "disk_used_bytes", "memory_bytes")
        yield WorldMember(member, host, bandwidth, *(cast(float, fields.get(figure, 0.0)) for figure in figures))


def _fill_number(name: str, number: int) -> str:
    """Replace ``{}`` and padded placeholders such as ``{:02}`` in a name by a number.

    ``str.format`` would interpret more.
    """
    return _NUMBER.sub(lambda match: str(number).zfill(int(match[1] or 1)), name)


def _parse_tasks(part: Json, number: int, seed: int) -> Iterator[WorldTask]:
    """Yield the tasks that element ``number`` of ``tasks`` describes. Sizes and rates vary by the seed."""
    fields = _check_part("task", number, part, _TASK, ("subtopology", "state_bytes"))
    group = cast(str, fields["subtopology"])
    row_bytes = cast(float, fields.get("row_bytes", 100.0))
    rate, memory, row_seconds = (
        cast(float, fields.get(name, 0.0)) for name in ("rows_per_second", "memory_bytes", "row_seconds")
    )
    rows_from = tuple(cast("Sequence[str]", fields.get("rows_from") or ()))
    spread = cast(float, fields.get("spread", 0.0))
    for n in range(cast(int, fields.get("count", 1))):
        task_id = TaskId(group, n)
        size_factor, rate_factor = (
            1 + spread * (2 * draw_number(seed, draw, task_id) - 1) for draw in ("state", "rows")
        )
        size = cast(float, fields["state_bytes"]) * size_factor
        task = Task(task_id, size=round(size / row_bytes))
        yield WorldTask(task, size, row_bytes, rate * rate_factor, memory, row_seconds, rows_from)


def _parse_events(parts: Sequence[Json], members: Sequence[WorldMember]) -> tuple[list[WorldEvent], list[WorldMember]]:
    """Return the events, and the members that join in them. Events of racks and bounces are resolved to members."""
    events: list[WorldEvent] = []
    joining: list[WorldMember] = []
    for number, part in enumerate(parts, 1):
        fields = _check_part("event", number, part, _EVENT, ("at",))
        _check_has_effect(fields, f"event {number}")
        second = cast(float, fields["at"])
        new_members = [member for spec in list_items(fields, "join") for member in _parse_members(spec, number)]
        joining += new_members
        if new_members:
            events.append(WorldEvent(second, "join", tuple(member.member.id for member in new_members)))
        for kind in ("return", "leave", "lose", "remove"):
            if names := tuple(cast("Sequence[str]", fields.get(kind) or ())):
                events.append(WorldEvent(second, kind, names))
        for field, kind in _BY_RACK.items():
            if field in fields:
                rack = fields[field]
                check_known("rack", [rack], {m.member.rack for m in members if m.member.rack}, source=field)
                in_rack = tuple(m.member.id for m in (*members, *joining) if m.member.rack == rack)
                events.append(WorldEvent(second, kind, in_rack))
        down = cast(float, fields.get("down", 30.0))
        apart = cast(float, fields.get("apart", 60.0))
        for step, name in enumerate(cast("Sequence[str]", fields.get("bounce") or ())):
            stop = second + step * (down + apart)
            events += [WorldEvent(stop, "leave", (name,)), WorldEvent(stop + down, "return", (name,))]
        events += _parse_load_events(second, fields)
    return events, joining


def _check_has_effect(fields: Json, where: str) -> None:
    """Raise ``ConfigError`` for an event without an action, or with a field that has no effect without its action."""
    present = {name for name, value in fields.items() if value not in ((), [])}
    if present.isdisjoint(_ACTIONS):
        raise ConfigError(
            "The event has no action.", remedy=f"Add one of {', '.join(_ACTIONS)}.", where=where, id="RIFFLE-0267"
        )
    for name, actions in _BELONGS.items():
        if name in present and present.isdisjoint(actions):
            remedy = f"Remove it, or add {' or '.join(actions)}."
            raise ConfigError(f"{name!r} alone has no effect.", remedy=remedy, where=where, id="RIFFLE-0268")


def _parse_load_events(second: float, fields: Json) -> Iterator[WorldEvent]:
    """Yield the changes of load, row times, racks and disks of an event."""
    tasks, racks, members = (
        tuple(cast("Sequence[str]", fields.get(name) or ())) for name in ("tasks", "rows_from", "members")
    )
    for field, kind in _CHANGES.items():
        if field in fields:
            yield WorldEvent(second, kind, members if kind == "disk" else (), cast(float, fields[field]), tasks)
    if racks:
        yield WorldEvent(second, "racks", (), 1.0, tasks, racks)


def _draw_changes(
    changes: int, seed: int, seconds: float, members: Sequence[WorldMember]
) -> tuple[tuple[WorldEvent, ...], tuple[WorldMember, ...]]:
    """Draw ``changes`` random changes of membership: losses, returns of lost members, and new members.

    Return the events and the new members.
    """
    live = [member.member.id for member in members]
    lost: list[str] = []
    joining: list[WorldMember] = []
    events: list[WorldEvent] = []
    for n in range(changes):
        second = seconds * (n + draw_number(seed, "when", n)) / changes
        kind = draw_number(seed, "kind", n)
        if lost and kind < 0.4:
            returning = lost.pop(int(draw_number(seed, "who", n) * len(lost)))
            live.append(returning)
            events.append(WorldEvent(second, "return", (returning,)))
        elif kind < 0.7 and len(live) > 1:
            leaving = live.pop(int(draw_number(seed, "who", n) * len(live)))
            lost.append(leaving)
            events.append(WorldEvent(second, "lose", (leaving,)))
        else:
            template = members[int(draw_number(seed, "like", n) * len(members))]
            new_member = replace(template.member, id=f"new{n:03}")
            joining.append(replace(template, member=new_member, host=new_member.id))
            live.append(new_member.id)
            events.append(WorldEvent(second, "join", (new_member.id,)))
    return tuple(events), tuple(joining)


def _check_racks(world: World, broker_racks: Sequence[str]) -> None:
    """Raise ``ConfigError`` if rows are in a rack that is neither a member's nor in ``broker_racks``."""
    racks = sorted({*broker_racks, *(member.member.rack for member in world.members if member.member.rack)})
    sources = [(f"task {task.task.id}", task.rows_from) for task in world.tasks]
    sources += [(f"{event.kind} at {event.second:g} s", event.racks) for event in world.events]
    for where, rows_from in sources:
        check_known("rack of a member", rows_from, racks, source="rows_from, or name it in broker_racks", where=where)


def _check_events(world: World) -> None:
    """Raise ``ConfigError`` if a member leaves that is not live, one returns that was not lost, or an event is after
    the end.
    """
    if not world.present:
        raise ConfigError("The world has no members.", remedy="Add a member.", where="members", id="RIFFLE-0269")
    live = set(world.present)
    lost = set[str]()
    tasks = [str(task.task.id) for task in world.tasks]
    check_unique("member", [member.member.id for member in world.members])
    for event in world.events:
        where = f"{event.kind} at {event.second:g} s"
        if event.second >= world.seconds:
            problem = f"The event is at {event.second:g} s, but the simulation ends at {world.seconds:g} s."
            raise ConfigError(
                problem, remedy="Move the event, or raise the seconds of the world.", where=where, id="RIFFLE-0270"
            )
        if event.kind == "disk":
            check_known("member", event.members, sorted(live), source="disk_used_bytes", where=where)
        elif event.kind in ("load", "time", "racks"):
            check_known("task", event.tasks, tasks, source="tasks", where=where)
        elif event.kind in ("join", "return"):
            if event.kind == "return":
                check_known("member that left", event.members, sorted(lost), source="return", where=where)
            live |= set(event.members)
            lost -= set(event.members)
        else:
            check_known("member", event.members, sorted(live), source=event.kind, where=where)
            live -= set(event.members)
            lost |= set(event.members) if event.kind != "remove" else set()
