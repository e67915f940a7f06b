"""Damage roots of simulated queries on purpose: each kind of object, in each way."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import Link
from riffle_spark.state.log.record import encode
from tests.kit.roots.spark_checkpoint import commit_batch, written_checkpoint
from tests.kit.simulated.fixtures import full_record_every
from tests.kit.simulated.world import World, one_row, totals

FULL_EVERY = 16
"""The distance of full records in these logs."""
BATCHES = FULL_EVERY + 4
KEYS = ("a", "b", "c", "d", "e")


def grown(folder: Path, seed: int) -> Path:
    """Run a query in a folder and return the folder. Each batch ``v`` has one row, which adds ``v`` to a key."""
    world = world_of(folder, seed)
    checkpoint = written_checkpoint(folder / "checkpoint", query_id=world.query_id)
    with pytest.MonkeyPatch.context() as patch:
        full_record_every(FULL_EVERY, patch)
        for version in range(BATCHES):
            world.batch(version, one_row(version + 1000 * seed, KEYS[version % len(KEYS)]))
            commit_batch(checkpoint, version)
    return folder


def world_of(folder: Path, seed: int = 5, **settings: object) -> World:
    """Return a query of one store on the root in a folder. Its executors have no local copies."""
    arguments = {"operators": [totals()], "root": f"file://{folder}/state", "retained_versions": 100, **settings}
    return World(folder / "local", seed=seed, **arguments)  # type: ignore[arg-type]


def held_at(version: int, *later: int) -> dict[object, tuple[object, ...]]:
    """Return the expected state after a batch, and after further batches that add the values ``later`` to every key."""
    positions: dict[object, tuple[int, int]] = {}
    added = [(KEYS[v % len(KEYS)], v) for v in range(version + 1)] + [(key, value) for value in later for key in KEYS]
    for key, value in added:
        count, total = positions.get(key, (0, 0))
        positions[key] = (count + 1, total + value)
    return dict(positions)


def root_of(world: World) -> Path:
    """Return the folder with the objects of a world."""
    return Path(world.home.root.removeprefix("file://"))


def checkpoint_of(world: World) -> str:
    """Return the checkpoint next to the root of a world."""
    return str(root_of(world).parent / "checkpoint")


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def object_of(world: World, kind: str) -> str:
    """Return the name of an object of a kind that the newest record needs."""
    log = world.log()
    assert log.tail is not None
    sequence = log.tail.sequence
    chosen = {"record": sequence, "full record": log.tail.full, "record between": sequence - 2}
    if kind in chosen:
        return paths.record_name(chosen[kind])
    listed = sorted(log.manifest.object_names(), key=lambda name: (name.startswith("delta/"), name))
    return next(name for name in listed if name.startswith("delta/") == (kind == "delta"))


def flipped(data: bytes) -> bytes:
    """Return data with one flipped bit at the start of the last quarter."""
    offset = len(data) * 3 // 4
    return data[:offset] + bytes([data[offset] ^ 4]) + data[offset + 1 :]


def newer(data: bytes) -> bytes:
    """Return a record or part that claims a later format and is otherwise unchanged."""
    if b"riffle-log" in data[:40]:
        return re.sub(rb'"format":\d', b'"format":99', data, count=1)
    table = pa.ipc.open_stream(data).read_all()
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), b"riffle.format": b"9"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    changed = sink.getvalue().to_pybytes()
    assert len(changed) == len(data), "the changed part has another length"
    return changed


WAYS: Mapping[str, Callable[[bytes, bytes], bytes | None]] = {
    "flipped": lambda data, _: flipped(data),
    "truncated": lambda data, _: data[: len(data) // 2],
    "missing": lambda _data, _other: None,
    "empty": lambda _data, _other: b"",
    "from another root": lambda _, other: other,
    "from a newer format": lambda data, _: newer(data),
}


def damage(world: World, name: str, way: str, other: Path) -> Mapping[str, bytes | None]:
    """Damage an object in a way, and return the previous contents of all changed files."""
    if way == "from a newer format" and not name.startswith(paths.LOG):
        return listed_so(world, name, newer)
    kind = next(folder for folder in ("log", "delta", "totals", "tails") if name.startswith(folder))
    candidates = sorted(path for path in (other / "state" / kind).rglob("*") if path.is_file())
    same = other / "state" / name
    good = (root_of(world) / name).read_bytes()
    return put_back(world, {name: WAYS[way](good, (same if same.exists() else candidates[0]).read_bytes())})


def listed_so(world: World, name: str, change: Callable[[bytes], bytes]) -> Mapping[str, bytes | None]:
    """Change each part of an object, and write a newest record that lists the changed parts.

    Return the previous contents of all changed files.
    """
    log = world.log()
    assert log.tail is not None
    data = bytearray((root_of(world) / name).read_bytes())

    def changed(start: int, length: int) -> int:
        data[start : start + length] = new = change(bytes(data[start : start + length]))
        return part_codec.checksum(new)

    @cache
    def changed_block(size: int) -> int:
        body = change(bytes(data[: size - 16]))
        data[:size] = body + part_codec.checksum(body).to_bytes(8, "little") + bytes(data[size - 8 : size])
        return part_codec.checksum(body)

    def changed_link(link: Link) -> Link:
        if link.object != name:
            return link
        if link.block is not None:
            return link._replace(checksum=changed_block(link.block.size))
        return link._replace(checksum=changed(link.start, link.length))

    entries = dict(log.manifest.entries)
    for address, entry in log.manifest.entries.items():
        chain = tuple(map(changed_link, entry.chain))
        snapshot = entry.snapshot
        if snapshot is not None and paths.snapshot_name(*address, snapshot.id) == name:
            snapshot = snapshot._replace(checksum=changed(0, snapshot.length))
        entries[address] = replace(entry, chain=chain, snapshot=snapshot)
    outputs = tuple((store, changed_link(link)) for store, link in log.tail.outputs)
    record = replace(log.tail, entries=entries, outputs=outputs, full=log.tail.sequence, between=())
    return put_back(world, {name: bytes(data), paths.record_name(record.sequence): encode(record)})


def newest_without(world: World, name: str) -> int:
    """Return the newest batch whose record is not this object and neither needs nor lists it."""
    log = world.log()
    assert log.tail is not None
    for sequence in range(log.tail.sequence, -1, -1):
        record = log.read(sequence)
        if (
            name
            not in {paths.record_name(sequence), *map(paths.record_name, record.bases)}
            | log.manifest_of(record).object_names()
        ):
            return record.version
    raise AssertionError(f"all records need {name}")


def put_back(world: World, files: Mapping[str, bytes | None]) -> Mapping[str, bytes | None]:
    """Replace objects by these contents, as from a backup, and return the previous contents."""
    previous = {}
    for name, data in files.items():
        path = root_of(world) / name
        previous[name] = path.read_bytes() if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True) if data is None else path.write_bytes(data)
    return previous
