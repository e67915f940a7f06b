"""Each planted bug applies to the code and describes its effect."""

from __future__ import annotations

from tests.planted.patches import check_patches_apply, read_plants


def test_every_planted_bug_applies() -> None:
    """Every patch applies to the current code."""
    check_patches_apply(read_plants())


def test_every_planted_bug_has_a_sentence_as_description() -> None:
    """The description of every planted bug is a sentence."""
    plants = read_plants()
    assert len(plants) >= 100
    assert [
        plant.name for plant in plants if not (plant.description[0].isupper() and plant.description.endswith("."))
    ] == []
