"""Compare the stages of a wrapped query with the stores that an earlier start has left.

A changed query continues, migrates or refuses its stored state. It never gives stored values another meaning.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.types.stage_specs import stage_kind, strip_store_number
from riffle_spark.spark.queries.planned_stages import PlannedStage
from riffle_spark.state.formats.arrow_schemas import can_become, describe_schema
from riffle_spark.state.schemas.store_schema import StoreSchema, read_meanings, schema_of_text

_logger = logging.getLogger("riffle_spark")

ACCEPT: Final = "riffle.accept"
"""The option that lists columns and stores to continue although their meaning has changed."""
TAKE_OVER: Final = "riffle.take_over"
"""The option that lists columns of a ``Stateful`` operator's state to continue."""
_EXPIRING: Final = {"aggregate": "windows", "distinct": "keys", "join": "rows"}
"""What the watermark deletes in a stage of each kind. Other kinds declare their times in the user's code."""


def check_expiry(stages: Sequence[PlannedStage], stored: Mapping[str, Mapping[str, str]], mode: str) -> None:
    """Raise ``ConfigError`` if state that was kept is to be deleted by the watermark, or the reverse.

    ``stored`` has the recorded schemas by store, ``mode`` is the output mode. Sessions are stored alike in every mode.
    Stored rows of a join have no due time if they were kept, so they stay. Of an outer join, they would never be
    emitted.
    """
    for stage in stages:
        schema = stored.get(stage.store, {})
        noun = _EXPIRING.get(stage.stage.kind)
        if noun is None or not schema or (noun == "windows" and (stage.buffers is None or not read_meanings(schema))):
            continue
        expired = "due" in schema or schema.get("indexed") == "true"
        expires = stage.closes and (mode != "complete" or noun != "windows")
        if expired == expires or (expires and noun == "rows" and not _join_type(stage).endswith("Outer")):
            continue
        changes = (f"keeps all {noun}", f"deletes {noun} that end")
        # Cause: The output mode was changed from or to complete, or withWatermark was added or removed.
        raise ConfigError(
            f"The query {changes[expires]}, but its state was written by a query that {changes[expired]}. A query "
            "keeps all state without withWatermark, and all windows with outputMode('complete').",
            remedy="Set outputMode and withWatermark as before, or name a new store to start without state: "
            "option('riffle.stores', 'NAME').",
            where=stage.store,
            id="RIFFLE-0327",
        )


def check_stored(
    stages: Sequence[PlannedStage], stored: Mapping[str, Mapping[str, str]], accepted: str, taken_over: str
) -> None:
    """Check that the stages can continue the ``stored`` schemas, which are given by store.

    Logs a warning per unused store and per added or dropped column. ``accepted`` and ``taken_over`` are the texts of
    the options ``ACCEPT`` and ``TAKE_OVER``. Raises ``ConfigError`` for a column with another or an unknown meaning,
    unless ``accepted`` permits the change, for stores whose stages cannot be distinguished, and if there is nothing to
    take over.
    """
    if taken_over and not any(stage.store in stored for stage in stages):
        raise ConfigError(
            f"Cannot take over state: the root has no such store, only {', '.join(sorted(stored)) or 'none'}.",
            remedy="Name the store, as in option('riffle.stores', 'totals'), and use the root of its job.",
            where=", ".join(stage.store for stage in stages),
            id="RIFFLE-0328",
        )
    for stage in stages:
        schema = stored.get(stage.store, {})
        if stage.buffers is not None and "state" in schema and not read_meanings(schema):
            _check_take_over(stage, schema_of_text(stage.store, schema), accepted, taken_over)
        else:
            _check_meanings(stage, read_meanings(schema), accepted)
        if stage.stage.kind == "groups" and schema:
            _check_group_state(stage, schema_of_text(stage.store, schema), accepted)
    stores = {stage.store for stage in stages}
    unused = sorted(stored.keys() - stores)
    _check_new_stores(sorted(stores - stored.keys()), unused, accepted)
    _check_numbered_stores(sorted(stores ^ stored.keys()), stores & stored.keys(), accepted)
    for store in unused:
        # Cause: The operator was removed, or its kind or keys changed.
        _logger.warning(
            "[RIFFLE-0329] The query no longer uses store %s. Its state stays in the root and takes space there.\n"
            "  What to do: Do nothing if the operator was removed on purpose. Otherwise stop the query, roll back "
            "(riffle rollback), and restore the operator.",
            store,
        )


def _is_listed(name: str, option: str) -> bool:
    """Return whether a comma-separated option lists a name. Generated names may contain spaces and commas."""
    return f",{name},".replace(" ", "") in f",{option},".replace(" ", "")


def _check_new_stores(new: Sequence[str], unused: Sequence[str], accepted: str) -> None:
    """Raise ``ConfigError`` for a new store if a store of its kind became unused. Most likely only its keys changed."""
    for store in new:
        same_kind = (name for name in unused if stage_kind(name) == stage_kind(store))
        earlier = next((name for name in same_kind if not _is_listed(name, accepted)), None)
        if "." in store and earlier is not None:
            # Cause: A store is named by its operator's kind and keys, so changed keys make a new, empty store.
            raise ConfigError(
                f"The query no longer has store {earlier!r}, and this store of the same kind would start without "
                "state.",
                remedy="Group by the same columns in the same order, count DISTINCT values as before, and rename or "
                f"reorder results in a select after it. Or set option({ACCEPT!r}, {earlier!r}) to start without state; "
                "the state of that store stays in the root.",
                where=store,
                id="RIFFLE-0330",
            )


def _check_numbered_stores(changed: Sequence[str], continued: Set[str], accepted: str) -> None:
    """Raise ``ConfigError`` if a stage is added or removed while others have the same kind and key.

    Only the order of such stages names their stores. ``changed`` are the added and removed stores.
    """
    for store in changed:
        same_name = (name for name in continued if strip_store_number(name) == strip_store_number(store))
        other = next(same_name, None)
        if other is not None and not _is_listed(store, accepted):
            # Cause: Stores of operators with equal kind and keys are numbered by the order of the operators.
            raise ConfigError(
                "Operators of the same kind and keys were added or removed, so the state of store "
                f"{other!r} may belong to another operator.",
                remedy="Name the stores of all operators in their order with option('riffle.stores', ...). Or set "
                f"option({ACCEPT!r}, {store!r}) if the last of these operators was added or removed.",
                where=store,
                id="RIFFLE-0331",
            )


def _check_take_over(stage: PlannedStage, schema: StoreSchema, accepted: str, taken_over: str) -> None:
    """Raise ``ConfigError`` for the store of a ``Stateful`` operator that the query cannot continue.

    The query must list all columns that it continues in option ``TAKE_OVER``.
    """
    state = schema.either(lambda plain: plain.state, lambda _: pa.schema([]))
    for problem, remedy in _mismatches(stage, schema.key, state, accepted) if len(state) else ():
        raise ConfigError(problem, remedy=remedy, where=stage.store, id="RIFFLE-0332")
    unlisted = [name for name in state.names if name in stage.meanings and not _is_listed(name, taken_over)]
    if unlisted:
        meanings = ", ".join(f"{name} is {stage.meanings[name]}" for name in unlisted)
        columns = ",".join(unlisted)
        # Cause: A Stateful operator does not store the SQL of its results, so they cannot be compared with the query.
        raise ConfigError(
            "The state was written by a Stateful operator, so the meaning of its columns is unknown.",
            remedy=f"Set option({TAKE_OVER!r}, {columns!r}) to continue it, if {meanings}.",
            where=stage.store,
            id="RIFFLE-0333",
        )


def _mismatches(stage: PlannedStage, key: pa.Schema, state: pa.Schema, accepted: str) -> Iterator[tuple[str, str]]:
    """Yield (problem, remedy) for each part of a ``Stateful`` operator's state that the query cannot continue."""
    if (key.names, key.types) != (stage.keys.names, stage.keys.types):
        yield (
            f"The state has the key {describe_schema(key)}, but the query groups by {describe_schema(stage.keys)}.",
            "Group by columns of these names and types only, or name a new store to start without state.",
        )
    for buffer in stage.buffers or ():
        if buffer.name not in state.names and not _is_listed(buffer.name, accepted):
            yield (
                f"The state has no column {buffer.name!r} ({stage.meanings[buffer.name]}), "
                f"only {describe_schema(state)}.",
                "Give the result the alias that the column has there, and rename it in a select after it. Or set "
                f"option({ACCEPT!r}, {buffer.name!r}) to start it without stored values.",
            )
        elif buffer.name in state.names and not can_become(pa.schema([state.field(buffer.name)]), pa.schema([buffer])):
            yield (
                f"Column {buffer.name!r} has type {state.field(buffer.name).type} in the state, but the query stores "
                f"{buffer.type}.",
                "Cast the aggregated column, or give the result another alias.",
            )
    for name in state.names:
        if name not in stage.meanings and not _is_listed(name, accepted):
            yield (
                f"The state has column {name!r}, but no result of the query continues it.",
                f"Aggregate it too, under this alias, or set option({ACCEPT!r}, {name!r}) to drop its stored values.",
            )


def _check_meanings(stage: PlannedStage, stored: Mapping[str, str], accepted: str) -> None:
    """Raise ``ConfigError`` for columns whose meaning changed, and for results that would lose their stored values.

    ``stored`` has the recorded meaning of each column. Log warnings of columns that start or end.
    """
    _check_distinct(stage, stored)
    if stage.stage.kind == "join":
        _check_join_type(stage, stored)
    for name, meaning in stage.meanings.items():
        if stored.get(name, meaning) not in (meaning, _without_type(meaning)) and not _is_listed(name, accepted):
            raise _changed_meaning_error(stage, name, stored[name])
    new = sorted(stage.meanings.keys() - stored.keys() - set(stage.keys.names)) if stored else []
    if stage.stage.kind == "join":
        new = [name for name in new if name != _join_name(stage)]
    missing = [name for name in new if not _is_listed(name, accepted)]
    if missing and stage.stage.kind in ("join", "table"):
        # Cause: The query now reads more columns of the join than when the rows were stored.
        raise ConfigError(
            f"Stored rows of the join have no {', '.join(missing)}, which the query now reads.",
            remedy="Name a new store to start without state, or set "
            f"option({ACCEPT!r}, {','.join(missing)!r}) to read null there in stored rows.",
            where=stage.store,
            id="RIFFLE-0335",
        )
    _check_aliases(stage, stored, accepted)
    for name in new:
        # Cause: A result or variable was added to the query.
        _logger.warning(
            "[RIFFLE-0336] Column %s (%s) of store %s is new and starts empty.\n"
            "  What to do: Do nothing if it is meant to be new. Otherwise stop the query, roll back (riffle "
            "rollback), and undo the change.",
            name,
            stage.meanings[name],
            stage.store,
        )
    for name in sorted(stored.keys() - stage.meanings.keys()):
        # Cause: A result or variable was removed from the query.
        _logger.warning(
            "[RIFFLE-0337] Column %s (%s) of store %s is no longer used and is dropped.\n"
            "  What to do: Do nothing if the result was removed on purpose. Otherwise stop the query, roll back "
            "(riffle rollback), and restore the result.",
            name,
            stored[name],
            stage.store,
        )


def _without_type(meaning: str) -> str:
    """Return the meaning of a hashed column as older state has it: without the column's type."""
    return meaning.rpartition(", of ")[0]


def _check_distinct(stage: PlannedStage, stored: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for a new or changed result with DISTINCT. This change cannot be accepted.

    The values that a function counted are keys of the store, so they outlive the column of its result. A result that
    starts empty would never count them, and another function would count them again.
    """
    for name in stage.distinct if stored else ():
        meaning = stage.meanings[name]
        if stored.get(name) != meaning:
            function = meaning.rpartition(": ")[0]
            # Cause: A result with DISTINCT was renamed, added, or got another function, argument or filter.
            raise ConfigError(
                f"Result {name!r} ({function}) is new or has changed, but the store has the values that its results "
                "have counted. They would be left out, or counted twice.",
                remedy="Keep the function and its alias, and rename the result in a select after it. Or name a new "
                "store to start without state: option('riffle.stores', 'NAME').",
                where=stage.store,
                id="RIFFLE-1830",
            )


def _check_group_state(stage: PlannedStage, schema: StoreSchema, accepted: str) -> None:
    """Raise ``ConfigError`` if fields of a ``GroupState`` are new and others are gone: most likely they were renamed.

    Functions get their state as a tuple, so Spark continues a renamed field. Here it would start without values.
    """
    stored = schema.either(lambda plain: plain.state.names, lambda _: [])
    declared = stage.compute("append").declare(stage.keys, pa.schema([])).state.names
    new = [name for name in declared if name not in stored]
    gone = [name for name in stored if name not in declared]
    if new and gone and not all(_is_listed(name, accepted) for name in new):
        # Cause: Stored fields are found by their names.
        raise ConfigError(
            f"The state of the function has the new fields {', '.join(new)} instead of {', '.join(gone)}.",
            remedy="Keep the names of the fields. Or set "
            f"option({ACCEPT!r}, {','.join(new)!r}) to start the new fields as null and drop the others.",
            where=stage.store,
            id="RIFFLE-1800",
        )


def _changed_meaning_error(stage: PlannedStage, name: str, earlier: str) -> ConfigError:
    """Return the error for a column that has a stored meaning ``earlier`` and another one in the query."""
    key_remedy = (
        f"Group by {earlier}, or set option({ACCEPT!r}, {name!r}) to continue with the stored keys, or give the key "
        f"another alias and set option({ACCEPT!r}, {stage.store!r}) to start empty."
    )
    row_remedy = (
        "Write the join as before, or name a new store to start without stored rows: option('riffle.stores', 'NAME'). "
        f"Or set option({ACCEPT!r}, {name!r}) to continue with the rows as they were stored, if their types stay the "
        "same."
    )
    result_remedy = (
        f"Give the result another alias to start it empty, or set option({ACCEPT!r}, {name!r}) to continue with the "
        "stored values, if their type stays the same."
    )
    value_remedy = row_remedy if stage.stage.kind in ("join", "table") else result_remedy
    # Cause: The expression of a grouping column, the function or argument of a result, or a join was changed.
    return ConfigError(
        f"Column {name!r} holds {earlier} in the stored state, but the query now computes {stage.meanings[name]}.",
        remedy=key_remedy if name in stage.keys.names else value_remedy,
        where=stage.store,
        id="RIFFLE-0334",
    )


def _join_name(stage: PlannedStage) -> str:
    """Return the name in the meanings of a join that has its type (``JoinMapSide.stored_meanings``): the first one."""
    return next(iter(stage.meanings))


def _join_type(stage: PlannedStage) -> str:
    """Return the type of a join as Spark names it, such as ``LeftOuter``."""
    return stage.meanings[_join_name(stage)].partition(" ")[0]


def _check_join_type(stage: PlannedStage, stored: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` if the store has the rows of another type of join. This change cannot be accepted.

    Rows of an inner join do not record whether they have matched, so an outer join would emit them again with nulls.
    """
    present = _join_type(stage)
    earlier = stored.get(_join_name(stage), present).partition(" ")[0]
    if earlier != present:
        # Cause: The type of the join was changed in the query, for example from inner to left_outer.
        raise ConfigError(
            f"The store has the rows of a join of type {earlier}, but the query now has one of type {present}.",
            remedy="Write the join as before, or name a new store to start without stored rows: "
            "option('riffle.stores', 'NAME').",
            where=stage.store,
            id="RIFFLE-1780",
        )


def _check_aliases(stage: PlannedStage, stored: Mapping[str, str], accepted: str) -> None:
    """Raise ``ConfigError`` for a result that has stored values under another alias.

    It would start empty, although Spark would continue it. Renamed keys are refused by the first batch.
    """
    unused = {meaning: name for name, meaning in stored.items() if name not in stage.meanings}
    results = {name: meaning for name, meaning in stage.meanings.items() if name not in stage.keys.names}
    for name, meaning in results.items():
        if name not in stored and not _is_listed(name, accepted) and meaning in unused:
            # Cause: Stored columns are found by the alias of the result, so a renamed result would start empty.
            raise ConfigError(
                f"The result stored as {unused[meaning]!r} ({meaning}) is now called {name!r}.",
                remedy="Keep the alias with which the stored name begins, and rename the result in a select after it. "
                f"Or set option({ACCEPT!r}, {name!r}) to start it without stored values and drop the stored ones.",
                where=stage.store,
                id="RIFFLE-0338",
            )
