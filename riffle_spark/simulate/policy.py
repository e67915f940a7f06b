"""The policies that ``riffle simulate`` compares: riffle_spark, and Spark's own placement of state."""

from dataclasses import dataclass, replace
from typing import Final

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, AssignSettings, View
from riffle_spark.simulate.group import Assign


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to place tasks.

    With ``has_triggers`` the triggers of a running query cause assignments, and a lost member's tasks wait for it.
    With ``keeps_copies`` a member that returns still has its local copies.
    """

    name: str
    description: str
    assignor: Assign
    has_triggers: bool = False
    keeps_copies: bool = True


def find_assignor(name: str) -> Assign:
    """Return a function that calls the built-in assignor ``name``.

    It ignores the assignor in the settings of the world.
    """

    def assign_with(view: View, settings: AssignSettings) -> Assignment:
        return assign(view, replace(settings, assignor=name))

    return assign_with


RIFFLE: Final = Policy(
    "riffle", "riffle_spark's assignor and triggers; a batch waits for its slowest task", assign, has_triggers=True
)
SPARK: Final = Policy(
    "spark",
    "a hash over the live executors; a task without state restores it in the batch",
    find_assignor("hash"),
    keeps_copies=False,
)
POLICIES: Final = {policy.name: policy for policy in (SPARK, RIFFLE)}
