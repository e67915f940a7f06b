"""Configuration of the documentation site. `./run site` builds it with Sphinx from the Markdown files.

The source folder is the checkout, so the relative links of the pages work as they are. The lists of docs/README.md are
the navigation, so a page that no list names fails the build.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

import riffle_spark

CHECKOUT = Path(__file__).parents[2]
START = "docs/README"
CHILDREN = {
    START: ["README", "CHANGELOG", "RELEASE"],
    "docs/adr/README": ["docs/adr/0*"],
    "docs/deploy/README": ["docs/deploy/[a-z]*"],
    "docs/numbers": ["tests/data/kafka_streams/README"],
    "docs/reliability": ["tests/*/README", "tests/kit/fuzz/README"],
    "tests/planted/README": ["tests/planted/equivalent"],
}
"""Pages that no list of the start page names, by the page that links to them. A star stands for any name."""

project = "riffle-spark"
author = "riffle-spark contributors"
version = release = riffle_spark.__version__
root_doc = START
include_patterns = ["*.md", "docs/**", "tests/**/*.md"]
exclude_patterns = ["tests/data/roots/**"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
autodoc_typehints_description_target = "documented_params"
highlight_language = "text"

html_theme = "furo"
html_title = f"riffle-spark {release}"
html_show_copyright = False
templates_path = ["templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}


def _plain_code_blocks(text: str) -> str:
    """Return a page whose code blocks name a language only. In the source they also say what runs a block."""
    text = re.sub(r"^(```[a-z]+) [a-z ]+$", r"\1", text, flags=re.MULTILINE)
    return text.replace("```mermaid", "```text")


def _toctree(entries: list[str], *options: str) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *entries, "```", ""])


def _navigation(text: str) -> str:
    """Return a navigation for each reader from the lists of the start page."""
    trees = []
    for section in text.split("\n## ")[1:]:
        reader = section.splitlines()[0]
        pages = re.findall(r"^\d+\. \[([^]]+)\]\(([^)]+)\.md\)", section, flags=re.MULTILINE)
        trees.append(_toctree([f"{title} </{_page_name(path)}>" for title, path in pages], f":caption: {reader}"))
    return "\n".join(trees)


def _page_name(path: str) -> str:
    page = (CHECKOUT / START).parent.joinpath(path).resolve()
    return page.relative_to(CHECKOUT).as_posix()


def _prepare_page(_: Sphinx, name: str, source: list[str]) -> None:
    text = _plain_code_blocks(source[0])
    navigation = _navigation(text) if name == START else ""
    children = [f"/{page}" for page in CHILDREN.get(name, [])]
    source[0] = text + navigation + (_toctree(children, ":glob:") if children else "")


def _list_versions(app: Sphinx, _page: str, _template: str, context: dict[str, object], _doctree: object) -> None:
    """Pass the versions whose sites are beside this one to the sidebar, newest first."""
    built = {folder.parent.name for folder in Path(app.outdir).parent.glob("*/objects.inv")} | {release}
    context["versions"] = sorted(built, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)


def _short_signature(*event: object) -> tuple[str, None] | None:
    """Hide the constructor of a data class that only riffle_spark constructs."""
    return ("", None) if "<factory>" in str(event[-2]) else None


def setup(app: Sphinx) -> None:
    """Prepare each page before it is parsed and rendered."""
    app.connect("source-read", _prepare_page)
    app.connect("html-page-context", _list_versions)
    app.connect("autodoc-process-signature", _short_signature)
