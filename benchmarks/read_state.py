"""Measure how fast state is read, against the same rows as Parquet; and one key over requests of 10 ms.

./run bench read_state [--keys 10000000] [--repeats 5] [--no-spark] [--save] [--json]

The state is an aggregate of four columns in 128 key-groups: a snapshot per key-group, and one delta that changes 1 % of
the keys. The Parquet files hold the current rows, one file per key-group. Each reading runs in a process of its own, in
turn, and the best of the repeats counts. ``arrow_ratio`` and ``spark_ratio`` are rows per second as a share of
Parquet's.

One key is read from an S3 server on this machine that waits 10 ms in each request: by a process that has the library
imported (the median of 20 keys), and by the command. The server counts the requests. It is read with chains of one
delta, and of as many deltas and merged deltas as the merges of a running query leave: 10 is the median if batches
change 1 % of the keys, 21 if they change 0.01 % or less, and 35 is its 95th percentile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from riffle_spark.keygroups import key_groups
from riffle_spark.state.formats import part_codec
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Entry, Head, Link, Manifest, Snapshot
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state_tables.read_state import read_table
from riffle_spark.state_tables.requested_keys import requested_keys
from riffle_spark.state_tables.state_view import open_root

__all__ = ["main", "make_root"]

KEYS = 10_000_000
KEY_GROUPS = 128
REPEATS = 5
LOOK_UPS = 20
WAIT_SECONDS = 0.010
CHAINS = (1, 10, 21, 35)
"""Deltas after the snapshot when one key is read: see above."""
_KEY = pa.schema([("user", pa.string())])
_STATE = pa.schema([("visits", pa.int64()), ("total", pa.float64()), ("last", pa.timestamp("us", tz="UTC"))])
_SCHEMA = PlainColumns("visits", _KEY, _STATE)
_READERS = {
    "arrow": "import sys; from riffle_spark import read_state\nfor b in read_state(sys.argv[1]): n = len(b)",
    "parquet": "import sys; import pyarrow.dataset as ds\nfor b in ds.dataset(sys.argv[2]).to_batches(): n = len(b)",
}
_SPARK = """
import sys
from riffle_spark import state_frame
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
import time
seconds = {"spark": [], "spark_parquet": []}
for _ in range(int(sys.argv[3]) + 1):
    for name in seconds:
        started = time.perf_counter()
        frame = state_frame(spark, sys.argv[1]) if name == "spark" else spark.read.parquet(sys.argv[2])
        frame.write.format("noop").mode("overwrite").save()
        seconds[name].append(time.perf_counter() - started)
print(*(min(measured[1:]) for measured in seconds.values()))
"""


def make_root(folder: Path, keys: int) -> str:
    """Make the root and the Parquet files below a folder. Return the URL of the root."""
    root = f"file://{folder}/state"
    objects = open_store(root)
    log = Log(objects, root)
    log.open()
    users = pa.array(np.char.add("user-", np.arange(keys).astype("U9")), pa.string())
    groups = key_groups([users], KEY_GROUPS)
    order = np.argsort(groups, kind="stable")
    edges = np.searchsorted(groups[order], np.arange(KEY_GROUPS + 1))
    numbers = np.arange(keys)
    rows = pa.table(
        [users, numbers % 1000, numbers * 0.25, pa.array(numbers, pa.int64()).cast(pa.timestamp("us", tz="UTC"))],
        schema=pa.schema([*_KEY, *_STATE]),
    )
    entries: dict[tuple[str, int], Entry] = {}
    deltas: list[list[bytes]] = [[]]
    links: dict[int, list[Link]] = {}
    starts = [0]
    (folder / "parquet").mkdir()
    for number in range(KEY_GROUPS):
        rows_of_batch = rows.take(pa.array(order[edges[number] : edges[number + 1]]))
        sealed = _SCHEMA.sealed(rows_of_batch)
        data = part_codec.encode(sealed)
        attempt = f"1-{number:032x}"
        head = Head(0, attempt)
        snapshot = Snapshot(
            paths.snapshot_id(0, attempt), head, len(data), part_codec.checksum(data), len(rows_of_batch)
        )
        objects.put_if_absent(paths.snapshot_name("visits", number, snapshot.id), data)
        for version in (1,):
            changed = sealed.take(pa.array(np.arange(version, len(rows_of_batch), 100)))
            part = part_codec.encode(changed.append_column(part_codec.DELETED, pa.array([False] * len(changed))))
            place = starts[version - 1]
            link = Link(Head(version, f"1-{version:032x}"), place, len(part), part_codec.checksum(part), len(changed))
            links.setdefault(number, []).append(link)
            deltas[version - 1].append(part)
            starts[version - 1] += len(part)
        entries["visits", number] = Entry(snapshot, tuple(links[number]))
        pq.write_table(rows_of_batch, folder / "parquet" / f"{number:03d}.parquet")
    for version, parts in enumerate(deltas, 1):
        objects.put_if_absent(paths.delta_name(version, f"1-{version:032x}"), b"".join(parts))
    _write_records(log, entries)
    return root


def add_deltas(root: str, first: int, last: int, keys: int) -> None:
    """Append records with the deltas ``first`` to ``last``, each of which changes a few keys of each key-group."""
    objects = open_store(root)
    log = Log(objects, root)
    tail = log.open()
    assert tail is not None
    groups = KEY_GROUPS
    for version in range(first, last + 1):
        users = pa.array([f"user-{number % keys}" for number in range(version, version + 40 * groups)], pa.string())
        numbers = key_groups([users], groups)
        entries = dict(log.manifest.entries)
        parts: list[bytes] = []
        place = 0
        for number in np.unique(numbers).tolist():
            names = users.filter(pa.array(numbers == number)).unique()
            ones = pa.array([version] * len(names), pa.int64())
            times = ones.cast(pa.timestamp("us", tz="UTC"))
            changed_rows = pa.table([names, ones, ones.cast(pa.float64()), times], schema=pa.schema([*_KEY, *_STATE]))
            deleted = pa.array([False] * len(changed_rows))
            part = part_codec.encode(_SCHEMA.sealed(changed_rows).append_column(part_codec.DELETED, deleted))
            head = Head(version, f"1-{version:032x}")
            link = Link(head, place, len(part), part_codec.checksum(part), len(changed_rows))
            entry = entries["visits", number]
            entries["visits", number] = Entry(entry.snapshot, (*entry.chain, link))
            parts.append(part)
            place += len(part)
        objects.put_if_absent(paths.delta_name(version, f"1-{version:032x}"), b"".join(parts))
        log.append(replace(tail, version=version + 1), Manifest(entries))


def _write_records(log: Log, entries: dict[tuple[str, int], Entry]) -> None:
    """Write a full record of the state, and a record after it, as a running query has them."""
    draft = Record(
        sequence=0, kind="batch", previous="", commit_id="c", log_id="l", epoch=1, query_id="q", version=2,
        rollbacks=0, written_ms=time.time_ns() // 1_000_000, total=KEY_GROUPS, dispatch="key_group", full=0,
        schemas={"visits": _SCHEMA.to_text()},
    )  # fmt: skip
    log.append(draft, Manifest(entries))
    log.append(draft, Manifest(entries))


class _Objects(BaseHTTPRequestHandler):
    """Answers GETs of objects, with ranges, and LISTs, as S3 does. Waits in each request."""

    folder: Path
    requests = 0
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each body waits 40 ms for the acknowledgement of its headers

    def do_GET(self) -> None:
        """Answer a GET or a LIST."""
        type(self).requests += 1
        time.sleep(WAIT_SECONDS)
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "list-type" in query:
            self._answer(200, self._list(query.get("prefix", [""])[0]), "application/xml")
            return
        path = self.folder / unquote(url.path).split("/", 2)[2]
        if not path.is_file():
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", "application/xml")
            return
        span = self.headers.get("Range", "")
        data = path.read_bytes()
        if span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1 if last else None]
        self._answer(206 if span else 200, data, "binary/octet-stream")

    def _list(self, prefix: str) -> bytes:
        """Return the answer to a LIST of all objects that start with a prefix."""
        names = sorted(
            str(path.relative_to(self.folder)) for path in (self.folder / prefix).parent.rglob("*") if path.is_file()
        )
        keys = "".join(f"<Contents><Key>{escape(name)}</Key></Contents>" for name in names if name.startswith(prefix))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def serve(folder: Path) -> None:
    """Serve the files below a folder as the only bucket of an S3 server, until standard input ends. Print the port.

    Then print the number of requests so far for each line of input.
    """
    handler: type[_Objects] = type("Handler", (_Objects,), {"folder": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    for _ in sys.stdin:
        print(handler.requests, flush=True)


class Server:
    """A process that serves, so that it takes no time of the reader's process."""

    def __init__(self, folder: Path) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "benchmarks.read_state", "--serve", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = f"http://127.0.0.1:{self._read()}"

    def _read(self) -> int:
        """Return the number in the next line of output."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def count_requests(self) -> int:
        """Return the number of requests so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """Stop the process."""
        self._process.communicate()


def measure_scans(root: str, folder: Path, repeats: int) -> dict[str, float]:
    """Return the best seconds of a process that reads everything, less those of one that only imports."""
    seconds: dict[str, list[float]] = {name: [] for name in _READERS}
    for _ in range(repeats):
        for name, program in _READERS.items():
            timed = f"{program.splitlines()[0]}\nimport time; t = time.perf_counter()\n{program.splitlines()[1]}\n"
            command = [sys.executable, "-c", f"{timed}print(time.perf_counter() - t)", root, str(folder / "parquet")]
            seconds[name].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {name: min(measured) for name, measured in seconds.items()}


def measure_spark(root: str, folder: Path, repeats: int) -> dict[str, float]:
    """Return the best seconds in which a local Spark reads everything and keeps nothing."""
    command = [sys.executable, "-c", _SPARK, root, str(folder / "parquet"), str(repeats)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(("spark", "spark_parquet"), map(float, output[-2:]), strict=True))


def measure_key(folder: Path, keys: int, chain: int) -> dict[str, float]:
    """Return the milliseconds and requests of a key, with the library imported, and the seconds of the command.

    ``chain`` is the number of deltas after the snapshot.
    """
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    server = Server(folder)
    try:
        endpoint = server.endpoint
        options = StoreOptions(s3=S3Options(endpoint=endpoint, region="us-east-1"))
        milliseconds: list[float] = []
        requests: list[int] = []
        for number in range(LOOK_UPS + 1):
            before = server.count_requests()
            started = time.perf_counter()
            table = open_root("s3://bucket/state", options).view().table(None)
            user = f"user-{number * 7919 % keys}"
            rows = read_table(table, requested_keys([user], table.store_schema)).read_all()
            milliseconds.append(1000 * (time.perf_counter() - started))
            assert rows["user"].to_pylist() == [user], rows
            requests.append(server.count_requests() - before)
        command = ["state", "show", "s3://bucket/state", "user-7", "--s3-endpoint", endpoint, "--json"]
        program = "from riffle_spark.console.process import run; run()"
        command_seconds: list[float] = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", program, *command], check=True, capture_output=True)
            command_seconds.append(time.perf_counter() - started)
    finally:
        server.stop()
    return {
        f"key_milliseconds_{chain}": statistics.median(milliseconds[1:]),
        f"key_requests_{chain}": float(max(requests)),
        f"command_seconds_{chain}": statistics.median(command_seconds),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(prog="./run bench read_state")
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.serve is not None:
        serve(parsed.serve)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = make_root(folder, parsed.keys)
        figures = measure_scans(root, folder, parsed.repeats)
        figures["arrow_ratio"] = figures["parquet"] / figures["arrow"]
        if not parsed.no_spark:
            figures |= measure_spark(root, folder, parsed.repeats)
            figures["spark_ratio"] = figures["spark_parquet"] / figures["spark"]
        previous = 1
        for chain in CHAINS:
            add_deltas(root, previous + 1, chain, parsed.keys)
            figures |= measure_key(folder, parsed.keys, chain)
            previous = chain
    if parsed.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:<20} {figure:>10.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
