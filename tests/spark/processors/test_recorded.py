"""Processors on riffle have the output and state that were recorded of Spark's own operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from riffle_spark import transform_with_state, transform_with_state_in_pandas
from riffle_spark.state.schemas.variable_kinds import DUE, TIMER, VARIABLE
from riffle_spark.testing import Harness
from tests.kit.processors.catalogue import CASES
from tests.kit.processors.processor_case import Case
from tests.kit.processors.record_cases import recorded
from tests.kit.streams.sparks_operator import encoded, in_key_order

pytestmark = pytest.mark.newer_spark

FORMS = {"pandas": transform_with_state_in_pandas, "rows": transform_with_state}
BY_EVENT_TIME = [name for name, case in CASES.items() if case.time_mode == "EventTime"]


def harness(case: Case, form: str, **settings: object) -> Harness:
    """Return a harness with the case's processor."""
    operator = FORMS[form](
        case.processor(form), key=case.key, output=case.output, output_mode=case.output_mode,
        time_mode=case.time_mode, watermark=case.watermark, order_by="seq",
    )  # fmt: skip
    return Harness(operator, case.input, initial=case.initial, **settings)  # type: ignore[arg-type]


def played(query: Harness, case: Case, *, lose_copies: bool) -> Iterator[list[list[Any]]]:
    """Yield the output of each batch. The executors crash where the case restarts."""
    for number, rows in enumerate(case.batches):
        if case.times_ms:
            query.now_ms = case.times_ms[number]
        if number == case.restart_after:
            query.crash(lose_copies=lose_copies)
        yield in_key_order((row.values() for row in query.feed(rows)), len(case.key))


def state_of(query: Harness, case: Case) -> dict[str, Any]:
    """Return the committed state in the form of the recordings."""
    found: dict[str, list[Any]] = {name: [] for name in case.variables}
    if case.time_mode != "None":
        found["timers"] = []
    for row in query.table().to_pylist():
        key = [row[name] for name in case.key]
        name, due = row[VARIABLE], row[DUE]
        if name == TIMER:
            found["timers"].append([key, due])
            continue
        element = row[f"__state_{name}"]
        is_map = case.variables[name] == "map"
        found[name].append([key, element["key"], element["value"], due] if is_map else [key, element, due])
    return {name: _sorted([encoded(entry) for entry in entries]) for name, entries in found.items()}


def _sorted(entries: list[list[Any]]) -> list[list[Any]]:
    return sorted(entries, key=lambda entry: json.dumps(entry[: len(entry) - 2] or entry))


def _forms_of(names: Sequence[str]) -> list[Any]:
    """Return each case with both forms. One of them, in turn, is only for long runs."""
    every = [(name, form) for at, name in enumerate(names) for form in list(FORMS)[:: 1 - 2 * (at % 2)]]
    return [pytest.param(*pair, marks=pytest.mark.long if at % 2 else ()) for at, pair in enumerate(every)]


@pytest.mark.parametrize(
    "lose_copies", [pytest.param(False, id="restart"), pytest.param(True, id="cold", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(("name", "form"), _forms_of(list(CASES)))
@pytest.mark.sample(step=2)
def test_output_and_state_are_those_of_spark(name: str, form: str, lose_copies: bool) -> None:
    """The output of every batch and the final state are the recorded ones, over a restart with or without
    local copies.
    """
    case = CASES[name]
    known = recorded(case)
    with harness(case, form) as query:
        assert list(played(query, case, lose_copies=lose_copies)) == known["steady"]
        assert state_of(query, case) == known["state"]


@pytest.mark.parametrize(("name", "form"), _forms_of(BY_EVENT_TIME[::-1]))
def test_available_now_fires_timers_in_the_last_commit(name: str, form: str) -> None:
    """With AvailableNow, timers fire in the last commit, where Spark runs one more batch without data."""
    case = CASES[name]
    known = recorded(case)
    with harness(case, form) as query:
        query.available_now = True
        outputs = list(played(query, case, lose_copies=False))
        assert outputs == [
            in_key_order((row for rows in passes for row in rows), len(case.key)) for passes in known["last_pass"]
        ]
        assert state_of(query, case) == known["last_pass_state"]
