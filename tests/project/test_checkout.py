"""A checkout is enough: nothing in it reads what lies beside it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.kit.folders import CHECKOUT

PARTS = ("riffle_spark", "apps", "tests", "benchmarks")
OWN_VARIABLES = ("RIFFLE_CACHE", "RIFFLE_RACK", "RIFFLE_TAG_")


def _steps_up(source: ast.expr) -> int | None:
    """Return how many folders above its file an expression with ``__file__`` leads; None where it is none."""
    match source:
        case ast.Name(id="__file__"):
            return 0
        case ast.Call(func=ast.Name(id="Path"), args=[inner]):
            return _steps_up(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve" | "absolute")):
            return _steps_up(inner)
        case ast.Attribute(value=inner, attr="parent"):
            return _plus(_steps_up(inner), 1)
        case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))):
            return _plus(_steps_up(inner), number + 1)
    return None


def _plus(steps: int | None, added: int) -> int | None:
    return None if steps is None else steps + added


def _outside(path: Path, text: str) -> list[str]:
    """Name every place of a file that leads out of the checkout, by folders or by a variable that names one."""
    depth = len(path.relative_to(CHECKOUT).parts)
    problems: list[str] = []
    if "__file__" not in text and "RIFFLE_" not in text:
        return problems
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.expr) and (_steps_up(node) or 0) > depth:
            problems.append(f"{path.relative_to(CHECKOUT)}:{node.lineno} climbs above the checkout")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_foreign(node.value):
            problems.append(f"{path.relative_to(CHECKOUT)}:{node.lineno} asks for {node.value}")
    return problems


def _is_foreign(name: str) -> bool:
    is_variable = name.removeprefix("RIFFLE_").isupper() and name.startswith("RIFFLE_") and name.isidentifier()
    return is_variable and not name.startswith(OWN_VARIABLES)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_reads_outside_its_checkout(part: str) -> None:
    """No file climbs above the checkout, or asks a variable of ours for a folder that would have to lie elsewhere."""
    files = sorted((CHECKOUT / part).rglob("*.py"))
    assert files
    assert [problem for path in files for problem in _outside(path, path.read_text())] == []


@pytest.mark.parametrize(
    "text",
    [
        "Path(__file__).resolve().parents[2] / 'shared'",
        "os.environ.get('RIFFLE_" + "SHARED')",
    ],
)
def test_a_way_out_is_found(text: str) -> None:
    """Two folders above a benchmark is outside, however it is written."""
    assert len(_outside(CHECKOUT / "benchmarks" / "x.py", text)) == 1
    assert _outside(CHECKOUT / "benchmarks" / "x.py", "Path(__file__).resolve().parents[1].joinpath('y')") == []
