"""The files in conf/ are valid and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from riffle_spark.settings import Settings, from_sources, read_toml
from tests.kit.folders import CHECKOUT

CONF = CHECKOUT / "conf"
SETTING = re.compile(r"^# (?=[a-z0-9_]+ = )", re.MULTILINE)


def test_the_example_names_every_setting_with_its_default(tmp_path: Path) -> None:
    """With every line uncommented, conf/riffle.toml has each setting with its default, unless that is not set."""
    written = tmp_path / "riffle.toml"
    written.write_text(SETTING.sub("", (CONF / "riffle.toml").read_text()))
    shown = read_toml(written)
    defaults = Settings()
    assert sorted(shown) == sorted(Settings.__dataclass_fields__)
    assert {name: value for name, value in shown.items() if getattr(defaults, name) not in (None, (), value)} == {}


@pytest.mark.parametrize("path", sorted(CONF.glob("*.toml")), ids=lambda path: path.name)
def test_every_file_is_valid_and_sets_no_root(path: Path) -> None:
    """Each file is accepted and sets no root."""
    assert from_sources(toml=path).root is None


def test_the_docs_name_two_users_of_each_setting() -> None:
    """The docs name two different users of each setting. A setting without users should be a constant."""
    page = (CHECKOUT / "docs" / "configuration.md").read_text()
    section = page.partition("## Who changes a setting, and when\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert [name for name, first, second in rows if first != second] == list(Settings.__dataclass_fields__)
