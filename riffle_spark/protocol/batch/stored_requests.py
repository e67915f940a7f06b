"""What was asked of a query and whom it waits for, as its records keep it over drivers (``Record.orders``). Pure; knows
the field of docs/formats.md. Does not know when it is written, or how it is obeyed.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.protocol.ownership.groups import parse_task, task_name
from riffle_spark.settings import LIVE, Settings
from riffle_spark.state.log.record import RecordedMember

__all__ = ["StoredRequests", "Wait", "apply_stored_settings", "changed_settings", "read_requests", "without_key_groups"]

_OURS = frozenset({"drained", "pins", "slots", "settings", "awaited", "homes"})


@dataclass(frozen=True, slots=True)
class Wait:
    """A lost member that is waited for since ``since_ms`` (milliseconds since the epoch)."""

    since_ms: int
    member: RecordedMember


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """What stands: drained members, pins by task, slots an executor at most (``None``: its cores), live settings
    that were changed, as JSON, lost members that are waited for, and to which of them a task returns.

    ``others`` are what a later version keeps beside these: it is carried on.
    """

    drained: tuple[str, ...] = ()
    pins: Mapping[TaskId, str] = field(default_factory=dict)
    slots: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    awaited: tuple[Wait, ...] = ()
    prior_owners: Mapping[TaskId, str] = field(default_factory=dict)
    others: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the field of a record: nothing of what nobody asked for."""
        said = {
            "drained": sorted(self.drained),
            "pins": {task_name(t): member for t, member in sorted(self.pins.items())},
            "slots": self.slots,
            "settings": dict(sorted(self.settings.items())),
            "awaited": {wait.member.id: [wait.since_ms, wait.member.to_json()] for wait in self.awaited},
            "homes": {task_name(t): member for t, member in sorted(self.prior_owners.items())},
        }
        return {**self.others, **{name: value for name, value in said.items() if value not in (None, [], {})}}

    def is_news_to(self, recorded: "StoredRequests") -> bool:
        """Tell whether this is worth a record of its own. Homes alone are not: they change as key-groups come home,
        and one that is told of a member which has it already does nothing.
        """
        return replace(self, prior_owners={}) != replace(recorded, prior_owners={})


def without_key_groups(orders: Mapping[str, object]) -> dict[str, object]:
    """Return what is left of a record's field where numbers of key-groups come to stand for others."""
    return {name: value for name, value in orders.items() if name not in ("pins", "homes")}


def read_requests(orders: Mapping[str, object]) -> StoredRequests:
    """Return the will that a record's field holds. Raises ``CorruptStateError`` for what this version cannot read."""
    try:
        awaited = _mapping(orders, "awaited")
        return StoredRequests(
            _names(orders.get("drained", [])), _by_task(orders, "pins"), _number(orders.get("slots")),
            _mapping(orders, "settings"), tuple(_wait(name, awaited[name]) for name in sorted(awaited)),
            _by_task(orders, "homes"), {name: value for name, value in orders.items() if name not in _OURS},
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise CorruptStateError(
            f"what operators asked for cannot be read from the newest record: {error}",
            remedy="run the version of riffle-spark that wrote it, or a newer one",
            where="orders",
            id="RIFFLE-0227",
        ) from error


def _mapping(orders: Mapping[str, object], name: str) -> dict[str, object]:
    found = orders.get(name, {})
    if type(found) is not dict:
        raise TypeError(f"{name} = {found!r}")
    return found


def _by_task(orders: Mapping[str, object], name: str) -> dict[TaskId, str]:
    try:
        found = {parse_task(told): _name(member) for told, member in _mapping(orders, name).items()}
    except ValueError as error:
        raise ValueError(f"{name} has {error}") from None
    return dict(sorted(found.items()))


def _number(slots: object) -> int | None:
    if slots is not None and (type(slots) is not int or slots < 1):
        raise TypeError(f"slots = {slots!r}")
    return slots


def _names(members: object) -> tuple[str, ...]:
    if type(members) is not list:
        raise TypeError(f"drained = {members!r}")
    return tuple(sorted(map(_name, members)))


def _name(member: object) -> str:
    if type(member) is not str:
        raise TypeError(f"{member!r} names no member")
    return member


def _wait(name: str, row: object) -> Wait:
    if type(row) is not list or len(row) != 2 or type(row[0]) is not int or type(row[1]) is not list:
        raise TypeError(f"{row!r} is no wait")
    wait = Wait(row[0], RecordedMember.from_json(row[1]))
    if wait.member.id != name:
        raise ValueError(f"a wait for {name!r} that names {wait.member.id!r}")
    return wait


def changed_settings(started: Settings, now: Settings) -> dict[str, object]:
    """Return, as JSON, the live settings that are others than those that the driver was started with. What JSON cannot
    say, a function, is left out: it goes with the driver.
    """
    changed: dict[str, object] = {}
    for name in sorted(LIVE):
        if getattr(now, name) != getattr(started, name):
            with suppress(TypeError):
                changed[name] = json.loads(json.dumps(getattr(now, name)))
    return changed


def apply_stored_settings(started: Settings, told: Mapping[str, object]) -> tuple[Settings, dict[str, object]]:
    """Return the settings with those of a will, and what of it this version does not know or allow."""
    settings = started
    strange = {name: value for name, value in told.items() if name not in LIVE}
    for name in sorted(told.keys() & LIVE):
        try:
            settings = settings.but(**{name: told[name]})
        except ConfigError:
            strange[name] = told[name]
    return settings, strange
