"""Who may hold anything at all. Knows the operator's filters by attribute. Does not know lags, or single tasks."""

from __future__ import annotations

from riffle_spark.assign.model import AssignSettings, Member

__all__ = ["attribute", "is_placeable"]


def attribute(member: Member, tag: str) -> str | None:
    """Return a member's attribute: its tag of that name, else its ``id`` or ``rack``."""
    if tag in member.tags:
        return member.tags[tag]
    return {"id": member.id, "rack": member.rack}.get(tag)


def is_placeable(member: Member, settings: AssignSettings) -> bool:
    """Tell whether the operator's filters let a member hold anything; one that may not is drained."""
    if any(attribute(member, tag) == value for tag, value in settings.exclude):
        return False
    return not settings.include or any(attribute(member, tag) == value for tag, value in settings.include)
