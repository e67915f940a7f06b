"""Orders, receipts and censuses are equal after encoding and decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConflictError
from riffle_spark.messages.slot_orders import Home, Order, Part, Receipt, Watermark
from riffle_spark.messages.upkeep_orders import (
    Census,
    CensusOrder,
    Drop,
    Follow,
    MergeOrder,
    SnapshotOrder,
    UpkeepOrder,
    UpkeepReceipt,
)
from riffle_spark.state.log.manifest import Block, Entry, Head, Link, MergedDelta, Replacement, Snapshot, link_in_block
from riffle_spark.state.objects.options import AzureOptions, FileOptions, GcsOptions, S3Options, StoreOptions
from tests.kit.state.drawn_records import cut_to_last

NAMES = st.text(max_size=8)
NUMBERS = st.integers(min_value=0, max_value=2**63)
KEY_GROUPS = st.integers(min_value=0, max_value=9)
MAYBE = st.none() | NUMBERS
SHARES = st.floats(min_value=0, max_value=1)
COPIES = st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NAMES), max_size=3).map(tuple)
TEXTS = st.lists(NAMES, max_size=3).map(tuple)
TEXT_BY_NAME = st.dictionaries(NAMES, NAMES, max_size=3)
SENT = st.dictionaries(NAMES, NUMBERS, max_size=3)
HEADS = st.builds(Head, NUMBERS, NAMES)
DISKS = st.tuples(SHARES, NUMBERS)
MEMORY = st.tuples(NUMBERS, NUMBERS)
COLUMNS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(lambda rows: tuple(zip(*rows, strict=True)) or ((), ()))
SNAPSHOTS = st.builds(Snapshot, NAMES, HEADS, NUMBERS, NUMBERS, NUMBERS)
DELTA_LINKS = st.builds(Link, HEADS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.none(), st.none())
MERGED_LINKS = st.builds(
    Link, HEADS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.builds(MergedDelta, NAMES, NUMBERS, NUMBERS), st.none()
)
BLOCKS = st.builds(Block, st.integers(0, 2**40), st.integers(0, 2**40))
LINKS_IN_BLOCKS = st.builds(
    lambda number, key_group, rows: link_in_block(
        Head(number, f"1-{number}"), key_group, number, rows, Block(number, number // 9)
    ),
    st.integers(0, 2**40), KEY_GROUPS, NUMBERS,
)  # fmt: skip
LINKS = DELTA_LINKS | MERGED_LINKS | LINKS_IN_BLOCKS
ENTRIES = st.builds(Entry, st.none() | SNAPSHOTS, st.lists(LINKS, max_size=3).map(tuple), MAYBE, st.none() | HEADS)
ADDRESSES = st.lists(st.tuples(NAMES, NUMBERS), max_size=3).map(tuple)
HOMES = st.builds(
    Home,
    NAMES,
    st.builds(
        StoreOptions,
        file=st.builds(FileOptions, mode=st.sampled_from([None, "0640"])),
        s3=st.builds(
            S3Options,
            endpoint=st.sampled_from([None, "http://127.0.0.1:9", "https://s3"]),
            region=st.none() | NAMES,
            kms_key=st.sampled_from([None, "aws/s3"]),
            server_side_encryption=st.sampled_from([None, "aws:kms"]),
            requester_pays=st.booleans(),
        ),
        gcs=st.builds(GcsOptions, endpoint=st.sampled_from([None, "https://storage"])),
        azure=st.builds(AzureOptions, endpoint=st.sampled_from([None, "https://blob"])),
        connect_timeout_seconds=SHARES,
        read_timeout_seconds=SHARES,
        max_attempts=NUMBERS,
        max_connections=NUMBERS,
    ),
    st.none() | NAMES,
    NAMES,
    st.frozensets(NAMES, max_size=3),
    NAMES,
)
SCHEMAS = st.sampled_from(
    [
        pa.schema([]),
        pa.schema([pa.field("k", pa.string(), nullable=False), ("at", pa.timestamp("us", "Europe/Paris"))]),
        pa.schema([("äöü.`", pa.struct([("n", pa.list_(pa.decimal128(38, 4)))])), ("d", pa.large_binary())]),
        pa.schema([("m", pa.map_(pa.string(), pa.float32())), ("t", pa.dictionary(pa.int8(), pa.string()))]),
    ]
)
MEMBERS = st.dictionaries(KEY_GROUPS, TEXTS, max_size=4)
ORDERS = st.builds(
    Order, home=HOMES, store=NAMES, key=TEXTS, schema=TEXT_BY_NAME, output=SCHEMAS, rows=SCHEMAS,
    per_key_group=st.booleans(), order_by=TEXTS, total=NUMBERS, epoch=NUMBERS, version=NUMBERS, time_ms=NUMBERS,
    watermark_ms=MAYBE, slots=st.dictionaries(NUMBERS, st.lists(KEY_GROUPS, max_size=4).map(tuple), max_size=3),
    entries=st.dictionaries(KEY_GROUPS, ENTRIES, max_size=4), sequence=NUMBERS, seal_output=st.booleans(),
    newest=st.booleans(), standbys=MEMBERS, followed_by=MEMBERS, durable=st.booleans(), read_by=st.none() | NAMES,
    by_key=st.booleans(), time_mode=st.sampled_from(["None", "ProcessingTime", "EventTime"]),
    watermark=st.none() | st.builds(Watermark, NAMES, NUMBERS), late_watermark_ms=MAYBE, last_pass_ms=MAYBE,
    initial=st.none() | SCHEMAS, shown=TEXT_BY_NAME,
)  # fmt: skip
UPKEEP_ORDERS = st.builds(
    UpkeepOrder, HOMES, NAMES, NUMBERS, NUMBERS, st.dictionaries(NAMES, TEXT_BY_NAME, max_size=2),
    drops=st.lists(st.builds(Drop, NAMES, NUMBERS, st.none() | HEADS), max_size=3).map(tuple),
    follows=st.lists(st.builds(Follow, NAMES, NUMBERS, ENTRIES), max_size=3).map(tuple),
    snapshots=st.lists(st.builds(SnapshotOrder, NAMES, NUMBERS, ENTRIES), max_size=3).map(tuple),
    merges=st.lists(st.builds(MergeOrder, NAMES, NUMBERS, ENTRIES, NUMBERS), max_size=3).map(tuple),
    seconds=SHARES, fetch_bytes=MAYBE, disk_limit=SHARES, wipe=st.booleans(), measure=st.booleans(),
    timeout_seconds=SHARES,
)  # fmt: skip
CENSUS_ORDERS = st.builds(CensusOrder, HOMES, SHARES, SHARES)
PARTS = st.builds(Part, KEY_GROUPS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, MAYBE)
RECEIPTS = st.builds(
    Receipt, NAMES, NUMBERS, NAMES, NUMBERS, NAMES, NAMES, event_time_max_ms=MAYBE,
    parts=st.lists(PARTS, max_size=3).map(tuple), output=st.none() | PARTS,
    block=st.none() | BLOCKS, sealed_bytes=NUMBERS,
    missing=st.lists(NUMBERS, max_size=3).map(tuple),
    partition_rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple), requests=SENT,
    seconds=st.dictionaries(NAMES, SHARES, max_size=3), peak_memory_mb=SHARES, disk=DISKS, memory=MEMORY,
    received=COLUMNS, user_times=COLUMNS, input_bytes=NUMBERS,
    error=st.none() | st.tuples(NAMES, NAMES, NAMES, NAMES),
)  # fmt: skip
UPKEEP_RECEIPTS = st.builds(
    UpkeepReceipt, NAMES, NAMES, COPIES, missing=ADDRESSES,
    unfinished=st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
    snapshots=st.lists(st.tuples(NAMES, NUMBERS, SNAPSHOTS), max_size=3).map(tuple),
    merges=st.lists(st.tuples(NAMES, NUMBERS, st.builds(Replacement, HEADS, MERGED_LINKS)), max_size=3).map(tuple),
    failed_merges=ADDRESSES, merges_left=NUMBERS, merge_bytes=NUMBERS,
    failed=ADDRESSES, failed_snapshots=ADDRESSES, ran=st.booleans(), overdue=st.booleans(), drops_left=NUMBERS,
    snapshots_left=NUMBERS, snapshot_bytes=NUMBERS, delta_bytes=NUMBERS, restores=NUMBERS, folds=NUMBERS,
    requests=SENT, seconds=SHARES, errors=TEXTS, disk=DISKS, memory=MEMORY,
)  # fmt: skip
CENSUSES = st.builds(
    Census, NAMES, NAMES, COPIES, TEXTS, st.none() | NAMES, TEXT_BY_NAME, DISKS, MEMORY, NUMBERS, st.none() | NAMES
)


@given(ORDERS)
def test_a_decoded_order_equals_the_encoded_one(order: Order) -> None:
    """A decoded order equals the encoded one, and its heads, links and watermark have their types."""
    read = Order.from_json(order.to_json())
    assert read == order
    assert all(type(entry.head) is Head for entry in read.entries.values())
    assert all(type(link) is Link for entry in read.entries.values() for link in entry.chain)
    assert type(read.watermark) is type(order.watermark)


@given(ORDERS, st.permutations(range(10)))
def test_a_slot_decodes_only_the_entries_of_its_key_groups(order: Order, key_groups: list[int]) -> None:
    """A slot decodes only the entries of its own key-groups. The other fields are complete."""
    order = replace(order, slots={7: tuple(key_groups[:3]), 0: tuple(key_groups[3:6]), 4: ()})
    text = order.to_json()
    for slot, key_groups_of_slot in order.slots.items():
        expected = {key_group: entry for key_group, entry in order.entries.items() if key_group in key_groups_of_slot}
        assert Order.from_json(text, slot) == replace(order, entries=expected)


@given(UPKEEP_ORDERS)
def test_a_decoded_upkeep_order_equals_the_encoded_one(order: UpkeepOrder) -> None:
    """A decoded upkeep order equals the encoded one and keeps the order of its items."""
    read = UpkeepOrder.from_json(order.to_json())
    assert read == order
    assert all(type(drop.head) is type(sent.head) for drop, sent in zip(read.drops, order.drops, strict=True))


def test_an_upkeep_order_with_entries_of_no_item_is_refused() -> None:
    """An upkeep order whose entries are more than its items is refused, because they would be matched wrongly."""
    home = Home("s3://bucket/state", StoreOptions(), None, "app", frozenset())
    order = UpkeepOrder(home, "m1", 1, 7, {}, follows=(Follow("totals", 3, Entry()),))
    body = json.loads(order.to_json())
    assert UpkeepOrder.from_json(json.dumps(body)).follows == order.follows
    with pytest.raises(ConflictError):
        UpkeepOrder.from_json(json.dumps({**body, "follows": []}))


@given(ORDERS, UPKEEP_ORDERS, st.integers(1, 3))
def test_orders_send_only_the_newest_links(order: Order, upkeep: UpkeepOrder, links: int) -> None:
    """With `links_sent`, an encoded order has only the newest links of each entry, so the driver does not have to cut
    entries.
    """
    cut = {key_group: cut_to_last(entry, links) for key_group, entry in order.entries.items()}
    assert Order.from_json(replace(order, links_sent=links).to_json()).entries == cut
    follows = tuple(replace(follow, newest=links) for follow in upkeep.follows)
    read = UpkeepOrder.from_json(replace(upkeep, follows=follows).to_json())
    assert read.follows == tuple(replace(follow, entry=cut_to_last(follow.entry, links)) for follow in upkeep.follows)


def test_a_receipt_sends_no_field_with_its_default_value() -> None:
    """A receipt omits fields that have their default value, because the driver decodes one receipt per slot."""
    assert json.loads(Receipt("totals", 1, "1-aa", 5, "m", "3", rows=7).to_json()) == {
        "store": "totals", "slot": 1, "attempt": "1-aa", "version": 5, "member": "m", "executor": "3", "rows": 7,
    }  # fmt: skip


@given(st.lists(PARTS, max_size=3), st.none() | BLOCKS)
def test_all_links_of_a_receipt_have_the_same_head(parts: list[Part], block: Block | None) -> None:
    """All links of a receipt have the same head."""
    receipt = Receipt("totals", 1, "1-aa", 5, "m", "3", parts=tuple(parts), block=block)
    links = receipt.links()
    assert links == [receipt.link(part) for part in parts]
    assert len({id(link.head) for link in links}) <= 1


@given(CENSUS_ORDERS)
def test_a_decoded_census_order_equals_the_encoded_one(order: CensusOrder) -> None:
    """A decoded census order equals the encoded one, and its root and options can be hashed."""
    read = CensusOrder.from_json(order.to_json())
    assert read == order
    assert hash((read.home.root, read.home.options)) == hash((order.home.root, order.home.options))


@given(RECEIPTS)
def test_a_decoded_receipt_equals_the_encoded_one(receipt: Receipt) -> None:
    """A decoded receipt equals the encoded one, and its parts and error have their types."""
    assert Receipt.from_json(receipt.to_json()) == receipt


@given(UPKEEP_RECEIPTS)
def test_a_decoded_upkeep_receipt_equals_the_encoded_one(receipt: UpkeepReceipt) -> None:
    """A decoded upkeep receipt equals the encoded one, and its snapshots and heads have their types."""
    read = UpkeepReceipt.from_json(receipt.to_json())
    assert read == receipt
    assert all(type(snapshot) is Snapshot and type(snapshot.head) is Head for _, _, snapshot in read.snapshots)


@given(CENSUSES)
def test_a_decoded_census_equals_the_encoded_one(census: Census) -> None:
    """A decoded census equals the encoded one, and its tuples can be hashed."""
    read = Census.from_json(census.to_json())
    assert read == census
    assert hash((read.copies, read.sealed)) == hash((census.copies, census.sealed))


IMPORTED = """
import sys
from riffle_spark.messages import slot_orders, upkeep_orders
print(*sorted({"boto3", "pyarrow.compute", "pyspark"} & sys.modules.keys()))
"""


def test_messages_import_no_arrow_compute_store_client_or_spark() -> None:
    """An import of the messages imports no Arrow computations, no client of a store and no Spark."""
    completed = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == []
