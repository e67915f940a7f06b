"""Search for keys in all bytes of a root and its local copies: as stored, decrypted and decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from riffle_spark.state.formats.blocks import read_index
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry
from riffle_spark.state.log.record import Record
from riffle_spark.state.log.savepoints import read_savepoint
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.place import Place
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.member_folders import keys_in

__all__ = ["find_files", "find_objects", "has_any", "made_ids"]

_BLOCK = b"RFBLOCK2"
_STREAM = b"\xff\xff\xff\xff"
_Range = tuple[int, int]


def made_ids(count: int, seed: int = 7) -> list[bytes]:
    """Return random ids of 32 bytes, which are the same in every run."""
    chance = np.random.default_rng(seed)
    return [chance.bytes(32) for _ in range(count)]


def has_any(texts: Iterable[bytes], ids: Sequence[bytes]) -> bool:
    """Return whether one of the texts contains one of the ids at any offset. Ids have at least eight bytes."""
    starts = np.unique(np.array([int.from_bytes(id[:8], "little") for id in ids], np.uint64))
    for text in texts:
        for offset in range(8):
            words = np.frombuffer(text, "<u8", count=max(0, len(text) - offset) // 8, offset=min(offset, len(text)))
            if np.isin(words, starts).any():
                return True
    return False


def find_objects(
    root: str, ids: Sequence[bytes], options: StoreOptions | None = None, encryption_keys: str | None = None
) -> set[str]:
    """Return the names of the objects below a root that contain one of the ids.

    Each object is searched as it is stored. Each part that a record or a savepoint lists is also decrypted and decoded.
    Unlisted parts cannot be decrypted.
    """
    objects = open_store(root, options or StoreOptions())
    keys = keys_in(encryption_keys, None)
    parts = _listed_parts(objects, root)
    names = set()
    for name in objects.list(""):
        data = objects.get(name)
        assert data is not None
        texts = [data]
        if name.startswith(paths.LOG):
            texts.append(_body(data))
        for (start, end), place in parts.get(name, {}).items():
            part = data[start:end]
            if part.endswith(_BLOCK):
                part = bytes(read_index(pa.py_buffer(part))[0])
            texts += _decoded(part if keys is None else bytes(keys.decrypt(part, place, name)))
        if keys is None:
            texts += _decoded(data)
        if has_any(texts, ids):
            names.add(name)
    return names


def find_files(folder: Path, ids: Sequence[bytes]) -> set[Path]:
    """Return the files below a folder that contain one of the ids, as stored or unpacked. Files are not decrypted."""
    paths = set()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and has_any(_decoded(path.read_bytes()), ids):
            paths.add(path)
    return paths


def _listed_parts(objects: ObjectStore, root: str) -> dict[str, dict[_Range, Place]]:
    """Return the parts that records and savepoints list: the place of each part by its byte range, by object name."""
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    records = [log.read(sequence) for sequence in range(log.first, tail.sequence + 1)]
    lists: list[tuple[Record, Mapping[Address, Entry]]] = [
        (record, log.manifest_of(record).entries) for record in records if record.full >= log.first
    ]
    savepoints = [read_savepoint(objects, savepoint) for savepoint in tail.savepoints]
    lists += [(record, record.entries) for record in savepoints]
    parts: dict[str, dict[_Range, Place]] = {}
    for record, entries in lists:
        for (store, key_group), entry in entries.items():
            for link in entry.chain:
                place = link.place(store, key_group)
                parts.setdefault(link.object, {})[link.byte_range] = place
            snapshot = entry.snapshot
            if snapshot is not None:
                name = paths.snapshot_name(store, key_group, snapshot.id)
                parts[name] = {(0, snapshot.length): paths.snapshot_place(store, key_group, snapshot.id)}
        for store, link in record.outputs:
            place = paths.output_place(store, *link.head)
            parts.setdefault(link.object, {})[link.byte_range] = place
    return parts


def _decoded(data: bytes) -> Iterator[bytes]:
    """Yield the bytes unchanged, and then the uncompressed batches of each Arrow stream in them."""
    yield data
    start = data.find(_STREAM)
    while start >= 0:
        with suppress(pa.ArrowException, OSError, ValueError):
            reader = pa.ipc.open_stream(data[start:])
            with suppress(pa.ArrowException):
                for batch in reader:
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, batch.schema) as writer:
                        writer.write_batch(batch)
                    yield bytes(sink.getvalue())
        start = data.find(_STREAM, start + 4)


def _body(record: bytes) -> bytes:
    """Return the body of a record as JSON text."""
    with pa.input_stream(pa.BufferReader(record.partition(b"\n")[2]), compression="zstd") as stream:
        return bytes(stream.read())
