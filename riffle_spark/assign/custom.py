"""A user's own assignor, named or handed over. Knows how to find and check it. Does not know what it should answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

from riffle_spark.assign.check import violations
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, MemberId, TaskId, View
from riffle_spark.errors import ConfigError

__all__ = ["load_assignor", "refusals", "with_target"]


def load_assignor(path: str) -> Assignor:
    """Return what the dotted path ``package.module.name`` (or ``package.module:name``) names; a class is made once.

    Raises ``ConfigError`` if it names nothing that can be called.
    """
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as missing:
        raise ConfigError(
            f"no assignor is found at {path!r}: {missing}",
            remedy="use high_availability, sticky, hash, or a dotted path to your own",
            where="assignor",
        ) from missing
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ConfigError(f"{path!r} cannot be called", remedy="name a function (view, settings)", where="assignor")
    return found


def refusals(view: View, answer: object, settings: AssignSettings) -> tuple[str, ...]:
    """Name every violation in what a user's assignor returned; empty means it stands."""
    if not isinstance(answer, Assignment):
        return (f"it returned {type(answer).__name__}, not an Assignment",)
    return violations(view, answer, settings)


def with_target(answer: Assignment) -> Assignment:
    """Fill in the target an answer left out: the owners themselves."""
    target: Mapping[TaskId, MemberId] = answer.target or dict(answer.owners)
    return replace(answer, target=target)
