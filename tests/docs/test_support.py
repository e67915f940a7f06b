"""The table of tested versions is generated from the stored outcomes."""

from __future__ import annotations

from tests.kit.spark_matrix import PAGE, read_outcomes, with_table


def test_the_page_shows_the_stored_outcomes() -> None:
    """The page shows the stored outcomes. ``./run matrix`` writes both."""
    assert read_outcomes()
    assert PAGE.read_text() == with_table(PAGE.read_text(), read_outcomes())
