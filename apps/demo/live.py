"""The run as people watch it. Knows the batch reports and the terminal. Does not know where reports come from."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from apps.demo.reports import Batch, Run

__all__ = ["LiveView"]

SHOWN_BATCHES = 15


class LiveView:
    """A table that follows the run; where the output is no terminal, one line a batch."""

    def __init__(self, console: Console, events: int) -> None:
        self._console = console
        self._events = events
        self._seen = 0
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(self, run: Run) -> None:
        """Show what is new."""
        new = run.filled[self._seen :]
        if not new:
            return
        self._seen += len(new)
        if self._live:
            self._live.update(self._table(run), refresh=True)
        else:
            for batch in new:
                self._console.print(
                    _line(batch, self._events - _rows_until(run, batch)), highlight=False, soft_wrap=True
                )

    def say(self, text: str) -> None:
        """Tell something that happened."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def _table(self, run: Run) -> Table:
        title = f"{run.rows:,} of {self._events:,} events, {run.rows_per_second:,.0f} rows/s"
        table = Table(title=title, title_justify="left")
        for name in ("batch", "rows", "rows/s", "lag", "ms", "requests", "misplaced", "moves"):
            table.add_column(name, justify="right")
        table.add_column("key-groups by executor")
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
    return sum(other.rows for other in run.batches if other.version <= batch.version)


def _cells(batch: Batch, lag: int) -> list[str]:
    return [
        str(batch.version),
        f"{batch.rows:,}",
        f"{batch.rows_per_second:,.0f}",
        f"{lag:,}",
        f"{batch.seconds * 1000:,.0f}",
        str(batch.requests),
        f"{batch.misses} of {batch.slots}",
        str(batch.moves),
        _owners(batch),
    ]


def _owners(batch: Batch) -> str:
    return "  ".join(f"{member} {count}" for member, count in sorted(batch.owners.items()))


def _line(batch: Batch, lag: int) -> str:
    version, rows, rate, left, milliseconds, requests, misplaced, moves, owners = _cells(batch, lag)
    return (
        f"batch {version}: {rows} rows, {rate} rows/s, lag {left}, {milliseconds} ms, {requests} requests, "
        f"{misplaced} misplaced, {moves} moves, owners {owners}"
    )
