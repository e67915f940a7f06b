"""Write ``docs/errors.md``: every message of the product, by id.

The generator reads the source, not a running program. A message is a call with ``id="RIFFLE-nnnn"`` or with such an id
as an argument, or the text of a warning that starts with ``[RIFFLE-nnnn]``:

1. Its class is the class that is called, or the class that the called function returns.
2. Its template and its remedy are the arguments ``problem`` and ``remedy``. A variable is replaced by what is assigned
   to it in the same function, a constant by its value, a command or the result of a function for remedies by its text.
   Values of a run are shown as plain names in braces (``tests.kit.placeholder_names``). Slashes separate alternatives,
   and what may be missing is in brackets. The remedy of a warning follows "What to do:". If a whole text is an argument
   of the function around it, or the result of another function, the texts that are passed or returned are alternatives.
3. Its cause is the comment ``# Cause: ...`` above the statement. A message without one states its cause itself. A
   warning that contains an error with a remedy of its own has its remedy in a comment ``# Remedy: ...`` below it.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from riffle_spark import errors
from riffle_spark.console.main import exit_code
from tests.kit.folders import CHECKOUT
from tests.kit.placeholder_names import CLOSE, OPEN, braced, name_values
from tests.kit.source_trees import (
    ArgumentsPassed,
    assignments,
    logged_values,
    own_nodes,
    results,
    statements,
    unpacked_calls,
    walk_statements,
)

__all__ = ["PAGE", "Message", "Reader", "messages", "page"]

PAGE = CHECKOUT / "docs" / "errors.md"
WARNING = "warning"

_DEPTH_MAX = 4

_ID = re.compile(r"RIFFLE-\d{4}")
_WARNING_ID = re.compile(r"\[(RIFFLE-\d{4})\] ")
_CAUSE = re.compile(r"^\s*# Cause: (.*)$")
_COMMENT = re.compile(r"^\s*# ?(.*)$")
_SEVERAL = "Several classes"
_CLASSES = {"Refusal": "ConfigError", "Rule": "RefusedError", "conflict": _SEVERAL, "type(error)": _SEVERAL}
"""Replacements of the called name by a class: for errors made from table entries, and for copies of another error's
class.
"""
_POSITIONS = {"problem": 0, "remedy": 1}
_REPR = ord("r")
_FIELD = re.compile(r"%[-.\d]*[srdgf]")
_TEXT_FUNCTION = re.compile(r"_(remedy|hint|command)$|^describe_")
"""Names of functions whose results are shown as text."""
_EXIT_HEAD = "| class | meaning | exit code of `riffle` |\n| --- | --- | --- |\n"
_SEVERAL_NOTE = (
    "A command raises these errors with the class that fits their cause. The message contains the cause.\n\n"
)
_HEAD = "| id | message | cause | remedy |\n| --- | --- | --- | --- |\n"
_INTRODUCTION = """\
# Errors and warnings

This page lists every message of riffle_spark by its id. Operators look up what a message means; alerts and log filters
match the id, because the wording may change between releases.

An error shows as `[RIFFLE-0123] message [where]`, followed by its remedy. In Python the parts are `error.id`,
`error.problem`, `error.where` and `error.remedy`. Braces stand for values of the run. Slashes separate alternatives, of
which a message has one. Text in brackets may be missing. `./run reference` writes this page.

## Classes

"""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the product: its id, class, texts, and the place in the source."""

    id: str
    kind: str
    problem: str
    remedy: str
    cause: str
    place: str


@dataclass(frozen=True)
class Source:
    """One module of the product: its syntax tree, its lines and its module-level names."""

    path: Path
    _names: dict[ast.FunctionDef, Mapping[str, ast.expr]] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The module's source."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """The module's syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def statements(self) -> Sequence[tuple[ast.stmt, ast.FunctionDef | None, Sequence[ast.AST]]]:
        """Each statement with the function around it and the nodes that belong to no inner statement."""
        return [(statement, function, [*own_nodes(statement)]) for statement, function in statements(self.tree)]

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Module-level constants by name."""
        return dict(assignments(self.tree.body))

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Functions and methods by name."""
        return {node.name: node for node in walk_statements(self.tree) if isinstance(node, ast.FunctionDef)}

    def names_in(self, function: ast.FunctionDef | None) -> Mapping[str, ast.expr]:
        """Return the values of constants and of variables that a function assigns, collected once per function."""
        if function is None:
            return self.constants
        if function not in self._names:
            self._names[function] = {**self.constants, **dict(assignments(walk_statements(function)))}
        return self._names[function]

    @cached_property
    def origins(self) -> dict[str, Path]:
        """The files from which names are imported."""
        return {
            alias.asname or alias.name: CHECKOUT / (node.module.replace(".", "/") + ".py")
            for node in walk_statements(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }

    def cause(self, line: int) -> str:
        """Return the text of a ``# Cause:`` comment that ends above a line."""
        lines = self.text.splitlines()
        comment: list[str] = []
        for number in range(line - 2, -1, -1):
            if match := _CAUSE.match(lines[number]):
                return " ".join([match[1], *comment])
            if not (match := _COMMENT.match(lines[number])):
                break
            comment.insert(0, match[1])
        return ""


@dataclass
class Reader:
    """Reads the messages of modules. It parses each module once."""

    sources: dict[Path, Source] = field(default_factory=dict)
    is_inside_function: bool = False
    """Whether the reader is inside the text of a function. Functions called there are shown by name."""

    def source(self, path: Path) -> Source:
        """Return a module, which is parsed at most once."""
        return self.sources.setdefault(path, Source(path))

    def messages(self, path: Path) -> Iterator[Message]:
        """Yield the messages of one module."""
        source = self.source(path)
        place = str(path.relative_to(CHECKOUT))
        for statement, function, nodes in source.statements:
            names = source.names_in(function)
            for call in (node for node in nodes if isinstance(node, ast.Call)):
                if id := _id_of(call):
                    where = f"{place}:{call.lineno}"
                    yield self._error(source, call, id, function, where, source.cause(statement.lineno))
            logged = logged_values(nodes)
            for text in (node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr)):
                template = self.template(source, text, names)
                if warning_id := _WARNING_ID.match(template):
                    template = self._filled(source, template, logged.get(text, ()), names)
                    problem, _, remedy = name_values([template[warning_id.end() :]])[0].partition("What to do: ")
                    cause, _, stated_remedy = source.cause(statement.lineno).partition("Remedy: ")
                    yield Message(
                        warning_id[1],
                        WARNING,
                        problem.rstrip(),
                        remedy or stated_remedy,
                        cause.rstrip(),
                        f"{place}:{text.lineno}",
                    )

    def _error(
        self, source: Source, call: ast.Call, id: str, function: ast.FunctionDef | None, place: str, cause: str
    ) -> Message:
        names = source.names_in(function)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        home = self.source(source.origins[name]) if name in source.origins else source
        maker = home.functions.get(name) if home.path.exists() else None
        texts = {key: self.template(source, value, names) for key, value in _arguments(call, maker).items()}
        kind = _CLASSES.get(name, name)
        if "kind" in texts:
            kind = texts["kind"].strip(OPEN + CLOSE)
        elif maker is not None and maker.returns is not None:
            kind = ast.unparse(maker.returns).split(".")[-1]
            texts |= self._made(home, maker, texts)
        for key, text in texts.items():
            name = text.strip(OPEN + CLOSE)
            if text == f"{OPEN}{name}{CLOSE}" and name.isidentifier() and function is not None:
                texts[key] = " / ".join(dict.fromkeys(self._variants(source, function, name))) or text
        problem, remedy = name_values([texts.get("problem", ""), texts.get("remedy", "")])
        return Message(id, kind, problem, remedy, cause, place)

    def _filled(self, source: Source, template: str, values: Sequence[ast.expr], names: Mapping[str, ast.expr]) -> str:
        """Return the template of a logged text in which ``%s`` and similar fields are replaced by the logged values."""
        remaining = iter(values)

        def fill(field: re.Match[str]) -> str:
            value = next(remaining, None)
            text = field[0] if value is None else self._value(source, value, names)
            return repr(text) if field[0] == "%r" and value is not None and OPEN not in text else text

        return _FIELD.sub(fill, template)

    def _made(self, home: Source, maker: ast.FunctionDef, arguments: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of the error that a function makes when it is called with these arguments."""
        names = home.names_in(maker)
        inner = next((node for node in ast.walk(maker) if isinstance(node, ast.Call) and _passes_id(node)), None)
        texts: dict[str, str] = {}
        for key, value in _arguments(inner, None).items() if inner is not None else ():
            if key in _POSITIONS:
                texts[key] = self.template(home, value, names)
                for parameter, text in arguments.items():
                    texts[key] = texts[key].replace(OPEN + parameter + CLOSE, text)
        return texts

    def _variants(self, source: Source, function: ast.FunctionDef, name: str, depth: int = 0) -> Iterator[str]:
        """Yield the possible texts of a variable: arguments of the function's callers, or results of functions it
        calls.
        """
        if name in {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}:
            for caller_source, caller, call in self._calls.get(function.name, ()):
                if function.name.startswith("_") and caller_source is not source:
                    continue
                value = _arguments(call, function).get(name)
                if isinstance(value, ast.Name) and caller is not None and depth < _DEPTH_MAX:
                    yield from self._variants(caller_source, caller, value.id, depth + 1)
                if value is not None:
                    text = self.template(caller_source, value, caller_source.names_in(caller))
                    yield from () if _is_placeholder(text) else (text,)
        for index, call in unpacked_calls(function, name):
            maker = source.functions.get(ast.unparse(call.func))
            for values in results(maker) if maker is not None else ():
                text = self.template(source, values[index], source.names_in(maker))
                yield from () if _is_placeholder(text) else (text,)

    @cached_property
    def _calls(self) -> Mapping[str, Sequence[tuple[Source, ast.FunctionDef | None, ast.Call]]]:
        """All calls in the product by the name of the called function, each with the function around it."""
        calls = defaultdict[str, list[tuple[Source, ast.FunctionDef | None, ast.Call]]](list)
        for path in sorted((CHECKOUT / "riffle_spark").rglob("*.py")):
            source = self.source(path)
            for _, function, nodes in source.statements:
                for node in nodes:
                    if isinstance(node, ast.Call):
                        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
                        calls[name].append((source, function, node))
        return calls

    def template(self, source: Source, node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> str:  # noqa: PLR0911 - a return for each kind of node
        """Return an expression as text. Values that are known only at run time are in braces."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.template(source, part, names, depth) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            text = self._value(source, node.value, names, depth)
            return repr(text) if node.conversion == _REPR and text and OPEN not in text else text
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.template(source, node.left, names, depth) + self.template(source, node.right, names, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            return str(ast.literal_eval(node.left) << ast.literal_eval(node.right))
        if isinstance(node, ast.Call):
            return self._call(source, node, names, depth)
        if (item := _constant_item(source, node)) is not None:
            return self.template(source, item, names, depth + 1)
        if isinstance(node, ast.IfExp):
            return _alternatives([self.template(source, x, names, depth) for x in (node.body, node.orelse)])
        if isinstance(node, ast.Name) and depth < _DEPTH_MAX:
            if node.id in names and names[node.id] is not node:
                return self.template(source, names[node.id], {**names, node.id: node}, depth + 1)
            constant = self._imported(source, node.id)
            if constant is not None:
                return self.template(source, constant, names, depth + 1)
        constant = self._imported(source, ast.unparse(node)) if isinstance(node, ast.Attribute) else None
        return braced(node) if constant is None else self.template(source, constant, names, depth + 1)

    def _value(self, source: Source, node: ast.expr, names: Mapping[str, ast.expr], depth: int = 0) -> str:
        """Return a value inside a text: its text if the source has it, or else its expression in braces."""
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and _is_text(node.values[-1]):
            return f"({braced(node.values[0])} / {self.template(source, node.values[-1], names, depth)})"
        assigned = names.get(node.id) if isinstance(node, ast.Name) and not node.id.isupper() else node
        is_unknown = isinstance(assigned, ast.Subscript) and _constant_item(source, assigned) is None
        is_list = isinstance(node, ast.Name) and isinstance(assigned, ast.Call) and _is_join(assigned)
        if assigned is None or is_unknown or is_list or not _is_text(assigned):
            return braced(node)
        text = self.template(source, node, names, depth)
        return f"({text})" if " / " in text and isinstance(assigned, ast.IfExp) else text

    def _call(self, source: Source, node: ast.Call, names: Mapping[str, ast.expr], depth: int) -> str:
        """Return the text of a command, of joined constants, or of a function for remedies.

        Return other calls in braces.
        """
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute) and name == "format":
            return self.template(source, node.func.value, names, depth)
        if isinstance(node.func, ast.Attribute) and name == "join":
            joined = ast.unparse(node.args[0])
            listed = source.constants.get(joined) or self._imported(source, joined)
            items = [x for x in ast.iter_child_nodes(listed) if isinstance(x, ast.Constant)] if listed else []
            if items and isinstance(node.func.value, ast.Constant):
                return str(node.func.value.value).join(self.template(source, item, names) for item in items)
        if name == "command":
            return self._command(source, node, names, depth)
        home = self.source(source.origins[name]) if name in source.origins else source
        function = home.functions.get(name) if home.path.exists() else None
        if function is None or not _TEXT_FUNCTION.search(name) or self.is_inside_function:
            return braced(ast.Name(name) if _TEXT_FUNCTION.search(name) else node)
        returns = [x.value for x in walk_statements(function) if isinstance(x, ast.Return) and x.value is not None]
        passed = ArgumentsPassed(_arguments(node, function))
        values = [passed.visit(copy.deepcopy(value)) for value in returns]
        self.is_inside_function = True
        texts = dict.fromkeys(self.template(home, value, home.names_in(function), depth + 1) for value in values)
        self.is_inside_function = False
        text = " / ".join(texts)
        return f"({text})" if " / " in text else text

    def _command(self, source: Source, node: ast.Call, names: Mapping[str, ast.expr], depth: int) -> str:
        """Return the command line that the function ``command`` makes of these arguments."""
        parts = ["riffle", self.template(source, node.args[0], names, depth)]
        for keyword in node.keywords:
            if keyword.arg == "root":
                parts.append(self._value(source, keyword.value, names, depth))
            elif keyword.arg:
                parts.append(f"--{keyword.arg.replace('_', '-')} {self._value(source, keyword.value, names, depth)}")
            options = None if keyword.arg else names.get(ast.unparse(keyword.value))
            for option in ast.walk(options) if options is not None else ():
                for key, value in zip(option.keys, option.values, strict=True) if isinstance(option, ast.Dict) else ():
                    flag = f"--{ast.literal_eval(key or value).replace('_', '-')}"
                    parts.append(f"[{flag} {self._value(source, value, names, depth)}]")
        return " ".join([*parts, *(self.template(source, flag, names, depth) for flag in node.args[1:])])

    def _imported(self, source: Source, name: str) -> ast.expr | None:
        """Return the value of an imported constant, or of a constant of an imported module (``paths.FAR``)."""
        module, dot, constant = name.rpartition(".")
        path = source.origins.get(module or name)
        path = path.with_suffix("") / f"{module}.py" if path is not None and dot else path
        if path is None or not path.exists() or not constant.isupper():
            return None
        return self.source(path).constants.get(constant)


def messages(checkout: Path = CHECKOUT, reader: Reader | None = None) -> list[Message]:
    """Return all messages of the product, sorted by id. ``reader`` keeps the modules that it parses."""
    reader = reader or Reader()
    files = sorted((checkout / "riffle_spark").rglob("*.py"))
    return sorted((message for path in files for message in reader.messages(path)), key=lambda message: message.id)


def page(messages: list[Message]) -> str:
    """Return ``docs/errors.md``. Messages that several places raise with the same words are one row."""
    kinds = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    text = _INTRODUCTION + _EXIT_HEAD
    for kind in kinds:
        summary = (kind.__doc__ or "").strip().splitlines()[0]
        text += f"| `{kind.__name__}` | {summary} | {exit_code(kind)} |\n"
    names = [kind.__name__ for kind in kinds]
    for name in [*names, *sorted({message.kind for message in messages} - set(names) - {WARNING}), WARNING]:
        rows = dict.fromkeys(
            f"| {m.id} | {_cell(m.problem)} | {_cell(m.cause)} | {_cell(m.remedy)} |\n"
            for m in messages
            if m.kind == name
        )
        if rows:
            title = "Warnings" if name == WARNING else name
            note = _SEVERAL_NOTE if name == _SEVERAL else ""
            text += f"\n## {title}\n\n{note}{_HEAD}" + "".join(rows)
    return text


def _id_of(call: ast.Call) -> str:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    ids = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return next((id for id in ids if _ID.fullmatch(id)), "")


def _passes_id(call: ast.Call) -> bool:
    return any(keyword.arg == "id" and not isinstance(keyword.value, ast.Constant) for keyword in call.keywords)


def _arguments(call: ast.Call, maker: ast.FunctionDef | None) -> dict[str, ast.expr]:
    """Return the arguments of a call by name. The first positional argument of an error class is the problem."""
    names = [a.arg for a in maker.args.args if a.arg not in {"self", "cls"}] if maker else list(_POSITIONS)
    arguments = dict(zip(names, call.args, strict=False))
    return {**arguments, **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}}


def _constant_item(source: Source, node: ast.expr) -> ast.expr | None:
    """Return the item of a module's constant dictionary that an expression reads by a constant key."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        table = source.constants.get(node.value.id)
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            if isinstance(key, ast.Constant) and key.value == node.slice.value:
                return value
    return None


def _alternatives(texts: Sequence[str]) -> str:
    """Return alternative texts, separated by slashes. If one of them is empty, the other is in brackets."""
    present = list(filter(None, texts))
    return f"[{present[0]}]" if len(present) < len(texts) and present else " / ".join(present)


def _is_placeholder(text: str) -> bool:
    return text.startswith(OPEN) and text.endswith(CLOSE) and text.count(OPEN) == 1


def _is_join(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == "join"


def _is_text(node: ast.expr) -> bool:
    """Return whether the source has the text of an expression, at least in part."""
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and _is_text(node.left) and _is_text(node.right)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        return name == "command" or bool(_TEXT_FUNCTION.search(name)) or name.endswith("'.format") or _is_join(node)
    is_constant = ast.unparse(node).rpartition(".")[2].isupper()
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or is_string or isinstance(node, ast.JoinedStr | ast.Subscript)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page(messages()))
