"""Show the progress of a demo in the terminal."""

from __future__ import annotations

from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from apps.demo.reports import Batch, Run

__all__ = ["LiveView"]

SHOWN_BATCHES = 15
COLUMNS = ("batch", "rows/s", "lag", "ms", "requests", "misplaced", "standbys", "warm-ups", "probes", "moves")


class LiveView:
    """A table that follows the run. If the output is not a terminal, one line per batch."""

    def __init__(self, console: Console, events: int) -> None:
        self._console = console
        self._events = events
        self._seen = 0
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(self, run: Run) -> bool:
        """Show new batches; return whether there are any."""
        new = run.filled[self._seen :]
        if not new:
            return False
        self._seen += len(new)
        for batch in new:
            if not self._live:
                self.say(_line(batch, self._events - _rows_until(run, batch)))
            for (role, reason), count in sorted(batch.moves.items()):
                self.say(f"before batch {batch.version}: {count} key-groups, {role}: {reason}")
        if self._live:
            self._live.update(self._table(run), refresh=True)
        return True

    def say(self, text: str) -> None:
        """Print an event."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def _table(self, run: Run) -> Table:
        title = f"{run.rows:,} of {self._events:,} events, {run.rows_per_second:,.0f} rows/s"
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for name in COLUMNS:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("owned by executor", no_wrap=True)
        for batch in run.filled[-SHOWN_BATCHES:]:
            table.add_row(*_cells(batch, self._events - _rows_until(run, batch)))
        return table

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()


def _rows_until(run: Run, batch: Batch) -> int:
    return sum(earlier.rows for earlier in run.batches if earlier.version <= batch.version)


def _cells(batch: Batch, lag: int) -> list[str]:
    return [
        str(batch.version),
        f"{batch.rows_per_second:,.0f}",
        f"{lag:,}",
        f"{batch.seconds * 1000:,.0f}",
        str(batch.requests),
        f"{batch.misses} of {batch.slots}",
        str(batch.standbys),
        str(batch.warmups),
        str(batch.probes),
        str(sum(batch.moves.values())),
        "  ".join(f"{executor} {count}" for executor, count in sorted(batch.owners.items())),
    ]


def _line(batch: Batch, lag: int) -> str:
    *cells, owners = _cells(batch, lag)
    text = ", ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, cells, strict=True))
    return f"{text}, owners {owners}"
