"""With hashed dispatch, owners are a function of the members only."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.assign.model import Assignment
from riffle_spark.keygroups import slot_numbers
from riffle_spark.protocol.ownership.membership import LiveMember
from riffle_spark.protocol.ownership.slots import hashed_assignment, hashed_layout, settings_without_effect
from riffle_spark.protocol.ports import Executor
from riffle_spark.protocol.shards import Shards
from riffle_spark.settings import Settings


def living_members(**cores: int) -> dict[str, LiveMember]:
    """Return members with the given cores, whose executors have other names."""
    return {name: LiveMember(name, Executor(f"x{n}", "host", c)) for n, (name, c) in enumerate(reversed(cores.items()))}


NOTHING = Assignment({})
SHARDS = Shards(tuple(("events", number) for number in range(40)))


def test_hashed_owners_depend_on_the_members_only() -> None:
    """Slots are numbered over members sorted by name. Earlier owners and executor names do not matter."""
    members = living_members(a=1, b=2, c=1)
    ring = ["a", "b", "b", "c"]
    dealt = SHARDS.shards_by_slot(4)
    assignment = hashed_assignment(members, SHARDS, hashed_assignment(living_members(a=9), SHARDS, NOTHING))
    assert {t.key_group: owner for t, owner in assignment.owners.items()} == {
        shard: ring[slot] for slot in range(4) for shard in dealt[slot]
    }
    layout = hashed_layout(members, SHARDS)
    assert sorted(place.key_groups for place in layout.slots) == sorted(filter(None, dealt))
    assert tuple(place.number for place in layout.slots) == slot_numbers(len(layout.slots))
    second_assignment = hashed_assignment(members, SHARDS, assignment)
    assert (second_assignment.owners, second_assignment.moves) == (assignment.owners, ())


def test_a_drained_member_owns_nothing_while_others_live() -> None:
    """A drained member owns nothing while others live."""
    assert set(hashed_assignment(living_members(a=1, b=2), SHARDS, NOTHING, {"a"}).owners.values()) == {"b"}
    assert set(hashed_assignment(living_members(a=1), SHARDS, NOTHING, {"a"}).owners.values()) == {"a"}


CORES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4), min_size=1)


@given(CORES, CORES, st.integers(0, 60), st.none() | st.integers(1, 4))
def test_the_slot_layout_matches_the_owners(
    cores: dict[str, int], before: dict[str, int], count: int, most: int | None
) -> None:
    """Every shard has one slot on the executor of its owner. An executor has at most as many slots as cores or as
    operators allow. Moves are the changed owners.
    """
    shards = Shards(tuple(("events", number) for number in range(count)))
    members, present = living_members(**cores), hashed_assignment(living_members(**before), shards, NOTHING)
    assignment = hashed_assignment(members, shards, present, (), most)
    layout = hashed_layout(members, shards, (), most)
    owners = {t.key_group: owner for t, owner in assignment.owners.items()}
    placed = {shard: place.executor for place in layout.slots for shard in place.key_groups}
    assert placed == {shard: members[owner].executor.id for shard, owner in owners.items()}
    assert sorted(placed) == list(range(count))
    executors = [place.executor for place in layout.slots]
    most_of = {living.executor.id: min(living.executor.cores, most or 9) for living in members.values()}
    assert all(executors.count(executor) <= slots for executor, slots in most_of.items())
    assert {(m.task, m.target) for m in assignment.moves} == set(assignment.owners.items()) - set(
        present.owners.items()
    )


def test_assignor_settings_without_effect_are_listed() -> None:
    """With hashed dispatch, settings of the assignor that are set are listed as without effect."""
    settings: dict[str, Any] = {"num_standbys": 1, "balance_band": 0.5, "retained_for": 7}
    assert settings_without_effect(Settings(dispatch="hashed", **settings)) == ("balance_band", "num_standbys")
    assert settings_without_effect(Settings(dispatch="partition", **settings)) == ()
    assert settings_without_effect(Settings(dispatch="hashed")) == ()
