"""Return the rows that the newest record of a root lists, as text that shows every bit."""

from __future__ import annotations

from pathlib import Path

from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.restore.follow import restore_tables
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.schemas.store_schema import schema_of_text
from riffle_spark.state.schemas.variable_kinds import INDEX

__all__ = ["state_of"]


def state_of(root: str, folder: Path, options: StoreOptions | None = None) -> dict[str, list[str]]:
    """Return the rows of each store below a root as sorted texts, without the numbers of list elements.

    ``folder`` gets the restored copies.
    """
    root = only_root(root, options or StoreOptions())
    objects = open_store(root, options or StoreOptions())
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    state = dict[str, list[str]]()
    for store, text in tail.schemas.items():
        schema = schema_of_text(store, text)
        entries = {group: entry for (name, group), entry in log.manifest.entries.items() if name == store}
        rows = list[str]()
        for table in restore_tables(schema, entries, Reader(objects, None), folder / store).values():
            names = [name for name in schema.part_schema().names if name != INDEX]
            rows += map(repr, table.select(names).to_pylist())
        state[store] = sorted(rows)
    return state
