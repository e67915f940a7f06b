"""What is pinned, and what an audit of it may be taken for."""

from __future__ import annotations

import json
import re

import pytest

from tests.kit.audit import HOLES, NO_ANSWER, NO_HOLES, verdict
from tests.kit.folders import CHECKOUT

PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[a-z,-]+\])?==[^ ;]+( *;.*| --hash=sha256:[0-9a-f]{64})?")


@pytest.mark.parametrize("name", ["python310.txt", "python311.txt", "audit.txt", "fuzz.txt"])
def test_every_package_has_one_version(name: str) -> None:
    """Ranges, URLs and options are none."""
    lines = (CHECKOUT / "requirements" / name).read_text().splitlines()
    said = [line for line in lines if line and not line.startswith("#")]
    assert said
    assert [line for line in said if not PINNED.fullmatch(line)] == []


WHOLE = {"name": "a", "version": "1", "vulns": []}
HOLE = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([WHOLE], NO_HOLES, "no known holes in 1 packages"),
        ([WHOLE, HOLE], HOLES, "b 2: PYSEC-1, mended in 3"),
        ([WHOLE, SKIPPED], NO_ANSWER, "NOT AUDITED"),
        ([HOLE, SKIPPED], NO_ANSWER, "PYSEC-1"),
        ([], NO_ANSWER, "NOT AUDITED"),
    ],
)
def test_an_answer_with_gaps_is_no_answer(packages: list[object], code: int, said: str) -> None:
    """Where packages were passed over nobody knows, however clean the rest is."""
    found, lines = verdict(json.dumps({"dependencies": packages}))
    assert found == code
    assert said in "\n".join(lines)


@pytest.mark.parametrize("answer", ["", "{}", "[]", "ERROR: connection refused"])
def test_no_answer_is_no_clean_one(answer: str) -> None:
    """What a tool that failed left behind is not taken for an audit."""
    assert verdict(answer)[0] == NO_ANSWER
