"""The status page shows the data of a status as figures and tables, and escapes all its texts."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.observe.markup import element, escape_json
from riffle_spark.observe.page import page_of
from riffle_spark.observe.status import BatchSummary, MoveSummary, Status, WarningSummary, from_json
from riffle_spark.protocol.facts import DriverFacts, GroupFacts, MemberFacts, PartitionLag, StoreFacts
from tests.kit.examples import costly
from tests.kit.folders import CHECKOUT
from tests.kit.large_status import invented_status

VOID = {"meta", "input"}
ATTACKS = (
    "</script><script>alert(1)</script>",
    "</SCRIPT ><script>alert(1)//",
    "<!--<script>",
    "]]>",
    "</style><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus=alert(1) '",
    "</title><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\u2028alert(1)\u2029",
    "&lt;script&gt;",
    "\x00\x1b[2J\u202e",
    "\ud800",
)


class Document(HTMLParser):
    """A parser that checks that the elements of a page are nested.

    Attributes:
        elements: the elements with their attributes, in order.
        texts: the texts of each id's element, without those of elements in it that have an id.
        values: the values of ``data`` elements within each id's element.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, str] = {}
        self.values: dict[str, list[float]] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        attributes = {name: value or "" for name, value in attrs}
        assert len(attributes) == len(attrs), (tag, attrs)
        self.elements.append((tag, attributes))
        if tag in VOID:
            return
        self._open.append((tag, attributes.get("id", "")))
        if tag == "data":
            for _, name in self._open:
                self.values.setdefault(name, []).append(float(attributes["value"]))

    def handle_endtag(self, tag: str) -> None:
        """Check that the end tag closes the innermost element."""
        assert self._open.pop()[0] == tag, tag

    def handle_data(self, data: str) -> None:
        """Append a text to the innermost element with an id."""
        name = next((name for _, name in reversed(self._open) if name), "")
        self.texts[name] = self.texts.get(name, "") + data


def skeleton(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the elements of a page and the names of their attributes."""
    return [(tag, tuple(attributes)) for tag, attributes in Document(page).elements]


def small_status(text: str) -> Status:
    """Return a status with a text in each text field, also as a key of mappings."""
    facts = DriverFacts(
        time_ms=1_772_373_909_000,
        query_id=text,
        query_name=text,
        run_id=text,
        commit_ms=1_772_373_900_000,
        source=(PartitionLag(text, 0, 7, 1.5),),
        members=(
            MemberFacts(text, text, text, text, owned=1),
            MemberFacts(text + "2", text, text, text + "2", standbys=1),
        ),
        stores=(StoreFacts(text, 1, 2, 3),),
        groups=(GroupFacts(text, (text,), (0,), ((1,),), ((),)),),
        counters={text: 1},
    )
    batch = BatchSummary(4, 1_772_373_900_000, 10, {text: 1.0, "total": 1.0}, 3)
    move = MoveSummary(1_772_373_900_000, 4, 0, text, text, text, text, text, text, text, 1)
    warning = WarningSummary(1_772_373_900_000, text, text)
    return Status(facts, "running", text, 60.0, (batch,), (move,), (warning,), {text: text})


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_text_of_a_status_becomes_markup(attack: str) -> None:
    """The page has the same elements and attributes for any text, and the status can be read from it."""
    page = page_of(small_status(attack))
    assert skeleton(page) == skeleton(page_of(small_status("plain")))
    assert from_json(Document(page).texts["status"]) == small_status(attack)
    page.encode("utf-8")


@costly(2)
@given(st.text(alphabet=st.sampled_from("</>&'\"-! scriptSCRIPT=()\u2028\u2029\u202e\x00\n\ud800]"), min_size=1))
def test_property_texts_never_change_elements_or_attributes(text: str) -> None:
    """Property: no text of a status adds, removes or changes an element or an attribute."""
    page = page_of(small_status(text))
    assert skeleton(page) == skeleton(page_of(small_status("plain")))
    assert from_json(Document(page).texts["status"]) == small_status(text)


@pytest.mark.parametrize("attack", ATTACKS)
def test_markup_escapes_text_in_content_and_attributes(attack: str) -> None:
    """An element has one start tag and one end tag for any text and attributes."""
    document = Document(element("p", attack, title=attack))
    assert [tag for tag, _ in document.elements] == ["p"]
    assert list(document.elements[0][1]) == ["title"]


def test_json_in_a_script_element_has_no_angle_brackets() -> None:
    """Embedded JSON has no angle brackets, so it cannot end its element or start a comment. Its value is the same."""
    assert escape_json('["</script>","<!--","\u2028"]') == r'["\u003c/script\u003e","\u003c!--","\u2028"]'


def test_the_page_contains_the_whole_status_as_json() -> None:
    """The page of a large query contains the whole status as JSON."""
    status = invented_status(members=9, key_groups=32)
    assert from_json(Document(page_of(status)).texts["status"]) == status


def test_figures_are_the_sums_of_the_status() -> None:
    """The exact values of the shown figures are the sums of the status."""
    status = invented_status(members=9, key_groups=32)
    values = Document(page_of(status)).values
    facts = status.facts
    assert facts.commit_ms is not None
    assert values["figure-commit"] == [(facts.time_ms - facts.commit_ms) / 1000, facts.version]
    assert values["figure-lag"] == [
        sum(part.records for part in facts.source),
        max(part.seconds or 0 for part in facts.source),
    ]
    recent = [batch for batch in status.batches if batch.time_ms > facts.time_ms - 300_000]
    assert 2 < len(recent) < len(status.batches)
    assert values["figure-rate"] == pytest.approx([len(recent) / 5, sum(batch.rows for batch in recent) / 300])
    assert values["figure-watermark"] == [95.0, facts.time_ms - 95_000]
    assert values["figure-owned"] == [sum(m.owned for m in facts.members), sum(m.standbys for m in facts.members)]
    assert values["figure-state"] == [sum(s.bytes for s in facts.stores), sum(s.rows for s in facts.stores)]
    assert values["counters-table"] == list(facts.counters.values())


def test_tables_have_a_row_for_each_part_of_the_status() -> None:
    """The tables list each member, store, partition, move and batch of the status with its numbers."""
    status = invented_status(members=9, key_groups=32)
    values = Document(page_of(status)).values
    assert values["stores-table"] == [
        number for store in status.facts.stores for number in (store.rows, store.bytes, store.chain_parts)
    ]
    assert sorted(values["source-table"]) == sorted(
        number for part in status.facts.source for number in (part.partition, part.records, part.seconds or 0.0)
    )
    for batch in status.batches:
        assert {batch.version, batch.time_ms, batch.rows, *batch.seconds.values()} <= set(values["batches-table"])
    for move in status.moves:
        assert {move.time_ms, move.version, move.key_group} <= set(values["moves-table"])
    for member in status.facts.members:
        shown = {member.owned, member.standbys, member.lag_records, member.lag_trend, member.memory_used}
        assert shown <= set(values["members-table"])


def test_an_empty_status_has_a_page() -> None:
    """Before the first batch, the page has sentences in place of maps, moves and warnings."""
    page = page_of(Status(DriverFacts(0, "q")))
    sentences = ("No warnings.", "No batch was committed", "No key-groups are assigned.", "The lag is not known.")
    for sentence in (*sentences, "No key-group has moved."):
        assert sentence in page
    assert "canvas" not in [tag for tag, _ in Document(page).elements]


def test_an_unset_watermark_and_an_unknown_lag_are_not_shown() -> None:
    """The page shows no watermark if it is 0, as in Spark, and no chart of the lag if no batch has a lag."""
    status = invented_status(members=3, key_groups=8)
    batches = tuple(replace(batch, lag_records=None) for batch in status.batches)
    document = Document(page_of(replace(status, batches=batches, facts=replace(status.facts, watermark_ms=0))))
    assert "figure-watermark" not in document.values
    assert "chart-lag" not in [attributes.get("id") for _, attributes in document.elements]


def test_the_policy_allows_only_the_script_and_style_of_the_page() -> None:
    """The policy allows the page's script and style by their digests, and no request and no inline attribute."""
    page = page_of(small_status("plain"))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    allowed = dict(part.split(" ", 1) for part in policy.replace("&#x27;", "'").split("; "))
    digests = {
        name: f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for name, text in (("script-src", script), ("style-src", style))
    }
    assert allowed == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'", **digests}


def test_the_page_has_no_external_references() -> None:
    """No element has a source, and each link is to an existing part of the page."""
    document = Document(page_of(invented_status(members=9, key_groups=32)))
    names = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes in document.elements:
        assert not {"src", "style", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert attributes["href"].removeprefix("#") in names


def test_tables_have_captions_and_headings_with_a_scope() -> None:
    """Each table has a caption, and each heading has a scope, for screen readers."""
    elements = Document(page_of(invented_status(members=9, key_groups=32))).elements
    tags = [tag for tag, _ in elements]
    assert tags.count("table") == tags.count("caption") >= 10
    assert {attributes.get("scope") for tag, attributes in elements if tag == "th"} == {"col", "row", "rowgroup"}
    assert [tags.count(tag) for tag in ("main", "header", "nav", "footer", "h1")] == [1] * 5


def test_members_are_coloured_by_rack_or_by_member() -> None:
    """Members are coloured by rack if there are several racks, else by member. Names beyond six share one colour."""
    members = invented_status(members=9, key_groups=32).facts.members
    status = Status(DriverFacts(0, "q", members=members, groups=(GroupFacts("g", ("s",), (0, 8)),)))
    assert 'aria-label="Colours by rack"' in page_of(status)
    one_rack = tuple(replace(member, rack="a") for member in members)
    assert 'aria-label="Colours by member"' in page_of(
        replace(status, facts=replace(status.facts, members=one_rack[:3]))
    )
    assert 'aria-label="Colours by role"' in page_of(replace(status, facts=replace(status.facts, members=one_rack)))
    many = tuple(replace(member, rack=str(number)) for number, member in enumerate(members))
    assert "others" in page_of(replace(status, facts=replace(status.facts, members=many)))


def test_the_page_reads_its_assets_from_a_zip_file(tmp_path: Path) -> None:
    """The page reads its assets as package data, also from a zip file."""
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (CHECKOUT / "riffle_spark").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                file.write(path, path.relative_to(CHECKOUT))
    script = (
        "from riffle_spark.observe import page, status\n"
        "assert '.zip' in page.__file__, page.__file__\n"
        "assert 'uPlot' in page.page_of(status.Status(status.DriverFacts(0, 'q')))\n"
    )
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(archive)}, cwd=tmp_path, check=True)
    assert "observe/assets/*" in (CHECKOUT / "setup.cfg").read_text()
