"""Two walks through the code: a batch's rows from Spark to the sink, and an assignment from its view."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.house.imports import Module, Product

__all__ = ["BATCH", "Step", "assignment_names", "batch_walk", "wrong_steps"]

_ROWS = ("DataFrame", "pa.Table", "pa.RecordBatch")
_BESIDE = ("keys", "state")
_FIRST = ("assign.assignor", "high_availability")


class Step(NamedTuple):
    """One function that the rows come through: ``module:function`` and the names that they have in it."""

    function: str
    names: tuple[str, ...]


BATCH = (
    Step("spark.stateful:StatefulJob.__call__", ("batch",)),
    Step("spark.job:RunningJob.process", ("batch", "work")),
    Step("spark.engine.routing:prepared", ("batch",)),
    Step("protocol.batch.driver:Driver._run", ("work",)),
    Step("protocol.batch.driver:Driver._run_and_deliver", ("work",)),
    Step("protocol.batch.driver:Driver._run_once", ("work",)),
    Step("spark.engine.spark_batch:SparkWork._route", ("batch",)),
    Step("spark.engine.routing:routed", ("batch",)),
    Step("spark.engine.spark_batch:SparkWork._result", ("counted", "result")),
    Step("spark.engine.kept_plan:KeptPlans.planned", ("batch", "made")),
    Step("spark.engine.task:_run", ("rows", "result")),
    Step("worker.slot:run_slot", ("rows", "output")),
    Step("worker.slot:_Attempt.run", ("rows", "output")),
    Step("worker.run_computation:as_declared", ("rows",)),
    Step("worker.input:on_time", ("rows",)),
    Step("worker.run_computation:in_declared_order", ("rows",)),
    Step("worker.input:touch", ("rows",)),
    Step("worker.slot:_Attempt._compute", ("rows",)),
    Step("process.store_computation:_Block.run", ("slot",)),
    Step("worker.slot:_SlotState.over_tables", ()),
    Step("worker.dead_letters:with_letters", ("rows", "result")),
    Step("worker.slot:_SlotState._on_tables", ("rows", "result")),
    Step("worker.run_computation:run_on_blocks", ("rows",)),
    Step("worker.run_computation:_at_once", ("rows",)),
    Step("worker.run_computation:_batch", ("rows",)),
    Step("process.blocks.aggregates:Aggregates.__call__", ("batch", "values", "output")),
    Step("process.blocks.aggregates:_values", ("rows",)),
    Step("worker.run_computation:_join", ("updates", "output")),
    Step("worker.seal:seal", ("output",)),
    Step("worker.slot:_answer", ("rows", "answer")),
    Step("spark.engine.spark_batch:SparkWork._run", ("result",)),
    Step("spark.engine.stage_frames:KeptResult.__init__", ("result",)),
    Step("spark.engine.spark_batch:SparkWork.deliver", ("rows",)),
    Step("spark.engine.stage_frames:rows_of", ("result", "marked")),
    Step("spark.engine.spark_batch:SparkWork._give", ("rows",)),
)
"""A batch of aggregates. What lies beside the rows (keys, state) has names of its own."""


def batch_walk(product: Product) -> tuple[list[str], list[str], int]:
    """Return the rooms that a batch's rows go through, the names they have, and how often they come back up."""
    homes = [product.home(step.function.partition(":")[0]) for step in BATCH]
    above = [now for before, now in pairwise(homes) if _is_below(product, before, now)]
    return list(dict.fromkeys(homes)), sorted({name for step in BATCH for name in step.names}), len(above)


def _is_below(product: Product, room: str, other: str) -> bool:
    """Tell whether ``other`` imports ``room``, in any number of steps."""
    seen: set[str] = set()
    waiting = [other]
    while waiting:
        for target in product.room_graph.get(waiting.pop(), set()) - seen:
            seen.add(target)
            waiting.append(target)
    return room != other and room in seen


def wrong_steps(product: Product) -> Iterator[str]:
    """Tell which step names a function or a name that is not there, or leaves out a parameter that holds rows."""
    everywhere = {*_BESIDE, *(name for step in BATCH for name in step.names)}
    for step in BATCH:
        module, _, path = step.function.partition(":")
        found = _function(product.modules[module], path) if module in product.modules else None
        if found is None:
            yield f"there is no {step.function}"
            continue
        known = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)} | set(_parameters(found))
        yield from (f"{step.function} has no {name}" for name in step.names if name not in known)
        holding = (name for name, kind in _parameters(found).items() if kind in _ROWS)
        yield from (f"{step.function} has rows in {name}, too" for name in holding if name not in everywhere)


def _function(module: Module, path: str) -> ast.FunctionDef | None:
    body: list[ast.stmt] = module.tree.body
    found: ast.stmt | None = None
    for name in path.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = next((node for node in body if isinstance(node, kinds) and node.name == name), None)
        body = found.body if isinstance(found, kinds) else []
    return found if isinstance(found, ast.FunctionDef) else None


def _parameters(function: ast.FunctionDef) -> dict[str, str]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in given}


Place = tuple[str, str]


def assignment_names(product: Product) -> list[str]:
    """Return the names of parameters that a reader meets between ``View`` and ``Assignment``: those of all functions
    and methods of ``assign`` that the high availability assignor comes to.
    """
    functions = dict(_functions(product))
    return sorted(
        {name for place in _reached(product, functions) for name in _parameters(functions[place])} - {"self", "cls"}
    )


def _functions(product: Product) -> Iterator[tuple[Place, ast.FunctionDef]]:
    for module in product.rooms["assign"]:
        for node in product.modules[module].tree.body:
            if isinstance(node, ast.FunctionDef):
                yield (module, node.name), node
            elif isinstance(node, ast.ClassDef):
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
                yield from (((module, f"{node.name}.{method.name}"), method) for method in methods)


def _reached(product: Product, functions: dict[Place, ast.FunctionDef]) -> set[Place]:
    """Return the functions that are named, one by another, from the first on. A method counts by its name alone."""
    seen: set[Place] = set()
    waiting = [_FIRST]
    while waiting:
        place = waiting.pop()
        if place in seen or place not in functions:
            continue
        seen.add(place)
        for node in ast.walk(functions[place]):
            if isinstance(node, ast.Attribute):
                waiting += [other for other in functions if other[1].endswith(f".{node.attr}")]
            elif isinstance(node, ast.Name):
                module, name = _home(product, place[0], node.id)
                waiting += [(module, name), (module, f"{name}.__init__")]
    return seen


def _home(product: Product, module: str, name: str) -> Place:
    """Return where a name of a module comes from."""
    for source, imported in product.modules[module].imported():
        ours = source.removeprefix("riffle_spark.")
        if imported == name and ours in product.modules:
            return ours, name
    return module, name
