"""The options of ``riffle_spark.on``, found again by the marks in a frame's plan."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame

from riffle_spark.errors import ConfigError
from riffle_spark.process.plans.cut import LatestRows, Mark, find_marks
from riffle_spark.settings import Settings
from riffle_spark.spark.plans.cut_query import read_frame
from riffle_spark.spark.plans.plan_nodes import analysed, items, kind

Place: TypeAlias = str | Callable[..., object]
"""The destination of a side output: a folder, or a function as of ``foreachBatch``."""
_DIFFERENCES = {
    "settings": "differ",
    "late_rows": "go to different places",
    "dead_letters": "go to different places",
    "initial_state": "differ",
}
"""The options that all marks of a query must share, and the words of the error if they do not."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of ``riffle_spark.on``. ``root`` is ``""`` if none was passed.

    ``initial_state`` has a frame by store.
    """

    root: str = ""
    settings: Settings | None = None
    late_rows: Place | None = None
    dead_letters: Place | None = None
    initial_state: Mapping[str, DataFrame] | None = None


_options: dict[int, StreamOptions] = {}
"""Options by the number of their mark. They are never removed, because a plan lives as long as its session."""
_numbers = itertools.count(1)


def marked(frame: DataFrame, options: StreamOptions) -> DataFrame:
    """Return a stream's frame with a mark in its plan, by which its options are found again.

    Without options, a frame that has a mark is returned as it is.
    """
    if options == StreamOptions() and _marks_of(frame):
        return frame
    number = next(_numbers)
    _options[number] = options
    return frame.where(Mark(number, options.root).condition)


def latest_rows(changes: DataFrame, key: Sequence[str], by: Sequence[str]) -> DataFrame:
    """Return a stream of changes as a table of the last row per key.

    ``key`` and ``by`` are column names. Raises Spark's error for unknown ones, and ``ConfigError`` for an expression.
    """
    key_columns = tuple(_column(changes, name) for name in key)
    order_columns = tuple(_column(changes, name) for name in by)
    return changes.where(LatestRows(key_columns, order_columns).condition)


def _marks_of(frame: DataFrame) -> tuple[Mark, ...]:
    _, plan = read_frame(frame)
    return find_marks(plan)


def _column(frame: DataFrame, name: str) -> str:
    """Return the name of a frame's column in the frame's own spelling.

    Raises Spark's error for an unknown name, and ``ConfigError`` for an expression.
    """
    columns = items(analysed(frame.select(name)).projectList())
    if [kind(column) for column in columns] != ["AttributeReference"]:
        raise ConfigError(
            f"{name!r} is not a column of the changes.",
            remedy="Name columns. Add an expression as a column with withColumn before riffle_spark.latest.",
            where="riffle_spark.latest",
            id="RIFFLE-0348",
        )
    return str(columns[0].name())


def options_in(frame: DataFrame) -> StreamOptions:
    """Return the options of a frame's marks. Marks of another process only have a root.

    Raises ``ConfigError`` if settings or destinations of side outputs differ, or if late rows and dead letters have the
    same folder.
    """
    marked_options = [_options.get(mark.number, StreamOptions(mark.root)) for mark in _marks_of(frame)]
    for name, difference in _DIFFERENCES.items():
        _check_same(name, difference, [getattr(options, name) for options in marked_options])
    combined = StreamOptions(
        next((options.root for options in marked_options if options.root), ""),
        next((options.settings for options in marked_options if options.settings is not None), None),
        next((options.late_rows for options in marked_options if options.late_rows is not None), None),
        next((options.dead_letters for options in marked_options if options.dead_letters is not None), None),
        next((options.initial_state for options in marked_options if options.initial_state is not None), None),
    )
    if isinstance(combined.late_rows, str) and combined.late_rows == combined.dead_letters:
        raise ConfigError(
            f"late_rows and dead_letters have the same folder {combined.late_rows}, but their columns differ.",
            remedy="Use two folders.",
            where="dead_letters",
            id="RIFFLE-0349",
        )
    return combined


def _check_same(name: str, difference: str, values: Sequence[object]) -> None:
    """Raise ``ConfigError`` if the marks of a query have different values for the option ``name``.

    ``difference`` is the verb of the error.
    """
    set_values = [value for value in values if value is not None]
    if any(value != set_values[0] for value in set_values):
        raise ConfigError(
            f"The query reads frames whose {name.replace('_', ' ')} {difference}.",
            remedy=f"Pass the same {name} to riffle_spark.on for all streams of a query, or for one of them only.",
            where=name,
            id="RIFFLE-0350",
        )
