"""Show tables: with ``rich`` on a terminal, otherwise as plain aligned columns. Format figures with their units."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from riffle_spark.console.options import echo
from riffle_spark.printable import escape_unprintable

__all__ = ["Table", "age_text", "bytes_text", "count_text", "rate_text", "show_facts", "show_table", "time_text"]

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_GAP = "  "


@dataclass
class Table:
    """Rows of texts below the names of their columns. Columns in ``right`` are aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    right: frozenset[str] = frozenset()

    def add(self, *cells: object) -> None:
        """Add a row. ``None`` is shown as ``-``."""
        self.rows.append(["-" if cell is None else escape_unprintable(str(cell)) for cell in cells])


def show_table(table: Table) -> None:
    """Print a table, and nothing if it has no row."""
    if not table.rows:
        return
    if sys.stdout.isatty():
        _show_rich(table)
        return
    echo(f"\n{table.title}" if table.title else "")
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    for row in (table.columns, *table.rows):
        cells = [
            cell.rjust(width) if name in table.right else cell.ljust(width)
            for name, cell, width in zip(table.columns, row, widths, strict=True)
        ]
        echo(_GAP.join(cells).rstrip())


def _show_rich(table: Table) -> None:
    """Print a table on a terminal."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="bold")
    for name in table.columns:
        shown.add_column(Text(name), justify="right" if name in table.right else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(Text, row))
    Console().print(shown)


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair per line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        echo(f"{name:<{width}}  {escape_unprintable(value)}")


def bytes_text(count: float | None) -> str | None:
    """Return a number of bytes with a binary unit, such as ``1.5 MiB``."""
    if count is None:
        return None
    size = float(count)
    for unit in _BYTE_UNITS:
        if size < 1024 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def count_text(count: int | None) -> str | None:
    """Return a number with separators of thousands."""
    return None if count is None else f"{count:,}"


def rate_text(rate: float | None, unit: str) -> str | None:
    """Return a rate with its unit and three digits."""
    return None if rate is None else f"{rate:,.3g} {unit}" if rate < 1000 else f"{rate:,.0f} {unit}"


def age_text(seconds: float | None) -> str | None:
    """Return a duration with its largest units, such as ``2 min 5 s``."""
    if seconds is None:
        return None
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def time_text(time_ms: int | None) -> str | None:
    """Return a time (milliseconds since the epoch) in UTC, such as ``2026-03-01 14:05:09Z``."""
    if time_ms is None:
        return None
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
