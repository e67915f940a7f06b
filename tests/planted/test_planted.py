"""Planted bugs apply to the code, and each says what goes wrong."""

from __future__ import annotations

from tests.planted.patches import check_patches_apply, read_plants


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
