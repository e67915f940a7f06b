"""What plays of a world came to: as JSON, as a table, as pictures. Knows outcomes and matplotlib. Decides nothing.

Pictures are SVG with the same bytes for the same outcomes, so that pages that hold them can be made anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from riffle_spark.errors import ConfigError
from riffle_spark.optional_packages import check_importable
from riffle_spark.simulate.figures import Json
from riffle_spark.simulate.policy import OURS, POLICIES
from riffle_spark.simulate.world import Floats, Ints, World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CAUSES", "Outcome", "check_drawable", "draw", "json_of", "table_of"]

CAUSES: Final = ("no owner", "pause", "restore", "batch")
"""Why a task stands: nobody has it, its group rebalances or a batch runs again, its state is fetched, another's is."""
_COLUMNS: Final = ("policy", "rebalances", "moves", "MB fetched", "stopped", "longest", "rows waiting")
_NOTE: Final = (
    "stopped: task-seconds; longest: seconds for which one task stood; MB fetched: by owners, warm-ups and standbys"
)
_COLOURS: Final = ("#5b8ff9", "#f6bd16", "#5ad8a6", "#e8684a", "#9270ca", "#6dc8ec", "#ff9d4d", "#269a99")
_MB: Final = 1e6
_POINTS_MAX: Final = 400


@dataclass(slots=True)
class Outcome:
    """What a play came to, as sums and, from ``seconds`` on, batch by batch.

    ``stopped`` are task-seconds by cause, ``longest`` the seconds for which one task stood in one go, ``rows_waiting``
    the most rows that waited at a time. ``assigned`` counts calls of the assignor, ``unowned`` batches in which members
    lived and a task had nobody. ``warnings`` are the assignor's, each once.
    """

    policy: str
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
        """Return for how long tasks stood, all together."""
        return sum(self.stopped.values())


def json_of(world: World, outcome: Outcome, *, history: bool) -> Json:
    """Return an outcome as plain JSON; with ``history`` batch by batch, too."""
    figures: Json = {
        "world": world.name,
        "seed": world.seed,
        "policy": outcome.policy,
        "models": POLICIES[outcome.policy].says,
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
        figures["history"] = {
            "seconds": outcome.seconds,
            "owners": {one.member.id: [int(each[m]) for each in outcome.owners] for m, one in enumerate(world.members)},
            "task_seconds_stopped": [round(each, 3) for each in outcome.standing],
            "rows_waiting": [round(each) for each in outcome.waiting],
            "bytes_lacking": [round(each) for each in outcome.lacking],
            "moves": outcome.moved,
        }
    return figures


def table_of(world: World, outcomes: Sequence[Outcome]) -> str:
    """Return a table for people, a line for each policy."""
    title = f"{world.name}: {len(world.present)} members, {len(world.tasks)} tasks, {world.seconds / 60:g} min, "
    rows = [_COLUMNS, *map(_row, outcomes)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    says = [f"  {each.policy}: {POLICIES[each.policy].says}" for each in outcomes]
    warned = [f"warning of {each.policy}: {warning}" for each in outcomes for warning in each.warnings]
    return "\n".join([f"{title}seed {world.seed}", *lines, _NOTE, *warned, "modelled:", *says])


def _row(outcome: Outcome) -> tuple[str, ...]:
    fetched = (outcome.bytes_owned + outcome.bytes_warmed + outcome.bytes_kept) / _MB
    figures = (outcome.rebalances, outcome.moves, fetched, outcome.task_seconds)
    return (
        outcome.policy,
        *(f"{each:.0f}" for each in figures),
        f"{outcome.longest:.1f}",
        f"{outcome.rows_waiting:.0f}",
    )


def check_drawable(folder: Path) -> None:
    """Make the folder of pictures. Raises ``ConfigError`` where none can be written, or matplotlib is not installed."""
    check_importable("matplotlib.figure", "--plot", "Run pip install 'matplotlib>=3.8'.", where="--plot")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".drawable").touch()
        (folder / ".drawable").unlink()
    except OSError as refused:
        raise ConfigError(
            f"no pictures can be written to {folder}: {refused.strerror}",
            remedy="name another folder",
            where="--plot",
            id="RIFFLE-0253",
        ) from refused


def draw(world: World, outcomes: Sequence[Outcome], folder: Path, name: str) -> list[Path]:
    """Draw owners over time, what stops, moves and lag below a folder that is drawable; return the files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn: list[Path] = []
    with mpl.rc_context({"svg.hashsalt": "riffle", "svg.fonttype": "none", "font.size": 9, "axes.grid": True,
                         "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}):  # fmt: skip
        for what, into in (("stops", _draw_stops), ("lag", _draw_lag), ("moves", _draw_moves)):
            figure = Figure(figsize=(7.5, 3.2), layout="constrained")
            into(figure.subplots(), world, outcomes)
            drawn.append(folder / f"{name}-{what}.svg")
            figure.savefig(drawn[-1], metadata={"Date": None})
        columns = min(len(outcomes), 4)
        figure = Figure(figsize=(2.4 * columns + 0.6, 2.0 * -(-len(outcomes) // columns) + 0.6), layout="constrained")
        grid = figure.subplots(-(-len(outcomes) // columns), columns, squeeze=False, sharex=True, sharey=True)
        for axes, outcome in zip(grid.flat, outcomes, strict=False):
            _draw_owners(axes, world, outcome)
        grid[0, 0].set_ylim(bottom=0)
        figure.suptitle(f"{world.name}: tasks owned by each member, over minutes", fontsize=10)
        drawn.append(folder / f"{name}-owners.svg")
        figure.savefig(drawn[-1], metadata={"Date": None})
    return drawn


def _minutes(outcome: Outcome) -> Floats:
    return np.array(outcome.seconds) / 60


def _line(axes: "Axes", outcome: Outcome, values: Floats, colour: str, label: str) -> None:
    """Draw a line without the points on which nothing changes, of the others at most so many."""
    turns = np.flatnonzero(np.append(True, np.diff(values) != 0) | np.append(np.diff(values) != 0, True))
    turns = turns[:: max(1, len(turns) // _POINTS_MAX)]
    width = 2.0 if outcome.policy == OURS else 1.1
    axes.plot(_minutes(outcome)[turns], values[turns], color=colour, label=label, linewidth=width)


def _draw_each(
    axes: "Axes", outcomes: Sequence[Outcome], values: Callable[[Outcome], Floats], title: str, *, log: bool
) -> None:
    for outcome, colour in zip(outcomes, _COLOURS * len(outcomes), strict=False):
        _line(axes, outcome, values(outcome), colour, outcome.policy)
    axes.set(title=title, xlabel="minutes")
    if log:
        axes.set_yscale("symlog", linthresh=1)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_stops(axes: "Axes", world: World, outcomes: Sequence[Outcome]) -> None:
    names, before = [each.policy for each in outcomes], np.zeros(len(outcomes))
    for cause, colour in zip(CAUSES, _COLOURS, strict=False):
        taken = np.array([each.stopped[cause] for each in outcomes])
        axes.barh(names, taken, left=before, color=colour, label=cause)
        before = before + taken
    for place, each in enumerate(outcomes):
        axes.annotate(f" {each.task_seconds:,.0f}", (before[place], place), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set(title=f"{world.name}: task-seconds that stand, by cause", xlabel="task-seconds")
    axes.margins(x=0.12)
    axes.legend(fontsize=8, frameon=False)


def _draw_lag(axes: "Axes", world: World, outcomes: Sequence[Outcome]) -> None:
    _draw_each(axes, outcomes, lambda each: np.array(each.waiting), f"{world.name}: rows that wait", log=True)


def _draw_moves(axes: "Axes", world: World, outcomes: Sequence[Outcome]) -> None:
    _draw_each(
        axes, outcomes, lambda each: np.cumsum(each.moved).astype(np.float64), f"{world.name}: owners moved", log=False
    )


def _draw_owners(axes: "Axes", world: World, outcome: Outcome) -> None:
    """Draw a line for each member; where there are many, the least and the most of those that own something."""
    counts = np.array(outcome.owners, np.float64)
    if counts.shape[1] <= 12:
        for m, one in enumerate(world.members):
            _line(axes, outcome, counts[:, m], _COLOURS[m % len(_COLOURS)], one.member.id)
    else:
        owning = np.ma.masked_equal(counts, 0)
        for values, colour, label in ((owning.max(axis=1), 3, "most"), (owning.min(axis=1), 0, "least")):
            _line(axes, outcome, np.asarray(values.filled(0)), _COLOURS[colour], label)
    axes.set(title=outcome.policy)
