"""Write the tables of docs/configuration.md and conf/riffle.toml (`./run reference`).

The source is `riffle_spark.settings` and `riffle_spark.removed_settings`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator

from riffle_spark.removed_settings import REMOVED
from riffle_spark.settings import SETTING_LINES, AnySetting
from tests.kit.folders import CHECKOUT

PAGE = CHECKOUT / "docs" / "configuration.md"
EXAMPLE = CHECKOUT / "conf" / "riffle.toml"

_HEAD = "| setting | default | unit, range | changes | meaning |\n| --- | --- | --- | --- | --- |\n"
_REMOVED = "Settings that were removed"
_REMOVED_HEAD = "| setting | what to do instead |\n| --- | --- |\n"
_TABLE = r"(?m:^## {}\n)(?:(?!## |\|).*\n)*(?P<table>(?:\|.*\n)+)"
_LINK = re.compile(r"\[([^]]*)]\([^)]*\)")
_THOUSANDS = re.compile(r"(?<=\d)(?<!\b0)(?=(?:\d{3})+\b)")
"""The positions between the thousands of a number. An octal mode such as 0640 has none."""
_INTRODUCTION = """\
# Settings of the jobs that are started from this folder. Uncommented values go before the defaults, and give way to
# spark.riffle.* of the Spark configuration (spark-submit --conf spark.riffle.retained_for=2h) and to the job's code.
# Shown are the defaults, or an example where there is none. Durations: seconds, or text such as "10 min".
# In brackets: what a value can be, and how it changes; docs/configuration.md tells more. ./run reference writes this.

[riffle]
"""


def page(text: str) -> str:
    """Return the page with the settings table of each section renewed. The text around the tables is unchanged."""
    for title, lines in _sections().items():
        rows = "".join(_row(name, line) for name, line in lines.items())
        text = _with_table(text, title, _HEAD + rows)
    removed = "".join(f"| `{name}` | {remedy} |\n" for name, remedy in REMOVED.items())
    return _with_table(text, _REMOVED, _REMOVED_HEAD + removed)


def _with_table(text: str, title: str, table: str) -> str:
    """Return the page with the table below a heading replaced."""
    old = re.search(_TABLE.format(re.escape(title)), text)
    if old is None:
        raise LookupError(f"{PAGE.name} needs a heading '## {title}' and a table below it: write it there first")
    return text[: old.start("table")] + table + text[old.end("table") :]


def example() -> str:
    """Return conf/riffle.toml, which has every setting with its default, commented out."""
    return _INTRODUCTION + "".join(
        f"\n# --- {title} ---\n" + "".join(text for setting_line in lines.items() for text in _commented(*setting_line))
        for title, lines in _sections().items()
    )


def _sections() -> dict[str, dict[str, AnySetting]]:
    sections: dict[str, dict[str, AnySetting]] = {}
    title = ""
    for name, line in SETTING_LINES.items():
        title = line.section or title
        sections.setdefault(title, {})[name] = line
    return sections


def _row(name: str, line: AnySetting) -> str:
    allowed = _THOUSANDS.sub(" ", line.allowed.words)
    return f"| `{name}` | {_default(line)} | {allowed} | {_changes(line)} | {line.meaning} |\n"


def _default(line: AnySetting) -> str:
    default_text = line.allowed.written(line.default)
    if isinstance(default_text, tuple):
        return ", ".join(default_text) or "none"
    if isinstance(default_text, bool):
        return str(default_text).lower()
    if isinstance(default_text, (int, float)):
        return _THOUSANDS.sub(" ", f"{default_text:.15g}")
    return (
        "not set"
        if default_text is None
        else f"`{default_text}`"
        if default_text is line.default
        else str(default_text)
    )


def _changes(line: AnySetting) -> str:
    return "live" if line.live else line.fixed or "restart"


def _commented(name: str, line: AnySetting) -> Iterator[str]:
    allowed = line.allowed.words.replace("≥", "at least")
    meaning = f"{line.meaning[0].upper()}{line.meaning[1:]} ({'; '.join(filter(None, (allowed, _changes(line))))})."
    comment = _LINK.sub(r"\1", meaning).replace("`", "")
    yield "\n" + textwrap.fill(comment, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"
    value_text = line.allowed.written(line.default) if line.example is None else line.example
    yield f"# {name} = {json.dumps(value_text)}\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    EXAMPLE.write_text(example())
