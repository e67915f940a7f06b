"""A user's own assignor, named or handed over. Knows how to find and check it. Does not know what it should answer."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import PurePath

from riffle_spark.assign.check import violations
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, MemberId, Move, TaskId, View
from riffle_spark.errors import ConfigError
from riffle_spark.names import nearest

__all__ = ["load_assignor", "raised", "refusals", "with_target"]

_OURS = ("high_availability", "sticky", "hash")


@functools.cache
def load_assignor(path: str) -> Assignor:
    """Return what the dotted path ``package.module.name`` (or ``package.module:name``) names; a class is made once a
    process.

    Raises ``ConfigError`` if it names nothing that can be called, or what fails when it is imported or made.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as missing:
        near = f"did you mean {nearest(path, _OURS)!r}? Else " if not module else ""
        raise ConfigError(
            f"no assignor is found at {path!r}: {type(missing).__name__}: {missing}",
            remedy=f"{near}use {', '.join(_OURS)}, or a dotted path to your own",
            where="assignor",
        ) from missing
    if isinstance(found, type):
        found = _made(found, path)
    if not callable(found):
        raise ConfigError(f"{path!r} cannot be called", remedy="name a function (view, settings)", where="assignor")
    return found


def _made(kind: type, path: str) -> object:
    try:
        return kind()
    except Exception as error:
        raise ConfigError(
            f"the assignor {path!r} cannot be made: {_told(error, path)}",
            remedy="make it one that takes no arguments and does not fail, or name a function (view, settings)",
            where="assignor",
        ) from error


def raised(error: Exception, assignor: Assignor) -> str:
    """Say what a user's assignor raised, and where in its own code."""
    return f"the assignor raised {_told(error, getattr(assignor, '__qualname__', type(assignor).__qualname__))}"


def _told(error: Exception, name: str) -> str:
    """Return type, text and place: of the frames after ours the last in the file of the first."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    place = f"{PurePath(own[-1].filename).name}, line {own[-1].lineno}, in {own[-1].name}" if own else name
    return f"{type(error).__name__}: {error} ({place})"


def refusals(view: View, answer: object, settings: AssignSettings) -> tuple[str, ...]:
    """Name every violation in what a user's assignor returned; empty means it stands."""
    if not isinstance(answer, Assignment):
        wrong: tuple[str, ...] = (f"it returned {type(answer).__name__}, not an Assignment",)
    else:
        try:
            wrong = (*_misshapen(answer), *violations(view, answer, settings))
        except Exception as error:  # noqa: BLE001 - whatever a field of another type does where it is read
            wrong = (f"it cannot be read: {type(error).__name__}: {error}",)
    return tuple(f"the assignor's answer is refused: {each}" for each in wrong)


def _misshapen(answer: Assignment) -> Iterator[str]:
    """Name fields that only reports read, so that no violation would show what they are."""
    if not all(isinstance(move, Move) for move in answer.moves):
        yield "its moves are not all a Move"
    if not all(isinstance(text, str) for text in answer.warnings):
        yield "its warnings are not all texts"


def with_target(answer: Assignment) -> Assignment:
    """Fill in the target an answer left out: the owners themselves."""
    target: Mapping[TaskId, MemberId] = answer.target or dict(answer.owners)
    return replace(answer, target=target)
