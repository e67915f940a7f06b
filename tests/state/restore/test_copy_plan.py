"""The plan for a copy is the same for every caller, and never adds a link to a head that is not on the chain."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.state.log.manifest import EMPTY, EMPTY_HEAD, Entry, Head, Link, Snapshot
from riffle_spark.state.restore.copy_plan import CopyPlan, plan_by_entry, plan_copy
from tests.kit.state.drawn_records import cut_to_last


class KeyGroupHistory(NamedTuple):
    """The history of a key-group: its entries, its driver's epoch, the contents of each head, and replaced links."""

    entries: list[Entry]
    epoch: int
    contents: dict[Head, tuple[Head, ...]]
    before: tuple[Link, ...]


STEPS = st.lists(
    st.sampled_from(["commit", "commit", "commit", "lost attempt", "snapshot", "claim", "rollback"]), max_size=14
)


@st.composite
def pasts(draw: st.DrawFn) -> KeyGroupHistory:
    """Draw a history of commits, unlisted attempts, snapshots, claims and rollbacks."""
    entries, epoch = [EMPTY], 1
    contents: dict[Head, tuple[Head, ...]] = {EMPTY_HEAD: ()}
    before: tuple[Link, ...] = ()
    for number, step in enumerate(draw(STEPS)):
        entry = entries[-1]
        if step in ("commit", "lost attempt"):
            head = Head(entry.head.version + 1, f"{epoch}-{number:032x}")
            contents[head] = (*contents[entry.head], head)
            if step == "commit":
                entries.append(entry.add_link(Link(head, 0, 1, 0, 1)))
        elif step == "snapshot" and entry.chain:
            at = draw(st.sampled_from(entry.chain)).head
            replaced = entry.replace_by_snapshot(Snapshot(f"{at.version}-{epoch}-s", at, 1, 0, 1))
            assert replaced is not None
            before = entry.chain[: len(entry.chain) - len(replaced.chain)]
            entries.append(replaced)
        elif step == "claim":
            epoch += 1
        elif step == "rollback":
            epoch, before = epoch + 1, ()
            entries.append(draw(st.sampled_from(entries)))
    return KeyGroupHistory(entries, epoch, contents, before)


def cut_entries(past: KeyGroupHistory) -> list[Entry]:
    """Return the newest entry, complete and cut in each way that orders use."""
    whole = past.entries[-1]
    recent = [cut_to_last(whole, links) for links in range(1, len(whole.chain))]
    since = [whole.cut_to_changes(entry) for entry in past.entries]
    trails = [
        Entry(None, (*past.before[at:], *whole.chain), cut=past.before[at - 1].head)
        for at in range(1, len(past.before))
        if past.before[-1].head == whole.base
    ]
    return [whole, *recent, *since, *trails]


def followed(plan: CopyPlan, head: Head | None, contents: dict[Head, tuple[Head, ...]]) -> tuple[Head, ...]:
    """Return the contents of a copy after its plan, and check that each link fits the head before it."""
    if plan.action == "drop":
        return ()
    base = plan.entry.snapshot.head if plan.action == "restore" and plan.entry.snapshot else head
    if plan.action == "restore" and not plan.entry.snapshot:
        base = EMPTY_HEAD
    assert base == plan.base
    holding = contents[base]
    for link in plan.links:
        assert contents[link.head] == (*holding, link.head), "a link was added to a head that it does not follow"
        holding = contents[link.head]
    return holding


@given(pasts(), st.data())
def test_a_plan_leads_from_every_known_head_to_the_entrys_head(past: KeyGroupHistory, data: st.DataObject) -> None:
    """From every known head, or without a copy, the plan leads to the entry's head, however the entry is cut."""
    whole = past.entries[-1]
    entry = data.draw(st.sampled_from(cut_entries(past)))
    for head in (None, *past.contents):
        plan = plan_copy(head, entry, past.epoch, lambda: whole, newest=True)
        assert plan.action in ("fold", "restore", "drop")
        assert followed(plan, head, past.contents) == past.contents[whole.head]


@given(pasts(), st.data())
def test_a_plan_from_a_cut_entry_equals_that_from_the_complete_one(past: KeyGroupHistory, data: st.DataObject) -> None:
    """A plan from a cut entry equals the plan from the complete one, but may replace a restore by earlier links."""
    whole = past.entries[-1]
    entry = data.draw(st.sampled_from(cut_entries(past)))
    for head in (None, *past.contents):
        expected = plan_by_entry(head, whole, past.epoch)
        plan = plan_copy(head, entry, past.epoch, lambda: whole)
        if head in {link.head for link in past.before} and plan.action == "fold":
            continue
        assert (plan.action, plan.base, plan.links) == (expected.action, expected.base, expected.links)


@given(pasts(), st.data(), st.integers(-1, 2))
def test_a_copy_newer_than_the_entry_is_left_alone(past: KeyGroupHistory, data: st.DataObject, newer: int) -> None:
    """A copy is left alone exactly if its head is not on the chain and has a newer epoch and version than the entry."""
    entry, epoch = data.draw(st.sampled_from(past.entries)), max(1, past.epoch - newer)
    for head in past.contents:
        plan = plan_by_entry(head, entry, epoch)
        is_on, ahead = entry.links_after(head) is not None, (head.epoch, head.version) > (epoch, entry.head.version)
        assert (plan.action == "beyond") == (ahead and not is_on)
        assert (plan.action == "fold") == is_on


def test_the_complete_entry_is_requested_only_if_the_cut_one_is_too_short() -> None:
    """The complete entry is requested only for a copy that is neither on the cut chain nor beyond it."""
    links = tuple(Link(Head(version, f"2-{version:032x}"), 0, 1, 0, 1) for version in range(6))
    whole = Entry(None, links)
    requested: list[Head | None] = []

    def ask(head: Head | None) -> Entry:
        requested.append(head)
        return whole

    beyond, given_up = Head(7, f"2-{99:032x}"), Head(7, f"1-{99:032x}")
    for head in (links[5].head, links[4].head, links[3].head, beyond, links[2].head, given_up, None):
        plan_copy(head, cut_to_last(whole, 2), 2, partial(ask, head))
    assert requested == [links[2].head, given_up, None]


def test_an_outdated_copy_of_a_cache_is_dropped() -> None:
    """A cache's copy that was left behind under the same driver is dropped, and the cache starts empty."""
    entry = Entry(None, (Link(Head(7, f"2-{7:032x}"), 0, 1, 0, 1),), cut=Head(6, f"2-{6:032x}"))
    assert plan_copy(Head(3, f"2-{3:032x}"), entry, 2, lambda: EMPTY).action == "drop"
    assert plan_copy(Head(8, f"2-{8:032x}"), entry, 2, lambda: EMPTY).action == "beyond"
