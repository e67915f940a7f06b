"""Read why key-groups moved: from the records of the log, and from the driver's status for moves since its newest one.

A record lists the moves since the record before, with their reasons. Records of earlier versions do not. From them only
changes of owners are known, by comparison with the record before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final

from riffle_spark.assign.model import TaskId
from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.observe.status import decode as decode_status
from riffle_spark.offline.periods import ALWAYS, Period
from riffle_spark.offline.record_reader import list_records, read_back
from riffle_spark.protocol.facts import MoveSummary
from riffle_spark.protocol.ownership.groups import parse_task, task_name
from riffle_spark.state.log import paths
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore

_CHANGING_KINDS: Final = frozenset({"rollback", "adopt", "dispatch"})
"""Commands that change owners without an assignment."""


@dataclass(frozen=True, slots=True)
class LoggedMove:
    """A move of a key-group.

    Attributes:
        time_ms: when the driver decided it, in milliseconds since the epoch. Without a reason: when the record was
            written.
        version: the first batch after it.
        record: the number of the record that has it; ``None`` for a move that only the status has.
        group: the co-location group.
        key_group: the number of the key-group.
        topic: the topic with dispatch by partition, else empty.
        partition: the partition with dispatch by partition, else ``None``.
        role: ``owner``, ``standby`` or ``warmup``.
        from_member: the member that it left; empty if there was none.
        to_member: the member that it moved to; empty if there is none.
        reason: why it moved; ``None`` if the record does not have it.
        goal: the goal of the assignment that it improves; empty if unknown.
    """

    time_ms: int
    version: int
    record: int | None
    group: str
    key_group: int
    topic: str
    partition: int | None
    role: str
    from_member: str
    to_member: str
    reason: str | None
    goal: str

    def to_json(self) -> dict[str, object]:
        """Return the move as JSON."""
        return asdict(self)


def read_moves(
    root: str,
    is_wanted: Callable[[TaskId], bool],
    limit: int,
    period: Period = ALWAYS,
    options: StoreOptions | None = None,
) -> list[LoggedMove]:
    """Return the newest ``limit`` moves in a period of the key-groups for which ``is_wanted`` is true, oldest first.

    Missing and damaged records are skipped. Reads one object per record, back to the first move that is shown or to the
    start of the period.

    Raises ``ConfigError`` if there is no log.
    """
    store_options = options or StoreOptions()
    root = only_root(root, store_options)
    objects = open_store(root, store_options)
    moves = (
        move
        for move in _newest_first(objects, root, period.since_ms)
        if is_wanted(TaskId(move.group, move.key_group)) and move.time_ms in period
    )
    return list(islice(moves, limit))[::-1]


def _newest_first(objects: ObjectStore, root: str, since_ms: int | None) -> Iterator[LoggedMove]:
    """Yield all moves, the newest record first, and not those of records before ``since_ms``."""
    following: Record | None = None
    for record in read_back(objects, list_records(objects)):
        if following is None:
            yield from _moves_of_status(objects, record)
        elif following.sequence == record.sequence + 1:
            yield from reversed(_moves_of_record(following, record))
        else:
            yield from reversed(_moves_of_record(following, None))
        if since_ms is not None and record.written_ms < since_ms:
            return
        following = record
    if following is None:
        raise ConfigError(
            f"{root} holds no state.", remedy="Name the root of a query that has run.", where=root, id="RIFFLE-1470"
        )
    yield from reversed(_moves_of_record(following, None))


def _moves_of_record(record: Record, previous: Record | None) -> Sequence[LoggedMove]:
    """Return the moves between a record and the one before it, oldest first. ``previous`` may be unknown."""
    version = record.version if record.kind == "batch" else record.version + 1
    moves = [
        _logged(
            record, version, task, moved.time_ms, moved.role, (moved.source, moved.target), moved.reason, moved.goal
        )
        for moved in record.moves
        for task in moved.tasks
    ]
    if previous is None or (previous.dispatch, previous.shards) != (record.dispatch, record.shards):
        return moves
    explained_tasks = {task for moved in record.moves if moved.role == "owner" for task in moved.tasks}
    reason = record.kind if record.kind in _CHANGING_KINDS else None
    for task in [*record.owners, *(task for task in previous.owners if task not in record.owners)]:
        members = previous.owners.get(task, ""), record.owners.get(task, "")
        if members[0] != members[1] and task not in explained_tasks:
            moves.append(_logged(record, version, task, record.written_ms, "owner", members, reason, ""))
    return moves


def _logged(
    record: Record,
    version: int,
    name: str,
    time_ms: int,
    role: str,
    members: tuple[str, str],
    reason: str | None,
    goal: str,
) -> LoggedMove:
    """Return the move of the task ``name``. ``members`` are the member that it left and that it moved to."""
    task = parse_task(name)
    topic, partition = record.shards[task.key_group] if task.key_group < len(record.shards) else ("", None)
    return LoggedMove(
        time_ms, version, record.sequence, task.group, task.key_group, topic, partition, role, *members, reason, goal
    )


def _moves_of_status(objects: ObjectStore, newest: Record) -> Iterator[LoggedMove]:
    """Yield the moves that the driver made since the newest record, the newest first. A damaged status has none."""
    data = objects.get(paths.STATUS)
    moves: tuple[MoveSummary, ...] = ()
    with suppress(CorruptStateError):
        moves = () if data is None else decode_status(data).moves
    recorded_moves = {(moved.time_ms, moved.role, task) for moved in newest.moves for task in moved.tasks}
    for move in reversed(moves):
        name = task_name(TaskId(move.group, move.key_group))
        if move.time_ms >= newest.written_ms and (move.time_ms, move.role, name) not in recorded_moves:
            yield LoggedMove(
                move.time_ms,
                move.version,
                None,
                move.group,
                move.key_group,
                move.topic,
                move.partition,
                move.role,
                move.from_member,
                move.to_member,
                move.reason,
                move.goal,
            )
