"""Custom assignors: they are loaded once, and a failure or invalid answer becomes a warning and stops nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from riffle_spark.assign.assignor import assign
from riffle_spark.assign.model import Assignment, Assignor, AssignSettings, Move, Task, TaskId, View
from riffle_spark.errors import ConfigError
from tests.kit.assign_views import task, view

SETTINGS = AssignSettings(max_warmup_replicas=100)


def broken_assignor(before: View, _: AssignSettings) -> Assignment:
    """Give one task to an unknown member and leave out the others."""
    return Assignment({before.tasks[0].id: "nobody", task(99): "a"})


def test_an_invalid_custom_assignment_is_refused_with_its_violations() -> None:
    """The previous assignment stays in effect, and the warning names each violation."""
    before = view("a:0-1 b:2-3")
    done = assign(before, replace(SETTINGS, assignor=broken_assignor))
    assert done.owners == before.owners
    warning_text = "\n".join(done.warnings)
    for part in ("task g_1 has no owner", "task g_99 is unknown", "owner nobody of task g_0 is not a live member"):
        assert part in warning_text


def raising_assignor(before: View, _: AssignSettings) -> Assignment:
    """Fail while it computes the owners."""
    return Assignment({each.id: chosen_by(each) for each in before.tasks})


def chosen_by(each: Task) -> str:
    """Raise a KeyError, as a mistake in user code would."""
    return {"g_0": "a"}[f"{each.id} is new"]


def test_an_exception_of_a_custom_assignor_keeps_the_last_assignment() -> None:
    """The warning has the type, the message and the line of the error in the user's code. Tasks without an owner still
    get one.
    """
    before = view("a:0-1 b:2-3")
    done = assign(before, replace(SETTINGS, assignor=raising_assignor))
    assert done.owners == before.owners
    (warning,) = done.warnings
    assert "KeyError: 'g_0 is new'" in warning
    assert "The last assignment stays" in warning
    assert "test_custom_assignor.py, line " in warning
    assert "in chosen_by" in warning
    left = replace(before, members=before.members[:1])
    assert set(assign(left, replace(SETTINGS, assignor=raising_assignor)).owners.values()) == {"a"}


@pytest.mark.parametrize("assignor", [raising_assignor, broken_assignor])
def test_a_failed_first_assignment_falls_back_to_the_default_assignor(assignor: Assignor) -> None:
    """If the first assignment of a custom assignor fails, owners and standbys are those of the default assignor."""
    before = view("a: b: c:", total=6)
    settings = replace(SETTINGS, num_standbys=1)
    done, default = assign(before, replace(settings, assignor=assignor)), assign(before, settings)
    assert (done.owners, done.standbys) == (default.owners, default.standbys)
    assert "The default assignor decides" in done.warnings[-1]


def test_a_keyboard_interrupt_in_a_custom_assignor_ends_the_process() -> None:
    """A KeyboardInterrupt in a custom assignor ends the process."""

    def interrupted(*_: object) -> Assignment:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assign(view("a:0"), replace(SETTINGS, assignor=interrupted))


@pytest.mark.parametrize(
    "answer",
    [None, Assignment, Assignment(None), Assignment({1: "a", "x": "b"}), Assignment({task(0): "a"}, {task(0): None}),  # type: ignore[arg-type, dict-item]
     Assignment({task(0): "a"}, moves=("a",)), Assignment({task(0): "a"}, warnings=(1,))],  # type: ignore[arg-type]
)  # fmt: skip
def test_an_assignment_of_the_wrong_type_is_refused(answer: Assignment) -> None:
    """If an answer has the wrong type, the previous assignment stays in effect."""
    done = assign(view("a:0"), replace(SETTINGS, assignor=lambda *_: answer))
    assert done.owners == {task(0): "a"}
    assert done.warnings


@pytest.mark.parametrize(
    "field",
    [
        {"target": [1]}, {"target": None}, {"target": {"x": "a"}}, {"target": {task(0): ["a"]}},
        {"standbys": {task(0): iter("b")}}, {"standbys": {task(0): "b"}},
        {"warmups": {task(0): 7}}, {"warnings": iter(["so"])},
        {"moves": iter([Move(task(0), "owner", None, "a", "", "")])},
        {"moves": (Move("x", "owner", None, "a", "", ""),)}, {"moves": (Move(task(0), "owner", None, None, "", ""),)},  # type: ignore[arg-type]
        {"moves": (Move(task(0), "owner", None, "a", "", object()),)},  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_assignment_with_unusable_fields_is_refused(field: dict[str, Any]) -> None:
    """Fields that cannot be stored, reported or read twice are refused, and the previous assignment stays in effect."""
    before = replace(view("a:0 b:1"), pins={task(1): "a"})
    done = assign(before, replace(SETTINGS, assignor=lambda *_: replace(Assignment(before.owners), **field)))
    assert done.warnings[0].startswith("[RIFFLE-0774]")
    assert "The last assignment stays" in done.warnings[0]
    assert done.target.keys() == done.owners.keys()
    assert done.owners[task(0)] == "a"


def numpys(task_id: TaskId) -> TaskId:
    """Return an equal task id whose key-group is a NumPy integer."""
    return TaskId(task_id.group, np.int64(task_id.key_group))  # type: ignore[arg-type]


def numpys_assignor(before: View, settings: AssignSettings) -> Assignment:
    """Return the default assignment with NumPy integers, and with lists instead of tuples."""
    done = assign(before, replace(settings, assignor="high_availability"))
    return replace(
        done,
        owners={numpys(each): member for each, member in done.owners.items()},
        standbys={numpys(each): list(members) for each, members in done.standbys.items()},  # type: ignore[misc]
        moves=tuple(replace(move, task=numpys(move.task)) for move in done.moves),
    )


def test_numpy_integers_in_an_assignment_become_python_integers() -> None:
    """NumPy integers become Python integers, because orders and reports are JSON."""
    before, settings = view("a: b: c:", total=3), replace(SETTINGS, num_standbys=1)
    done = assign(before, replace(settings, assignor=numpys_assignor))
    tasks = [*done.owners, *done.standbys, *done.target, *(move.task for move in done.moves)]
    assert (done.owners, done.standbys) == (assign(before, settings).owners, assign(before, settings).standbys)
    assert {type(each.key_group) for each in tasks} == {int}
    assert {type(members) for members in done.standbys.values()} == {tuple}


class CountingAssignor:
    """An assignor that counts its instances and calls."""

    made = 0
    calls = 0

    def __init__(self) -> None:
        CountingAssignor.made += 1

    def __call__(self, before: View, settings: AssignSettings) -> Assignment:
        """Return the hash assignment and count the call."""
        CountingAssignor.calls += 1
        return assign(before, replace(settings, assignor="hash"))


class FailingConstructor:
    """An assignor class whose constructor fails."""

    def __init__(self) -> None:
        raise ValueError("no configuration")


def test_an_assignor_class_whose_constructor_fails_is_refused() -> None:
    """A class whose constructor fails is refused when the query starts, with RIFFLE-0110."""
    with pytest.raises(ConfigError, match="RIFFLE-0110"):
        assign(view("a:0"), replace(SETTINGS, assignor=f"{__name__}:FailingConstructor"))


def test_a_custom_assignor_is_loaded_by_its_dotted_path() -> None:
    """The setting accepts the dotted path of a function. An unknown path is refused."""
    path = "riffle_spark.assign.baselines.hash_assignor"
    hashed = assign(view("a:0-7 b:"), replace(SETTINGS, assignor="hash"))
    assert assign(view("a:0-7 b:"), replace(SETTINGS, assignor=path)).owners == hashed.owners
    with pytest.raises(ConfigError, match="RIFFLE-0109"):
        assign(view("a:0"), replace(SETTINGS, assignor="no.such.thing"))
    with pytest.raises(ConfigError, match="RIFFLE-0108"):
        assign(view("a:0"), replace(SETTINGS, assignor="math.pi"))


def clearing_assignor(before: View, _: AssignSettings) -> Assignment:
    """Clear the mappings of the view, then fail."""
    before.lags[before.tasks[0].id].clear()  # type: ignore[attr-defined]
    before.owners.clear()  # type: ignore[attr-defined]
    raise RuntimeError("not reached")


def test_changes_that_an_assignor_makes_to_its_view_have_no_effect() -> None:
    """If an assignor changes the mappings of its view and fails, the previous assignment stays in effect."""
    before = view("a:0-1 b:2-3")
    before = replace(before, owners=dict(before.owners), lags={t: dict(held) for t, held in before.lags.items()})
    done = assign(before, replace(SETTINGS, assignor=clearing_assignor))
    assert done.owners == before.owners
    assert "The last assignment stays" in done.warnings[0]


def test_moves_that_a_custom_assignor_omits_are_reported() -> None:
    """Each move is reported once, whether or not the custom assignor lists it."""
    before = view("a:0-1 b:2-3")
    swapped = {task(0): "b", task(1): "a", task(2): "a", task(3): "b"}
    named = Move(task(2), "owner", "b", "a", "user", "because")
    answer = Assignment(swapped, standbys={task(1): ("b",)}, moves=(named,))
    done = assign(before, replace(SETTINGS, assignor=lambda *_: answer))
    assert sorted((move.task, move.role, move.source, move.target) for move in done.moves) == [
        (task(0), "owner", "a", "b"), (task(1), "standby", "a", "b"), (task(2), "owner", "b", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("assignor", ["sticky", "hash"])
def test_sticky_and_hash_warn_of_settings_that_they_ignore(assignor: str) -> None:
    """The sticky and hash assignors ignore some settings, and a warning lists those that are set."""
    settings = replace(SETTINGS, assignor=assignor)
    assert assign(view("a:0-1 b:2-3"), settings).warnings == ()
    changed_settings = replace(settings, rebalance_enable="none", moves_at_once=0)
    (warning,) = assign(view("a:0-1 b:2-3"), changed_settings).warnings
    assert warning.startswith(
        f"[RIFFLE-0775] The assignor {assignor} ignores these settings: rebalance_enable, moves_at_once. What to do: "
    )
