"""Records, entries and links that Hypothesis draws, and plain ones for tests that need any record."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import (
    Address,
    Block,
    Entry,
    Head,
    Link,
    Manifest,
    MergedDelta,
    Snapshot,
    link_in_block,
)
from riffle_spark.state.log.record import Record, RecordedMember
from riffle_spark.state.log.recorded_moves import RecordedMoves
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint
from riffle_spark.state.objects.store import ObjectStore

NUMBERS = st.integers(0, 2**40)
TASKS = st.sampled_from(["0", "7", "32767", "models/0", "models/7"])
CHECKSUMS = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=12)
IDS = st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Z"]), max_size=12)
ATTEMPTS = st.builds("{}-{:032x}".format, st.integers(0, 999), st.integers(0, 2**128 - 1))
HEADS = st.builds(Head, st.integers(0, 50), ATTEMPTS)
LINKS = st.builds(Link, HEADS, NUMBERS, NUMBERS, CHECKSUMS, NUMBERS, st.none(), st.none())
MERGED_LINKS = st.builds(
    lambda link, attempt, level, size: link._replace(
        merged=MergedDelta(f"{link.head.version:020d}-{attempt}", level, size)
    ),
    LINKS, ATTEMPTS, st.integers(1, 9), NUMBERS,
)  # fmt: skip
SNAPSHOTS = st.builds(
    lambda head, attempt, *numbers: Snapshot(f"{head.version:020d}-{attempt}", head, *numbers),
    HEADS, ATTEMPTS, NUMBERS, CHECKSUMS, NUMBERS,
)  # fmt: skip
ENTRIES = st.builds(
    Entry,
    st.none() | SNAPSHOTS,
    st.lists(LINKS | MERGED_LINKS, max_size=4).map(tuple),
    st.none() | st.integers(-(2**62), 2**62),
)
ADDRESSES = st.tuples(st.sampled_from(["totals", "tails"]), st.integers(0, 32_767))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6,
)  # fmt: skip
RESERVED = st.dictionaries(NAMES, JSON, max_size=3)
"""Content of reserved fields, which this version only copies from record to record."""
MEMBERS = st.builds(
    RecordedMember, NAMES, NAMES, NAMES, NUMBERS, st.none() | NAMES, st.dictionaries(NAMES, NAMES, max_size=2), RESERVED
)
KINDS = ["batch", "claim", "rollback", "adopt", "dispatch", "orders", "savepoint"]
SAVEPOINTS = st.builds(
    RecordedSavepoint, st.sampled_from(["before-release", "a"]), SNAPSHOTS.map(lambda snapshot: snapshot.id),
    NUMBERS, st.integers(-1, 2**40), NUMBERS, NUMBERS, IDS,
)  # fmt: skip


def _in_blocks(entries: dict[Address, Entry]) -> dict[Address, Entry]:
    """Return the entries with the links of some objects in blocks."""
    return {
        (store, key_group): replace(entry, chain=tuple(_in_block(link, key_group) for link in entry.chain))
        for (store, key_group), entry in entries.items()
    }


def _in_block(link: Link, key_group: int) -> Link:
    """Return a link as one in a block, or unchanged if the object's name says that the object is stored in parts."""
    number = int(link.source.attempt.partition("-")[2], 16) % 2**40
    if number % 2:
        return link
    block = Block(number if link.merged is None else link.merged.size, number // 2)
    return link_in_block(link.head, key_group, number, link.rows, block, link.merged)


def _in_order(record: Record) -> Record:
    """Return a record that refers to no later record."""
    return replace(
        record, promised=min(record.promised, record.sequence), full=max(0, record.sequence - record.full % 1000),
        target=None if record.target is None else min(record.target, record.sequence),
    )  # fmt: skip


RECORDS = st.builds(
    Record, NUMBERS, st.sampled_from(KINDS), IDS, IDS, IDS, NUMBERS,
    IDS,
    st.integers(-1, 2**40), NUMBERS, NUMBERS, st.integers(1, 32_768), IDS, NUMBERS,
    entries=st.dictionaries(ADDRESSES, ENTRIES, max_size=6).map(_in_blocks),
    target=st.none() | NUMBERS, offsets=st.none() | NAMES,
    input_digest=st.none() | NAMES, time_ms=st.none() | NUMBERS, watermark_ms=st.none() | NUMBERS,
    schemas=st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=2), max_size=2),
    owners=st.dictionaries(TASKS, NAMES, max_size=3),
    outputs=st.lists(st.tuples(st.sampled_from(["totals", "tails"]), LINKS), max_size=3).map(tuple),
    shards=st.lists(st.tuples(NAMES, st.integers(0, 99_999)), max_size=3).map(tuple),
    late_watermark_ms=st.none() | NUMBERS, event_times=st.dictionaries(NAMES, st.integers(-(2**62), 2**62), max_size=3),
    initial_states=st.dictionaries(NAMES, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
    standbys=st.dictionaries(TASKS, st.lists(NAMES, max_size=2).map(tuple), max_size=2),
    delivers_after_commit=st.booleans(), promised=NUMBERS, members=st.lists(MEMBERS, max_size=3).map(tuple),
    weights=RESERVED, watermarks=RESERVED, orders=RESERVED, delivers_as=st.none() | NUMBERS,
    stale_stores=st.dictionaries(NAMES, NUMBERS, max_size=2),
    row_counts=st.dictionaries(NAMES, NUMBERS, max_size=2),
    moves=st.lists(st.builds(RecordedMoves, NUMBERS, *[NAMES] * 5, st.lists(TASKS).map(tuple)), max_size=2).map(tuple),
    savepoints=st.lists(SAVEPOINTS, max_size=2).map(tuple), previous_offsets=st.none() | NAMES,
).map(_in_order)  # fmt: skip

ROOT = "memory://root"
PLAIN = Record(
    sequence=0, kind="claim", previous="", commit_id="c", log_id="c", epoch=1, query_id="q", version=-1, rollbacks=0,
    written_ms=0, total=8, dispatch="key_group", full=0,
)  # fmt: skip


def drafted(commit_id: str, version: int = 0) -> Record:
    """Return the draft of a batch record."""
    return replace(PLAIN, kind="batch", commit_id=commit_id, version=version)


def attempt(number: int = 0, epoch: int = 1) -> str:
    """Return the name of an attempt."""
    return f"{epoch}-{number:032x}"


def link(version: int, number: int = 0, *, start: int = 0, length: int = 10, epoch: int = 1) -> Link:
    """Return a link of a chain."""
    return Link(Head(version, attempt(number, epoch)), start, length, 7, 1)


def entry(*versions: int) -> Entry:
    """Return an entry whose chain has links of these versions."""
    return Entry(chain=tuple(link(version) for version in versions))


def manifest(**chains: tuple[int, ...]) -> Manifest:
    """Return a manifest of store ``totals``.

    ``manifest(kg0=(1, 2))`` has a chain of versions 1 and 2 in key-group 0.
    """
    return Manifest({("totals", int(name[2:])): entry(*versions) for name, versions in chains.items()})


def cut_to_last(entry: Entry, links: int) -> Entry:
    """Return an entry with only the last ``links`` links of its chain."""
    if len(entry.chain) <= links:
        return entry
    return Entry(None, entry.chain[-links:], entry.timer_ms, cut=entry.chain[-links - 1].head)


def opened(store: ObjectStore) -> Log:
    """Return the opened log of a store."""
    log = Log(store, ROOT)
    log.open()
    return log


def grown(store: ObjectStore, count: int) -> Log:
    """Return a log of ``count`` records. Each batch changes one of eight key-groups."""
    log = opened(store)
    log.append(PLAIN, Manifest())
    for version in range(count - 1):
        address = ("totals", version % 8)
        changed = log.manifest.entries.get(address, Entry()).add_link(entry(version).chain[0])
        log.append(drafted(f"c{version}", version), log.manifest.with_entries({address: changed}))
    return log
