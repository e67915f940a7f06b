"""All query shapes by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.kit.queries import shapes_of_aggregates as aggregates
from tests.kit.queries import shapes_of_distinct as distinct
from tests.kit.queries import shapes_of_forms as forms
from tests.kit.queries import shapes_of_groups as groups
from tests.kit.queries import shapes_of_joins as joins
from tests.kit.queries import shapes_of_windows as windows
from tests.kit.queries.query_shape import Shape

__all__ = ["SHAPES"]

_MODULES = (aggregates, windows, distinct, joins, groups, forms)
SHAPES: Mapping[str, Shape] = {shape.name: shape for module in _MODULES for shape in module.SHAPES}
assert len(SHAPES) == sum(len(module.SHAPES) for module in _MODULES), "two shapes have the same name"
