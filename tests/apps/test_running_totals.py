"""The running totals' command line."""

from __future__ import annotations

import pytest

from apps import running_totals

NEEDED = ["running_totals.py", "--bootstrap", "broker:9092", "--checkpoint", "/checkpoint"]


def test_totals_that_would_go_nowhere_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a topic and a path there is nothing to write to: the command says so before it starts anything."""
    monkeypatch.setattr("sys.argv", NEEDED)
    with pytest.raises(SystemExit):
        running_totals.arguments()
    assert "--output-topic or --output-path" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--output-topic", "totals"], ["--output-path", "/totals"]])
def test_one_place_is_enough(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """A topic or a path will do."""
    monkeypatch.setattr("sys.argv", [*NEEDED, *arguments])
    options = running_totals.arguments()
    assert arguments[1] in (options.output_topic, options.output_path)
