"""Measure the commands that read a root: a root of 4 stores of 4,096 key-groups and 100 members, and `--help`.

./run bench commands [--repeats 20] [--save] [--json]

Each command runs in its own process, and the commands take turns. The output is the median of all repeats. The root has
one full record, then 20 records that change 2,000 key-groups each, and the status that a driver of such a query writes.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from riffle_spark.observe.status import encode
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Entry, Head, Link, Manifest, Snapshot
from riffle_spark.state.log.paths import STATUS
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.plain_columns import PlainColumns
from tests.kit.large_status import invented_status

__all__ = ["main", "make_root"]

STORES = 4
KEY_GROUPS = 4_096
MEMBERS = 100
BATCHES = 20
LINKS = 4
CHANGED = 2_000
"""The number of key-groups that a batch changes, over all stores."""
REPEATS = 20
_RUN = "from riffle_spark.console.main import main; main(prog_name='riffle')"


def make_root(folder: Path) -> str:
    """Make the root below a folder, and return its URL."""
    root = f"file://{folder}/state"
    objects = open_store(root)
    log = Log(objects, root)
    log.open()
    stores = [f"store-{number}" for number in range(STORES)]
    key = pa.schema([("k", pa.string())])
    schema = PlainColumns("", key, pa.schema([("total", pa.int64())])).to_text()
    members = tuple(
        RecordedMember(f"{number:012x}", str(number), f"host-{number}.example.internal", 4, f"rack-{number % 3}")
        for number in range(MEMBERS)
    )
    draft = Record(
        sequence=0,
        kind="batch",
        previous="",
        commit_id="c",
        log_id="l",
        epoch=1,
        query_id="q",
        version=0,
        rollbacks=0,
        written_ms=time.time_ns() // 1_000_000,
        total=KEY_GROUPS,
        dispatch="key_group",
        full=0,
        schemas=dict.fromkeys(stores, schema),
        owners={str(number): members[number % MEMBERS].id for number in range(KEY_GROUPS)},
        standbys={str(number): (members[(number + 1) % MEMBERS].id,) for number in range(KEY_GROUPS)},
        members=members,
    )
    attempt = f"1-{1:032x}"
    chance = random.Random(1)  # noqa: S311 - the same root each time

    def link(version: int) -> Link:
        return Link(Head(version, attempt), chance.getrandbits(24), chance.getrandbits(14), chance.getrandbits(63), 100)

    def entry(number: int) -> Entry:
        snapshot_id = f"{0:020d}-1-{number:032x}"
        size = chance.getrandbits(20)
        snapshot = Snapshot(snapshot_id, Head(0, attempt), size, chance.getrandbits(63), size // 100)
        return Entry(snapshot, tuple(link(version + 1) for version in range(LINKS)))

    entries = {(store, number): entry(number) for store in stores for number in range(KEY_GROUPS)}
    log.append(draft, Manifest(entries))
    for version in range(LINKS + 1, LINKS + 1 + BATCHES):
        changed = chance.sample(sorted(entries), CHANGED)
        entries = {**entries, **{address: entries[address].add_link(link(version)) for address in changed}}
        record = Record(**{**{name: getattr(draft, name) for name in draft.__slots__}, "version": version})
        log.append(record, Manifest(entries))
    status = invented_status(members=MEMBERS, groups=STORES, key_groups=KEY_GROUPS, now_ms=time.time_ns() // 1_000_000)
    objects.put_if_absent(STATUS, encode(status))
    return root


def measure(arguments: Sequence[str]) -> float:
    """Return the seconds of one run of `riffle`. Raises ``CalledProcessError`` if it fails."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", _RUN, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def main(arguments: Sequence[str]) -> None:
    """Measure and print; with ``--json`` as one line of JSON."""
    parser = argparse.ArgumentParser(prog="./run bench commands")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = make_root(Path(folder))
        commands = {
            "help": ["--help"],
            "status_help": ["status", "--help"],
            "status": ["status", root],
            "status_json": ["status", root, "--json"],
            "log": ["log", root],
            "stores": ["stores", root],
            "where": ["where", root, "a key"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.repeats):
            for name, command in commands.items():
                times[name].append(measure(command))
    figures = {f"{name}.seconds": statistics.median(seconds) for name, seconds in times.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, seconds in figures.items():
        print(f"{name:<24}{seconds:>8.2f} s   (median of {options.repeats})")


if __name__ == "__main__":
    main(sys.argv[1:])
