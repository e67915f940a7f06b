"""Operator requests as the log's records store them (``Record.orders``; see docs/formats.md)."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.protocol.batch.mailbox import Answer
from riffle_spark.protocol.ownership.groups import parse_task, task_name
from riffle_spark.settings import LIVE, Settings
from riffle_spark.state.log.record import RecordedMember

_FIELDS = frozenset({"drained", "pins", "slots", "settings", "awaited", "homes", "answers", "control"})


@dataclass(frozen=True, slots=True)
class AwaitedMember:
    """A lost member whose return the driver awaits since ``since_ms`` (milliseconds since the epoch)."""

    since_ms: int
    member: RecordedMember


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """Requests in effect: drained members, pins by task, at most ``slots`` per executor, and changed live settings.

    ``slots`` is ``None`` for one slot per core. ``awaited`` are lost members, and ``prior_owners`` names the member
    that gets each of their tasks back. ``answers`` are the newest answers to requests from the mailbox, and ``control``
    is whether the driver reads it. ``unknown_fields`` were written by a later version and are kept.
    """

    drained: tuple[str, ...] = ()
    pins: Mapping[TaskId, str] = field(default_factory=dict)
    slots: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    awaited: tuple[AwaitedMember, ...] = ()
    prior_owners: Mapping[TaskId, str] = field(default_factory=dict)
    answers: tuple[Answer, ...] = ()
    control: bool = False
    unknown_fields: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the requests as the JSON of a record, without empty entries."""
        entries = {
            "drained": sorted(self.drained),
            "pins": {task_name(task): member for task, member in sorted(self.pins.items())},
            "slots": self.slots,
            "settings": dict(sorted(self.settings.items())),
            "awaited": {waiting.member.id: [waiting.since_ms, waiting.member.to_json()] for waiting in self.awaited},
            "answers": [answer.to_json() for answer in self.answers],
            "control": self.control or None,
            "homes": {task_name(task): member for task, member in sorted(self.prior_owners.items())},
        }
        return {
            **self.unknown_fields,
            **{name: value for name, value in entries.items() if value not in (None, [], {})},
        }

    def differs_from(self, recorded: "StoredRequests") -> bool:
        """Return whether the requests differ so much from a record's that they need a record of their own.

        Prior owners alone do not: they change with every return of a member.
        """
        return replace(self, prior_owners={}) != replace(recorded, prior_owners={})


def without_key_groups(requests: Mapping[str, object]) -> dict[str, object]:
    """Return a record's requests without pins and prior owners, for a change that renumbers key-groups."""
    return {name: value for name, value in requests.items() if name not in ("pins", "homes")}


def read_requests(requests: Mapping[str, object]) -> StoredRequests:
    """Return the requests in the JSON of a record. Raises ``CorruptStateError`` if this version cannot read it."""
    try:
        awaited = _mapping(requests, "awaited")
        return StoredRequests(
            drained=_member_names(requests.get("drained", [])),
            pins=_by_task(requests, "pins"),
            slots=_slot_limit(requests.get("slots")),
            settings=_mapping(requests, "settings"),
            awaited=tuple(_awaited_member(name, awaited[name]) for name in sorted(awaited)),
            prior_owners=_by_task(requests, "homes"),
            answers=_answers(requests.get("answers", [])),
            control=_flag(requests.get("control", False)),
            unknown_fields={name: value for name, value in requests.items() if name not in _FIELDS},
        )
    except (TypeError, ValueError) as error:
        # Cause: A newer version of riffle-spark wrote the record.
        raise CorruptStateError(
            f"The newest record has operator requests that cannot be read: {error}.",
            remedy="Run the version of riffle-spark that wrote the record, or a newer one.",
            where="orders",
            id="RIFFLE-0227",
        ) from error


def _mapping(requests: Mapping[str, object], field: str) -> dict[str, object]:
    """Return the mapping under ``field`` of a record's requests, empty if it is missing.

    Raises ``TypeError`` for another type.
    """
    value = requests.get(field, {})
    if type(value) is not dict:
        raise TypeError(f"{field} = {value!r}")
    return value


def _by_task(requests: Mapping[str, object], field: str) -> dict[TaskId, str]:
    """Return the mapping from task names to members under ``field`` of a record's requests, by task.

    Raises ``ValueError`` or ``TypeError`` if it is invalid.
    """
    try:
        members = {parse_task(task): _member_name(member) for task, member in _mapping(requests, field).items()}
    except ValueError as error:
        raise ValueError(f"{field} has {error}") from None
    return dict(sorted(members.items()))


def _answers(rows: object) -> tuple[Answer, ...]:
    """Return the answers of a record. Raises ``TypeError`` or ``ValueError`` if they are invalid."""
    if type(rows) is not list:
        raise TypeError(f"answers = {rows!r}")
    return tuple(map(Answer.from_json, rows))


def _flag(value: object) -> bool:
    """Return a flag of a record. Raises ``TypeError`` if it is invalid."""
    if type(value) is not bool:
        raise TypeError(f"control = {value!r}")
    return value


def _slot_limit(slots: object) -> int | None:
    """Return the slot limit of a record. Raises ``TypeError`` if it is invalid."""
    if slots is not None and (type(slots) is not int or slots < 1):
        raise TypeError(f"slots = {slots!r}")
    return slots


def _member_names(members: object) -> tuple[str, ...]:
    """Return the drained members of a record, sorted. Raises ``TypeError`` for anything else than a list of names."""
    if type(members) is not list:
        raise TypeError(f"drained = {members!r}")
    return tuple(sorted(map(_member_name, members)))


def _member_name(member: object) -> str:
    """Return the name of a member. Raises ``TypeError`` if it is not text."""
    if type(member) is not str:
        raise TypeError(f"member {member!r}")
    return member


def _awaited_member(name: str, row: object) -> AwaitedMember:
    """Return the awaited member ``name`` of a record. Raises ``TypeError`` or ``ValueError`` if its row is invalid."""
    if type(row) is not list or len(row) != 2 or type(row[0]) is not int or type(row[1]) is not list:
        raise TypeError(f"awaited = {row!r}")
    member = RecordedMember.from_json(row[1])
    if member.id != name:
        raise ValueError(f"member {member.id!r} under {name!r}")
    return AwaitedMember(row[0], member)


def changed_settings(started: Settings, current: Settings) -> dict[str, object]:
    """Return, as JSON, the live settings that were changed since the start. Functions are left out."""
    changes: dict[str, object] = {}
    for name in sorted(LIVE):
        if getattr(current, name) != getattr(started, name):
            with suppress(TypeError):
                changes[name] = json.loads(json.dumps(getattr(current, name)))
    return changes


def apply_stored_settings(started: Settings, changes: Mapping[str, object]) -> tuple[Settings, dict[str, object]]:
    """Return the settings with recorded changes, and the changes that this version does not know or allow."""
    settings = started
    refused_changes = {name: value for name, value in changes.items() if name not in LIVE}
    for name in sorted(changes.keys() & LIVE):
        try:
            settings = settings.but(**{name: changes[name]})
        except ConfigError:
            refused_changes[name] = changes[name]
    return settings, refused_changes
