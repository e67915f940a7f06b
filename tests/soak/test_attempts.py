"""A task that gives up with what has not befallen it is a failure of the schedule, though the query runs it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.errors import CorruptStateError, Misplaced, OutOfDate, RiffleError, UnavailableError
from riffle_spark.state.copies.disk import disk_refused
from riffle_spark.state.log.manifest import Entry
from riffle_spark.worker import slot
from tests.soak.__main__ import main

WRONG: tuple[RiffleError, ...] = (
    Misplaced("1 key-groups have no copy here and one on a standby, the first is 77", where="member m000000000000"),
    OutOfDate("the copy is at version 9 of epoch 1, the batch starts from 8", where="totals, key-group 1"),
    OutOfDate("this executor's folder is gone from its disk", where="/nowhere"),
    OutOfDate("what nobody says"),
    disk_refused("the local disk refused: [Errno 28] No space left on device: '/x'", Path("/x")),
    UnavailableError("the store failed: error before", where="log/00000000000000000000"),
    CorruptStateError("it is missing", where="log/00000000000000000000"),
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_an_attempt_that_gives_up_for_nothing_fails_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: RiffleError
) -> None:
    """Of its copies, its folder, its disk, the log and the store."""
    check, left = slot._Attempt._check_placed, [wrong]  # private: where an attempt looks at its copies

    def checked(attempt: Any, entries: dict[int, Entry]) -> None:
        while left:
            raise left.pop()
        check(attempt, entries)

    monkeypatch.setattr(slot._Attempt, "_check_placed", checked)  # private: as above
    assert main(["--seed", "1", "--no-shrink", "--json"]) == 1
    (told,) = json.loads(capsys.readouterr().out)["failures"]
    assert f"gives up with what has not befallen it: {wrong.problem}" in told
