"""Request a change of state from a running query (`riffle state delete --request`, `riffle state set --request`)."""

from riffle_spark.offline.state_edits import Editor, parse_value
from riffle_spark.offline.steering import Mailroom
from riffle_spark.protocol.batch.mailbox import CHANGES_OF_STATE, MailboxRequest
from riffle_spark.state.formats.json_keys import parse_key
from riffle_spark.state.restore.edits import EditOfState, check_edit
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.unknown_names import check_known

_EXPIRES_SECONDS = 900.0


def request_edit(
    mailroom: Mailroom, store: str, key: str, value: str | None, editor: Editor, variable: str, *, execute: bool
) -> MailboxRequest | None:
    """Check a change of one key, and with ``execute`` request it. Return the request, ``None`` without ``execute``.

    ``key`` and ``value`` are JSON; the value is ``None`` to delete the key. The driver applies the request between two
    batches and answers whether it is done. The mailbox holds key and value until then. Raises ``ConfigError`` if they
    do not fit, or if the driver does not read requests.
    """
    tail = mailroom.tail
    check_known("store", [store], tail.schemas, source="--store", where=mailroom.root)
    schema = schema_of_text(store, tail.schemas[store])
    keys = parse_key(key, schema.key, store, schema.routing)
    values = () if value is None else (parse_value(value),)
    check_edit(EditOfState(store, keys, variable, values), tail.schemas[store])
    if not execute:
        return None
    arguments = {
        "store": store,
        "key": key,
        "variable": variable,
        "value": [] if value is None else [parse_value(value, exact=False)],
        "reason": editor.reason,
    }
    return mailroom.post(CHANGES_OF_STATE, arguments, _EXPIRES_SECONDS)
