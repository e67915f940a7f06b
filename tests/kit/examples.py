"""Hypothesis profiles: ``fast`` for ``./run test``, ``full`` for its ``--all``, ``planted`` for ``./run planted``."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

__all__ = ["FAST", "FULL", "PLANTED", "costly", "register_profiles"]

FAST = "fast"
FULL = "full"
PLANTED = "planted"
EXAMPLES = {FAST: 25, FULL: 200}
SLOWNESS = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
"""Health checks that fail a property because the machine is busy, not because the property is wrong."""


def register_profiles() -> None:
    """Register all profiles and load ``fast``; ``--hypothesis-profile=full`` loads another one afterwards.

    Examples are derived from the property's source, so that every run draws the same ones. ``planted`` draws those of
    ``fast``, but does not shrink an example that fails.
    """
    for name, examples in EXAMPLES.items():
        settings.register_profile(
            name, max_examples=examples, deadline=None, derandomize=True, suppress_health_check=SLOWNESS
        )
    settings.register_profile(PLANTED, settings.get_profile(FAST), phases=(Phase.explicit, Phase.generate))
    settings.load_profile(FAST)


def costly(divisor: int) -> settings:
    """Return settings for a property whose examples are slow: it runs the profile's number divided by ``divisor``."""
    return settings(max_examples=settings().max_examples // divisor)
