"""In which rack each member stands, from host patterns and from what members report."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

__all__ = ["Topology"]


class Topology:
    """Finds racks: that of the first pattern that fits the host, or else the member's own.

    ``patterns`` are pairs of a host pattern (``10.0.1.*``) and a rack. Upper and lower case are the same.
    """

    def __init__(self, patterns: Sequence[tuple[str, str]]) -> None:
        self._patterns = [(pattern.lower(), rack) for pattern, rack in patterns]

    def racks(self, members: Sequence[tuple[str, str, str | None]]) -> dict[str, str | None]:
        """Return the rack of each member from (member, host, rack as it reports); ``None`` if unknown."""
        return {member: self._rack_of_host(host) or own for member, host, own in members}

    def _rack_of_host(self, host: str) -> str | None:
        return next((rack for pattern, rack in self._patterns if fnmatchcase(host.lower(), pattern)), None)
