"""Tables of commands are plain columns in a pipe, and boxes on a terminal."""

from __future__ import annotations

import sys

import pytest

from riffle_spark.console.tables import Table, rate_text, show_facts, show_table


@pytest.fixture
def table() -> Table:
    """Return a table with a number, a missing value, a line break and text that looks like markup."""
    table = Table("MEMBERS", ("NAME", "ROWS"), right=frozenset({"ROWS"}))
    table.add("[bold]m1[/bold]", 1_234)
    table.add("m2\nm3", None)
    return table


def test_a_table_in_a_pipe_has_aligned_columns(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a table has plain columns, numbers to the right. Without rows nothing is printed."""
    show_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["", "MEMBERS", "NAME             ROWS"]
    assert lines[3:] == ["[bold]m1[/bold]  1234", "m2\\nm3              -"]
    show_table(Table("MEMBERS", ("NAME",)))
    assert capsys.readouterr().out == ""


def test_a_table_on_a_terminal_shows_the_same_cells(
    table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal a table is a box. Cells are not read as markup, and long ones are folded, not cut."""
    table.add("x" * 100, 7)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    show_table(table)
    shown = capsys.readouterr().out
    for part in ("MEMBERS", "NAME", "ROWS", "[bold]m1[/bold]", "1234", "m2\\nm3"):
        assert part in shown
    assert shown.count("x") == 100
    assert max(map(len, shown.splitlines())) <= 80


def test_facts_and_rates_are_shown_with_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts are aligned, and a rate has three digits and its unit. An unknown rate has no text."""
    show_facts([("Key-group", "3"), ("Owner", "m1\x07")])
    assert capsys.readouterr().out == "Key-group  3\nOwner      m1\\u0007\n"
    assert [rate_text(rate, "rows/s") for rate in (None, 0.12345, 12_345.6)] == [None, "0.123 rows/s", "12,346 rows/s"]
