"""Chains have one attempt per version (I1), and a snapshot replaces exactly the links that it contains (I3)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.state.log import paths
from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Entry, Head, Link, Manifest, Snapshot
from tests.kit.state.drawn_records import attempt, entry, link

VERSIONS = st.lists(st.integers(0, 30), unique=True, min_size=1, max_size=8).map(sorted)


def snapshot_at(link: Link, number: int = 0) -> Snapshot:
    """Return a snapshot whose head is that of a link."""
    return Snapshot(paths.snapshot_id(link.head.version, attempt(number, 3)), link.head, 100, 1, 2)


def test_the_head_of_an_entry_is_that_of_its_last_link_or_snapshot() -> None:
    """The head of an entry is that of its last link, or else of its snapshot, or else empty."""
    snapped = Entry(snapshot_at(link(4)))
    assert EMPTY.head == EMPTY_HEAD
    assert entry(1, 2).head == Head(2, attempt())
    assert snapped.head == Head(4, attempt())
    assert snapped.add_link(link(5)).head == Head(5, attempt())
    assert link(5, 1).head != link(5, 2).head


@given(VERSIONS, st.data())
def test_the_links_after_a_known_head_are_the_rest_of_the_chain(versions: list[int], data: st.DataObject) -> None:
    """The links after a known head are the rest of the chain; after an unknown head there is no answer."""
    whole = entry(*versions)
    place = data.draw(st.integers(0, len(versions) - 1))
    assert whole.links_after(whole.chain[place].head) == whole.chain[place + 1 :]
    assert whole.links_after(EMPTY_HEAD) == whole.chain
    assert whole.links_after(Head(versions[place], attempt(9))) is None
    assert whole.links_after(Head(31, attempt())) is None


@given(VERSIONS, st.data())
def test_a_snapshot_replaces_the_links_up_to_its_head(versions: list[int], data: st.DataObject) -> None:
    """A snapshot replaces the links up to its head and leaves the entry's head and the later links unchanged."""
    before = replace(entry(*versions), timer_ms=7)
    place = data.draw(st.integers(0, len(versions) - 1))
    after = before.replace_by_snapshot(snapshot_at(before.chain[place]))
    assert after is not None
    assert (after.head, after.timer_ms) == (before.head, 7)
    assert after.chain == before.links_after(before.chain[place].head)
    assert after.links_after(EMPTY_HEAD) is None


@given(VERSIONS, st.data())
def test_sizes_of_a_chain_are_the_sums_over_its_links(versions: list[int], data: st.DataObject) -> None:
    """The rows and bytes of a chain are the sums over its links, whether the chain was counted, extended or cut."""
    grown = EMPTY
    for number, version in enumerate(versions):
        if data.draw(st.booleans()):
            assert grown.chain_bytes == sum(link.length for link in grown.chain)
        has_snapshot = data.draw(st.booleans())
        if grown.chain and has_snapshot:
            grown = grown.replace_by_snapshot(snapshot_at(data.draw(st.sampled_from(grown.chain)))) or grown
        grown = grown.add_link(Link(Head(version, attempt()), 0, 10 * number + 1, 0, number))
        sizes = (sum(link.rows for link in grown.chain), sum(link.length for link in grown.chain))
        assert grown.chain_size == sizes
        assert grown.measure().deltas == len(grown.chain)
        assert grown == Entry(grown.snapshot, grown.chain)


@given(VERSIONS, st.data())
def test_the_changed_links_are_the_difference_of_two_entries(versions: list[int], data: st.DataObject) -> None:
    """Successive entries differ exactly by the links that a snapshot replaced and by those that were added."""
    before = entry(*versions)
    after = before
    if data.draw(st.booleans()):
        after = before.replace_by_snapshot(snapshot_at(data.draw(st.sampled_from(before.chain)))) or before
    remaining = after.chain
    added = tuple(link(32 + number) for number in range(data.draw(st.integers(0, 2))))
    for new_link in added:
        after = after.add_link(new_link)
    replaced = before.chain[: len(before.chain) - len(remaining)]
    assert after.changed_links(before) == (replaced, added)
    other = Entry(chain=(before.chain[-1], link(40), *before.chain[:-1]))
    assert other.changed_links(before) == ((), (link(40),))


def test_the_changes_since_an_earlier_entry_restore_the_entry() -> None:
    """The changes of an entry since an earlier one restore the entry, also if the earlier one was only a snapshot."""
    before = Entry(snapshot_at(link(4)))
    longer = before.add_link(link(5), timer_ms=7).add_link(link(6), timer_ms=8)
    shortened = longer.replace_by_snapshot(snapshot_at(link(5), 1))
    assert shortened is not None
    for now in (before, longer, shortened):
        assert now.cut_to_changes(before).restore_whole(before) == now
    assert longer.cut_to_changes(before).cut == before.head


@given(VERSIONS)
def test_a_snapshot_whose_head_is_not_in_the_chain_is_refused(versions: list[int]) -> None:
    """A snapshot is refused if its head is of another attempt, not in the chain, or already that of a snapshot."""
    before = Entry(snapshot_at(link(0))).add_link(link(versions[-1] + 1))
    assert before.replace_by_snapshot(snapshot_at(link(versions[-1] + 1, 5))) is None
    assert before.replace_by_snapshot(snapshot_at(link(99))) is None
    assert before.replace_by_snapshot(snapshot_at(link(0), 1)) is None
    assert EMPTY.replace_by_snapshot(snapshot_at(link(0))) is None


def test_a_snapshot_older_than_the_listed_one_is_refused() -> None:
    """Of two snapshots at different heads the newer one stays, in whatever order they arrive."""
    whole = entry(1, 2, 3)
    newer = whole.replace_by_snapshot(snapshot_at(whole.chain[1]))
    assert newer is not None
    assert newer.replace_by_snapshot(snapshot_at(whole.chain[0])) is None
    older = whole.replace_by_snapshot(snapshot_at(whole.chain[0]))
    assert older is not None
    assert older.replace_by_snapshot(snapshot_at(whole.chain[1])) == newer


@given(st.lists(st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), VERSIONS), max_size=5))
def test_sizes_of_stores_updated_with_changes_equal_a_full_read(steps: list[dict[tuple[str, int], list[int]]]) -> None:
    """Sizes of stores that are updated with changes equal those of a manifest that reads all entries."""
    measured = Manifest()
    measured.measure_stores()
    for step in steps:
        measured = measured.with_entries({address: entry(*versions) for address, versions in step.items()})
        assert measured.sizes is not None
        assert measured.measure_stores() == Manifest(measured.entries).measure_stores()
