"""The outcome of a simulation, as JSON and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from riffle_spark.simulate.figures import Json
from riffle_spark.simulate.policy import Policy
from riffle_spark.simulate.world import Ints, World

CAUSES: Final = ("no owner", "pause", "restore", "batch")
"""Why a task is stopped: it has no live owner, its group rebalances or its batch runs again, its owner fetches its
state, or the owner of another task in the batch does.
"""
_COLUMNS: Final = ("policy", "rebalances", "moves", "MB fetched", "stopped", "longest", "rows waiting")
_NOTE: Final = (
    "stopped: task-seconds; longest: seconds that one task was stopped; MB fetched: by owners, warm-ups and standbys"
)
_MB: Final = 1e6


@dataclass(slots=True)
class Outcome:
    """The figures of a simulation. The lists, from ``seconds`` on, have one element per batch.

    ``stopped`` holds the task-seconds that tasks were stopped, by cause. ``longest`` is the longest time in seconds
    that one task was stopped. ``rows_waiting`` is the largest backlog. ``assigned`` counts calls of the assignor.
    ``unowned`` counts batches in which a task had no owner although members were live. ``lacking`` are the bytes that
    copies lack. ``warnings`` are the assignor's, each once.
    """

    policy: Policy
    assigned: int = 0
    rebalances: int = 0
    moves: int = 0
    bytes_owned: float = 0.0
    bytes_warmed: float = 0.0
    bytes_kept: float = 0.0
    stopped: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    longest: float = 0.0
    rows_waiting: float = 0.0
    unowned: int = 0
    seconds: list[float] = field(default_factory=list)
    owners: list[Ints] = field(default_factory=list)
    standing: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    lacking: list[float] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        """The sum of the seconds that tasks were stopped."""
        return sum(self.stopped.values())


def outcome_to_json(world: World, outcome: Outcome, *, history: bool) -> Json:
    """Return the outcome of a world as JSON values. With ``history`` it includes the figures of each batch."""
    figures: Json = {
        "world": world.name,
        "seed": world.seed,
        "policy": outcome.policy.name,
        "models": outcome.policy.description,
        "rebalances": outcome.rebalances,
        "assigned": outcome.assigned,
        "moves": outcome.moves,
        "bytes_fetched_by_owners": round(outcome.bytes_owned),
        "bytes_fetched_by_warmups": round(outcome.bytes_warmed),
        "bytes_fetched_by_standbys": round(outcome.bytes_kept),
        "task_seconds_stopped": round(outcome.task_seconds, 3),
        "task_seconds_stopped_by_cause": {cause: round(outcome.stopped[cause], 3) for cause in CAUSES},
        "longest_stop_s": round(outcome.longest, 3),
        "rows_waiting_max": round(outcome.rows_waiting),
        "warnings": outcome.warnings,
    }
    if history:
        names = [member.member.id for member in world.members]
        figures["history"] = {
            "seconds": outcome.seconds,
            "owners": {name: [int(counts[m]) for counts in outcome.owners] for m, name in enumerate(names)},
            "task_seconds_stopped": [round(seconds, 3) for seconds in outcome.standing],
            "rows_waiting": [round(rows) for rows in outcome.waiting],
            "bytes_lacking": [round(size) for size in outcome.lacking],
            "moves": outcome.moved,
        }
    return figures


def format_table(world: World, outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a text table with one line per policy, followed by warnings and the policies'
    descriptions.
    """
    rows = [_COLUMNS, *map(_format_row, outcomes)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
    members = len(world.present)
    tasks = len(world.tasks)
    lines = [f"{world.name}: {members} members, {tasks} tasks, {world.seconds / 60:g} min, seed {world.seed}"]
    for name, *cells in rows:
        padded_rows = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded_rows]))
    lines.append(_NOTE)
    lines += [f"warning of {o.policy.name}: {warning}" for o in outcomes for warning in o.warnings]
    lines += ["modelled:", *(f"  {o.policy.name}: {o.policy.description}" for o in outcomes)]
    return "\n".join(lines)


def _format_row(outcome: Outcome) -> tuple[str, ...]:
    fetched = (outcome.bytes_owned + outcome.bytes_warmed + outcome.bytes_kept) / _MB
    return (
        outcome.policy.name,
        str(outcome.rebalances),
        str(outcome.moves),
        f"{fetched:.0f}",
        f"{outcome.task_seconds:.0f}",
        f"{outcome.longest:.1f}",
        f"{outcome.rows_waiting:.0f}",
    )
