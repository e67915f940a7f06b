"""The mark ``sample`` chooses the cases of a matrix that run without ``--all``."""

from __future__ import annotations

import pytest

from tests.kit.matrix import choose_cases

IDS = ["a", "b", "c", "d", "e"]


def test_cases_are_chosen_by_id_or_step() -> None:
    """A step chooses the first case of each so many."""
    assert choose_cases("test_x", IDS, "b", "e") == ("b", "e")
    assert choose_cases("test_x", IDS, step=2) == ["a", "c", "e"]


def test_an_unknown_case_is_refused() -> None:
    """The error has the ids, because a renamed case would make the whole test long."""
    with pytest.raises(pytest.UsageError, match=r"test_x samples unknown cases \['f'\]. It has \['a', 'b'"):
        choose_cases("test_x", IDS, "a", "f")


@pytest.mark.parametrize("number", range(4))
@pytest.mark.sample("1", "3")
def test_only_other_cases_are_long(request: pytest.FixtureRequest, number: int) -> None:
    """They are marked when the test is collected, whatever is selected."""
    marks = {mark.name for mark in request.node.iter_markers()}
    assert marks >= {"long", "rest"} if number in {0, 2} else marks.isdisjoint({"long", "rest"})
