"""What the body of a record may hold: which fields, of which types. Knows types. Does not know what fields mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

__all__ = ["check_body"]

_NUMBERS = ("sequence", "epoch", "version", "rollbacks", "written_ms", "total", "full", "promised")
_TEXTS = ("kind", "previous", "commit_id", "log_id", "query_id", "dispatch")
_MAPS = (
    "entries", "schemas", "owners", "standbys", "event_times", "initial_states", "weights", "watermarks", "orders",
)  # fmt: skip
_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int,)),
    **dict.fromkeys(_TEXTS, (str,)),
    **dict.fromkeys(_MAPS, (dict,)),
    **dict.fromkeys(("target", "time_ms", "watermark_ms", "late_watermark_ms"), (int, type(None))),
    **dict.fromkeys(("offsets", "input_digest"), (str, type(None))),
    **dict.fromkeys(("outputs", "shards", "members"), (list,)),
    "delivers_after_commit": (bool,),
}
_VALUES: Mapping[str, tuple[type, type]] = {
    "owners": (str, str),
    "event_times": (int, int),
    "schemas": (dict, str),
    "standbys": (list, str),
    "initial_states": (list, str),
}
"""What the values of a map are, and what these hold in turn."""
_ENTRIES = {"heads", "stores"}


def check_body(body: Mapping[str, object], known: Collection[str], kinds: Collection[str]) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a field that is not ``known`` or not of its type, or another kind."""
    if type(body) is not dict:
        raise TypeError("the body is not an object")
    if unknown := sorted(body.keys() - set(known)):
        raise TypeError(f"unknown fields {', '.join(unknown)}")
    for name, value in body.items():
        if type(value) not in _TYPES[name]:
            raise TypeError(f"{name} is of type {type(value).__name__}")
        if name in _VALUES:
            _check_values(name, cast("dict[str, object]", value))
    if body["kind"] not in kinds:
        raise ValueError(f"unknown kind {body['kind']!r}")
    if unknown := sorted(cast("dict[str, object]", body["entries"]).keys() - _ENTRIES):
        raise TypeError(f"entries hold {', '.join(unknown)}, which this version cannot read: run a newer one")


def _check_values(name: str, values: Mapping[str, object]) -> None:
    outer, inner = _VALUES[name]
    for value in values.values():
        held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if type(value) is not outer or any(type(each) is not inner for each in held):
            raise TypeError(f"{name} holds {value!r}")
