"""Find the rack of each member, from host patterns and from the rack that the member reports."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def racks_of_members(
    patterns: Sequence[tuple[str, str]], members: Sequence[tuple[str, str, str | None]]
) -> dict[str, str | None]:
    """Return the rack of each member: the rack of the first pattern that matches its host, else the reported rack.

    ``patterns`` are pairs of a host pattern (``10.0.1.*``), in upper or lower case, and a rack. ``members`` are triples
    of id, host and reported rack. A rack is ``None`` if it is unknown.
    """
    return {member: _rack_of_host(patterns, host.lower()) or reported for member, host, reported in members}


def _rack_of_host(patterns: Sequence[tuple[str, str]], host: str) -> str | None:
    """Return the rack of the first pattern that matches a host, ``None`` if none does."""
    return next((rack for pattern, rack in patterns if fnmatchcase(host, pattern.lower())), None)
