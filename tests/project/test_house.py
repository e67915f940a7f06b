"""The numbers of the house find what breaks them, and it keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.__main__ import figures
from tests.house.imports import cycles, read_product
from tests.house.picture import drawn, placed_in
from tests.house.walks import wrong_steps
from tests.house.words import words_of
from tests.kit.folders import CHECKOUT

LONG = '"""Much."""\n' + "x = 1\n" * 360
IMPORTS = "import os\n" * 9 + "x = 1\n"


def written(folder: Path, files: dict[str, str]) -> Path:
    """Write a small package with these files, and a glossary that knows of parts and keys."""
    (folder / "docs").mkdir()
    (folder / "docs" / "glossary.md").write_text("| word | meaning |\n| --- | --- |\n| part, key | this |\n")
    for name, text in {"__init__.py": "", "assign/assignor.py": "x = 1\n" * 20, **files}.items():
        path = folder / "riffle_spark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def over(checkout: Path) -> dict[str, list[str]]:
    """Return the numbers that are too large, and what makes them so."""
    return {figure.name: figure.because for figure in figures(checkout) if figure.is_over}


@pytest.mark.parametrize(
    ("files", "number", "because"),
    [
        ({"part.py": LONG}, "lines of the largest file", "part"),
        ({f"part/key{n}.py": "" for n in range(17)}, "files of the largest room", "part"),
        ({"a/key.py": "", "b/key.py": ""}, "file names that stand twice", "key"),
        ({"frobnicated.py": ""}, "names of files, rooms and classes in no glossary", "frobnicated (frobnicated)"),
        ({"key.py": "class Gizmo: ..."}, "names of files, rooms and classes in no glossary", "key.Gizmo (gizmo)"),
        ({"key.py": IMPORTS}, "import lines, % of all lines", None),
        (
            {"key.py": "import riffle_spark.part", "part.py": "from riffle_spark import key"},
            "cycles of files",
            "key part",
        ),
        (
            {"a/key.py": "from riffle_spark.b.part import x", "b/other.py": "from riffle_spark.a import key"},
            "cycles of rooms",
            None,
        ),
    ],
)
def test_a_breach_is_found(tmp_path: Path, files: dict[str, str], number: str, because: str | None) -> None:
    """Each number of the house is too large where its law is broken, and says where."""
    found = over(written(tmp_path, {"b/part.py": "", **files}))
    assert number in found
    assert because is None or because in found[number]


def test_a_file_that_only_one_beside_it_imports_is_counted(tmp_path: Path) -> None:
    """A file counts where its only importer lies in its own room."""
    files = {"a/one.py": "", "a/two.py": "from riffle_spark.a.one import x", "b/three.py": "import riffle_spark.a.two"}
    assert read_product(written(tmp_path, files)).beside() == ["a.one"]


def test_a_change_that_imports_contradict_is_found(tmp_path: Path) -> None:
    """A file that imports what a change turns on has to be named by it."""
    found = over(written(tmp_path, {"spark/other.py": "import py4j"}))
    assert "Spark 5: spark.other imports py4j and is not named" in found["changes of which imports say otherwise"]


def test_the_house_keeps_its_numbers() -> None:
    """No number of this checkout is over its limit."""
    assert over(CHECKOUT) == {}


def test_the_walk_of_a_batch_is_the_codes() -> None:
    """Every function and name of the walk is there, and no parameter that holds rows is left out."""
    assert list(wrong_steps(read_product(CHECKOUT))) == []


def test_the_picture_is_of_today() -> None:
    """The picture in the architecture page is what the command draws."""
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    assert placed_in(page, drawn(read_product(CHECKOUT))) == page


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("LiveMembers", ["live", "member"]),
        ("key_codec", ["key", "codec"]),
        ("copies", ["copy"]),
        ("S3Store", ["s", "3", "store"]),
    ],
)
def test_words_of_names(name: str, words: list[str]) -> None:
    """Names in snake and camel case are cut into words of one number."""
    assert words_of(name) == words


def test_cycles_are_found_together() -> None:
    """Nodes of one cycle stand together, those that lead to it do not."""
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == [["b", "c"]]
