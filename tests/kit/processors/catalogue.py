"""All processor cases by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.processors import counting, expiring, lists, maps, nested, sessions, timers
from tests.kit.processors import nested_map_keys as mapkeys
from tests.kit.processors import several_states as machines
from tests.kit.processors.processor_case import Case

__all__ = ["CASES"]

_MODULES = (counting, lists, maps, mapkeys, sessions, timers, expiring, machines, nested)
CASES: Mapping[str, Case] = {case.name: case for module in _MODULES for case in module.CASES}
