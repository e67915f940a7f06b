"""What a scenario file may say: the fields of its parts, and what its parts name. Does not know what they mean."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from riffle_spark import setting_values as values
from riffle_spark.errors import ConfigError
from riffle_spark.unknown_names import check_known

__all__ = ["Json", "check_file", "check_part", "check_scenario", "items_of"]

Json = Mapping[str, object]
_REMEDY: Final = "correct it; docs/assignor.md tells the format"
_LAGS_BY_NAME: Final = {-2: "running", -3: "unknown"}
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "client": ("id",), "task": ("id", "subtopology", "partition", "stateful"), "partition": ("role",), "event": (),
    "return": ("id",),
}  # fmt: skip
_ROLES: Final = ("source", "changelog")


def _list(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError("a list")  # noqa: TRY004 - as every check
    return value


def _texts(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("a list of names")
    return value


def _table(check: values.Check) -> values.Check:
    def checked(value: object) -> object:
        if not isinstance(value, Mapping):
            raise ValueError("a table of names and values")  # noqa: TRY004 - as every check
        for one in value.values():
            check(one)
        return value

    return checked


def _lag(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and value not in _LAGS_BY_NAME):
        raise ValueError("whole numbers from 0 up, -2 (running) or -3 (unknown)")
    return value


def _truth(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - as every check
    return value


def _number(low: int) -> values.Check:
    """Return a check for numbers of the file, where text is no number."""
    whole = values.whole(low)
    return lambda value: whole(None if isinstance(value, str) else value)


def _anything(value: object) -> object:
    return value


_FILE: Final[Mapping[str, values.Check]] = {
    "name": values.text, "family": _anything, "note": _anything, "seed": _anything, "config": _table(_anything),
    "clients": _list, "tasks": _list, "events": _list, "pins": _table(values.text),
}  # fmt: skip
_PARTS: Final[Mapping[str, Mapping[str, values.Check]]] = {
    "client": {
        "id": values.text, "threads": _number(1), "rack": values.text, "tags": _table(values.text),
        "memory_bytes": _number(0), "prev_active": _texts, "prev_standby": _texts, "lags": _table(_lag),
    },
    "task": {
        "id": values.text, "subtopology": _anything, "partition": _number(0), "stateful": _truth,
        "end_offset_sum": _number(0), "weight": _number(0), "memory_bytes": _number(0), "partitions": _list,
    },
    "partition": {"topic": _anything, "partition": _anything, "role": values.text, "replica_racks": _texts},
    "event": {"drop": _texts, "add": _list, "resurrect": _list},
    "return": {"id": values.text, "lag": _number(0)},
}  # fmt: skip


def items_of(content: Json, name: str) -> list[Json]:
    """Return the parts of a list that may be missing."""
    return cast("list[Json]", content.get(name) or [])


def check_file(content: object) -> Json:
    """Return the content of a file. Raises ``ConfigError`` for a field that is unknown, missing or of another shape."""
    return _checked("file", content, _FILE, ("name",), source="the file", where="top level")


def check_part(kind: str, part: object, *, source: str, where: str) -> Json:
    """Return a client, task, partition, event or return. Raises ``ConfigError`` as ``check_file`` does.

    What is null is as if it were not there.
    """
    return _checked(kind, part, _PARTS[kind], _NEEDED[kind], source=source, where=where)


def _checked(
    kind: str, part: object, fields: Mapping[str, values.Check], needed: tuple[str, ...], *,
    source: str, where: str,
) -> Json:  # fmt: skip
    if not isinstance(part, Mapping):
        raise ConfigError(
            f"not a scenario: {part!r} is no {kind}, an object with {', '.join(fields)}",
            remedy=_REMEDY,
            where=where,
            id="RIFFLE-0257",
        )
    what = "field" if kind in ("file", "return") else f"field of {'an' if kind == 'event' else 'a'} {kind}"
    check_known(what, part, tuple(fields), source=source, where=where)
    for name in needed:
        if part.get(name) is None:
            remedy = f"it needs {', '.join(needed)}; docs/assignor.md tells the format"
            raise ConfigError(
                f"not a scenario: the {kind} has no {name!r}", remedy=remedy, where=where, id="RIFFLE-0258"
            )
    for name, value in part.items():
        if value is not None:
            values.checked(name, value, fields[name], remedy=_REMEDY, where=where)
    return part


def check_scenario(content: Json) -> None:
    """Raise ``ConfigError`` for the first field, task or member that the file cannot name, or value it cannot have."""
    check_file(content)
    for number, each in enumerate(items_of(content, "tasks"), 1):
        _check_task(each, number)
    tasks = [each["id"] for each in items_of(content, "tasks")]
    _check_once("tasks", tasks)
    names = [str(name) for name in tasks]
    for number, each in enumerate(items_of(content, "clients"), 1):
        _check_client(each, names, number)
    present = [str(each["id"]) for each in items_of(content, "clients")]
    _check_once("clients", present)
    owned = [name for each in items_of(content, "clients") for name in cast("list[str]", each.get("prev_active") or ())]
    _check_once("owners of task", owned, "name it in prev_active of one client")
    if not present:
        raise ConfigError(
            "there is nobody to place tasks on", remedy="name one client at least", where="clients", id="RIFFLE-0259"
        )
    pins = cast(Json, content.get("pins") or {})
    check_known("task", pins, names, source="pins", where="pins")
    _check_events(content, names, present, cast("Iterable[str]", pins.values()))


def _check_once(what: str, names: Iterable[object], remedy: str = "give each a name of its own") -> None:
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"there are two {what} {name!r}", remedy=remedy, where=str(name), id="RIFFLE-0260")
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
            _check_once("clients", [*sorted(here), str(client["id"])])
            here.add(str(client["id"]))
        for back in items_of(each, "resurrect"):
            check_part("return", back, source="resurrect", where=where)
            check_known("client that left", [back["id"]], gone, source="resurrect", where=where)
            here, gone = here | {str(back["id"])}, gone - {str(back["id"])}
        ever |= here
        if not here:
            raise ConfigError(
                "nobody is left after it", remedy="drop fewer, or add somebody", where=where, id="RIFFLE-0261"
            )
    check_known("client", pinned, ever, source="pins", where="pins")
