"""Report the changes of an assignment to batch reports and to a user's listener."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from riffle_spark.assign.model import Assignment, MemberId, Move, TaskId
from riffle_spark.errors import ConfigError
from riffle_spark.protocol.ownership.groups import GROUP

MoveFields = Mapping[str, "str | int"]
"""One move: ``key_group``, ``role`` (owner, standby, warmup), ``from`` and ``to`` (members), ``from_executor`` and
``to_executor``, ``reason`` and ``goal``. With dispatch by partition also ``topic`` and ``partition``, and in a named
co-location group ``group``."""


class RebalanceListener:
    """Receives the moves of key-groups, before the batch in which they take effect.

    Override the methods you need. The driver calls ``on_lost``, ``on_revoked`` and ``on_assigned`` in this order, each
    with its moves: dictionaries with ``key_group``, ``role``, ``from``, ``to``, ``from_executor``, ``to_executor``,
    ``reason`` and ``goal``. With dispatch by partition they have ``topic`` and ``partition`` instead of ``key_group``.
    An exception of a method becomes a warning in the batch report, and the query continues.

    >>> class Counter(RebalanceListener):
    ...     moved = 0
    ...
    ...     def on_assigned(self, moves):
    ...         self.moved += len(moves)
    >>> counter = Counter()
    >>> counter.on_assigned([{"key_group": 3, "from": "a", "to": "b"}])
    >>> counter.moved
    1
    """

    def on_lost(self, moves: Sequence[MoveFields]) -> None:
        """Receive the moves of key-groups that lost their owner."""

    def on_revoked(self, moves: Sequence[MoveFields]) -> None:
        """Receive the moves of key-groups that a live owner gives up."""

    def on_assigned(self, moves: Sequence[MoveFields]) -> None:
        """Receive the moves of all key-groups that get an owner."""


def check_listener(listener: object) -> None:
    """Raise ``ConfigError`` if ``listener`` is neither ``None`` nor an object with all methods of a listener."""
    methods = [name for name in vars(RebalanceListener) if name.startswith("on_")]
    is_complete = all(callable(getattr(listener, name, None)) for name in methods)
    if listener is not None and (isinstance(listener, type) or not is_complete):
        raise ConfigError(
            f"The listener {listener!r} is not a RebalanceListener.",
            remedy="Pass an instance of a subclass of RebalanceListener.",
            id="RIFFLE-0238",
        )


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The changes by assignments since the last report: moves with their reasons, and warnings."""

    moves: tuple[MoveFields, ...] = ()
    warnings: tuple[str, ...] = ()

    def extended(self, moves: Iterable[MoveFields], warnings: Iterable[str]) -> "Rebalance":
        """Return these changes with more moves and warnings."""
        return Rebalance((*self.moves, *moves), (*self.warnings, *warnings))


def moves_of(
    previous_owners: Mapping[TaskId, MemberId],
    assignment: Assignment,
    executors: Mapping[MemberId, str],
    partitions: Sequence[tuple[str, int]] = (),
) -> list[MoveFields]:
    """Return all moves of an assignment as fields.

    ``executors`` has the executor of each member, lost ones included. ``partitions`` are the (topic, partition) of
    key-groups with dispatch by partition.
    """
    partition_fields: dict[int, MoveFields] = {n: {"topic": t, "partition": p} for n, (t, p) in enumerate(partitions)}
    moves: list[MoveFields] = []
    for move in assignment.moves:
        source = previous_owners.get(move.task, "") if move.role == "owner" else (move.source or "")
        moves.append({**_fields_of(move, source, executors), **partition_fields.get(move.task.key_group, {})})
    return moves


def _fields_of(move: Move, source: MemberId, executors: Mapping[MemberId, str]) -> MoveFields:
    """Return the fields of a move. ``source`` is the member that the task leaves, empty if it had none."""
    group: MoveFields = {} if move.task.group == GROUP else {"group": move.task.group}
    return {
        "key_group": move.task.key_group,
        "role": move.role,
        "from": source,
        "to": move.target,
        "from_executor": executors.get(source, ""),
        "to_executor": executors.get(move.target, ""),
        "reason": move.reason,
        "goal": move.goal,
        **group,
    }


def notify(listener: RebalanceListener, moves: Sequence[MoveFields], live: Iterable[MemberId]) -> list[str]:
    """Call a listener with the moves of owners; return the exceptions that it raised as warnings.

    ``live`` are the live members.
    """
    live_members = frozenset(live)
    owner_moves = [_for_listener(move) for move in moves if move["role"] == "owner"]
    lost = [move for move in owner_moves if move["from"] and move["from"] not in live_members]
    revoked_moves = [move for move in owner_moves if move["from"] in live_members]
    warnings = []
    for call, its_moves in (
        (listener.on_lost, lost),
        (listener.on_revoked, revoked_moves),
        (listener.on_assigned, owner_moves),
    ):
        try:
            if its_moves:
                call(its_moves)
        except Exception as error:  # noqa: BLE001 - a user's listener must not stop the query
            warnings.append(
                f"[RIFFLE-0760] {call.__name__} of the rebalance listener failed: {error!r}\n"
                "  What to do: Correct the method. The moves take place without it."
            )
    return warnings


def _for_listener(move: MoveFields) -> MoveFields:
    """Return a move as a listener gets it: without the key-group number if that stands for a partition."""
    return {name: value for name, value in move.items() if name != "key_group"} if "partition" in move else move
