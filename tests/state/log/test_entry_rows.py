"""The check of all links of a record at once refuses what the check of each link refuses."""

from __future__ import annotations

import json
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError
from riffle_spark.state.log.entry_rows import NUMBERS_END, check_entries, check_link, entries_from_json, entries_to_text
from riffle_spark.state.log.manifest import Entry, Head, Link
from riffle_spark.state.log.record import Record
from tests.kit.state.drawn_records import RECORDS, attempt, link

ODD = st.sampled_from([-1, NUMBERS_END - 1, NUMBERS_END, True, 1.0, None, "1", 0, 7])
HEADS = st.sampled_from([Head(3, attempt()), Head(-1, ""), Head(3, "x"), Head(cast(int, 3.0), attempt())])


def is_refused(links: list[Link]) -> bool:
    """Return whether one of the links is refused by itself."""
    try:
        for single in links:
            check_link("totals", single)
    except (ConfigError, TypeError, ValueError):
        return True
    return False


@given(st.lists(st.builds(Link, HEADS, ODD, ODD, ODD, ODD, st.none()) | st.integers(1, 9).map(link), max_size=4))
def test_all_links_at_once_are_refused_as_each_is(links: list[Link]) -> None:
    """Odd numbers, types and heads anywhere among many entries are found."""
    entries = {("totals", number): Entry(chain=(link(number), single)) for number, single in enumerate(links)}
    if is_refused(links):
        with pytest.raises((ConfigError, TypeError, ValueError)):
            check_entries(entries)
    else:
        check_entries(entries)


@given(RECORDS)
def test_the_text_of_entries_is_compact_json(record: Record) -> None:
    """Byte for byte as ``json`` writes it, and it has the entries."""
    written = entries_to_text(record.entries)
    columns = json.loads(written)
    assert json.dumps(columns, separators=(",", ":")) == written
    assert entries_from_json(columns) == record.entries


def test_equal_heads_of_another_type_are_found() -> None:
    """A head with a float as version equals one with an integer, and is refused beside it."""
    good = link(3)
    odd = good._replace(head=Head(cast(int, 3.0), good.head.attempt))
    assert odd.head == good.head
    with pytest.raises(ValueError, match="invalid head"):
        check_entries({("totals", 0): Entry(chain=(good, odd))})
