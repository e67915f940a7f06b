"""Planted bugs stay worth planting: each still applies, says what it does to a user, and is looked for in a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dst.planting import PLANTED, misfits, plants, tried

_SOURCE = (
    "import pathlib, sys, riffle_spark\n"
    "found = 'tuple(sorted(' in (pathlib.Path(riffle_spark.__file__).parent / 'protocol/shards.py').read_text()\n"
    "print('FAILED tests/test_it.py::test_it - it failed' if found else 'passed')\n"
    "sys.exit(found)"
)


def test_every_planted_bug_applies() -> None:
    """What is planted fits the checkout as it is now: who changes that code changes the patch with it."""
    assert misfits(plants()) == {}


def test_every_planted_bug_says_what_it_does() -> None:
    """Each has a name of its own and a first line for a user; at least 60 are planted, 20 by who had read no check."""
    every = plants()
    assert len(every) == len(list(PLANTED.rglob("*.patch"))) >= 60
    assert sum(one.unread for one in every) >= 20
    for one in every:
        assert one.patch.read_text().startswith(f"# {one.told}\n"), one.name
        assert one.told[0].isupper(), one.name
        assert one.told.endswith("."), one.name
        assert all(name.startswith("riffle_spark/") for name in one.files), one.name


def test_a_planted_bug_is_found_or_missed_in_a_copy_of_the_checkout() -> None:
    """One bug makes the command fail and is found with what failed first; another does not, and is missed."""
    found, missed = tried(plants(["partitions_sorted_in", "in_time_at_watermark"]), ["-c", _SOURCE], seconds=60.0)
    assert (found.found, found.first) == (True, "tests/test_it.py::test_it")
    assert (missed.found, missed.first) == (False, "")
    assert "tuple(sorted(" not in Path("riffle_spark/protocol/shards.py").read_text()


def test_what_takes_too_long_is_missed() -> None:
    """A slow machine finds no bugs: what has not come to its end in time found nothing."""
    waits = "import time\nif 'less(' in open('riffle_spark/worker/input.py').read(): time.sleep(60)"
    (outcome,) = tried(plants(["in_time_at_watermark"]), ["-c", waits], seconds=4.0)
    assert (outcome.found, outcome.first) == (False, "it did not come to its end in time")


def test_a_command_that_fails_by_itself_finds_nothing() -> None:
    """What fails where nothing is planted would find every bug: it is refused, with what it said. So is
    what takes too long by itself, which would find none."""
    some = plants(["in_time_at_watermark"])
    with pytest.raises(SystemExit, match=r"(?s)nothing is planted.*broken by itself"):
        list(tried(some, ["-c", "raise SystemExit('broken by itself')"], seconds=60.0))
    with pytest.raises(SystemExit, match=r"nothing is planted.*more than 1 s.*more time"):
        list(tried(some, ["-c", "import time; time.sleep(60)"], seconds=1.0))
