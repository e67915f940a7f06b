"""Tests use private names of their own package only. Other uses need a comment with the reason on the same line."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping

import pytest

from tests.kit.folders import CHECKOUT

PRIVATE = re.compile(r"_[A-Za-z]\w*")
PRIVATE_WORD = re.compile(r"(?<!\w)_[A-Za-z]\w*")
IMPORTED = re.compile(r"\bimport\s*(?:\([^)]*|[^(\n]*)(?<!\w)_[A-Za-z]")
"""An import of a private name."""
NAMED_TUPLE = {"_replace", "_asdict", "_fields"}
ON_THE_LINE = "# private: "
IN_THE_FILE = "# private parts: "
OURS = ("riffle_spark", "apps", "tests", "benchmarks")
Packages = Mapping[str, set[str]]
"""The packages of the product that define each private name."""


def sources(*folders: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, package and text of each file. The package is the path below the first folder."""
    for folder in folders:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            inside = path.relative_to(CHECKOUT)
            yield str(inside), "/".join(inside.parts[1:-1]), path.read_text()


def defined(tree: ast.Module) -> set[str]:
    """Return the private names that a file defines or assigns, including attributes of its own classes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            names.add(node.attr)
    return {name for name in names if PRIVATE.fullmatch(name) and name not in NAMED_TUPLE}


def named(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, name and, for an import, package of each name that may be private in another file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            for name in node.names if parts[0] in OURS else ():
                yield node.lineno, name.name, "/".join(parts[1:-1])
        elif isinstance(node, ast.Attribute) and not _is_self(node.value):
            yield node.end_lineno or node.lineno, node.attr, None
        elif isinstance(node, ast.Call) and _called(node.func).endswith("attr"):
            for argument in node.args[1:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.lineno, argument.value, None


def breaches(text: str, package: str, packages: Packages) -> list[str]:
    """Return private names of other packages that a test uses without a reason, and reasons without such a name."""
    if not _may_have_breaches(text, packages):
        return []
    tree = ast.parse(text)
    own = defined(tree)
    comments = _comments(text) if ON_THE_LINE in text or IN_THE_FILE in text else {}
    names_by_line = {}
    for line, name, imported in named(tree):
        of = {imported} if imported is not None else packages.get(name, set()) if name not in own else set()
        if PRIVATE.fullmatch(name) and of and not any(_is_own(package, other_package) for other_package in of):
            names_by_line[line] = name
    whole_file = any(comment.startswith(IN_THE_FILE) for comment in comments.values())
    lines = {line for line, comment in comments.items() if comment.startswith(ON_THE_LINE)}
    unsaid = (
        [] if whole_file else [f"{line}: {name}" for line, name in sorted(names_by_line.items()) if line not in lines]
    )
    return unsaid + [f"{line}: nothing is private here" for line in sorted(lines - set(names_by_line))]


def _may_have_breaches(text: str, packages: Packages) -> bool:
    """Return whether a text may use private names or give a reason. This avoids parsing most files."""
    names = set(PRIVATE_WORD.findall(text))
    return ON_THE_LINE in text or not packages.keys().isdisjoint(names) or IMPORTED.search(text) is not None


def _is_own(package: str, other_package: str) -> bool:
    """Return whether a package of the product is the test's own or below it. Shared helpers have none."""
    return other_package == package or (package != "" and other_package.startswith(f"{package}/"))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _called(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")


def _comments(text: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


@pytest.fixture(scope="module")
def packages() -> Packages:
    """Return the packages that define each private name of the product."""
    packages_by_name: dict[str, set[str]] = defaultdict(set)
    for _, package, text in sources("riffle_spark", "apps"):
        for name in defined(ast.parse(text)):
            packages_by_name[name].add(package)
    return packages_by_name


def test_private_parts_of_other_packages_are_named_with_a_reason(packages: Packages) -> None:
    """Tests and benchmarks use private names of other packages only with a reason."""
    found_breaches = {path: breaches(text, package, packages) for path, package, text in sources("tests", "benchmarks")}
    assert {path: lines for path, lines in found_breaches.items() if lines} == {}


@pytest.mark.parametrize(
    ("package", "line", "is_found"),
    [
        ("worker", "log._tail", True),
        ("state", "log._tail", False),
        ("state/log", "log._tail", False),
        ("kit/state", "log._tail", True),
        ("", "log._tail", True),
        ("worker", "log._tail = 5", True),
        ("worker", "patch.setattr(Log, '_tail', None)", True),
        ("worker", "from riffle_spark.state.log.log import _named", True),
        ("state", "from riffle_spark.state.log.log import _named", False),
        ("worker", "log.tail", False),
        ("worker", "session._jvm", False),
        ("worker", "from pyspark.sql.types import _parse", False),
        ("worker", "log._tail  # private: the one place that has it", False),
        ("worker", "# private parts: faults are planted in all of them\nlog._tail", False),
        ("worker", "log.tail  # private: it was", True),
    ],
)
def test_uses_of_private_names_of_other_packages_are_reported(package: str, line: str, is_found: bool) -> None:
    """An import, attribute or patch of a private name is found, unless it is the test's, a library's, or explained."""
    assert bool(breaches(line + "\n", package, {"_tail": {"state/log"}})) == is_found
