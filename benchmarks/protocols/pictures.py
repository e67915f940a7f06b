"""Draw the outcomes of simulations as SVG. The same outcomes give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from riffle_spark.simulate.outcomes import CAUSES, Outcome
from riffle_spark.simulate.policy import RIFFLE
from riffle_spark.simulate.world import Floats, World

__all__ = ["draw"]

_COLOURS: Final = ("#5b8ff9", "#f6bd16", "#5ad8a6", "#e8684a", "#9270ca", "#6dc8ec", "#ff9d4d", "#269a99")
_POINTS_MAX: Final = 400
_STYLE: Final[Any] = {
    "svg.hashsalt": "riffle",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(world: World, outcomes: Sequence[Outcome], folder: Path, name: str) -> list[Path]:
    """Draw stops, waiting rows, moves and owners over time into a folder; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with mpl.rc_context(_STYLE):
        for picture, draw_into in (("stops", _draw_stops), ("lag", _draw_lag), ("moves", _draw_moves)):
            figure = Figure(figsize=(7.5, 3.2), layout="constrained")
            draw_into(figure.subplots(), world, outcomes)
            files.append(folder / f"{name}-{picture}.svg")
            figure.savefig(files[-1], metadata={"Date": None})
        columns = min(len(outcomes), 4)
        figure = Figure(figsize=(2.4 * columns + 0.6, 2.0 * -(-len(outcomes) // columns) + 0.6), layout="constrained")
        grid = figure.subplots(-(-len(outcomes) // columns), columns, squeeze=False, sharex=True, sharey=True)
        for axes, outcome in zip(grid.flat, outcomes, strict=False):
            _draw_owners(axes, world, outcome)
        grid[0, 0].set_ylim(bottom=0)
        figure.suptitle(f"{world.name}: tasks owned by each member, over minutes", fontsize=10)
        files.append(folder / f"{name}-owners.svg")
        figure.savefig(files[-1], metadata={"Date": None})
    return files


def _minutes(outcome: Outcome) -> Floats:
    return np.array(outcome.seconds) / 60


def _line(axes: Axes, outcome: Outcome, values: Floats, colour: str, label: str) -> None:
    """Draw a line through the points at which the value changes, at most ``_POINTS_MAX``."""
    turns = np.flatnonzero(np.append(True, np.diff(values) != 0) | np.append(np.diff(values) != 0, True))
    turns = turns[:: max(1, len(turns) // _POINTS_MAX)]
    width = 2.0 if outcome.policy == RIFFLE else 1.1
    axes.plot(_minutes(outcome)[turns], values[turns], color=colour, label=label, linewidth=width)


def _draw_each(
    axes: Axes, outcomes: Sequence[Outcome], values: Callable[[Outcome], Floats], title: str, *, log: bool
) -> None:
    for outcome, colour in zip(outcomes, _COLOURS * len(outcomes), strict=False):
        _line(axes, outcome, values(outcome), colour, outcome.policy.name)
    axes.set(title=title, xlabel="minutes")
    if log:
        axes.set_yscale("symlog", linthresh=1)
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_stops(axes: Axes, world: World, outcomes: Sequence[Outcome]) -> None:
    names = [outcome.policy.name for outcome in outcomes]
    ends = np.zeros(len(outcomes))
    for cause, colour in zip(CAUSES, _COLOURS, strict=False):
        seconds = np.array([outcome.stopped[cause] for outcome in outcomes])
        axes.barh(names, seconds, left=ends, color=colour, label=cause)
        ends = ends + seconds
    for place, outcome in enumerate(outcomes):
        axes.annotate(f" {outcome.task_seconds:,.0f}", (ends[place], place), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set(title=f"{world.name}: task-seconds that stand, by cause", xlabel="task-seconds")
    axes.margins(x=0.12)
    axes.legend(fontsize=8, frameon=False)


def _draw_lag(axes: Axes, world: World, outcomes: Sequence[Outcome]) -> None:
    _draw_each(axes, outcomes, lambda outcome: np.array(outcome.waiting), f"{world.name}: rows that wait", log=True)


def _draw_moves(axes: Axes, world: World, outcomes: Sequence[Outcome]) -> None:
    _draw_each(
        axes,
        outcomes,
        lambda outcome: np.cumsum(outcome.moved).astype(np.float64),
        f"{world.name}: owners moved",
        log=False,
    )


def _draw_owners(axes: Axes, world: World, outcome: Outcome) -> None:
    """Draw a line per member, or for many members the minimum and maximum of those that own tasks."""
    counts = np.array(outcome.owners, np.float64)
    if counts.shape[1] <= 12:
        for m, member in enumerate(world.members):
            _line(axes, outcome, counts[:, m], _COLOURS[m % len(_COLOURS)], member.member.id)
    else:
        owning = np.ma.masked_equal(counts, 0)
        for values, colour, label in ((owning.max(axis=1), 3, "most"), (owning.min(axis=1), 0, "least")):
            _line(axes, outcome, np.asarray(values.filled(0)), _COLOURS[colour], label)
    axes.set(title=outcome.policy)
