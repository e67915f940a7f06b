"""What ``riffle_spark.on`` was told, found again by a frame's plan. Knows marks. Does not know what becomes of it."""

import itertools
from dataclasses import dataclass

from pyspark.sql import DataFrame

from riffle_spark.settings import Settings
from riffle_spark.spark.plans.plan_cut import Mark, marks_in
from riffle_spark.spark.plans.plan_nodes import analysed

__all__ = ["StreamOptions", "marked", "options_in"]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What ``riffle_spark.on`` was told; ``root`` is ``""`` where it was given none."""

    root: str = ""
    settings: Settings | None = None


_options: dict[int, StreamOptions] = {}
"""By the numbers of marks: what a plan cannot carry. A plan stays as long as its session may."""
_numbers = itertools.count(1)


def marked(frame: DataFrame, options: StreamOptions) -> DataFrame:
    """Return a stream's frame with a mark in its plan; one that has a mark needs no other without options."""
    if options == StreamOptions() and marks_in(analysed(frame)):
        return frame
    number = next(_numbers)
    _options[number] = options
    return frame.where(Mark(number, options.root).condition)


def options_in(frame: DataFrame) -> StreamOptions:
    """Return the options that a frame's marks tell, the first that tell a root; of another process's only the root."""
    told = [_options.get(mark.number, StreamOptions(mark.root)) for mark in marks_in(analysed(frame))]
    return next((options for options in told if options.root), told[0] if told else StreamOptions())
