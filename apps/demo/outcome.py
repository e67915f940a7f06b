"""The result of a demo: figures, and where the state is stored."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rich.console import Console

from apps.demo.ledger import Difference, Ledger
from apps.demo.reports import Run

__all__ = ["Outcome", "outcome_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of ``--json`` in order, and the numbers of keys and minutes with a wrong count or sum."""

    events: int
    keys: int
    lost: int
    doubled: int
    wrong_keys: int
    wrong_minutes: int
    batches: int
    rows_per_s: int
    requests_per_batch: float
    first_batch_s: float
    seconds: float

    @property
    def is_exact(self) -> bool:
        """Whether the count and sum of every key, and of every minute, equals the producer's ledger."""
        return self.lost == self.doubled == self.wrong_keys == self.wrong_minutes == 0

    def to_json(self) -> str:
        """Return the figures as one JSON object."""
        return json.dumps({name: value for name, value in asdict(self).items() if name not in _NOT_FIGURES})

    def print_on(self, console: Console, state: str) -> None:
        """Print one figure per line, then where the state is stored."""
        for name, value in asdict(self).items():
            console.print(f"{name.replace('_', ' '):>20}  {value:,}", highlight=False, soft_wrap=True)
        console.print(f"{'state':>20}  {state}", highlight=False, soft_wrap=True)
        exact = "every key's count and sum equals the ledger, and every minute's"
        verdict = exact if self.is_exact else "DIFFERENT from the ledger"
        console.print(f"{'verdict':>20}  {verdict}", highlight=False, soft_wrap=True)


_NOT_FIGURES = ("wrong_keys", "wrong_minutes")


def outcome_of(run: Run, ledger: Ledger, difference: Difference, of_minutes: Difference, seconds: float) -> Outcome:
    """Combine the figures of the run."""
    return Outcome(
        events=int(ledger.counts.sum()),
        keys=len(ledger.counts),
        lost=difference.lost,
        doubled=difference.doubled,
        wrong_keys=difference.wrong_keys,
        wrong_minutes=of_minutes.wrong_keys,
        batches=len(run.filled),
        rows_per_s=round(run.rows_per_second),
        requests_per_batch=round(run.requests_per_batch, 1),
        first_batch_s=round(run.filled[0].seconds, 1) if run.filled else 0.0,
        seconds=round(seconds, 1),
    )
