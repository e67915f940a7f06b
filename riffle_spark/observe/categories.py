"""The colours of members in the maps: by rack if there are several, otherwise by member if they are few."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from riffle_spark.protocol.facts import MemberFacts

OTHER: Final = 6
"""The number of distinct colours, and the category of members without a colour of their own."""


@dataclass(frozen=True, slots=True)
class Categories:
    """The meaning of the colours.

    Attributes:
        kind: what the categories are.
        names: the name of each category, at most ``OTHER + 1``.
        of_members: the category of each member.
    """

    kind: Literal["rack", "member", "role"]
    names: tuple[str, ...]
    of_members: tuple[int, ...]


def categorise(members: Sequence[MemberFacts]) -> Categories:
    """Return the categories of members. Names in their order get the colours; later ones share the last category."""
    racks = ["no rack" if member.rack is None else member.rack for member in members]
    if len(set(racks)) > 1:
        return _by_name("rack", racks)
    if len(members) <= OTHER:
        return _by_name("member", [member.id for member in members])
    return Categories("role", ("owner",), (0,) * len(members))


def _by_name(kind: Literal["rack", "member"], names: Sequence[str]) -> Categories:
    ordered = sorted(set(names))
    shown = ordered if len(ordered) <= OTHER else [*ordered[:OTHER], "others"]
    numbers = {name: min(number, OTHER) for number, name in enumerate(ordered)}
    return Categories(kind, tuple(shown), tuple(numbers[name] for name in names))
