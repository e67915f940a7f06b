"""Read the project's pages: fenced blocks, links, headings, table rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.kit.folders import CHECKOUT

__all__ = ["CHECKOUT", "PAGES", "Block", "anchors", "blocks", "links", "table_rows"]

PAGES = [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").rglob("*.md"))]

_FENCED = re.compile(r"^```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^]]*]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: the line of its opening fence, the text after that fence, and the code."""

    page: Path
    line: int
    info: str
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(CHECKOUT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["info"].strip(), match["code"])
        for match in _FENCED.finditer(text)
    ]


def links(page: Path) -> list[str]:
    """Return the targets of a page's links. Links in code are left out."""
    return _LINK.findall(_INLINE_CODE.sub("", _FENCED.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def table_rows(page: Path) -> list[list[str]]:
    """Return the cells of every table row of a page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
