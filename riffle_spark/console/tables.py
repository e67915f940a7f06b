"""Show tables: with ``rich`` on a terminal, otherwise as plain aligned columns."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from riffle_spark.console.options import echo
from riffle_spark.printable import escape_unprintable

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


def rate_text(rate: float | None, unit: str) -> str | None:
    """Return a rate with its unit and three digits."""
    return None if rate is None else f"{rate:,.3g} {unit}" if rate < 1000 else f"{rate:,.0f} {unit}"
