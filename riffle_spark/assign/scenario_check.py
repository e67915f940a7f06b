"""What a scenario file may say. Knows what its parts name, level by level. Does not know what they mean.

What is unknown is refused, never passed over: a slip of the pen would be answered for another cluster than was meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from riffle_spark.assign.scenario_shape import Json, check_file, check_part, items_of
from riffle_spark.errors import ConfigError
from riffle_spark.names import check_known

__all__ = ["check_scenario"]

_ROLES: Final = ("source", "changelog")


def check_scenario(content: Json) -> None:
    """Raise ``ConfigError`` for the first field, task or member that the file cannot name, or value it cannot have."""
    check_file(content)
    for number, each in enumerate(items_of(content, "tasks"), 1):
        _check_task(each, number)
    tasks = [each["id"] for each in items_of(content, "tasks")]
    _check_once("task", tasks)
    names = [str(name) for name in tasks]
    for number, each in enumerate(items_of(content, "clients"), 1):
        _check_client(each, names, number)
    present = [str(each["id"]) for each in items_of(content, "clients")]
    _check_once("client", present)
    pins = cast(Json, content.get("pins") or {})
    check_known("task", pins, names, source="pins", where="pins")
    _check_events(content, names, present, cast("Iterable[str]", pins.values()))


def _check_once(what: str, names: Iterable[object]) -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"there are two {what}s {name!r}", remedy="give each a name of its own", where=str(name))
        seen.add(name)


def _check_task(each: Json, number: int) -> None:
    where = _place("task", each, number)
    check_part("task", each, source="the task", where=where)
    for part in items_of(each, "partitions"):
        check_part("partition", part, source="the task", where=where)
        check_known("role", [part["role"]], _ROLES, source="the task", where=where)


def _check_client(each: Json, tasks: Collection[str], number: int) -> None:
    where = _place("client", each, number)
    check_part("client", each, source="the client", where=where)
    for name in ("prev_active", "prev_standby", "lags"):
        check_known("task", cast("Iterable[str]", each.get(name) or ()), tasks, source=name, where=where)


def _place(what: str, each: object, number: int) -> str:
    """Return where in the file something is: by its id, else by its number."""
    return f"{what} {each['id'] if isinstance(each, Mapping) and each.get('id') else number}"


def _check_events(content: Json, tasks: Collection[str], present: Iterable[str], pinned: Iterable[str]) -> None:
    """Follow who is there: only those can leave, and only those that left return."""
    here, gone, ever = set(present), set[str](), set(present)
    for number, each in enumerate(items_of(content, "events"), 1):
        where = f"event {number}"
        check_part("event", each, source="the event", where=where)
        leaving = cast("list[str]", each.get("drop") or [])
        check_known("client", leaving, here, source="drop", where=where)
        here, gone = here - set(leaving), gone | set(leaving)
        for client in items_of(each, "add"):
            _check_client(client, tasks, number)
            _check_once("client", [*sorted(here), str(client["id"])])
            here.add(str(client["id"]))
        for back in items_of(each, "resurrect"):
            check_part("return", back, source="resurrect", where=where)
            check_known("client that left", [back["id"]], gone, source="resurrect", where=where)
            here, gone = here | {str(back["id"])}, gone - {str(back["id"])}
        ever |= here
    check_known("client", pinned, ever, source="pins", where="pins")
