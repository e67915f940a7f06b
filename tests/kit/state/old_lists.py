"""Lists of parts as earlier versions wrote them: one file per key-group."""

from __future__ import annotations

import json
from pathlib import Path

import xxhash

from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.log.manifest import Address

__all__ = ["list_bytes", "write_list"]


def list_bytes(stack: Stack, address: Address) -> bytes:
    """Return the bytes of a list file: a checksum, a line feed, and one line of JSON that names the key-group."""
    rows = [[*part[:3], f"{part.checksum:016x}", *part[4:]] for part in stack.parts]
    body = json.dumps([*address, *stack.head, rows], separators=(",", ":")).encode()
    return b"%016x\n%s" % (xxhash.xxh3_64_intdigest(body, 2), body)


def write_list(folder: Path, store: str, key_group: int, stack: Stack, number: int = 0) -> Path:
    """Write the list of a key-group's stack below a member's folder, and return its path."""
    path = folder / "stacks" / store / f"{key_group:04d}.{number:010d}-0a1b2c3d.stack"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(list_bytes(stack, (store, key_group)))
    return path
