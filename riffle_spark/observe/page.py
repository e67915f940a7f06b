"""The status of a query as one HTML page that needs no network.

1. Python writes all texts and tables, so that they can be read without a script.
2. The status is in the page as JSON (``#status``). The script draws the charts and the maps of key-groups from it.
3. A content security policy names the digests of the page's own script and style. So a browser runs nothing else, even
   if a value of the status were not escaped.
"""

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from typing import Final

from riffle_spark.observe.categories import categorise
from riffle_spark.observe.markup import Markup, element, escape_json, join_parts
from riffle_spark.observe.page_moves import moves_section
from riffle_spark.observe.page_parts import time_part
from riffle_spark.observe.page_sections import (
    batches_section,
    key_groups_section,
    members_section,
    phase_colour,
    phases_of,
    settings_section,
    source_section,
    stores_section,
    summary_section,
    warnings_section,
)
from riffle_spark.observe.status import Status, to_json

_PACKAGE: Final = "riffle_spark.observe"
_LINKS: Final = ("batches", "key-groups", "moves", "members", "stores", "source", "settings")


def page_of(status: Status) -> str:
    """Return the status page of a query as HTML in UTF-8.

    The page has the whole status, and nothing else of the query. Texts of the status are escaped. A status with unknown
    phases, roles or reasons is shown too.
    """
    categories = categorise(status.facts.members)
    drawing = {
        "phases": phases_of(status),
        "colours": [phase_colour(phase) for phase in phases_of(status)],
        "members": categories.of_members,
        "shades": categories.kind != "member",
    }
    content = element(
        "main",
        summary_section(status),
        warnings_section(status),
        batches_section(status),
        key_groups_section(status, categories),
        moves_section(status),
        members_section(status, categories),
        element("div", stores_section(status), source_section(status), settings_section(status), class_="columns"),
        id="content",
    )
    name = status.facts.query_name or status.facts.query_id
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{name} · {status.state} · riffle_spark"),
        element("style", _style()),
    )
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(status, name),
        content,
        _footer(status),
        _json_block("status", to_json(status)),
        _json_block("drawing", json.dumps(drawing)),
        element("script", _script()),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(status: Status, name: str) -> Markup:
    """Return the name and the state of the query, when this was written, and the links to the sections."""
    facts = status.facts
    written_line = element(
        "p", "Written ", time_part(facts.time_ms), " UTC", element("span", "", id="age"), id="written"
    )
    ids = f"query {facts.query_id}, run {facts.run_id}" if facts.run_id else f"query {facts.query_id}"
    reload_ = element("label", element("input", type="checkbox", id="reload"), " Reload every minute")
    links = [element("li", element("a", link.capitalize(), href=f"#{link}")) for link in _LINKS]
    return element(
        "header",
        element(
            "div",
            element("h1", name),
            element("p", status.state, class_=f"state {status.state}", id="state"),
            _state_detail(status),
            element("p", ids, f", epoch {facts.epoch}", class_="quiet"),
        ),
        element("div", written_line, reload_, class_="written"),
        element("p", "", id="stale", role="status"),
        element("nav", element("ul", links), aria_label="Sections"),
        element("noscript", element("p", "The charts and maps need JavaScript. The tables have all numbers.")),
    )


def _state_detail(status: Status) -> Markup:
    """Return the start of the query's pause, or the error that ended it."""
    paused_since_ms = status.facts.paused_since_ms
    failure = status.facts.failure
    if status.state == "failed" and failure is not None:
        error_id = [" (", element("code", failure.id), ")"] if failure.id else ""
        return element("p", failure.error, error_id, " at ", time_part(failure.time_ms), " UTC", id="failure")
    if status.state == "paused" and paused_since_ms is not None:
        return element("p", "since ", time_part(paused_since_ms), " UTC", id="paused")
    return Markup("")


def _footer(status: Status) -> Markup:
    return element(
        "footer",
        element("p", f"riffle_spark {status.product}. Times are in UTC. Charts by uPlot, licence MIT."),
    )


def _json_block(name: str, text: str) -> Markup:
    return element("script", escape_json(text), id=name, type="application/json")


def _policy() -> str:
    """Return the content security policy: only this page's own style and script, and no requests."""
    own_sources = f"style-src {_digest(_style())}; script-src {_digest(_script())}"
    return f"default-src 'none'; base-uri 'none'; form-action 'none'; {own_sources}"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> Markup:
    return join_parts(_asset("uPlot.min.css"), "\n", _asset("page.css"))


@cache
def _script() -> Markup:
    licence = Markup(f"/*\n{_asset('uPlot.LICENSE')}\n*/\n")
    return join_parts(licence, _asset("uPlot.iife.min.js"), "\n", _asset("page.js"))


def _asset(name: str) -> Markup:
    """Return a file of the package. It must not contain the end of the element that it is put into."""
    text = (resources.files(_PACKAGE) / "assets" / name).read_text("utf-8")
    assert "</s" not in text, name
    return Markup(text)
