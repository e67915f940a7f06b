"""What driver and executors say to each other comes back as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.messages.census_orders import Census
from riffle_spark.messages.upkeep_orders import UpkeepReceipt
from riffle_spark.state.log.manifest import Head, Snapshot

NAMES = st.text(max_size=8)
NUMBERS = st.integers(min_value=0, max_value=2**63)
SHARES = st.floats(min_value=0, max_value=1)
COPIES = st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NAMES), max_size=3).map(tuple)
TEXTS = st.lists(NAMES, max_size=3).map(tuple)
SNAPSHOTS = st.builds(Snapshot, NAMES, st.builds(Head, NUMBERS, NAMES), NUMBERS, NUMBERS, NUMBERS)
ADDRESSES = st.lists(st.tuples(NAMES, NUMBERS), max_size=3).map(tuple)
RECEIPTS = st.builds(
    UpkeepReceipt, NAMES, NAMES, COPIES, gone=ADDRESSES,
    unfinished=st.lists(st.tuples(NAMES, NUMBERS, NUMBERS, NUMBERS), max_size=3).map(tuple),
    taken=st.lists(st.tuples(NAMES, NUMBERS, SNAPSHOTS), max_size=3).map(tuple),
    failed=ADDRESSES, failed_snapshots=ADDRESSES, ran=st.booleans(), overdue=st.booleans(), drops_left=NUMBERS,
    snapshots_left=NUMBERS, snapshot_bytes=NUMBERS, delta_bytes=NUMBERS, restores=NUMBERS, folds=NUMBERS,
    requests=st.dictionaries(NAMES, NUMBERS, max_size=3), seconds=SHARES, errors=TEXTS,
)  # fmt: skip
CENSUSES = st.builds(
    Census, NAMES, NAMES, COPIES, TEXTS, st.none() | NAMES, st.dictionaries(NAMES, NAMES, max_size=3), SHARES, NUMBERS,
    st.none() | NAMES,
)  # fmt: skip


@given(RECEIPTS)
def test_a_receipt_comes_back_as_it_was(receipt: UpkeepReceipt) -> None:
    """Written as a line and read, a receipt is equal, its snapshots and heads are of their types."""
    read = UpkeepReceipt.from_json(receipt.to_json())
    assert read == receipt
    assert all(type(snapshot) is Snapshot and type(snapshot.head) is Head for _, _, snapshot in read.taken)


@given(CENSUSES)
def test_a_census_comes_back_as_it_was(census: Census) -> None:
    """Written as a line and read, a census is equal and can be hashed where it is made of tuples."""
    read = Census.from_json(census.to_json())
    assert read == census
    assert hash((read.copies, read.sealed)) == hash((census.copies, census.sealed))
