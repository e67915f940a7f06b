"""Whole logs as lines of JSON. Each line has the number and the body of a record.

Checksums, lengths and the digests that link the records are always right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pyarrow as pa
import xxhash

from riffle_spark.errors import CorruptStateError, RiffleError
from riffle_spark.offline.verify import verify
from riffle_spark.protocol.upkeep.claim_work import run_to_end
from riffle_spark.protocol.upkeep.retention import Retention
from riffle_spark.protocol.upkeep.scan import scan
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import FORMAT, Record, digest, encode
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.store import ObjectStore

__all__ = ["framed_record", "read_log", "small_logs"]

_LINES_MOST = 64


def framed_record(body: bytes) -> bytes:
    """Return the bytes of a record with any body and the right checksum and length."""
    packed = cast(bytes, pa.compress(body, codec="zstd", asbytes=True))
    is_newest = any(mark in body for mark in (b'"between":', b'"owners":[', b'"owners": ['))
    number = FORMAT if is_newest else 2
    line = {
        "magic": "riffle-log",
        "format": number,
        "xxh3": f"{xxhash.xxh3_64_intdigest(packed):016x}",
        "length": len(body),
    }
    return json.dumps(line).encode() + b"\n" + packed


def small_logs(records: Sequence[Record]) -> list[bytes]:
    """Return two logs: one of all these records, and one of the first record alone."""
    bodies = (
        pa.input_stream(pa.BufferReader(encode(record).split(b"\n", 1)[1]), compression="zstd") for record in records
    )
    lines = [b"[%d,%s]" % (record.sequence, body.read()) for record, body in zip(records, bodies, strict=True)]
    return [b"\n".join(lines), lines[0]]


def read_log(data: bytes, folder: Path) -> None:
    """Read a log as ``riffle verify``, as a driver and as a rollback read it.

    The root is a temporary folder, which is deleted.
    """
    with TemporaryDirectory(dir=folder) as root:
        _read(DirectoryStore(Path(root)), data, f"file://{root}")


def _read(store: ObjectStore, data: bytes, root: str) -> None:
    previous = b""
    for line in data.split(b"\n")[:_LINES_MOST]:
        previous = _put(store, line, previous)
    with suppress(RiffleError):
        verify(root)
    with suppress(RiffleError):
        Log(store, root).open(broken=True)
    log = Log(store, root)
    tail = log.open()
    if tail is None:
        raise CorruptStateError("an empty log")
    retention = Retention(20, 0)
    retention.start(log.first, tail, log.manifest, 0)
    retention.oldest_after(tail.sequence + 1, 0)
    retention.take_deletable(tail.promised)
    set().union(*log.listed_objects(log.records_after(max(log.first, tail.sequence - 20)), log.first))
    run_to_end(scan(store, tail, 20, 0, first=log.first))


def _put(store: ObjectStore, line: bytes, previous: bytes) -> bytes:
    """Put the record of a line into the store and return its bytes."""
    try:
        number, body = json.loads(line)
        if isinstance(body, dict) and isinstance(body.get("previous"), str):
            body["previous"] = digest(previous) if previous else ""
        data = framed_record(json.dumps(body).encode())
        name = paths.record_name(number) if isinstance(number, int) else str(number)
    except (ValueError, TypeError, RecursionError):
        return previous
    with suppress(RiffleError):
        store.put_if_absent(name, data)
    return data
