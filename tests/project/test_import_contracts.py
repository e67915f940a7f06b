"""A copy of the package violates each import contract once, and the tool reports each violation."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.folders import CHECKOUT
from tests.kit.pages import table_rows

PACKAGE = "riffle_spark"
INTERNALS = CHECKOUT / "docs" / "spark-internals.md"
NAMES = f"{PACKAGE}/state/log/paths.py"
TIMEOUT_SECONDS = 120
_JVM = re.compile(r"_(j[a-z]\w*|gateway|fqn|sc)\Z")
_OBJECT = re.compile(r"^/?(log|delta|snapshot)/|key_group=")
_WORD = re.compile(r"[\w$-]+")
_CALLED = re.compile(r"[a-z]+[A-Z]\w*|[A-Z][a-z]\w*|[A-Z]+\Z")
"""The style of names of JVM methods and classes. Names of riffle_spark have another style."""


ONE_WAY = "Imports run one way"
PURE = "assign/ without clock, chance, logging, threads, environment"
PROTOCOL = "protocol/ without clock, chance, threads, environment, boto3; messages/, process/ and simulate/ too"
SIMULATE = "The simulator imports production code, not the reverse"
MESSAGES = "messages/ without what computes on Arrow or keeps files"
SPARK = "pyspark only in spark/"
CLIENTS = "Clients of object stores and of OpenTelemetry only where they are needed"
MACHINE = "Locks of files, programs and Kafka's administration each in their files"
CALLS = "Clocks, chance and environment only where it is said"
DATA_FLOW = "Spark's inner parts and the names of objects"


class Breach(NamedTuple):
    """A contract, the file that gets additional lines, these lines, and the expected report of the tool."""

    contract: str
    file: str
    lines: str
    report: str


def _imports(contract: str, file: str, module: str) -> Breach:
    """Return a breach by a forbidden import. The report names both modules."""
    report = f"{PACKAGE}.{file.replace('/', '.')} -> {module} (l.{{}})"
    return Breach(contract, file, f"import {module}", report)


def _calls(file: str, lines: str, name: str) -> Breach:
    """Return a breach by a forbidden call."""
    return Breach(CALLS, file, lines, f"{PACKAGE}/{file}.py:{{}}:{{}}: TID251 `{name}` is banned")


def _data_flow(file: str, lines: str, report: str) -> Breach:
    """Return a breach that only this test finds."""
    return Breach(DATA_FLOW, file, lines, f"{PACKAGE}/{file}.py:{{}} {report}")


BREACHES = [
    _imports(ONE_WAY, "state/log/record", f"{PACKAGE}.worker.slot"),
    Breach(ONE_WAY, "cupboard", '"""A module without a layer."""', f"{PACKAGE}.cupboard"),
    _imports(PURE, "assign/flow", "random"),
    _imports(PROTOCOL, "protocol/delays", "time"),
    _imports(SIMULATE, "protocol/ownership/slots", f"{PACKAGE}.simulate.world"),
    _imports(MESSAGES, "messages/upkeep_orders", f"{PACKAGE}.state.schemas.plain_columns"),
    _imports(SPARK, "worker/seal", "pyspark"),
    _imports(CLIENTS, "state/objects/directory", "boto3"),
    _imports(CLIENTS, "state/objects/remote", "requests"),
    _imports(MACHINE, "worker/member_folders", "fcntl"),
    _calls("protocol/upkeep/snapshots", "from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
    _data_flow("spark/engine/routing", "F._jvm.java", "reaches _jvm"),
    _data_flow("spark/warm", "getattr(time, '_jsc')", "reaches _jsc"),
    _data_flow("spark/engine/jvm", "module(None).stopNow()", "calls stopNow, which is not listed"),
    _data_flow("spark/stateful", "from pyspark.sql.types import _parse", "reaches _parse"),
    _data_flow("worker/slot", "f'delta/{time}/1'", "names an object"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the report of each tool on a copy of the package with all violations."""
    copy = tmp_path_factory.mktemp("contracts")
    shutil.copytree(CHECKOUT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml"):
        shutil.copy(CHECKOUT / name, copy)
    for breach in BREACHES:
        with (copy / PACKAGE / f"{breach.file}.py").open("a") as file:
            file.write(f"{breach.lines}\n")
    return {
        **_by_contract(_run_tool(copy, "lint-imports", "--no-cache")),
        CALLS: _run_tool(copy, "ruff", "check", "--no-cache", "--output-format=concise", PACKAGE),
        DATA_FLOW: "\n".join(breaches_below(copy)),
    }


def _run_tool(folder: Path, tool: str, *arguments: str) -> str:
    """Return the output of a tool of this environment, which must report violations."""
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    environment = {**os.environ, "COLUMNS": "400"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def _by_contract(report: str) -> dict[str, str]:
    """Split the report of import-linter by contract."""
    parts = re.split(r"^(\S.*)\n-+\n", report.partition("Broken contracts")[2], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def breaches_below(folder: Path) -> list[str]:
    """Return each place of a package that uses an unlisted private part of Spark or contains an object's name."""
    problems = list[str]()
    words = listed()
    page = set(_words(INTERNALS.read_text()))
    for path in sorted((folder / PACKAGE).rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        tree = ast.parse(path.read_text())
        listed_words = words.get(name, frozenset[str]())
        problems += [f"{name}:{line} reaches {part}" for line, part in _private(tree) if part not in listed_words]
        called = _called(tree) if any(map(_JVM.match, listed_words)) else ()
        problems += [f"{name}:{line} calls {part}, which is not listed" for line, part in called if part not in page]
        problems += [f"{name}:{line} names an object" for line in _names_objects(tree) if name != NAMES]
    return problems


def _private(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each use of a private part of Spark: an attribute of the JVM, or a private function of PySpark."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=attr) if not (isinstance(value, ast.Name) and value.id == "self"):
                if _JVM.match(attr):
                    yield node.lineno, attr
            case ast.Constant(value=str(text)) if _JVM.match(text):
                yield node.lineno, text
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "pyspark":
                yield from ((node.lineno, name.name) for name in names if name.name.startswith("_"))


def _called(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield names in the style of JVM methods and classes, except log levels."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _CALLED.match(node.attr) and ast.unparse(node.value) != "logging":
            yield node.lineno, node.attr


def _names_objects(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each text, except docstrings, that contains a part of an object's name."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings and _OBJECT.search(text):
                yield node.lineno


def listed() -> dict[str, frozenset[str]]:
    """Return the words of the page on Spark's private parts, by the file that uses them."""
    words: dict[str, frozenset[str]] = {}
    for cells in table_rows(INTERNALS):
        if len(cells) == 5 and cells[1].startswith("`"):
            file = f"{PACKAGE}/{cells[1].strip('`')}"
            words[file] = words.get(file, frozenset()) | set(_words(cells[0]))
    return words


def _words(text: str) -> list[str]:
    return [word for code in re.findall(r"`([^`]+)`", text) for word in _WORD.findall(code)]


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: f"{breach.contract}: {breach.file}")
def test_a_planted_violation_is_reported(breach: Breach, reports: Mapping[str, str]) -> None:
    """The report names the contract, the file and the violation."""
    assert re.search(re.escape(breach.report).replace(r"\{\}", r"\d+"), reports[breach.contract])


def test_the_package_has_no_violation_that_linters_miss() -> None:
    """Spark's private parts are used only where the page lists them. Only one file contains object names."""
    assert breaches_below(CHECKOUT) == []


def test_the_page_of_sparks_private_parts_lists_only_used_parts() -> None:
    """Each word of a row on the page occurs in the row's file."""
    for file, words in listed().items():
        text = (CHECKOUT / file).read_text()
        assert sorted(word for word in words if word not in text) == [], file
