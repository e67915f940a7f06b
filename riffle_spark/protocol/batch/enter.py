"""Decide whether a batch runs, is a repeat, or is refused, by the newest record of the log and the settings."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

from riffle_spark.errors import UNREADABLE, ConfigError, ConflictError, command
from riffle_spark.protocol.batch.acceptance import is_accepted
from riffle_spark.protocol.batch.initial import check_initial
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import TIMERS, Operator
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ports import IncomingBatch, Work
from riffle_spark.protocol.shards import Shards, partitions_in
from riffle_spark.settings import Settings
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import (
    check_encryption_key,
    read_encryption_key,
    read_meanings,
    read_operator_meanings,
)

_PARTITIONS_SHOWN = 3


class Decision(Enum):
    """The driver's decision about a batch."""

    RUN = "run"
    REPEAT = "repeat"


def decide(tail: Record | None, incoming: IncomingBatch, root: str, settings: Settings) -> Decision:
    """Return whether Spark's batch runs or is a repeat, by the newest record ``tail``.

    The next batch id runs if the state and the checkpoint ended with the same offsets. The newest batch id of the same
    query with the same input is a repeat. Raises ``ConflictError`` with the remedy for anything else.
    """
    if tail is None:
        if incoming.version > 0:
            options = {"checkpoint": "CHECKPOINT", "key_groups": settings.key_groups, "dispatch": settings.dispatch}
            # Cause: The objects of the state were deleted, or `root` points to another place.
            raise ConflictError(
                f"Spark's checkpoint is at batch {incoming.version}, but {root} is empty.",
                remedy="Point `root` at the state of this checkpoint. To start with empty state, run: "
                + command("adopt", "--empty", "--execute", root=root, **options),
                where=root,
                id="RIFFLE-0209",
            )
        return Decision.RUN
    if tail.query_id != incoming.query_id:
        raise _other_query_error(tail, incoming, root)
    if incoming.version == tail.version + 1 and has_same_offsets(tail.offsets, incoming.offsets_before):
        return Decision.RUN
    if incoming.version == tail.version and _has_same_input(tail, incoming):
        return Decision.REPEAT
    raise _conflict(tail, incoming, root)


def has_same_offsets(state: str | None, checkpoint: str | None) -> bool:
    """Return whether two offset-log entries of one batch end at the same offsets of every source.

    ``state`` is the entry in the log, ``checkpoint`` the entry in Spark's checkpoint. An unknown entry (``None``)
    matches any other. The first two lines of an entry hold metadata and are not compared.
    """
    if state is None or checkpoint is None:
        return True
    return _end_offsets(state) == _end_offsets(checkpoint)


def _end_offsets(entry: str) -> list[str]:
    """Return the line of each source in an offset-log entry, or the whole entry if it has no such lines."""
    return entry.split("\n")[2:] or [entry]


def _has_same_input(tail: Record, incoming: IncomingBatch) -> bool:
    """Return whether a repeated batch has the input of record ``tail``, by its offset-log entry or else its digest."""
    if tail.offsets is not None and incoming.offsets is not None:
        return _content(tail.offsets) == _content(incoming.offsets)
    return tail.input_digest is not None and tail.input_digest == incoming.input_digest


def _content(entry: str) -> tuple[object, list[str]]:
    """Return the metadata and the source lines of an offset-log entry, or the whole entry if it is not one of Spark's.

    Spark 3.5 and Spark 4 write the settings in the metadata in different orders.
    """
    lines = entry.split("\n")
    try:
        return json.loads(lines[1]), lines[2:]
    except UNREADABLE:
        return None, lines


def _conflict(tail: Record, incoming: IncomingBatch, root: str) -> ConflictError:
    """Return the error for a batch that neither continues nor repeats the newest record.

    Its remedy contains the fitting rollback command.
    """

    def rollback_command(version: int) -> str:
        return command("rollback", "--execute", root=root, checkpoint="CHECKPOINT", to=version)

    if incoming.version == tail.version + 1:
        return ConflictError(
            f"{root} has batch {tail.version} with other offsets than Spark's checkpoint. One of the two was restored "
            "from before a rollback.",
            remedy=f"Take Spark's offsets back to the state: {rollback_command(tail.version)}. Or restore the other of "
            "the two.",
            where=root,
            id="RIFFLE-0211",
        )
    if incoming.version > tail.version:
        # Cause: The root was restored from an older backup, or a rollback was interrupted before it changed the
        # checkpoint.
        return ConflictError(
            f"Spark starts batch {incoming.version}, but the state in {root} is at batch {tail.version}. Batches are "
            "missing.",
            remedy=f"Take Spark's offsets back to the state: {rollback_command(tail.version)}",
            where=root,
            id="RIFFLE-0212",
        )
    if incoming.version == tail.version:
        # Cause: The checkpoint was restored from before this batch, and the source has had new data since.
        return ConflictError(
            f"Spark repeats batch {incoming.version} with other input than {root} has committed.",
            remedy=f"Take the state back to the batch before: {rollback_command(incoming.version - 1)}",
            where=root,
            id="RIFFLE-0214",
        )
    return ConflictError(
        f"Spark starts batch {incoming.version}, but {root} is already at batch {tail.version}. The checkpoint may be "
        "an older one.",
        remedy=f"Take the state back to the checkpoint: {rollback_command(incoming.version - 1)}. Or restore the newer "
        "checkpoint.",
        where=root,
        id="RIFFLE-0215",
    )


def _other_query_error(tail: Record, incoming: IncomingBatch, root: str) -> ConflictError:
    """Return the error for a query whose root has the state of another query, or of none."""
    if tail.is_unbound:
        # Cause: The state is a fork, or was loaded from an export, and riffle adopt has not bound it yet.
        return ConflictError(
            f"The state in {root} belongs to no query yet.",
            remedy="To start without state, use an empty root. To continue this state, " + describe_take_over(root),
            where=root,
            id="RIFFLE-1784",
        )
    return ConflictError(
        f"{root} belongs to query {tail.query_id}, but this is query {incoming.query_id}. Two queries share one root, "
        "or the query has a new checkpoint, for example because checkpointLocation is not set.",
        remedy="Give each query its own root, or a wrapped query its own queryName or option('riffle.root', ...). To "
        "start without state, use an empty root. To continue the other query's state, start with its checkpoint, or "
        + describe_take_over(root),
        where=root,
        id="RIFFLE-0210",
    )


def describe_take_over(root: str, checkpoint: str = "CHECKPOINT") -> str:
    """Describe how a query with a new checkpoint takes over the state in ``root``, as text for a remedy."""
    plan_command = command("adopt", root=root, checkpoint=checkpoint)
    execute_command = command("adopt", "--execute", root=root, checkpoint=checkpoint)
    return (
        "take the state over in four steps: (1) Start the query with the new checkpoint, and stop it once it is "
        f"refused. (2) Run {plan_command} to print the offsets of the state. (3) Delete the new checkpoint, set "
        "startingOffsets of the source to these offsets, start the query, and stop it once it is refused again. "
        f"(4) Run {execute_command}. Then start the query."
    )


def check_matches_stored_state(
    tail: Record | None,
    settings: Settings,
    operators: Sequence[Operator],
    root: str,
    key_id: str = "",
    decision: Decision = Decision.RUN,
) -> None:
    """Raise unless settings, operators and the encryption key fit each other and the stored state ``tail``.

    ``key_id`` is the id of the key to write with. Raises ``ConfigError``, ``ConflictError`` for a repeat with sealed
    rows that no sink would receive, and ``CorruptStateError`` for operator requests that cannot be read. The driver
    calls this before its claim, because a claim would fence a driver that works.
    """
    if tail is not None:
        read_requests(tail.orders)
        _check_same_state(tail, settings, operators, root)
        for schema_text in tail.schemas.values():
            check_encryption_key(schema_text, key_id, root)
        if decision is Decision.REPEAT:
            _check_sealed_rows_have_sinks(tail, operators, root)
    _check_new_store_names(tail, operators)
    check_initial(tail, settings.dispatch, operators)
    if settings.store_groups and settings.dispatch == "hashed":
        raise ConfigError(
            "store_groups cannot be combined with dispatch = hashed, which takes owners from the members alone.",
            remedy="Leave store_groups out, or use another dispatch (riffle dispatch switches a stopped query).",
            where="store_groups",
            id="RIFFLE-0216",
        )


def _check_new_store_names(tail: Record | None, operators: Sequence[Operator]) -> None:
    """Raise ``ConfigError`` for a new store with the name of another object. Stores that have state continue."""
    stored = tail.schemas.keys() if tail is not None else ()
    for operator in operators:
        if operator.durable and operator.store in paths.OTHER_OBJECTS and operator.store not in stored:
            # Cause: The snapshots of a store are below its name. In a root on files, one name cannot be a folder and a
            # file.
            raise ConfigError(
                f"Store {operator.store!r} has the name of another object below the root.",
                remedy=f"Rename the store. Reserved are {', '.join(sorted(paths.OTHER_OBJECTS))}, delta and log.",
                where="store",
                id="RIFFLE-1471",
            )


def _check_sealed_rows_have_sinks(tail: Record, operators: Sequence[Operator], root: str) -> None:
    """Raise ``ConflictError`` if a committed batch has sealed output rows of a store without a sink."""
    if not tail.delivers_after_commit:
        return
    sealed_stores = {store for store, link in tail.outputs if link.rows}
    lost_stores = sorted(sealed_stores - {operator.store for operator in operators if operator.delivers})
    if lost_stores:
        raise ConflictError(
            f"Batch {tail.version} is committed and repeated, but the output rows of store {', '.join(lost_stores)} "
            "have no sink. The store was renamed, or its sink was removed.",
            remedy="Start the version of the query that ran this batch, until Spark commits the batch. Then start this "
            "version.",
            where=root,
            id="RIFFLE-0217",
        )


def _check_same_state(tail: Record, settings: Settings, operators: Sequence[Operator], root: str) -> None:
    """Raise an error if dispatch, key-groups, encryption or schemas of the settings differ from the state."""
    if tail.dispatch != settings.dispatch:
        options = {"partition_of": "MODULE:FUNCTION"} if tail.dispatch == "key_group" else {}
        raise ConfigError(
            f"dispatch = {settings.dispatch}, but the state in {root} has dispatch = {tail.dispatch}.",
            remedy=f"Set dispatch = {tail.dispatch}, or stop the query and switch the state: "
            + command("dispatch", "--execute", root=root, to=settings.dispatch, **options)
            + (
                ". Replace MODULE:FUNCTION by a function that returns the topic and partition of keys."
                if options
                else ""
            ),
            where="dispatch",
            id="RIFFLE-0218",
        )
    if tail.total != settings.key_groups:
        raise ConfigError(
            f"key_groups = {settings.key_groups}, but the state in {root} has {tail.total}.",
            remedy=f"Set key_groups = {tail.total}, or stop the query and switch the state: "
            + command("dispatch", "--execute", root=root, to=tail.dispatch, key_groups=settings.key_groups),
            where="key_groups",
            id="RIFFLE-0219",
        )
    encrypted_store = next(
        (store for store, text in tail.schemas.items() if read_encryption_key(text) is not None), None
    )
    if encrypted_store is not None and settings.encryption_keys is None:
        raise ConfigError(
            f"The state of store {encrypted_store!r} in {root} is encrypted, but `encryption_keys` is not set.",
            remedy="Set `encryption_keys`. To end encryption, list `plain` last there and run a batch first.",
            where="encryption_keys",
            id="RIFFLE-0220",
        )
    check_stale(tail, [operator.store for operator in operators if operator.durable], settings.accept, root)
    check_schemas(tail.schemas, operators, settings.accept)


def check_stale(tail: Record, stores: Iterable[str], accepted: Sequence[str], root: str) -> None:
    """Raise ``ConflictError`` if a durable store lacks rows of earlier batches and is not in ``accepted``.

    ``stores`` are the durable stores of the query.
    """
    for store in stores:
        last_version = tail.stale_stores.get(store)
        if last_version is None or is_accepted(store, accepted):
            continue
        rollback_hint = (
            f" Or roll back to batch {last_version} (riffle rollback) to process these batches again."
            if last_version >= 0
            else ""
        )
        raise ConflictError(
            f"Store {store!r} {describe_stale_rows(last_version)}, but the query is at batch {tail.version}. The "
            "batches between ran without the store.",
            remedy=f"Set accept = {store!r} to continue without the rows of these batches, or give the store another "
            f"name to start without state.{rollback_hint}",
            where=root,
            id="RIFFLE-0221",
        )


def describe_stale_rows(last_version: int) -> str:
    """Describe the rows that a stale store has, as a clause. ``last_version`` is -1 in state that was adopted."""
    return f"has the rows up to batch {last_version}" if last_version >= 0 else "lacks rows from before the first batch"


def check_schemas(
    stored: Mapping[str, Mapping[str, str]], operators: Sequence[Operator], accepted: Sequence[str] = ()
) -> None:
    """Raise ``ConfigError`` if an operator cannot continue with the state of its store.

    - The stored schema cannot be read with the declared one. The error shows both.
    - A result has another meaning than its stored state and is not ``accepted``.
    - A wrapped query has taken the store over. It may store more columns, and they would be dropped.
    """
    for operator in operators:
        schema_text = stored.get(operator.store)
        if schema_text is None:
            continue
        if operator.meanings is None and read_meanings(schema_text):
            # Cause: A `Stateful` job was started on state that a wrapped query has taken over.
            raise ConfigError(
                f"The state of store {operator.store!r} belongs to a query that riffle_spark.on has wrapped.",
                remedy="Continue with that query, roll back to before it took the store over (riffle rollback), or use "
                "another store name.",
                where=operator.store,
                id="RIFFLE-0222",
            )
        if not operator.schema.can_read(schema_text):
            # Cause: The code of the job changed key or state columns after the state was written.
            stored_schema = schema_text["text"]
            declared_schema = operator.schema.to_text()["text"]
            raise ConfigError(
                f"The state of store {operator.store!r} has another schema.\n  stored:   {stored_schema}"
                f"\n  declared: {declared_schema}",
                remedy="Do not change the key columns, the expiry of keys, or whether an existing column, its elements "
                "or its fields may be null: CAST(v AS ARRAY<INT>) makes elements nullable. You may add nullable "
                "columns, remove columns, and widen types. For any other change use another store name (in a wrapped "
                "query: option('riffle.stores', ...)).",
                where=operator.store,
                id="RIFFLE-0223",
            )
        if operator.durable:
            _check_results(operator, read_operator_meanings(schema_text), accepted)


def _check_results(operator: Operator, stored: Mapping[str, str], accepted: Sequence[str]) -> None:
    """Raise ``ConfigError`` if the meaning or the name of a result has changed.

    ``stored`` has the recorded meanings by name. Results in ``accepted`` may change.
    """

    def is_same(meaning: str, other_meaning: str) -> bool:
        return is_same_name(meaning, other_meaning, case_sensitive=operator.case_sensitive)

    for name, meaning in operator.result_meanings.items():
        stored_meaning = stored.get(name)
        if is_accepted(name, accepted) or (stored_meaning is not None and is_same(stored_meaning, meaning)):
            continue
        if stored_meaning is not None:
            alternative = (
                "Set the time mode back, or use another store name to start without state."
                if name == TIMERS
                else "Give the result another name, so that it starts without stored values."
            )
            # Cause: The code of the job changed the function, the input column or the time mode under this name.
            raise ConfigError(
                f"The state has {stored_meaning} under {name!r}, but the job declares {meaning}.",
                remedy=f"{alternative} Or set accept = {name!r} to continue with the stored values.",
                where=operator.store,
                id="RIFFLE-0224",
            )
        stored_names = (old for old, old_meaning in stored.items() if is_same(old_meaning, meaning))
        old_name = next((old for old in stored_names if old not in operator.result_meanings), None)
        if old_name is not None:
            # Cause: The code of the job gave a result another name.
            raise ConfigError(
                f"The state has {meaning} under {old_name!r}, but the job names it {name!r}.",
                remedy=f"Keep the name {old_name!r} and rename the output column. Or set accept = {name!r} to start it "
                f"without stored values and drop those of {old_name!r}.",
                where=operator.store,
                id="RIFFLE-0225",
            )


def groups_of(settings: Settings, operators: Sequence[Operator]) -> Groups:
    """Return the co-location groups of the stores of these operators."""
    return Groups.of_query((operator.store for operator in operators), settings.store_groups)


def shards_of(tail: Record, incoming: IncomingBatch, work: Work, warn: Callable[[str], None]) -> Shards | None:
    """Return the shards with the batch's new partitions appended, or ``None`` if keys are dispatched by key-group.

    If Spark's offsets do not name the partitions, this reads them from the rows with one job. Calls ``warn`` if the
    first batch after a start has partitions, but none that has state.
    """
    if tail.dispatch == "key_group":
        return None
    partitions = partitions_in(incoming.offsets)
    if partitions is None:
        partitions = frozenset(work.partitions(tail.total + 1))
    if tail.kind == "claim" and tail.shards and partitions and partitions.isdisjoint(tail.shards):
        warn(
            f"[RIFFLE-0808] No partition of batch {incoming.version} has state, so its keys start without state. The "
            f"batch has {_first_names(partitions)}, and the state has {_first_names(tail.shards)}.\n"
            "  What to do: If the columns topic and partition got other values, stop the query, roll back to batch "
            f"{tail.version} (riffle rollback), and undo the change. Otherwise do nothing."
        )
    return Shards(tail.shards).extended(partitions, tail.total)


def _first_names(partitions: Iterable[tuple[str, int]]) -> str:
    """Return the first partitions as text, such as ``clicks/0, clicks/1, ...``."""
    names = [f"{topic}/{number}" for topic, number in sorted(partitions)]
    return ", ".join(names[:_PARTITIONS_SHOWN]) + (", ..." if len(names) > _PARTITIONS_SHOWN else "")
