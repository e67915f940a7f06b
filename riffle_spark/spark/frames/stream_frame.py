"""Spark's frames as users hold them once a stream is wrapped: each method is Spark's, and its result is wrapped too.
Knows PySpark's classes, and which Python calls a plan does not tell in full. Does not know what is in plans.

A wrapped frame's plan carries a mark, so that whatever Spark's own hands make of it (``spark.sql`` over a view, a join
of a plain frame with it) is known for ours, and fails with a sentence where it is started without us.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from riffle_spark.settings import Settings
from riffle_spark.spark.plans.plan_cut import Mark, marks_in
from riffle_spark.spark.plans.plan_nodes import analysed, function_id

__all__ = ["GroupsCall", "StreamFrame", "StreamGroups", "StreamOptions", "call_of", "marked", "options_in"]

_PLAIN = ("observe",)
"""Methods that are left alone: what observes is bound to a run of Spark's."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What ``riffle_spark.on`` was told; ``root`` is ``""`` where it was given none."""

    root: str = ""
    settings: Settings | None = None


@dataclass(frozen=True, slots=True)
class GroupsCall:
    """What Python gave to a method of groups: the plan has the function in a form of Spark's own."""

    method: str
    positional: tuple[object, ...]
    named: Mapping[str, object]


_options: dict[int, StreamOptions] = {}
"""By the numbers of marks: what a plan cannot carry. A plan stays as long as its session may."""
_numbers = itertools.count(1)
_calls: dict[int, GroupsCall] = {}
"""By the ids of Python functions in plans."""


class StreamFrame(ClassicFrame):
    """A stream's frame whose stateful operators run on riffle: a ``DataFrame`` with all its methods."""


class StreamGroups(GroupedData):
    """A wrapped frame's groups."""


def marked(frame: DataFrame, options: StreamOptions) -> StreamFrame:
    """Return a stream's frame wrapped, with a mark in its plan; one that has a mark needs no other without options."""
    if options != StreamOptions() or not marks_in(analysed(frame)):
        number = next(_numbers)
        _options[number] = options
        frame = frame.where(Mark(number, options.root).condition)
    return StreamFrame(frame._jdf, frame.sparkSession)


def options_in(frame: DataFrame) -> StreamOptions:
    """Return the options that a frame's marks tell, the first that tell a root; of another process's only the root."""
    told = [_options.get(mark.number, StreamOptions(mark.root)) for mark in marks_in(analysed(frame))]
    return next((options for options in told if options.root), told[0] if told else StreamOptions())


def call_of(function: int | None) -> GroupsCall | None:
    """Return what Python gave where a plan calls a function of this id; ``None`` if that was not through a wrapper."""
    return None if function is None else _calls.get(function)


def _wrapped(given: object) -> object:
    """Return frames and groups of Spark's as ours, and all else as it is."""
    if isinstance(given, ClassicFrame) and not isinstance(given, StreamFrame):
        return StreamFrame(given._jdf, given.sparkSession)
    if isinstance(given, GroupedData) and not isinstance(given, StreamGroups):
        return StreamGroups(given._jgd, given._df)
    if isinstance(given, list) and given and isinstance(given[0], DataFrame):
        return [_wrapped(one) for one in given]
    return given


def _again(method: Callable[..., object]) -> Callable[..., object]:
    """Return a method whose result is wrapped."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        return _wrapped(method(self, *positional, **named))

    return call


def _remembered(method: Callable[..., object], name: str) -> Callable[..., object]:
    """Return a method of groups of which is remembered what it was given."""

    @functools.wraps(method)
    def call(self: object, *positional: object, **named: object) -> object:
        frame = _wrapped(method(self, *positional, **named))
        assert isinstance(frame, StreamFrame), name
        function = function_id(analysed(frame))
        if function is not None:
            _calls[function] = GroupsCall(name, positional, named)
        return frame

    return call


def _methods(base: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield the public methods of a class; a property or a method of the class itself is none."""
    for name in dir(base):
        if not name.startswith("_") and name not in _PLAIN and callable(member := getattr(base, name)):
            yield name, member


def _wrap(ours: type, base: type) -> None:
    """Give a class all methods of the one below it, so that they return what is wrapped."""
    for name, member in _methods(base):
        if name in vars(ours):
            continue
        is_told = name.startswith("transformWithState") or name == "applyInPandasWithState"
        setattr(ours, name, _remembered(member, name) if is_told else _again(member))


_wrap(StreamFrame, ClassicFrame)
_wrap(StreamGroups, GroupedData)
