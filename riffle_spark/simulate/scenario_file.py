"""Validate scenario files. World files use the same checks of fields."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

from riffle_spark import setting_values as values
from riffle_spark.errors import UNREADABLE, ConfigError
from riffle_spark.unknown_names import check_known

Json = Mapping[str, object]
_PAGE: Final = "docs/assignor.md"
_LAGS_BY_NAME: Final = {-2: "running", -3: "unknown"}
_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "client": ("id",),
    "task": ("id", "subtopology", "partition", "stateful"),
    "partition": ("role",),
    "event": (),
    "return": ("id",),
}
_ROLES: Final = ("source", "changelog")


def _check_list(value: object) -> object:
    """Return ``value`` if it is a list. Raises ``ValueError`` with the description of allowed values otherwise."""
    if not isinstance(value, list):
        raise ValueError("a list")  # noqa: TRY004 - as every check
    return value


def _check_texts(value: object) -> object:
    """Return ``value`` if it is a list of strings. Raises ``ValueError`` otherwise."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("a list of names")
    return value


def _make_table_check(check: values.Check) -> values.Check:
    """Return a check for JSON objects whose values all pass ``check``."""

    def checked(value: object) -> object:
        if not isinstance(value, Mapping):
            raise ValueError("a table of names and values")  # noqa: TRY004 - as every check
        for item in value.values():
            check(item)
        return value

    return checked


def _check_lag(value: object) -> object:
    """Return ``value`` if it is a lag: a number of records, -2 (running) or -3 (unknown).

    Raises ``ValueError`` otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and value not in _LAGS_BY_NAME):
        raise ValueError("integers of at least 0, -2 (running) or -3 (unknown)")
    return value


def _check_boolean(value: object) -> object:
    """Return ``value`` if it is true or false. Raises ``ValueError`` otherwise."""
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - as every check
    return value


def _make_integer_check(low: int) -> values.Check:
    """Return a check for JSON integers of at least ``low``. Text is refused."""
    whole = values.whole(low)
    return lambda value: whole(None if isinstance(value, str) else value)


def _accept_any(value: object) -> object:
    return value


_FILE: Final[Mapping[str, values.Check]] = {
    "name": values.text,
    "family": _accept_any,
    "note": _accept_any,
    "seed": _accept_any,
    "config": _make_table_check(_accept_any),
    "clients": _check_list,
    "tasks": _check_list,
    "events": _check_list,
    "pins": _make_table_check(values.text),
}
_PARTS: Final[Mapping[str, Mapping[str, values.Check]]] = {
    "client": {
        "id": values.text,
        "threads": _make_integer_check(1),
        "rack": values.text,
        "tags": _make_table_check(values.text),
        "memory_bytes": _make_integer_check(0),
        "prev_active": _check_texts,
        "prev_standby": _check_texts,
        "lags": _make_table_check(_check_lag),
    },
    "task": {
        "id": values.text,
        "subtopology": _accept_any,
        "partition": _make_integer_check(0),
        "stateful": _check_boolean,
        "end_offset_sum": _make_integer_check(0),
        "weight": _make_integer_check(0),
        "memory_bytes": _make_integer_check(0),
        "partitions": _check_list,
    },
    "partition": {"topic": _accept_any, "partition": _accept_any, "role": values.text, "replica_racks": _check_texts},
    "event": {"drop": _check_texts, "add": _check_list, "resurrect": _check_list},
    "return": {"id": values.text, "lag": _make_integer_check(0)},
}


def list_items(content: Json, name: str) -> list[Json]:
    """Return the objects in the list ``name`` of a checked JSON object; empty if the list is missing or null."""
    return cast("list[Json]", content.get(name) or [])


@contextmanager
def converted_file_errors(path: Path, kind: str, page: str) -> Iterator[None]:
    """Run a block that reads ``path``. Add the path to each ``ConfigError``, and raise other errors of reading and
    parsing as ``ConfigError``.

    ``kind`` names the kind of file, and ``page`` the page of the documentation that describes it.
    """
    try:
        yield
    except ConfigError as refused:
        raise ConfigError(
            f"The {kind} is not valid: {refused.problem}",
            remedy=f"Correct the file. {refused.remedy}",
            where=f"{path}: {refused.where}",
            id="RIFFLE-0254",
        ) from refused
    except (OSError, zlib.error, *UNREADABLE) as broken:
        raise ConfigError(
            f"Not a {kind}: {broken!r}.",
            remedy=f"Write the file in the format of {page}.",
            where=str(path),
            id="RIFFLE-0255",
        ) from broken


def check_fields(
    kind: str,
    part: object,
    checks: Mapping[str, values.Check],
    required: tuple[str, ...],
    *,
    source: str,
    where: str,
    page: str = _PAGE,
) -> Json:
    """Return the fields of a JSON object that are not null, with the results of their checks.

    ``kind`` names the object in errors, ``source`` and ``where`` its place in the file, and ``page`` the documentation.
    Raises ``ConfigError`` if it is not an object, or for a field that is unknown, missing or malformed.
    """
    if not isinstance(part, Mapping):
        raise ConfigError(
            f"The {kind} in {source} is not a JSON object: {part!r}.",
            remedy=f"Write a JSON object with the fields {', '.join(checks)}.",
            where=where,
            id="RIFFLE-0257",
        )
    check_known(f"field of the {kind}", part, tuple(checks), source=source, where=where)
    for name in required:
        if part.get(name) is None:
            remedy = f"Add {', '.join(required)}. {page} describes the format."
            raise ConfigError(f"The {kind} has no {name!r}.", remedy=remedy, where=where, id="RIFFLE-0258")
    remedy = f"Correct it. {page} describes the format."
    return {
        name: values.checked(name, value, checks[name], remedy=remedy, where=where)
        for name, value in part.items()
        if value is not None
    }


def _check_part(kind: str, part: object, *, source: str, where: str) -> None:
    """Raise ``ConfigError`` for an unknown, missing or malformed field of a part of this kind, such as a task."""
    check_fields(kind, part, _PARTS[kind], _REQUIRED[kind], source=source, where=where)


def check_scenario(content: Json) -> None:
    """Check the parsed JSON of a scenario.

    Raises ``ConfigError`` for the first unknown field, task or member, and for a wrong value.
    """
    check_fields("file", content, _FILE, ("name",), source="the file", where="top level")
    tasks = list_items(content, "tasks")
    for number, task in enumerate(tasks, 1):
        _check_task(task, number)
    check_unique("task", [task["id"] for task in tasks])
    names = [str(task["id"]) for task in tasks]
    clients = list_items(content, "clients")
    for number, client in enumerate(clients, 1):
        _check_client(client, names, number)
    present = [str(client["id"]) for client in clients]
    check_unique("client", present)
    owned = [name for client in clients for name in cast("list[str]", client.get("prev_active") or ())]
    check_unique("owned task", owned, "List a task in prev_active of one client only.")
    if not present:
        raise ConfigError(
            "The scenario has no clients.", remedy="Add at least one client.", where="clients", id="RIFFLE-0259"
        )
    pins = cast(Json, content.get("pins") or {})
    check_known("task", pins, names, source="pins", where="pins")
    _check_events(content, names, present, cast("Iterable[str]", pins.values()))


def check_unique(kind: str, names: Iterable[object], remedy: str = "Ids must be unique.") -> None:
    """Raise ``ConfigError`` for the first of ``names`` that is repeated.

    ``kind`` is the kind of object that the names stand for. ``remedy`` is the remedy of the error.
    """
    unique: set[object] = set()
    for name in names:
        if name in unique:
            raise ConfigError(
                f"The {kind} {name!r} is listed twice.",
                remedy=f"Remove one of the two. {remedy}",
                where=str(name),
                id="RIFFLE-0260",
            )
        unique.add(name)


def _check_task(task: Json, number: int) -> None:
    """Check element ``number`` of ``tasks`` and its partitions. Raises ``ConfigError``."""
    where = _locate_part("task", task, number)
    _check_part("task", task, source="the task", where=where)
    for partition in list_items(task, "partitions"):
        _check_part("partition", partition, source="the task", where=where)
        check_known("role", [partition["role"]], _ROLES, source="the task", where=where)


def _check_client(client: Json, tasks: Collection[str], number: int) -> None:
    """Check element ``number`` of a list of clients, and that it names known ``tasks``. Raises ``ConfigError``."""
    where = _locate_part("client", client, number)
    _check_part("client", client, source="the client", where=where)
    for name in ("prev_active", "prev_standby", "lags"):
        check_known("task", cast("Iterable[str]", client.get(name) or ()), tasks, source=name, where=where)


def _locate_part(kind: str, part: object, number: int) -> str:
    """Return the place of a part of this kind for errors: its id, or its number in the file without an id."""
    return f"{kind} {part['id'] if isinstance(part, Mapping) and part.get('id') else number}"


def _check_events(content: Json, tasks: Collection[str], present: Iterable[str], pinned: Iterable[str]) -> None:
    """Check that only live clients leave, only clients that left return, and one client always remains. Raises
    ``ConfigError``.

    ``present`` are the clients at the start, ``pinned`` the clients that tasks are pinned to.
    """
    live = set(present)
    departed: set[str] = set()
    all_clients = set(present)
    for number, event in enumerate(list_items(content, "events"), 1):
        where = f"event {number}"
        _check_part("event", event, source="the event", where=where)
        leaving = cast("list[str]", event.get("drop") or [])
        check_known("client", leaving, live, source="drop", where=where)
        live -= set(leaving)
        departed |= set(leaving)
        for client in list_items(event, "add"):
            _check_client(client, tasks, number)
            check_unique("client", [*sorted(live), str(client["id"])])
            live.add(str(client["id"]))
        for client in list_items(event, "resurrect"):
            _check_part("return", client, source="resurrect", where=where)
            check_known("client that left", [client["id"]], departed, source="resurrect", where=where)
            live.add(str(client["id"]))
            departed.remove(str(client["id"]))
        all_clients |= live
        if not live:
            raise ConfigError(
                "No client is left after the event.", remedy="Drop fewer clients.", where=where, id="RIFFLE-0261"
            )
    check_known("client", pinned, all_clients, source="pins", where="pins")
