"""Hypothesis profiles: ``fast`` for ``./run test``, ``full`` for ``./run test --all``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["FAST", "FULL", "costly", "register_profiles"]

FAST, FULL = "fast", "full"
EXAMPLES = {FAST: 25, FULL: 200}
SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
"""Health checks that fail a property because the machine is busy, not because the property is wrong."""


def register_profiles() -> None:
    """Register both profiles and load ``fast``; ``--hypothesis-profile=full`` loads the other one afterwards.

    Examples are derived from the property's source, so that every run draws the same ones.
    """
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            name, max_examples=examples, deadline=None, derandomize=True, suppress_health_check=SLOWNESS
        )
    settings.load_profile(FAST)


def costly(divisor: int) -> settings:
    """Return settings for a property whose examples are slow: it runs the profile's number divided by ``divisor``."""
    return settings(max_examples=settings().max_examples // divisor)
