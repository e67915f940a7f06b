"""The table of tested versions is that of the stored outcomes."""

from __future__ import annotations

from tests.kit.spark_matrix import PAGE, read_outcomes, with_table


def test_the_page_shows_the_stored_outcomes() -> None:
    """``./run matrix`` writes both. An edit of one alone is noticed."""
    assert read_outcomes()
    assert PAGE.read_text() == with_table(PAGE.read_text(), read_outcomes())
