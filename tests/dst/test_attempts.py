"""A task that gives up with what has not befallen it is a failure of the schedule, though the query runs it again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from riffle_spark.errors import CorruptStateError, Misplaced, OutOfDate, RiffleError, UnavailableError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.state.copies.disk import disk_refused
from riffle_spark.state.log.manifest import Entry
from riffle_spark.state.objects.open import StoreOptions
from riffle_spark.worker import slot
from tests.dst import attempts
from tests.dst.__main__ import main
from tests.dst.scheduler import Actor, Process

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


@pytest.mark.parametrize(
    ("owner", "taken_for", "is_explained"),
    [("app/1", "m000000000001", False), ("app/2", "m000000000001", True), (None, "m000000000001", True),
     (None, "m000000000002", False), (None, "1", False)],
)  # fmt: skip
def test_who_works_in_another_folder_than_its_driver_knows_of_may_have_no_copy(
    tmp_path: Path, owner: str | None, taken_for: str, is_explained: bool
) -> None:
    """Where the one that the driver takes for its was given away or removed; not while it is there, and its."""
    if owner is not None:
        folder = tmp_path / "root" / "m000000000001"
        folder.mkdir(parents=True)
        (folder / "owner").write_text(owner)
    home = Home("memory://r", StoreOptions(), str(tmp_path), "app", frozenset())
    actor = Actor("slot on 1", "slot", Process("executor 1", "1"), list)
    problem, where = "1 key-groups have no copy here and one on a standby, the first is 4", "member m000000000002"
    gave_up = attempts._GaveUp(actor, problem, where, home, 1, 1, ("totals", 4), member=taken_for)
    cluster = SimpleNamespace(executors=lambda: [SimpleNamespace(id="1")])
    world = SimpleNamespace(cluster=cluster, files=SimpleNamespace(harmed=set()))
    assert attempts.Attempts(world).explains(gave_up) == is_explained
