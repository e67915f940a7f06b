"""Parts that the sections of the status page share: numbers with units, tables, legends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from riffle_spark.observe.markup import Markup, Part, element, join_parts
from riffle_spark.observe.units import show_bytes, show_count, show_duration, show_percent, show_rows, show_time

NOTHING: Final = element("span", "–", class_="none", title="unknown")
"""Shown in place of a number that is not known."""
_HIGH_SHARE: Final = 0.85
"""Disk and memory from this share on are shown as a warning."""
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and whether it holds numbers, which are aligned to the right."""

    heading: str
    is_number: bool = False


def count_part(number: float | None) -> Markup:
    """Return a number of things. The element ``data`` carries the exact value."""
    return NOTHING if number is None else element("data", show_count(number), value=number)


def rows_part(rows: int, is_exact: bool) -> Markup:
    """Return a number of rows, or ``at most`` a number for an upper bound. The element ``data`` carries the number."""
    return element("data", show_rows(rows, is_exact=is_exact), value=rows)


def bytes_part(size: int) -> Markup:
    """Return a size. The element ``data`` carries the bytes."""
    return element("data", show_bytes(size), value=size, title=f"{size:,} bytes")


def dollars_part(dollars: float) -> Markup:
    """Return an amount of US dollars. The element ``data`` carries the exact value."""
    return element("data", f"{dollars:.2g} USD", value=dollars)


def duration_part(seconds: float | None) -> Markup:
    """Return a time span. The element ``data`` carries the seconds."""
    return NOTHING if seconds is None else element("data", show_duration(seconds), value=seconds)


def percent_part(share: float | None) -> Markup:
    """Return a share between 0 and 1 with a bar. The element ``data`` carries the share."""
    if share is None:
        return NOTHING
    width = f"{min(max(share, 0.0), 1.0) * 100:.4g}%"
    level = "bar high" if share >= _HIGH_SHARE else "bar"
    bar = element("svg", element("rect", width=width, height="100%"), class_=level, aria_hidden="true")
    return join_parts(bar, element("data", show_percent(share), value=share))


def time_part(time_ms: int, day_of_ms: int | None = None) -> Markup:
    """Return a time in UTC, without its date on the day of ``day_of_ms``. The element ``data`` has the milliseconds."""
    shown = show_time(time_ms)
    is_same_day = day_of_ms is not None and time_ms // _DAY_MS == day_of_ms // _DAY_MS
    clock = shown.split(" ")[1] if is_same_day else shown.removesuffix(" UTC")
    return element("data", clock, value=time_ms, title=shown)


def swatch(category: int) -> Markup:
    """Return a small square in the colour of a category."""
    return element("span", class_=f"swatch c{category}", aria_hidden="true")


def section(name: str, heading: str, *parts: Part, class_: str | None = None) -> Markup:
    """Return a region of the page with a heading. ``name`` is its id."""
    head = element("h2", heading, id=f"{name}-heading")
    return element("section", head, *parts, id=name, aria_labelledby=f"{name}-heading", class_=class_)


def table(name: str, caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Part]]) -> Markup:
    """Return a table in a region that can be scrolled. The first cell of each row names it."""
    body = element("tbody", [_row(columns, row) for row in rows])
    return scrolled_table(name, caption, columns, body)


def scrolled_table(name: str, caption: str, columns: Sequence[Column], *bodies: Part) -> Markup:
    """Return a table with bodies that are markup already."""
    headings = [element("th", column.heading, scope="col", class_=_kind(column)) for column in columns]
    shown = element(
        "table",
        element("caption", caption, id=f"{name}-caption"),
        element("thead", element("tr", headings)),
        *bodies,
    )
    return element("div", shown, class_="scroll", tabindex=0, role="region", aria_labelledby=f"{name}-caption", id=name)


def _row(columns: Sequence[Column], cells: Sequence[Part]) -> Markup:
    shown = [
        element("th", cell, scope="row", class_=_kind(column))
        if number == 0
        else element("td", cell, class_=_kind(column))
        for number, (column, cell) in enumerate(zip(columns, cells, strict=True))
    ]
    return element("tr", shown)


def _kind(column: Column) -> str | None:
    return "number" if column.is_number else None
