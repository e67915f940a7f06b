"""Planted bugs apply to the code, and ``./run planted`` distinguishes found, lost and unusable ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT
from tests.planted.__main__ import main
from tests.planted.copies import Outcome
from tests.planted.patches import PATCHES, check_patches_apply, read_plants

SHARDS = "riffle_spark/protocol/shards.py"
SHARDS_TEST = "# tests: tests/protocol/test_shards.py\n"
FIRST_LINE = (CHECKOUT / SHARDS).read_text().splitlines()[0]


def write_comment(folder: Path, name: str, header: str = SHARDS_TEST, first_line: str = FIRST_LINE) -> None:
    """Write a patch that changes nothing: it puts a comment in front of a module's first line."""
    diff = f"--- a/{SHARDS}\n+++ b/{SHARDS}\n@@ -1 +1,2 @@\n+# a comment\n {first_line}\n"
    (folder / f"{name}.patch").write_text(f"# what: Nothing goes wrong.\n{header}{diff}")


def test_every_planted_bug_applies() -> None:
    """Whoever changes the code under a patch changes the patch with it."""
    check_patches_apply(read_plants())


def test_every_planted_bug_says_what_goes_wrong() -> None:
    """In one sentence."""
    plants = read_plants()
    assert len(plants) >= 100
    assert [
        plant.name for plant in plants if not (plant.description[0].isupper() and plant.description.endswith("."))
    ] == []


@pytest.mark.long
def test_a_bug_is_found_and_a_patch_without_effect_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bug that no test finds fails the command."""
    shutil.copy2(PATCHES / "dst" / "partitions_sorted_in.patch", tmp_path)
    write_comment(tmp_path, "lost")
    assert main(["--processes", "2"], tmp_path) == 1
    output = capsys.readouterr().out
    assert "found protocol: partitions_sorted_in" in output
    assert "LOST  protocol: lost" in output
    assert output.splitlines()[-1].split()[:4] == ["all", "2", "1", "1"]


def test_a_bug_that_is_recorded_as_missed_fails_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patch records why no test finds it."""
    write_comment(tmp_path, "recorded", f"{SHARDS_TEST}# missed: It is a comment.\n")
    monkeypatch.setattr(
        "tests.planted.__main__.run_plants",
        lambda plants, *_: [Outcome(plants[0], is_found=False, first="", seconds=0)],
    )
    assert main([], tmp_path) == 0
    assert "known protocol: recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("header", "first_line", "message"),
    [
        (SHARDS_TEST, "no such line", "bug does not apply"),
        ("# tests: tests/no_such_test.py\n", FIRST_LINE, "names tests that do not exist: tests/no_such_test.py"),
        ("", FIRST_LINE, "needs either '# tests: PATH ...' or '# schedules: NUMBER'"),
    ],
)
def test_an_unusable_patch_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str, first_line: str, message: str
) -> None:
    """It is neither found nor lost."""
    write_comment(tmp_path, "bug", header, first_line)
    assert main([], tmp_path) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped name does not pass for a run without losses."""
    assert main(["no_such_bug"]) == 2
    assert "no_such_bug" in capsys.readouterr().err
