"""What is to go wrong in the middle of the next batch. Knows a batch's steps and slots. Does not know who runs it."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.testing.simulated_work import Attempt

__all__ = ["Aborted", "Crashed", "Faults", "Step"]

Step = Literal["before run", "after seal", "after sink", "after record"]
"""A moment of a batch. ``before run``: nothing was done. ``after seal``: all slots have sealed what they changed.
``after sink``: the sink has the rows, but nothing is committed. ``after record``: it is committed, and nobody was told.
"""


class Aborted(Exception):
    """The source broke off in the middle of a batch, as ``abort`` was told to have it."""


class Crashed(BaseException):
    """The driver's process is gone, as ``crash_at`` had it. As with a real one, no ``except Exception`` sees it."""


class Faults:
    """At most one abort and one crash that are still to come. ``lose_copies`` says what the crash takes with it."""

    def __init__(self) -> None:
        self._slots: int | None = None
        self._step: Step | None = None
        self.lose_copies = False

    def abort(self, after_slots: int) -> None:
        """Break a batch off once so many slots have answered."""
        self._slots = after_slots

    def crash(self, step: Step, *, lose_copies: bool) -> None:
        """Let the driver die at a step. Raises ``ConfigError`` for what is none."""
        if step not in get_args(Step):
            raise ConfigError(f"there is no step {step!r}", remedy=f"use one of {', '.join(get_args(Step))}")
        self._step, self.lose_copies = step, lose_copies

    def reached(self, step: str) -> None:
        """Hear of a step of the driver's."""
        if step == self._step:
            self._step = None
            raise Crashed(step)

    def perform(self, attempt: Attempt) -> pa.Table:
        """Run a slot."""
        answer = attempt.run()
        if self._slots is not None:
            self._slots -= 1
            if not self._slots:
                self._slots = None
                raise Aborted
        return answer
