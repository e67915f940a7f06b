"""The status page in a headless Chromium: drawings, keyboard, accessibility, sizes, colour schemes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from riffle_spark.observe.page import page_of
from riffle_spark.observe.status import Status, to_json
from riffle_spark.protocol.facts import DriverFacts
from tests.kit.browser import Page, open_page
from tests.kit.folders import CHECKOUT
from tests.kit.large_status import invented_status
from tests.kit.npm import ensure_npm

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
UNKNOWN_LAG = replace(
    invented_status(members=2), batches=tuple(replace(batch, lag_records=None) for batch in invented_status().batches)
)
STATUSES = {
    "unknown lag": UNKNOWN_LAG,
    "large": invented_status(),
    "small": invented_status(members=6, groups=1, key_groups=64),
    "single": invented_status(members=1, groups=1, key_groups=1),
    "empty": Status(DriverFacts(0, "q")),
}
WINDOWS = [(width, height, scheme) for width, height in ((1440, 1000), (400, 850)) for scheme in ("light", "dark")]
AXE = """axe.run(document, {resultTypes: ["violations"]}).then((result) => JSON.stringify(result.violations.map(
  (v) => [v.id, v.impact, v.nodes.map((n) => n.html.slice(0, 200) + " " + n.failureSummary)])))"""
COLOURS = """(() => { const canvas = document.querySelector("SELECTOR");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] === 255) colours.add([pixels[i], pixels[i + 1], pixels[i + 2]].join());
  return colours.size; })()"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the page of each status. Return the files by name."""
    folder = tmp_path_factory.mktemp("pages")
    for name, status in STATUSES.items():
        (folder / f"{name}.html").write_text(page_of(status), "utf-8")
    return {name: folder / f"{name}.html" for name in STATUSES}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Open a tab that all tests share."""
    with open_page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def open_file(page: Page, file: Path, window: tuple[int, int, str] = WINDOWS[0]) -> None:
    """Load a page after clearing the list of problems."""
    page.problems.clear()
    page.show(*window)
    page.load(file)


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of the elements that match a selector."""
    script = f"JSON.stringify([...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent))"
    return cast("list[str]", json.loads(cast(str, page.run(script))))


def values(page: Page, selector: str) -> list[float]:
    """Return the exact numbers below the elements that match a selector."""
    script = f"JSON.stringify([...document.querySelectorAll({json.dumps(selector + ' data')})].map((e) => +e.value))"
    return cast("list[float]", json.loads(cast(str, page.run(script))))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", STATUSES)
def test_the_page_opens_without_problems(
    browser: Page, files: dict[str, Path], name: str, window: tuple[int, int, str]
) -> None:
    """The page logs nothing, requests nothing, runs its script to the end, and fits the width of the window."""
    open_file(browser, files[name], window)
    assert browser.run("performance.getEntriesByName('drawn').length") == 1
    assert browser.run("document.documentElement.scrollWidth") == window[0]
    assert browser.problems == []


def violations_of(page: Page) -> list[object]:
    """Return the violations that axe-core reports for the page: rule, impact and elements."""
    page.run((ensure_npm("page") / "axe-core" / "axe.min.js").read_text("utf-8"))
    return cast("list[object]", json.loads(cast(str, page.run(AXE))))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", STATUSES)
def test_the_page_is_accessible(browser: Page, files: dict[str, Path], name: str, window: tuple[int, int, str]) -> None:
    """axe-core reports no violation in both colour schemes, with all tables open."""
    open_file(browser, files[name], window)
    browser.run("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    assert violations_of(browser) == []


def test_axe_reports_planted_accessibility_violations(browser: Page, files: dict[str, Path]) -> None:
    """axe-core reports a field without a label, and text with too little contrast."""
    open_file(browser, files["small"])
    browser.run("document.querySelector('.figures dt').style.color = '#ccc'")
    browser.run("{ const field = document.getElementById('key-group'); field.closest('label').replaceWith(field); }")
    violations = json.dumps(violations_of(browser))
    assert '"label", "critical"' in violations
    assert '"color-contrast", "serious"' in violations


def test_the_browser_shows_the_numbers_of_the_status(browser: Page, files: dict[str, Path]) -> None:
    """The browser shows the figures, members and stores of the status, and the page contains the whole status."""
    status = STATUSES["large"]
    open_file(browser, files["large"])
    plain = json.loads(to_json(status))
    assert json.loads(cast(str, browser.run("document.getElementById('status').textContent"))) == plain
    facts = plain["facts"]
    assert values(browser, "#figure-lag")[0] == sum(part["records"] for part in facts["source"])
    assert values(browser, "#figure-owned") == [
        sum(member["owned"] for member in facts["members"]),
        sum(member["standbys"] for member in facts["members"]),
    ]
    shown = sorted(texts(browser, "#members-table tbody tr:not(.rack) th"))
    assert shown == sorted(member["id"] for member in facts["members"])
    assert values(browser, "#stores-table") == [
        store[name] for store in facts["stores"] for name in ("rows", "bytes", "chain_parts")
    ]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_charts_and_maps_are_drawn(browser: Page, files: dict[str, Path], window: tuple[int, int, str]) -> None:
    """Each chart and map has at least the colours of its phases, lines or racks."""
    open_file(browser, files["large"], window)
    for selector, colours in (("#chart-phases canvas", 6), ("#chart-lag canvas", 2), ("canvas.map", 6)):
        assert cast(int, browser.run(COLOURS.replace("SELECTOR", selector))) >= colours, selector


def test_a_key_group_is_found_by_its_number(browser: Page, files: dict[str, Path]) -> None:
    """Typing a key-group's number shows its owner and copies in each co-location group."""
    open_file(browser, files["large"])
    browser.run("document.getElementById('key-group').select()")
    browser.press("7", "1", "3")
    members = STATUSES["large"].facts.members
    rows = [
        [
            group.name or "default",
            members[group.owners[713]].id if group.owners[713] >= 0 else "no owner",
            ", ".join(members[copy].id for copy in group.standbys[713]) or "–",
            ", ".join(members[copy].id for copy in group.warmups[713]) or "–",
        ]
        for group in STATUSES["large"].facts.groups
    ]
    assert texts(browser, "#selected-caption") == ["Key-group 713"]
    assert texts(browser, "#selected tbody tr > *") == [cell for row in rows for cell in row]


def test_arrow_keys_select_cells_of_a_map(browser: Page, files: dict[str, Path]) -> None:
    """Arrow keys select cells of a map by column and row, and a screen reader gets the selected key-group."""
    open_file(browser, files["large"])
    browser.run("document.getElementById('order').value = 'number'")
    browser.run("document.getElementById('order').dispatchEvent(new Event('change'))")
    browser.run("document.querySelector('canvas.map').focus()")

    def selected() -> int:
        return int(cast(str, browser.run("document.activeElement.getAttribute('aria-valuenow')")))

    assert selected() == 0
    browser.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert selected() == 1
    browser.press("ArrowDown")
    columns = selected() - 1
    assert columns >= 8
    browser.press("PageDown", "ArrowUp")
    assert selected() == 1 + 4 * columns
    browser.press("End", "ArrowRight")
    assert selected() == 1023
    owner = STATUSES["large"].facts.groups[0].owners[1023]
    spoken = cast(str, browser.run("document.activeElement.getAttribute('aria-valuetext')"))
    assert spoken.startswith(f"Key-group 1023: owner {STATUSES['large'].facts.members[owner].id}; standbys ")
    browser.press("Home", "ArrowLeft")
    assert selected() == 0
    assert texts(browser, "#selected-caption") == ["Key-group 0"]


def test_the_right_arrow_visits_all_key_groups_grouped_by_owner(browser: Page, files: dict[str, Path]) -> None:
    """With the order by owner, the right arrow visits each key-group once, grouped by owner."""
    open_file(browser, files["small"])
    browser.run("document.querySelector('canvas.map').focus()")
    browser.press("Home")
    visited = []
    for _ in range(64):
        visited.append(int(cast(str, browser.run("document.activeElement.getAttribute('aria-valuenow')"))))
        browser.press("ArrowRight")
    assert sorted(visited) == list(range(64))
    owners = [STATUSES["small"].facts.groups[0].owners[number] for number in visited]
    changes = [owner for number, owner in enumerate(owners) if number == 0 or owner != owners[number - 1]]
    assert len(changes) == len(set(owners))


def test_the_focus_follows_the_order_of_the_page(browser: Page, files: dict[str, Path]) -> None:
    """Tab reaches the skip link, the controls, each map and each table, from top to bottom."""
    open_file(browser, files["small"])
    visited = []
    for _ in range(40):
        browser.press("Tab")
        visited.append(browser.run("document.activeElement.id || document.activeElement.className"))
        if visited[-1] == "counters-table":
            break
    stops = [
        name for name in visited if name in {"skip", "reload", "key-group", "order", "member", "map", "members-table"}
    ]
    assert stops == ["skip", "reload", "key-group", "order", "member", "map", "members-table"]
    assert visited[-1] == "counters-table"


def test_a_member_can_be_highlighted(browser: Page, files: dict[str, Path]) -> None:
    """Choosing a member redraws the map."""
    open_file(browser, files["small"])
    before = browser.run("document.querySelector('canvas.map').toDataURL()")
    browser.run("document.getElementById('member').value = '3'")
    browser.run("document.getElementById('member').dispatchEvent(new Event('change'))")
    assert browser.run("document.querySelector('canvas.map').toDataURL()") != before


def test_the_table_of_a_map_lists_each_key_group_of_each_member(browser: Page, files: dict[str, Path]) -> None:
    """An opened table lists the key-groups of each member as ranges."""
    open_file(browser, files["small"])
    browser.run("document.querySelector('.maps details').open = true")
    browser.run("new Promise((done) => setTimeout(done, 100))")
    group = STATUSES["small"].facts.groups[0]
    members = STATUSES["small"].facts.members
    cells = texts(browser, "#map-table-0 tbody tr > *")
    assert cells[::4] == [member.id for member in members]
    for number, ranges in enumerate(cells[1::4]):
        listed: list[int] = []
        for part in ranges.split(", "):
            first, _, last = part.partition("–")
            listed += range(int(first), int(last or first) + 1)
        assert listed == [key_group for key_group, owner in enumerate(group.owners) if owner == number]


def test_the_colour_scheme_can_change_while_the_page_is_open(browser: Page, files: dict[str, Path]) -> None:
    """When the colour scheme changes, maps are redrawn in the new colours."""
    open_file(browser, files["small"], WINDOWS[0])
    before = browser.run("document.querySelector('canvas.map').toDataURL()")
    browser.show(*WINDOWS[1])
    browser.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert browser.run("document.querySelector('canvas.map').toDataURL()") != before
    assert browser.problems == []


def test_an_old_status_of_a_running_query_is_marked(browser: Page, files: dict[str, Path]) -> None:
    """The page marks a status that is older than its interval, and shows its age by the browser's clock."""
    open_file(browser, files["large"])
    (stale,) = texts(browser, "#stale")
    assert stale == "This status is older than 1 min. A running driver writes it that often."
    assert texts(browser, "#age")[0].endswith(" ago")


def test_the_shipped_files_of_uplot_are_those_of_the_npm_package() -> None:
    """The shipped files of uPlot are those of the npm package, with its licence."""
    published = ensure_npm("page") / "uplot"
    assets = CHECKOUT / "riffle_spark" / "observe" / "assets"
    names = {
        "uPlot.iife.min.js": "dist/uPlot.iife.min.js",
        "uPlot.min.css": "dist/uPlot.min.css",
        "uPlot.LICENSE": "LICENSE",
    }
    for asset, source in names.items():
        assert (assets / asset).read_bytes() == (published / source).read_bytes()
