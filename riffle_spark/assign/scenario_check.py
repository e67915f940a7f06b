"""What a scenario file may say. Knows its fields, level by level, and what they name. Does not know what they mean.

What is unknown is refused, never passed over: a slip of the pen would be answered for another cluster than was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from riffle_spark.errors import ConfigError
from riffle_spark.names import check_known

__all__ = ["Json", "check_scenario", "items_of"]

Json = Mapping[str, object]
_FILE: Final = ("name", "family", "note", "seed", "config", "clients", "tasks", "events", "pins")
_CLIENT: Final = ("id", "threads", "rack", "tags", "memory_bytes", "prev_active", "prev_standby", "lags")
_TASK: Final = (
    "id", "subtopology", "partition", "stateful", "end_offset_sum", "weight", "memory_bytes", "partitions",
)  # fmt: skip
_PARTITION: Final = ("topic", "partition", "role", "replica_racks")
_ROLES: Final = ("source", "changelog")
_EVENT: Final = ("drop", "add", "resurrect")
_RETURN: Final = ("id", "lag")


def check_scenario(content: Json) -> None:
    """Raise ``ConfigError`` for the first field, task or member that the file cannot name."""
    check_known("field", content, _FILE, source="the file", where="top level")
    tasks = [each["id"] for each in items_of(content, "tasks")]
    _check_once("task", tasks)
    for each in items_of(content, "tasks"):
        _check_task(each)
    names = [str(name) for name in tasks]
    for each in items_of(content, "clients"):
        _check_client(each, names)
    present = [str(each["id"]) for each in items_of(content, "clients")]
    _check_once("client", present)
    pins = cast(Json, content.get("pins") or {})
    check_known("task", pins, names, source="pins", where="pins")
    _check_events(content, names, present, cast("Iterable[str]", pins.values()))


def items_of(content: Json, name: str) -> list[Json]:
    """Return the objects of a field, none where it is missing."""
    return cast("list[Json]", content.get(name) or [])


def _check_once(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"there are two {what}s {name!r}", remedy="give each a name of its own", where=str(name))
        seen.add(name)


def _check_task(each: Json) -> None:
    where = f"task {each['id']}"
    check_known("field of a task", each, _TASK, source="the task", where=where)
    for part in items_of(each, "partitions"):
        check_known("field of a partition", part, _PARTITION, source="the task", where=where)
        check_known("role", [part["role"]], _ROLES, source="the task", where=where)


def _check_client(each: Json, tasks: Collection[str]) -> None:
    where = f"client {each['id']}"
    check_known("field of a client", each, _CLIENT, source="the client", where=where)
    for name in ("prev_active", "prev_standby", "lags"):
        check_known("task", cast("Iterable[str]", each.get(name) or ()), tasks, source=name, where=where)


def _check_events(content: Json, tasks: Collection[str], present: Iterable[str], pinned: Iterable[str]) -> None:
    """Follow who is there: only those can leave, and only those that left return."""
    here, gone, ever = set(present), set[str](), set(present)
    for number, each in enumerate(items_of(content, "events"), 1):
        where = f"event {number}"
        check_known("field of an event", each, _EVENT, source="the event", where=where)
        leaving = cast("list[str]", each.get("drop") or [])
        check_known("client", leaving, here, source="drop", where=where)
        here, gone = here - set(leaving), gone | set(leaving)
        for client in items_of(each, "add"):
            _check_client(client, tasks)
            _check_once("client", [*sorted(here), str(client["id"])])
            here.add(str(client["id"]))
        for back in items_of(each, "resurrect"):
            check_known("field", back, _RETURN, source="resurrect", where=where)
            check_known("client that left", [back["id"]], gone, source="resurrect", where=where)
            here, gone = here | {str(back["id"])}, gone - {str(back["id"])}
        ever |= here
    check_known("client", pinned, ever, source="pins", where="pins")
