"""Change state as an operator has requested. Runs in the driver's process."""

from collections.abc import Mapping

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.messages.state_change import StateChange
from riffle_spark.state.formats.json_keys import parse_key
from riffle_spark.state.log.manifest import Head, Manifest
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.state.restore.edits import EditOfState, StoredState, check_edit, edit_state, touched_key_groups
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import keys_of


def edit_by_request(
    objects: ObjectStore, home: Home, tail: Record, manifest: Manifest, attempt: str, arguments: Mapping[str, object]
) -> StateChange:
    """Put the delta of a requested change of one key, and return the change: an ``EditState``.

    ``arguments`` are ``store``, ``key`` (text), ``variable`` (text, may be empty), and ``value`` (in a list of one,
    empty to delete). Reads the key's key-group from the object store.
    """
    store, text, variable, value = (arguments[name] for name in ("store", "key", "variable", "value"))
    if not (isinstance(store, str) and isinstance(text, str) and isinstance(variable, str) and isinstance(value, list)):
        raise TypeError("arguments of a change of state")
    check_known("store", [store], tail.schemas, source="--store")
    try:
        stored = schema_of_text(store, tail.schemas[store])
        keys = parse_key(text, stored.key, store, stored.routing)
        edit = EditOfState(store, keys, variable, tuple(value[:1]), tail.edited_ms)
        schema, kind = check_edit(edit, tail.schemas[store])
    except ConfigError:
        # Cause: The command checks key and value before it makes the request, so the query has changed since.
        raise ConfigError(
            f"The key, the variable or the value does not fit store {store!r}.",
            remedy="Run the command again. It shows what does not fit.",
            where=store,
            id="RIFFLE-1606",
        ) from None  # the error's text may contain the key
    key_groups = touched_key_groups(schema, keys, tail.total, tail.dispatch, manifest)
    edited = edit_state(
        StoredState(objects, keys_of(home), manifest),
        Head(tail.version, attempt),
        schema,
        kind,
        edit,
        key_groups,
        only_present=tail.dispatch != "key_group",
    )
    if not edited.keys:
        raise ConfigError(
            f"The key has no state in store {store!r}, so nothing was changed.",
            remedy="Check the key with riffle state show.",
            where=store,
            id="RIFFLE-1607",
        )
    counts = dict(tail.row_counts)
    if store in counts:
        counts[store] += edited.rows_added
    named = {"variable": variable} if variable else {}
    return StateChange(
        edited.entries, counts, {"action": "set" if value else "delete", "store": store, "keys": edited.keys, **named}
    )
