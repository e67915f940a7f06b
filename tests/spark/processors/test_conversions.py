"""Values of every kind become what Spark makes of them in state of every type, or are refused where it loses them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.folders import DATA
from tests.kit.processors.conversions import NAMES, TYPES, Trials, found
from tests.kit.streams.processor_runs import Run

pytestmark = pytest.mark.newer_spark

FOLDER = DATA / "native"
NULL = ["NoneType", "None"]
VERSIONS = ("4.0.5", "4.3.0")
NUMBERS = {"5", "300", "2**31", "2**63", "np.int64"}
KEPT_WHERE_SPARK_HAS_NULL = {f"{kind}/{name}" for kind in ("float", "double") for name in NUMBERS} | {
    f"decimal(5,2)/{name}" for name in ("5", "300", "np.int64")
}
"""Whole numbers where a number with a fraction is wanted."""
REFUSED_WHERE_SPARK_KEEPS = {
    "wraps": {"byte/300", "byte/2**31", "byte/2**53+1", "short/2**31", "short/2**53+1", "int/2**31", "int/2**53+1"},
    "loses an element": {f"array<int>/{name}" for name in ("(1, 'a')", "[date]", "[datetime]", "(1, datetime)")},
    "loses a map's value": {"map<string,int>/{'x': 1, 'y': 'a'}", "map<string,int>/{1: 'a'}"},
    "takes for no number": {"float/Decimal NaN", "double/Decimal NaN"},
    "keeps the names of fields": {f"{way}/dict of fields" for way in ("update", "appendValue", "appendList of one",
                                  "map key", "map value")},
}  # fmt: skip
"""Where Spark keeps something else than what was given, by what it does."""


OLD_SPARK_ALONE = {"struct<x:int,y:string>/Row(x, y)", "update/too long", "appendValue/too long"}
"""What Spark 4.0 cannot pickle, or cuts, where newer ones take it or refuse."""
OUT_OF_RANGE = REFUSED_WHERE_SPARK_KEEPS["wraps"] | {f"{kind}/2**63" for kind in ("byte", "short", "int", "long")}


@pytest.fixture
def utc() -> Iterator[None]:
    """Run as on a machine in UTC, where the recordings were made."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
    time.tzset()


def recorded(version: str) -> dict[str, list[str]]:
    """Return what a version of Spark told, by trial; bytes as they come from 4.1 on, and not as Spark 4.0 has them."""
    told: dict[str, list[str]] = json.loads((FOLDER / f"conversions-{version}.json").read_text())
    return {name: ["bytes", one[1][10:-1]] if one[0] == "bytearray" else one for name, one in told.items()}


@pytest.fixture
def ours(utc: None, tmp_path: Path) -> dict[str, list[str]]:
    """Return what is told here, by trial. What is out of range is tried by itself: a number of a known class is
    looked at once the batch ends.
    """
    for done in (OUT_OF_RANGE, *({*NAMES} - {one} for one in OUT_OF_RANGE)):
        Run(Trials(tmp_path / "told", frozenset(done)), output="id string").batch({"a": [1]})
    return found(tmp_path / "told")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_value_becomes_what_spark_makes_of_it(version: str, ours: dict[str, list[str]]) -> None:
    """In every type and by every call, except for what is listed above and for texts that Java makes of objects."""
    differing: dict[str, object] = {}
    refused: set[str] = set()
    kept: set[str] = set()
    taken: set[str] = set()
    for name, told in recorded(version).items():
        here = ours[name]
        if (here[0] == "!" and told[0] == "!") or here == told:
            continue
        if version == VERSIONS[0] and name in OLD_SPARK_ALONE:
            assert here[0] == recorded(VERSIONS[-1])[name][0] != told[0], name
            continue
        if told == NULL:
            (refused if here[0] == "!" else kept).add(name)
        elif here[0] == "!":
            if told != ["java"]:
                taken.add(name)
        else:
            differing[name] = (told, here)
    assert differing == {}
    assert kept <= KEPT_WHERE_SPARK_HAS_NULL
    assert taken <= set().union(*REFUSED_WHERE_SPARK_KEEPS.values())
    assert {name.split("/")[0] for name in refused} <= set(TYPES)


def test_what_is_listed_does_differ(ours: dict[str, list[str]]) -> None:
    """Each entry of the lists is a difference from Spark, in its newest recording."""
    known = recorded(VERSIONS[-1])
    for name in KEPT_WHERE_SPARK_HAS_NULL:
        assert (known[name], ours[name][0]) in ((NULL, "float"), (NULL, "Decimal")), name
    for name in set().union(*REFUSED_WHERE_SPARK_KEEPS.values()):
        assert known[name][0] != "!", name
        assert ours[name][0] == "!", name
