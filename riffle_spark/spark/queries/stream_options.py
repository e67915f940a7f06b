"""What ``riffle_spark.on`` was told, found again by a frame's plan. Knows marks. Does not know what becomes of it."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import LatestRows, Mark, find_marks
from riffle_spark.settings import Settings
from riffle_spark.spark.plans.cut_query import read_frame
from riffle_spark.spark.plans.plan_nodes import analysed, items, kind

__all__ = ["Place", "StreamOptions", "latest_rows", "marked", "options_in"]

Place: TypeAlias = str | Callable[..., object]
"""Where a side output goes."""
_APART = {"settings": "differ", "late_rows": "go to different places", "dead_letters": "go to different places"}
"""What all marks of a query that tell it have to tell alike, and what is said where they do not."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What ``riffle_spark.on`` was told; ``root`` is ``""`` where it was given none. ``late_rows`` and ``dead_letters``
    are folders, or functions as of ``foreachBatch``.
    """

    root: str = ""
    settings: Settings | None = None
    late_rows: Place | None = None
    dead_letters: Place | None = None


_options: dict[int, StreamOptions] = {}
"""By the numbers of marks: what a plan cannot carry. A plan stays as long as its session may."""
_numbers = itertools.count(1)


def marked(frame: DataFrame, options: StreamOptions) -> DataFrame:
    """Return a stream's frame with a mark in its plan; one that has a mark needs no other without options."""
    if options == StreamOptions() and _marks_of(frame):
        return frame
    number = next(_numbers)
    _options[number] = options
    return frame.where(Mark(number, options.root).condition)


def latest_rows(changes: DataFrame, key: Sequence[str], by: Sequence[str]) -> DataFrame:
    """Return a stream of changes with what makes a table of them in its plan; Spark raises for unknown names."""
    return changes.where(LatestRows(*(tuple(_column(changes, one) for one in names) for names in (key, by))).condition)


def _marks_of(frame: DataFrame) -> tuple[Mark, ...]:
    _, plan = read_frame(frame)
    return find_marks(plan)


def _column(frame: DataFrame, name: str) -> str:
    """Return a column of a frame as the frame calls it."""
    found = items(analysed(frame.select(name)).projectList())
    if [kind(one) for one in found] != ["AttributeReference"]:
        raise ConfigError(
            f"{name!r} is no column of the changes",
            remedy="name columns; make one of an expression by withColumn before riffle_spark.latest",
            where="riffle_spark.latest",
            id="RIFFLE-0348",
        )
    return str(found[0].name())


def options_in(frame: DataFrame) -> StreamOptions:
    """Return the options that a frame's marks tell, the first that tell a root; of another process's only the root.

    Raises ``ConfigError`` where their settings differ, or they send late rows, or dead letters, to several places, or
    both to one folder.
    """
    told = [_options.get(mark.number, StreamOptions(mark.root)) for mark in _marks_of(frame)]
    for what, how in _APART.items():
        _check_alike(what, how, [getattr(options, what) for options in told])
    found = StreamOptions(
        next((options.root for options in told if options.root), ""),
        next((options.settings for options in told if options.settings is not None), None),
        next((options.late_rows for options in told if options.late_rows is not None), None),
        next((options.dead_letters for options in told if options.dead_letters is not None), None),
    )
    if isinstance(found.late_rows, str) and found.late_rows == found.dead_letters:
        raise ConfigError(
            f"late_rows and dead_letters are one folder, {found.late_rows}: their rows have not the same columns",
            remedy="give each a folder of its own",
            where="dead_letters",
            id="RIFFLE-0349",
        )
    return found


def _check_alike(what: str, how: str, given: Sequence[object]) -> None:
    """Refuse what marks tell otherwise; some may tell nothing."""
    found = [one for one in given if one is not None]
    if any(one != found[0] for one in found):
        raise ConfigError(
            f"the query reads frames whose {what.replace('_', ' ')} {how}",
            remedy=f"give riffle_spark.on the same {what} for all streams of a query, or to one of them alone",
            where=what,
            id="RIFFLE-0350",
        )
