"""What to do with the batch that Spark hands over: run it, skip it, or refuse it with the remedy, and what a state is
bound to. Pure; knows the newest record and settings.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum

from riffle_spark.errors import ConfigError, ConflictError, command
from riffle_spark.protocol.batch.initial import check_initial
from riffle_spark.protocol.batch.stored_requests import read_requests
from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import TIMERS, Operator
from riffle_spark.protocol.ownership.groups import Groups
from riffle_spark.protocol.ports import IncomingBatch, Work
from riffle_spark.protocol.shards import Shards, partitions_in
from riffle_spark.settings import Settings
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import check_key, key_in, meanings_in, operator_in

__all__ = [
    "Decision",
    "check_fixed",
    "check_schemas",
    "check_stale",
    "decide",
    "ends_alike",
    "groups_of",
    "shards_of",
    "stale_rows",
    "take_over_steps",
]

_PARTITIONS_SHOWN = 3
_SPARKS_WORDS_OF_KEYS = (
    "  as Spark says: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key "
    "schema"
)
_SPARKS_WORDS = "  as Spark says: [STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION] Schema evolution is not possible"


class Decision(Enum):
    """What becomes of a batch."""

    RUN = "run"
    REPEAT = "repeat"


def decide(tail: Record | None, incoming: IncomingBatch, root: str, settings: Settings) -> Decision:
    """Check what Spark hands us against the log's newest record.

    The next id runs, from the offsets that the head ended with. The head's own id with the same query and the same
    input is a repeat. Everything else raises ``ConflictError`` with the remedy.
    """
    if tail is None:
        if incoming.version > 0:
            raise ConflictError(
                f"Spark's checkpoint is at batch {incoming.version}, but {root} is empty",
                remedy="point `root` at the state that belongs to this checkpoint, or start with no state on purpose: "
                + _adopt_empty_command(root, settings),
                where=root,
                id="RIFFLE-0209",
            )
        return Decision.RUN
    if tail.query_id != incoming.query_id:
        raise ConflictError(
            f"{root} belongs to query {tail.query_id}, this is {incoming.query_id}: two queries share one root, or the "
            "query has a new checkpoint",
            remedy="give each query its own root, as by riffle_spark.on(frame, root=...). If this query continues the "
            f"other one's state, start it with that one's checkpoint, or {take_over_steps(root)}",
            where=root,
            id="RIFFLE-0210",
        )
    if incoming.version == tail.version + 1 and ends_alike(tail.offsets, incoming.offsets_before):
        return Decision.RUN
    if incoming.version == tail.version and _same_input(tail, incoming):
        return Decision.REPEAT
    raise _conflict(tail, incoming, root)


def ends_alike(state: str | None, checkpoint: str | None) -> bool:
    """Tell whether state and checkpoint are at one place of every source, by their offset-log entries of one batch, as
    far as both are known. Two lines come to a batch of one number, each with rows of its own. What Spark notes beside
    the offsets does not count.
    """
    if state is None or checkpoint is None:
        return True
    return _ends(state) == _ends(checkpoint)


def _ends(offsets: str) -> list[str]:
    return offsets.split("\n")[2:] or [offsets]


def _same_input(tail: Record, incoming: IncomingBatch) -> bool:
    if tail.offsets is not None and incoming.offsets is not None:
        return tail.offsets == incoming.offsets
    return tail.input_digest is not None and tail.input_digest == incoming.input_digest


def _conflict(tail: Record, incoming: IncomingBatch, root: str) -> ConflictError:

    def back_to(version: int) -> str:
        return command("rollback", "--execute", root=root, checkpoint="CHECKPOINT", to=version)

    if incoming.version == tail.version + 1:
        return ConflictError(
            f"the state in {root} was committed with other offsets of batch {tail.version} than Spark's checkpoint "
            "has: they are of two lines, of which a rollback has left one",
            remedy=f"take Spark's offsets to the state: {back_to(tail.version)}; or restore the other one of both",
            where=root,
            id="RIFFLE-0211",
        )
    if incoming.version > tail.version:
        return ConflictError(
            f"Spark hands over batch {incoming.version}, the state in {root} is at {tail.version}: batches are missing",
            remedy=f"take Spark's offsets back to the state: {back_to(tail.version)}",
            where=root,
            id="RIFFLE-0212",
        )
    if incoming.version == tail.version and not _comparable(tail.input_digest, incoming.input_digest):
        return ConflictError(
            f"batch {incoming.version} comes again, and {root} has it from a version that tells rows apart otherwise: "
            "whether they are the same cannot be known",
            remedy="have that version take the batch once more, and this one go on; or take the state back to before "
            f"that batch: {back_to(incoming.version - 1)}",
            where=root,
            id="RIFFLE-0213",
        )
    if incoming.version == tail.version:
        return ConflictError(
            f"batch {incoming.version} comes again with other input than the one {root} has committed",
            remedy=f"take the state back to before that batch: {back_to(incoming.version - 1)}",
            where=root,
            id="RIFFLE-0214",
        )
    return ConflictError(
        f"Spark hands over batch {incoming.version}, but {root} is already at {tail.version} (an older checkpoint?)",
        remedy=f"take the state back to the checkpoint: {back_to(incoming.version - 1)}; or restore the newer one",
        where=root,
        id="RIFFLE-0215",
    )


def _comparable(one: str | None, other: str | None) -> bool:
    """Tell whether two digests differ only where rows do: what is before the slash says how rows are told."""
    return one is None or other is None or one.rpartition("/")[0] == other.rpartition("/")[0]


def take_over_steps(root: str, checkpoint: str = "CHECKPOINT") -> str:
    """Return how a query with a new checkpoint takes over the state in ``root``, as operations.md has it."""
    shown = command("adopt", root=root, checkpoint=checkpoint)
    executed = command("adopt", "--execute", root=root, checkpoint=checkpoint)
    return (
        "take the state over in four steps: (1) start the query with the new checkpoint, and stop it once it is "
        f"refused. (2) {shown} prints the offsets of the state. (3) Delete the new checkpoint, set startingOffsets of "
        f"the source to these offsets, start the query, and stop it once it is refused again. (4) {executed}, then "
        "start the query"
    )


def _adopt_empty_command(root: str, settings: Settings) -> str:
    """Return the command that starts a root without state, with the key-groups and the dispatch of these settings."""
    options = {"checkpoint": "CHECKPOINT", "key_groups": settings.key_groups, "dispatch": settings.dispatch}
    return command("adopt", "--empty", "--execute", root=root, **options)


def check_fixed(
    tail: Record | None, settings: Settings, operators: Sequence[Operator], root: str, key: str = "",
    decision: Decision = Decision.RUN,
) -> None:  # fmt: skip
    """Raise ``ConfigError`` unless settings, operators and the ``key`` to write with are those that the state was
    written with, and can go together; and ``ConflictError`` for a repeat whose sealed rows nothing takes. Raises
    ``CorruptStateError`` for a will that this version cannot read. Who has to refuse does so before it claims the log:
    or it would take it from a driver that is well.
    """
    if tail is not None:
        read_requests(tail.orders)
        _check_same(tail, settings, operators, root)
        for text in tail.schemas.values():
            check_key(text, key, root)
        if decision is Decision.REPEAT:
            _check_taken(tail, operators, root)
    check_initial(tail, settings.dispatch, operators)
    if settings.store_groups and settings.dispatch == "hashed":
        raise ConfigError(
            "in hashed dispatch owners follow from the members alone, so stores cannot be in groups of their own",
            remedy="leave store_groups out, or use another dispatch (riffle dispatch switches a stopped query)",
            where="store_groups",
            id="RIFFLE-0216",
        )


def _check_taken(tail: Record, operators: Sequence[Operator], root: str) -> None:
    """Raise ``ConflictError`` if rows that were sealed, and perhaps not delivered, are of stores that have no sink."""
    sealed = {store for store, link in tail.outputs if link.rows} if tail.delivers_after_commit else set[str]()
    lost = sorted(sealed - {operator.store for operator in operators if operator.delivers})
    if lost:
        raise ConflictError(
            f"batch {tail.version} is committed and comes again, but nothing takes what {', '.join(lost)} has to "
            "deliver of it: the store has another name now, or no sink",
            remedy="start the version of the query that ran this batch, until Spark has noted the batch; then this one",
            where=root,
            id="RIFFLE-0217",
        )


def _check_same(tail: Record, settings: Settings, operators: Sequence[Operator], root: str) -> None:
    if tail.dispatch != settings.dispatch:
        of_keys = {"partition_of": "MODULE:FUNCTION"} if tail.dispatch == "key_group" else {}
        raise ConfigError(
            f"dispatch = {settings.dispatch}, but the state in {root} is that of dispatch = {tail.dispatch}",
            remedy=f"set dispatch = {tail.dispatch}, or switch the state while the query is stopped: "
            + command("dispatch", "--execute", root=root, to=settings.dispatch, **of_keys)
            + (", with a function of yours from keys to their partitions" if of_keys else ""),
            where="dispatch",
            id="RIFFLE-0218",
        )
    if tail.total != settings.key_groups:
        raise ConfigError(
            f"key_groups = {settings.key_groups}, but the state in {root} has {tail.total}",
            remedy=f"set key_groups = {tail.total}, or change the state while the query is stopped: "
            + command("dispatch", "--execute", root=root, to=tail.dispatch, key_groups=settings.key_groups),
            where="key_groups",
            id="RIFFLE-0219",
        )
    store = next((store for store, text in tail.schemas.items() if key_in(text) is not None), None)
    if store is not None and settings.encryption_keys is None:
        raise ConfigError(
            f"the state of store {store!r} in {root} is encrypted, and `encryption_keys` is not set",
            remedy="set it to where the keys are; to do without, list `plain` last there and run a batch first",
            where="encryption_keys",
            id="RIFFLE-0220",
        )
    check_stale(tail, [operator.store for operator in operators if operator.durable], settings.accept, root)
    check_schemas(tail.schemas, operators, settings.accept)


def check_stale(tail: Record, stores: Iterable[str], accepted: Container[str], root: str) -> None:
    """Raise ``ConflictError`` if one of these durable stores lacks the rows of batches that ran without it, unless the
    store is accepted.
    """
    for store in stores:
        last = tail.stale_stores.get(store)
        if last is None or store in accepted:
            continue
        again = f"; or roll back to batch {last} (riffle rollback) to process these batches again" if last >= 0 else ""
        raise ConflictError(
            f"store {store!r} {stale_rows(last)}, the query is at batch {tail.version}: batches between ran without "
            "the store",
            remedy=f"set accept = {store!r} to continue without the rows of these batches, or give the store another "
            f"name to start it without state{again}",
            where=root,
            id="RIFFLE-0221",
        )


def stale_rows(last: int) -> str:
    """Return which rows a store has that batches after ``last`` ran without; it is -1 in state that was adopted."""
    return f"has the rows up to batch {last}" if last >= 0 else "lacks rows from before the first batch"


def check_schemas(
    stored: Mapping[str, Mapping[str, str]], operators: Sequence[Operator], accepted: Container[str] = ()
) -> None:
    """Raise ``ConfigError`` if an operator cannot continue with the state of its store.

    It cannot if the schemas do not fit; the error shows both. It cannot if a result has another meaning than its state,
    unless the result is ``accepted``. It cannot if a wrapped query has taken the store over: that query may keep more
    in it, which would be dropped.
    """
    for operator in operators:
        before = stored.get(operator.store)
        if before is not None and operator.meanings is None and meanings_in(before):
            raise ConfigError(
                f"the state of store {operator.store!r} is that of a query which riffle_spark.on has wrapped",
                remedy="go on with that query; or take the state back to before it took the store over "
                "(riffle rollback), or use another store name",
                where=operator.store,
                id="RIFFLE-0222",
            )
        if before is not None and not operator.schema.can_read(before):
            now = operator.schema.to_text()
            words = _SPARKS_WORDS if before.get("key") == now["key"] else _SPARKS_WORDS_OF_KEYS
            raise ConfigError(
                f"the state of store {operator.store!r} has another schema\n  stored:   {before['text']}"
                f"\n  declared: {now['text']}\n{words}",
                remedy="keep the key's columns, when keys end, and which columns may be null; add columns that may be "
                "null, leave some out, or make types wider; for any other change use another store name (of a wrapped "
                "query: option('riffle.stores', ...))",
                where=operator.store,
                id="RIFFLE-0223",
            )
        if before is not None and operator.durable:
            _check_results(operator, operator_in(before), accepted)


def _check_results(operator: Operator, before: Mapping[str, str], accepted: Container[str]) -> None:
    """Raise ``ConfigError`` if a result has another meaning than its stored state, or only another name."""

    def is_same(one: str, other: str) -> bool:
        return is_same_name(one, other, case_sensitive=operator.case_sensitive)

    now = operator.results
    for name, meaning in now.items():
        stored = before.get(name)
        if name in accepted or (stored is not None and is_same(stored, meaning)):
            continue
        if stored is not None:
            raise ConfigError(
                f"the state has {stored} under {name!r}, and the job declares {meaning}",
                remedy=(
                    "set the time mode back, or use another store name to start without state"
                    if name == TIMERS
                    else "give the result another name, so that it starts without stored values"
                )
                + f"; or set accept = {name!r} to continue with what is kept",
                where=operator.store,
                id="RIFFLE-0224",
            )
        renamed = next((old for old, known in before.items() if old not in now and is_same(known, meaning)), None)
        if renamed is not None:
            raise ConfigError(
                f"the state has {meaning} under {renamed!r}, and the job calls it {name!r}",
                remedy=f"keep the name {renamed!r} and rename the column of the output; or set accept = {name!r} to "
                f"start it without stored values and drop those of {renamed!r}",
                where=operator.store,
                id="RIFFLE-0225",
            )


def groups_of(settings: Settings, operators: Sequence[Operator]) -> Groups:
    """Return the co-location groups of a query's stores."""
    return Groups.of_query((operator.store for operator in operators), settings.store_groups)


def shards_of(tail: Record, incoming: IncomingBatch, work: Work, warn: Callable[[str], None]) -> Shards | None:
    """Return the registry with the batch's partitions, new ones appended; ``None`` where keys are dispatched.

    Where Spark's offsets do not tell the partitions, the rows are asked, with one job. ``warn`` is called if the first
    batch of a start has partitions, and the registry has none of them: then no key of the batch has state.
    """
    if tail.dispatch == "key_group":
        return None
    found = partitions_in(incoming.offsets)
    found = frozenset(work.partitions(tail.total + 1)) if found is None else found
    if tail.kind == "claim" and tail.shards and found and found.isdisjoint(tail.shards):
        warn(
            f"the state has no partition of batch {incoming.version}, which starts with {_named(found)}; it has "
            f"{_named(tail.shards)}. Keys start without state\n  What to do: nothing, if these partitions are new; if "
            "the columns topic and partition got other values, stop the query, roll back to batch "
            f"{tail.version} (riffle rollback), and undo the change"
        )
    return Shards(tail.shards).extended(found, tail.total)


def _named(partitions: Iterable[tuple[str, int]]) -> str:
    """Return the first few of some partitions, for people."""
    names = [f"{topic}/{number}" for topic, number in sorted(partitions)]
    return ", ".join(names[:_PARTITIONS_SHOWN]) + (", ..." if len(names) > _PARTITIONS_SHOWN else "")
