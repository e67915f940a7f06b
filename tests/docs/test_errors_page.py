"""Every error of the product has an id, and ``docs/errors.md`` lists it with the message of the source."""

from __future__ import annotations

import ast
import re

import pytest

from riffle_spark.errors import ConfigError
from tests.kit import errors_reference as reference
from tests.kit.folders import CHECKOUT

ROOT = "RiffleError"
INTERNAL = {"FailedKeys"}
"""Exceptions that the product catches itself, and exceptions that contain the id of another one."""


@pytest.fixture(scope="module")
def reader() -> reference.Reader:
    """Return a reader that parses each module of the source once."""
    return reference.Reader()


@pytest.fixture(scope="module")
def messages(reader: reference.Reader) -> list[reference.Message]:
    """Return all messages of the source."""
    return reference.messages(reader=reader)


def test_the_page_has_the_messages_of_the_source(messages: list[reference.Message]) -> None:
    """The page has the messages of the source. ``./run reference`` writes it."""
    assert reference.PAGE.read_text() == reference.page(messages)


def test_placeholders_in_messages_are_plain_names(messages: list[reference.Message]) -> None:
    """Messages on the page have names as placeholders, and never an expression of the source or ``%s``."""
    texts = [text for message in messages for text in (message.problem, message.remedy)]
    assert [text for text in texts if re.search(r"%[srdg]|\{\W|\{[^}]*[.(\[]", text)] == []


def test_an_id_has_one_message(messages: list[reference.Message]) -> None:
    """Two places use the same id only with the same class and message."""
    texts: dict[str, set[tuple[str, str]]] = {}
    for message in messages:
        texts.setdefault(message.id, set()).add((message.kind, message.problem))
    assert {id: several for id, several in texts.items() if len(several) > 1} == {}


def test_every_created_error_has_an_id(reader: reference.Reader) -> None:
    """Every call that creates an error passes an id."""
    sources = {path: reader.source(path).statements for path in (CHECKOUT / "riffle_spark").rglob("*.py")}
    classes_made = [
        node for statements in sources.values() for node, _, _ in statements if isinstance(node, ast.ClassDef)
    ]
    bases = {node.name: set(map(ast.unparse, node.bases)) for node in classes_made}
    classes = {ROOT}
    while extended := {name for name, own_bases in bases.items() if classes & own_bases} - classes:
        classes |= extended
    bare = [
        f"{path.relative_to(CHECKOUT)}:{node.lineno}"
        for path, statements in sources.items()
        for _, _, nodes in statements
        for node in nodes
        if isinstance(node, ast.Call)
        and not any(keyword.arg == "id" for keyword in node.keywords)
        and _class_name(node.func) in classes - INTERNAL
    ]
    assert bare == []


def _class_name(function: ast.expr) -> str:
    """Return the name of the class that a call creates, or an empty text."""
    if isinstance(function, ast.Attribute):
        return function.attr if isinstance(function.value, ast.Name) and function.value.id == "errors" else ""
    return function.id if isinstance(function, ast.Name) else ""


def test_an_error_shows_its_id() -> None:
    """The text of an error starts with its id."""
    error = ConfigError("a fact", remedy="do it", where="here", id="RIFFLE-9999")
    assert error.id == "RIFFLE-9999"
    assert str(error) == "[RIFFLE-9999] a fact [here]\n  What to do: do it"
