"""A member as a full record tells it. Knows its row. Does not know who finds members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

__all__ = ["RecordedMember"]


@dataclass(frozen=True, slots=True)
class RecordedMember:
    """A live member: its folder's name, the executor that held it, where that ran, its slots, rack and tags.

    ``facts`` are reserved: what was measured of it (docs/formats.md).
    """

    id: str
    executor: str
    host: str
    slots: int
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> list[object]:
        """Return its row."""
        return [self.id, self.executor, self.host, self.slots, self.rack, dict(self.tags), dict(self.facts)]

    @classmethod
    def from_json(cls, row: list[object]) -> RecordedMember:
        """Return the member of a row. Raises ``TypeError`` or ``ValueError`` where it is none."""
        name, executor, host, slots, rack, tags, facts = row
        types = tuple(map(type, (name, executor, host, slots, tags, facts)))
        if types != (str, str, str, int, dict, dict) or type(rack) not in (str, type(None)):
            raise TypeError(f"no member: {row!r}")
        told = cast("dict[str, str]", tags)
        if any(type(value) is not str for value in told.values()):
            raise TypeError(f"a tag that is no text: {told!r}")
        return cls(
            cast(str, name), cast(str, executor), cast(str, host), cast(int, slots), cast("str | None", rack), told,
            cast("dict[str, object]", facts),
        )  # fmt: skip
