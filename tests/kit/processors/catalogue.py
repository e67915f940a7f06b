"""All cases by name. Knows them. Does not know who runs them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.processors import counting, expiring, lists, machines, mapkeys, maps, nested, sessions, timers
from tests.kit.processors.case import Case

__all__ = ["CASES"]

_MODULES = (counting, lists, maps, mapkeys, sessions, timers, expiring, machines, nested)
CASES: Mapping[str, Case] = {case.name: case for module in _MODULES for case in module.CASES}
