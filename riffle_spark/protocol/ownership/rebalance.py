"""What an assignment changed, for reports and listeners. Knows moves and who lives. Does not know how they came
about.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.assign.model import Assignment, MemberId, Move, TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.groups import GROUP

__all__ = ["Moved", "Rebalance", "RebalanceListener", "check_listener", "moves_of", "notify"]

Moved = Mapping[str, "str | int"]
"""One move: ``key_group``, ``role`` (owner, standby, warmup), ``from`` and ``to`` (members), ``from_executor`` and
``to_executor``, ``reason`` and ``goal``; where dispatch is by partition also ``topic`` and ``partition``, and ``group``
of a key-group whose store is in a co-location group of its own."""


class RebalanceListener:
    """Hears which key-groups change their owner, before the batch from which on they do; override what you need.

    Where dispatch is by partition, a move that it hears of has ``topic`` and ``partition`` instead of ``key_group``.
    The order is ``on_lost`` (the owner is gone), ``on_revoked`` (a living owner gives up), ``on_assigned`` (the new
    owner takes over). Each gets the moves it is about. What they raise is told in the report and stops nothing.
    """

    def on_lost(self, moves: Sequence[Moved]) -> None:
        """Hear of key-groups whose owner is gone."""

    def on_revoked(self, moves: Sequence[Moved]) -> None:
        """Hear of key-groups that a living owner gives up."""

    def on_assigned(self, moves: Sequence[Moved]) -> None:
        """Hear of key-groups that get an owner."""


def check_listener(listener: object) -> None:
    """Raise ``ConfigError`` for what could not be told of each move."""
    named = [name for name in vars(RebalanceListener) if name.startswith("on_")]
    missing = [name for name in named if not callable(getattr(listener, name, None))]
    if listener is not None and (missing or isinstance(listener, type)):
        problem = "is a class" if isinstance(listener, type) else f"has no {', '.join(missing)}"
        raise ConfigError(
            f"the listener {listener!r} {problem}",
            remedy="give an instance of a class made from RebalanceListener",
            id="RIFFLE-0238",
        )


@dataclass(frozen=True, slots=True)
class Rebalance:
    """What assignments changed since the last report: moves with their reasons, and warnings."""

    moves: tuple[Moved, ...] = ()
    warnings: tuple[str, ...] = ()

    def and_(self, moves: Iterable[Moved], warnings: Iterable[str]) -> "Rebalance":
        """Return the rebalance with more."""
        return Rebalance((*self.moves, *moves), (*self.warnings, *warnings))


def moves_of(
    before: Mapping[TaskId, MemberId], assignment: Assignment, executors: Mapping[MemberId, str],
    partitions: Sequence[tuple[str, int]] = (),
) -> list[Moved]:  # fmt: skip
    """Return all moves of an assignment; ``executors`` names those of members, also of ones that left. ``partitions``
    are the (topic, partition) that key-groups stand for, where dispatch is by partition.
    """
    stands_for: dict[int, Moved] = {n: {"topic": t, "partition": p} for n, (t, p) in enumerate(partitions)}
    return [
        {
            **_moved(move, before.get(move.task, "") if move.role == "owner" else (move.source or ""), executors),
            **stands_for.get(move.task.key_group, {}),
        }
        for move in assignment.moves
    ]


def _moved(move: Move, source: MemberId, executors: Mapping[MemberId, str]) -> Moved:
    of_group: Moved = {} if move.task.group == GROUP else {"group": move.task.group}
    return {
        "key_group": move.task.key_group, "role": move.role, "from": source, "to": move.target,
        "from_executor": executors.get(source, ""), "to_executor": executors.get(move.target, ""),
        "reason": move.reason, "goal": move.goal, **of_group,
    }  # fmt: skip


def notify(listener: RebalanceListener, moves: Sequence[Moved], live: Iterable[MemberId]) -> list[str]:
    """Notify a listener of owner moves, giving up before taking over; return what it raised, as warnings."""
    here = frozenset(live)
    owned = [_heard(move) for move in moves if move["role"] == "owner"]
    lost = [move for move in owned if move["from"] and move["from"] not in here]
    revoked = [move for move in owned if move["from"] in here]
    calls = ((listener.on_lost, lost), (listener.on_revoked, revoked), (listener.on_assigned, owned))
    warnings = []
    for call, about in calls:
        try:
            if about:
                call(about)
        except Exception as error:  # noqa: BLE001 - a listener is the user's; the query goes on
            warnings.append(f"the rebalance listener's {call.__name__} failed, and the query goes on: {error!r}")
    return warnings


def _heard(move: Moved) -> Moved:
    """Return a move without the number of its shard where that stands for a partition, which is what listeners know."""
    return {name: told for name, told in move.items() if name != "key_group"} if "partition" in move else move
