"""The time line of moves on the status page."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from riffle_spark.observe.markup import Markup, Part, element
from riffle_spark.observe.page_parts import NOTHING, Column, count_part, section, table, time_part
from riffle_spark.observe.status import MoveSummary, Status
from riffle_spark.observe.units import show_time

_LANE_PIXELS: Final = 52
_ROLE_PIXELS: Final = {"owner": 24, "standby": 32}
"""The height of a marker in its lane, by role; 40 for others. So markers of one batch do not cover each other."""
_LEFT_PERCENT: Final = 2.0
_RIGHT_PERCENT: Final = 98.0
_SHAPES: Final = {"owner": "M-{r},0a{r},{r} 0 1,0 {d},0a{r},{r} 0 1,0 -{d},0", "standby": "M-{r},-{r}h{d}v{d}h-{d}z"}
_OTHER_SHAPE: Final = "M0,-{r}L{r},{r}L-{r},{r}z"
"""Outlines with the radius ``r`` and the diameter ``d``: circles for owners, squares for standbys, else triangles."""


def moves_section(status: Status) -> Markup:
    """Return the moves as a time line with one lane per reason, and as a table."""
    if not status.moves:
        return section("moves", "Moves", element("p", "No key-group has moved.", class_="quiet"))
    columns = [
        Column("Time"),
        Column("Version", True),
        Column("Key-group", True),
        Column("Group"),
        Column("Role"),
        Column("From"),
        Column("To"),
        Column("Reason"),
        Column("Goal"),
    ]
    rows = [_move_row(move, status.facts.time_ms) for move in reversed(status.moves)]
    keys = [
        element("li", element("svg", _marker(role, 5), class_="key", aria_hidden="true"), role)
        for role in ("owner", "standby", "warmup")
    ]
    return section(
        "moves",
        "Moves",
        element("figure", _time_line(status.moves), element("ul", keys, class_="keys")),
        table("moves-table", "Moves, the newest first", columns, rows),
    )


def _move_row(move: MoveSummary, now_ms: int) -> list[Part]:
    partition = f" ({move.topic} {move.partition})" if move.topic else ""
    return [
        time_part(move.time_ms, now_ms),
        count_part(move.version),
        [count_part(move.key_group), partition],
        move.group or "default",
        move.role,
        move.from_member or NOTHING,
        move.to_member or NOTHING,
        move.reason,
        move.goal or NOTHING,
    ]


def _time_line(moves: Sequence[MoveSummary]) -> Markup:
    """Return a drawing with a marker per batch, role and reason. Its area grows with the number of moves."""
    first = min(move.time_ms for move in moves)
    last = max(move.time_ms for move in moves)
    by_reason = Counter(move.reason for move in moves)
    lanes = {reason: number for number, (reason, _) in enumerate(by_reason.most_common())}
    parts: list[Part] = []
    for reason, lane in lanes.items():
        top = lane * _LANE_PIXELS
        parts.append(element("line", x1="0", x2="100%", y1=top + 32, y2=top + 32, class_="lane"))
        parts.append(element("text", f"{reason} ", element("tspan", str(by_reason[reason])), x=0, y=top + 14))
    together = Counter((move.reason, move.time_ms, move.role) for move in moves)
    for (reason, time_ms, role), count in together.items():
        share = (time_ms - first) / (last - first) if last > first else 1.0
        marker = _marker(role, 3 + count**0.5, f"{show_time(time_ms)}: {count} moves of role {role}, {reason}")
        x = f"{_LEFT_PERCENT + share * (_RIGHT_PERCENT - _LEFT_PERCENT):.5g}%"
        parts.append(
            element("svg", marker, x=x, y=lanes[reason] * _LANE_PIXELS + _ROLE_PIXELS.get(role, 40), class_="at")
        )
    bottom = len(lanes) * _LANE_PIXELS + 16
    parts.append(element("text", show_time(first), x="0", y=bottom, class_="axis"))
    parts.append(element("text", show_time(last), x="100%", y=bottom, class_="axis end"))
    counts = ", ".join(f"{count} {reason}" for reason, count in by_reason.most_common())
    label = f"Moves from {show_time(first)} to {show_time(last)}: {counts}"
    return element("svg", parts, class_="time-line", role="img", aria_label=label, height=bottom + 6, width="100%")


def _marker(role: str, radius: float, title: str = "") -> Markup:
    outline = _SHAPES.get(role, _OTHER_SHAPE)
    path = outline.replace("{r}", f"{radius:.3g}").replace("{d}", f"{2 * radius:.3g}")
    return element("path", element("title", title) if title else "", d=path, class_="marker")
