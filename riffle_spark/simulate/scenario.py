"""Read a scenario from a JSON file: members, tasks, settings and events. docs/assignor.md describes the format."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, cast

from riffle_spark import setting_values as values
from riffle_spark.assign.assignor import assign_settings
from riffle_spark.assign.model import AssignSettings, Lag, Member, MemberId, Task, TaskId, Traffic
from riffle_spark.errors import ConfigError
from riffle_spark.removed_settings import check_not_removed
from riffle_spark.settings import SETTING_LINES, Settings
from riffle_spark.simulate.scenario_file import Json, check_scenario, converted_file_errors, list_items
from riffle_spark.unknown_names import check_known

RUNNING = -2
UNKNOWN = -3
_BYTES_MOST: Final = 1 << 26
_NEUTRAL: Final = {
    "num_standby": "num_standbys",
    "max_warmup": "max_warmup_replicas",
    "strategy": "rack_aware_assignment_strategy",
    "traffic_cost": "rack_aware_assignment_traffic_cost",
    "non_overlap_cost": "rack_aware_assignment_non_overlap_cost",
    "rack_aware_tags": "rack_aware_assignment_tags",
}


@dataclass(frozen=True, slots=True)
class Client:
    """A member with its previous tasks and the lags of its copies."""

    member: Member
    owned: tuple[TaskId, ...] = ()
    standbys: tuple[TaskId, ...] = ()
    lags: Mapping[TaskId, Lag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a settled group: members leave, join, or return with copies that are some records behind."""

    drop: tuple[MemberId, ...] = ()
    add: tuple[Client, ...] = ()
    resurrect: tuple[tuple[MemberId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario file. ``names`` are the task ids in the file."""

    name: str
    family: str
    settings: AssignSettings
    clients: tuple[Client, ...]
    tasks: tuple[Task, ...]
    events: tuple[Event, ...]
    names: Mapping[TaskId, str]
    pins: Mapping[TaskId, MemberId] = field(default_factory=dict)


def read_scenario(path: Path, strategy: str | None = None) -> Scenario:
    """Read a scenario from a ``.json`` or ``.json.gz`` file. ``strategy`` replaces the rack-aware strategy of the file.

    Raises ``ConfigError`` if the file is missing or is not a valid scenario.
    """
    with converted_file_errors(path, "scenario", "docs/assignor.md"):
        return parse_scenario(json.loads(_read_bytes(path)), strategy)


def _read_bytes(path: Path) -> bytes:
    """Return the uncompressed content of a file. Raises ``ValueError`` if it is too large."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data: bytes = file.read(_BYTES_MOST + 1)
    if len(data) > _BYTES_MOST:
        raise ValueError(f"more than {_BYTES_MOST} bytes")
    return data


def parse_scenario(content: Json, strategy: str | None = None) -> Scenario:
    """Return the scenario in the parsed JSON of a file.

    ``strategy`` replaces its rack-aware strategy. Raises ``ConfigError`` for unknown names and wrong values.
    """
    check_scenario(content)
    tasks = {cast(str, part["id"]): _parse_task(part) for part in list_items(content, "tasks")}
    return Scenario(
        name=cast(str, content["name"]),
        family=cast(str, content.get("family") or ""),
        settings=parse_settings(cast(Json, content.get("config") or {}), strategy),
        clients=tuple(_parse_client(part, tasks) for part in list_items(content, "clients")),
        tasks=tuple(tasks.values()),
        events=tuple(_parse_event(part, tasks) for part in list_items(content, "events")),
        names={task.id: name for name, task in tasks.items()},
        pins={tasks[name].id: member for name, member in cast("dict[str, str]", content.get("pins") or {}).items()},
    )


def _parse_task(part: Json) -> Task:
    """Return the task that an element of ``tasks`` describes."""
    stateful = bool(part["stateful"]) and _has_changelog(part)
    weight = part.get("weight")
    return Task(
        id=TaskId(str(part["subtopology"]).zfill(4), int(cast(int, part["partition"]))),
        kind="stateful" if stateful else "stateless",
        size=int(cast(int, part.get("end_offset_sum") or 0)),
        weight=None if weight is None else int(cast(int, weight)),
        memory_bytes=int(cast(int, part.get("memory_bytes") or 0)),
        owner_traffic=_count_traffic(part, "source"),
        standby_traffic=_count_traffic(part, "changelog"),
    )


def _has_changelog(task: Json) -> bool:
    """Return whether a task has a changelog partition. A task without partitions in the file counts as having one."""
    return task.get("partitions") is None or any(part["role"] == "changelog" for part in list_items(task, "partitions"))


def _count_traffic(task: Json, role: Literal["source", "changelog"]) -> Traffic:
    """Return how many partitions of this role a task reads, in all and by rack."""
    parts = [part for part in list_items(task, "partitions") if part["role"] == role]
    local: dict[str, int] = {}
    for part in parts:
        for rack in sorted(set(cast("list[str]", part.get("replica_racks") or []))):
            local[rack] = local.get(rack, 0) + 1
    return Traffic(len(parts), local)


def _parse_client(part: Json, tasks: Mapping[str, Task]) -> Client:
    """Return the client that an element of ``clients`` or of an event describes.

    ``tasks`` are the tasks by their names.
    """
    owned = [tasks[name] for name in cast("list[str]", part.get("prev_active") or [])]
    standbys = [tasks[name] for name in cast("list[str]", part.get("prev_standby") or [])]
    lags: dict[TaskId, Lag] = {task.id: 0 for task in (*owned, *standbys) if task.kind == "stateful"}
    for name, lag in cast("dict[str, int]", part.get("lags") or {}).items():
        lags[tasks[name].id] = None if lag == UNKNOWN else 0 if lag == RUNNING else lag
    memory = part.get("memory_bytes")
    member = Member(
        id=cast(str, part["id"]),
        slots=int(cast(int, part.get("threads", 1))),
        rack=cast("str | None", part.get("rack")),
        tags=cast("dict[str, str]", part.get("tags") or {}),
        memory_bytes=None if memory is None else int(cast(int, memory)),
    )
    return Client(member, tuple(task.id for task in owned), tuple(task.id for task in standbys), lags)


def _parse_event(part: Json, tasks: Mapping[str, Task]) -> Event:
    """Return the event that an element of ``events`` describes. ``tasks`` are the tasks by their names."""
    return Event(
        drop=tuple(cast("list[str]", part.get("drop") or [])),
        add=tuple(_parse_client(client, tasks) for client in list_items(part, "add")),
        resurrect=tuple(
            (cast(str, member["id"]), int(cast(int, member.get("lag", 0)))) for member in list_items(part, "resurrect")
        ),
    )


_CHECKS: Final[Mapping[str, values.Check]] = {
    field.name: SETTING_LINES[field.name].allowed for field in fields(AssignSettings) if field.name in SETTING_LINES
}


def parse_settings(config: Mapping[str, object], strategy: str | None = None) -> AssignSettings:
    """Return the settings in a file. Null values keep the default. ``strategy`` replaces the rack-aware strategy of the
    file.

    Raises ``ConfigError`` for an unknown name, a setting under two names, and a value that is not allowed.
    """
    check_not_removed(config, "config")
    check_known("setting", config, [*_CHECKS, *_NEUTRAL], source="config")
    settings: dict[str, object] = {}
    written: dict[str, str] = {}
    for key, value in config.items():
        name = _NEUTRAL.get(key, key)
        if name in written:
            raise ConfigError(
                f"{written[name]} and {key} are the same setting.",
                remedy="Remove one of them.",
                where="config",
                id="RIFFLE-0256",
            )
        written[name] = key
        if value is not None:
            settings[name] = values.checked(key, value, _CHECKS[name], remedy="Correct it in config.", where=key)
    if strategy is not None:
        settings["rack_aware_assignment_strategy"] = strategy
    return assign_settings(Settings(**settings))  # type: ignore[arg-type]
