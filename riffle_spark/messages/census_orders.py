"""What a driver asks executors to look for on their machines, and what they answer. Knows plain data only."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from riffle_spark.messages.slot_orders import Home

__all__ = ["Census", "CensusOrder"]


@dataclass(frozen=True)
class CensusOrder:
    """What to look for. ``ec2_metadata`` asks the instance metadata service for the zone where nothing else tells;
    folders of dead executors that nobody has used for ``folder_cleanup_seconds`` are removed. Who has not answered
    after ``timeout_seconds`` is given up.
    """

    home: Home
    ec2_metadata: bool = False
    folder_cleanup_seconds: float = 86_400.0
    timeout_seconds: float = 60.0

    def to_json(self) -> str:
        """Return the order as one line of JSON."""
        body = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({**body, "home": self.home.to_json()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "CensusOrder":
        """Return the order that ``to_json`` wrote."""
        body = json.loads(text)
        return cls(**{**body, "home": Home.from_json(body["home"])})


@dataclass(frozen=True, slots=True)
class Census:
    """What one executor found. ``member`` is the name of its folder, ``copies`` are (store, key-group, version,
    attempt) of every copy that can be used, ``sealed`` the attempts whose deltas lie there as files.

    ``rack`` and ``tags`` are what the executor's environment or its metadata service says, before any setting.
    """

    executor: str
    member: str = ""
    copies: tuple[tuple[str, int, int, str], ...] = ()
    sealed: tuple[str, ...] = ()
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    disk_used_share: float = 0.0
    folders_removed: int = 0
    error: str | None = None

    def to_json(self) -> str:
        """Return the census as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Census":
        """Return the census that ``to_json`` wrote."""
        body = json.loads(text)
        return cls(**{**body, "copies": tuple(map(tuple, body["copies"])), "sealed": tuple(body["sealed"])})
