"""A query on Latin-1 text. It counts rows by text keys, and keeps such texts and a column without a type.

It runs without Spark, on a root in a folder. ``tests/data/roots/0.1-latin-text`` has its first batch.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from riffle_spark import Stateful, arrow_function
from riffle_spark.protocol.operator import operator_of
from tests.kit.roots.folder_query import FolderQuery

__all__ = ["KEYS", "LatinQuery"]

KEYS = (b"caf\xe9", b"\xff", b"plain", b"th\xe9", None)
_ROWS = pa.schema([("k", pa.string()), ("v", pa.string())])
_STATE = pa.schema([("rows", pa.int64()), ("texts", pa.list_(pa.string())), ("nothing", pa.null())])
_OUTPUT = pa.schema([_ROWS.field("k"), *_STATE])


def _text(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def _grown(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Count the rows of each key and append their texts to the stored texts."""
    texts_by_key = {
        key: (count, texts)
        for key, count, texts in zip(
            state.column("k").cast(pa.binary()).to_pylist(), state.column("rows").to_pylist(),
            state.column("texts").cast(pa.list_(pa.binary())).to_pylist(), strict=True,
        )
    }  # fmt: skip
    for key, text in zip(*(column.cast(pa.binary()).to_pylist() for column in rows.columns), strict=True):
        count, texts = texts_by_key.get(key, (0, []))
        texts_by_key[key] = count + 1, [*texts, text]
    offsets = [0]
    for _, texts in texts_by_key.values():
        offsets.append(offsets[-1] + len(texts))
    values = _text([text for _, texts in texts_by_key.values() for text in texts])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    counts = pa.array([count for count, _ in texts_by_key.values()], pa.int64())
    table = pa.table([_text([*texts_by_key]), counts, lists, pa.nulls(len(texts_by_key))], schema=_OUTPUT)
    return table, table


class LatinQuery(FolderQuery):
    """The query on the root ``folder/state``, with local copies in ``folder/local``."""

    def __init__(self, folder: Path) -> None:
        compute = arrow_function(_grown, state=_STATE, output=_OUTPUT)
        declared = Stateful("latin", "k", compute)
        super().__init__(folder, operator_of(declared.store, declared.key, declared.compute, (), _ROWS), "latin")

    def feed_keys(self) -> dict[bytes | None, tuple[int, list[bytes]]]:
        """Run a batch with one row for each of ``KEYS``. Return the count and the texts of each key."""
        texts: list[bytes | None] = [b"\xe9%d" % self.version] * len(KEYS)
        output = self.feed(pa.table([_text([*KEYS]), _text(texts)], schema=_ROWS))
        keys, counts = output.column("k").cast(pa.binary()).to_pylist(), output.column("rows").to_pylist()
        stored_texts = output.column("texts").cast(pa.list_(pa.binary())).to_pylist()
        return {key: (count, texts) for key, count, texts in zip(keys, counts, stored_texts, strict=True)}
