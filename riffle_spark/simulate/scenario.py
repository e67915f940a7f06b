"""A cluster as a JSON file: members, tasks, settings and events. Knows what the fields mean. Does not know the
assignor.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, cast

from riffle_spark import setting_values as values
from riffle_spark.assign.assignor import assign_settings
from riffle_spark.assign.model import AssignSettings, Lag, Member, MemberId, Task, TaskId, Traffic
from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.removed_settings import check_not_removed
from riffle_spark.settings import SETTING_LINES, Settings
from riffle_spark.simulate.scenario_file import Json, check_scenario, items_of
from riffle_spark.unknown_names import check_known

__all__ = ["Client", "Event", "Scenario", "read_scenario", "scenario_of", "settings_of"]

RUNNING, UNKNOWN = -2, -3
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
    """A member with what it ran and the lag of the state it holds."""

    member: Member
    owned: tuple[TaskId, ...] = ()
    standbys: tuple[TaskId, ...] = ()
    lags: Mapping[TaskId, Lag] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """What happens to a settled group: members leave, join, or return some records behind."""

    drop: tuple[MemberId, ...] = ()
    add: tuple[Client, ...] = ()
    resurrect: tuple[tuple[MemberId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One file; ``names`` are the task ids as the file has them."""

    name: str
    family: str
    settings: AssignSettings
    clients: tuple[Client, ...]
    tasks: tuple[Task, ...]
    events: tuple[Event, ...]
    names: Mapping[TaskId, str]
    pins: Mapping[TaskId, MemberId] = field(default_factory=dict)


def read_scenario(path: Path, strategy: str | None = None) -> Scenario:
    """Read a scenario, ``.json`` or ``.json.gz``; ``strategy`` replaces the file's own.

    Raises ``ConfigError`` for what is no scenario, and for names and values that it cannot have.
    """
    try:
        return scenario_of(json.loads(_bytes_of(path)), strategy)
    except ConfigError as refused:
        raise ConfigError(
            refused.problem, remedy=refused.remedy, where=f"{path}: {refused.where}", id="RIFFLE-0254"
        ) from refused
    except (OSError, zlib.error, *UNREADABLE) as broken:
        raise ConfigError(
            f"not a scenario: {broken!r}",
            remedy="see docs/assignor.md for the format",
            where=str(path),
            id="RIFFLE-0255",
        ) from broken


def _bytes_of(path: Path) -> bytes:
    """Return what a file holds, unpacked, if that is not more than a scenario can be."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data: bytes = file.read(_BYTES_MOST + 1)
    if len(data) > _BYTES_MOST:
        raise ValueError(f"more than {_BYTES_MOST} bytes")
    return data


def scenario_of(content: Json, strategy: str | None = None) -> Scenario:
    """Turn the parsed content of a file into a scenario. Raises ``ConfigError`` for unknown names and wrong values."""
    check_scenario(content)
    tasks = {cast(str, each["id"]): _task(each) for each in items_of(content, "tasks")}
    return Scenario(
        name=cast(str, content["name"]),
        family=cast(str, content.get("family") or ""),
        settings=settings_of(cast(Json, content.get("config") or {}), strategy),
        clients=tuple(_client(each, tasks) for each in items_of(content, "clients")),
        tasks=tuple(tasks.values()),
        events=tuple(_event(each, tasks) for each in items_of(content, "events")),
        names={task.id: name for name, task in tasks.items()},
        pins={tasks[name].id: member for name, member in cast("dict[str, str]", content.get("pins") or {}).items()},
    )


def _task(each: Json) -> Task:
    stateful = bool(each["stateful"]) and _keeps_state(each)
    weight = each.get("weight")
    return Task(
        id=TaskId(str(each["subtopology"]).zfill(4), int(cast(int, each["partition"]))),
        kind="stateful" if stateful else "stateless",
        size=int(cast(int, each.get("end_offset_sum") or 0)),
        weight=None if weight is None else int(cast(int, weight)),
        memory_bytes=int(cast(int, each.get("memory_bytes") or 0)),
        owner_traffic=_traffic(each, "source"),
        standby_traffic=_traffic(each, "changelog"),
    )


def _keeps_state(each: Json) -> bool:
    """Tell whether a task has a changelog; one whose partitions the file leaves out has."""
    return each.get("partitions") is None or any(part["role"] == "changelog" for part in items_of(each, "partitions"))


def _traffic(each: Json, role: Literal["source", "changelog"]) -> Traffic:
    parts = [part for part in items_of(each, "partitions") if part["role"] == role]
    local: dict[str, int] = {}
    for part in parts:
        for rack in sorted(set(cast("list[str]", part.get("replica_racks") or []))):
            local[rack] = local.get(rack, 0) + 1
    return Traffic(len(parts), local)


def _client(each: Json, tasks: Mapping[str, Task]) -> Client:
    owned = [tasks[name] for name in cast("list[str]", each.get("prev_active") or [])]
    standbys = [tasks[name] for name in cast("list[str]", each.get("prev_standby") or [])]
    lags: dict[TaskId, Lag] = {task.id: 0 for task in (*owned, *standbys) if task.kind == "stateful"}
    for name, lag in cast("dict[str, int]", each.get("lags") or {}).items():
        lags[tasks[name].id] = None if lag == UNKNOWN else 0 if lag == RUNNING else lag
    memory = each.get("memory_bytes")
    member = Member(
        id=cast(str, each["id"]),
        slots=int(cast(int, each.get("threads", 1))),
        rack=cast("str | None", each.get("rack")),
        tags=cast("dict[str, str]", each.get("tags") or {}),
        memory_bytes=None if memory is None else int(cast(int, memory)),
    )
    return Client(member, tuple(task.id for task in owned), tuple(task.id for task in standbys), lags)


def _event(each: Json, tasks: Mapping[str, Task]) -> Event:
    back = [(cast(str, one["id"]), int(cast(int, one.get("lag", 0)))) for one in items_of(each, "resurrect")]
    return Event(
        drop=tuple(cast("list[str]", each.get("drop") or [])),
        add=tuple(_client(client, tasks) for client in items_of(each, "add")),
        resurrect=tuple(back),
    )


_CHECKS: Final[Mapping[str, values.Check]] = {
    each.name: SETTING_LINES[each.name].allowed for each in fields(AssignSettings) if each.name in SETTING_LINES
}


def settings_of(config: Mapping[str, object], strategy: str | None = None) -> AssignSettings:
    """Return the settings of a file; ``strategy`` replaces the file's own. What is null stays the default.

    Raises ``ConfigError`` for an unknown name, one that is there twice, and a value that is not allowed.
    """
    check_not_removed(config, "config")
    check_known("setting", config, [*_CHECKS, *_NEUTRAL], source="config")
    found: dict[str, object] = {}
    for said, value in config.items():
        name = _NEUTRAL.get(said, said)
        if twice := [other for other in config if other != said and _NEUTRAL.get(other, other) == name]:
            raise ConfigError(
                f"{said} and {twice[0]} are one setting", remedy="say one of them", where="config", id="RIFFLE-0256"
            )
        if value is not None:
            found[name] = values.checked(said, value, _CHECKS[name], remedy="correct it in config", where=said)
    if strategy is not None:
        found["rack_aware_assignment_strategy"] = strategy
    return assign_settings(Settings(**found))  # type: ignore[arg-type]
