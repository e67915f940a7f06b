"""Settings have a precedence of sources, allowed ranges, and errors that name the setting and its source."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.model import AssignSettings
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import TOTAL_MAX
from riffle_spark.removed_settings import REMOVED
from riffle_spark.setting_values import seconds
from riffle_spark.settings import LIVE, SETTING_LINES, Settings, from_sources, short_interval_warnings


def settings_of(**values: Any) -> Settings:
    """Return settings with values that only the constructor checks."""
    return Settings(**values)


def toml_file(folder: Path, text: str) -> Path:
    """Write a TOML file."""
    path = folder / "riffle.toml"
    path.write_text(text)
    return path


def test_code_overrides_conf_and_conf_overrides_a_file(tmp_path: Path) -> None:
    """Each source overrides only what it sets. Without any source the defaults are in effect."""
    file = toml_file(tmp_path, "[riffle]\nnum_standbys = 1\nkey_groups = 16\nretained_versions = 7\n")
    conf = {"spark.riffle.num_standbys": "2", "spark.riffle.key_groups": "32", "spark.other": "x"}
    settings = from_sources(Settings(num_standbys=3), conf, file)
    assert (settings.num_standbys, settings.key_groups, settings.retained_versions) == (3, 32, 7)
    assert from_sources() == Settings()


def test_an_explicit_default_overrides_other_sources_also_after_pickling() -> None:
    """A default that is passed explicitly overrides other sources, also after pickling, as with Spark Connect."""
    explicit = pickle.loads(pickle.dumps(Settings(num_standbys=0)))
    assert from_sources(explicit, {"spark.riffle.num_standbys": "2"}).num_standbys == 0


def test_but_keeps_what_is_explicit() -> None:
    """`but` keeps explicit settings explicit: only they and changed ones override other sources."""
    changed = Settings(num_standbys=0, retained_versions=9).but(retained_versions=7, key_groups=16)
    settings = from_sources(changed, {"spark.riffle.num_standbys": "2", "spark.riffle.batch_attempts": "3"})
    values = (settings.num_standbys, settings.retained_versions, settings.key_groups, settings.batch_attempts)
    assert values == (0, 7, 16, 3)
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings().but(key_groups=0)


@pytest.mark.parametrize("name", SETTING_LINES)
def test_the_declaration_of_a_setting_is_consistent(name: str) -> None:
    """The documented default parses to the default, the example is allowed, and a live setting is not fixed."""
    line = SETTING_LINES[name]
    documented = line.allowed.written(line.default)
    assert getattr(settings_of(**{name: documented}), name) == getattr(Settings(), name) == line.default
    assert line.allowed.words
    assert line.meaning
    assert not (line.live and line.fixed)
    if line.default is None:
        assert getattr(settings_of(**{name: line.example}), name) == line.example
    assert not LIVE & {"root", "key_groups", "dispatch", "local_dir", "standby_mode", "assignor"}
    assert SETTING_LINES["key_groups"].allowed.words == f"1 to {TOTAL_MAX}"


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 s"), (0.25, "250 ms"), (1.5, "1500 ms"), (60, "1 min"), (129_600, "36 h")]
)
def test_durations_are_parsed_and_formatted_with_their_unit(number: float, text: str) -> None:
    """A duration is formatted with the largest unit that gives an integer."""
    assert seconds(0).written(number) == text
    assert seconds(0)(text) == number


@pytest.mark.parametrize(
    "value",
    [
        "10.0.1.*=a, host-?=b",
        ["10.0.1.*=a", "host-?=b"],
        {"10.0.1.*": "a", "host-?": "b"},
        (("10.0.1.*", "a"), ("host-?", "b")),
    ],
)
def test_all_forms_of_pairs_give_the_same_pairs(value: object) -> None:
    """All forms of pairs give the same pairs in the same order."""
    assert settings_of(member_racks=value).member_racks == (("10.0.1.*", "a"), ("host-?", "b"))


@pytest.mark.parametrize(
    "value", ["zone=a, zone=b, disk=ssd", ["zone=a", "zone=b", "disk=ssd"], {"zone": ["a", "b"], "disk": "ssd"}]
)
def test_all_forms_of_values_by_tag_give_the_same_values(value: object) -> None:
    """All forms give the same values, also after a round trip through JSON."""
    by_tag = settings_of(forced_awareness=value).forced_awareness
    assert by_tag == (("zone", ("a", "b")), ("disk", ("ssd",)))
    assert settings_of(forced_awareness=json.loads(json.dumps(by_tag))).forced_awareness == by_tag


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("key_groups", 0),
        ("key_groups", 32_769),
        ("key_groups", True),
        ("num_standbys", "one"),
        ("balance_band", "120 %"),
        ("probing_rebalance_interval", "ten minutes"),
        ("standby_mode", "hot"),
        ("deliver_after_commit", "maybe"),
        ("retained_for", float("inf")),
        ("retained_for", float("nan")),
        ("retained_for", 10**400),
        ("initial_rebalance_delay", "9" * 400 + " d"),
        ("encryption_keys", ""),
        ("local_dir", "file:///mnt/x"),
        ("local_dir", "./copies"),
        ("member_racks", "10.0.1.*"),
        ("member_racks", ["a=b=c", "d"]),
        ("member_racks", {"a": ""}),
        ("member_racks", 7),
        ("member_racks", [True]),
        ("forced_awareness", "zone"),
        ("forced_awareness", {"zone": []}),
        ("forced_awareness", [["zone", ""]]),
        ("forced_awareness", 7),
        ("store_groups", "models=heavy/1"),
        ("assignor", 7),
        ("rack_aware_assignment_tags", 7),
        ("rack_aware_assignment_tags", ["zone", 7]),
        ("root_file_mode", "0755"),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: object) -> None:
    """The error names the setting, the value and the place to correct."""
    with pytest.raises(ConfigError, match="RIFFLE-0249") as refused:
        settings_of(**{name: value})
    assert f"{name} = {value!r}" in refused.value.problem
    assert "code" in refused.value.remedy


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    """The error of a value in a file or in the Spark configuration names that source."""
    with pytest.raises(ConfigError, match=r"riffle\.toml"):
        from_sources(None, {}, toml_file(tmp_path, "retained_versions = 1\n"))
    with pytest.raises(ConfigError, match=r"spark\.riffle\.retained_versions"):
        from_sources(None, {"spark.riffle.retained_versions": "1"})


@pytest.mark.parametrize("name", ["encryption_keys", "s3_kms_key", "s3_endpoint"])
def test_an_empty_key_setting_is_refused(tmp_path: Path, name: str) -> None:
    """An empty text is refused for settings of keys, because it may be an unset variable. ``None`` means not set."""
    assert getattr(settings_of(**{name: None}), name) is None
    with pytest.raises(ConfigError, match=rf"spark\.riffle\.{name}"):
        from_sources(None, {f"spark.riffle.{name}": ""}, toml_file(tmp_path, f'{name} = "file:/keys"\n'))


UNKNOWN: list[Callable[[Path], object]] = [
    lambda _: settings_of(num_standby=1),
    lambda _: Settings().but(num_standby=1),
    lambda _: from_sources(None, {"spark.riffle.num_standby": "1"}),
    lambda folder: from_sources(None, {}, toml_file(folder, "[riffle]\nnum_standby = 3\n")),
    lambda folder: from_sources(None, {}, toml_file(folder, "num_standby = 3\n")),
]


@pytest.mark.parametrize("read_settings", UNKNOWN)
def test_an_unknown_setting_is_refused_with_the_nearest_name(
    tmp_path: Path, read_settings: Callable[[Path], object]
) -> None:
    """An unknown setting from any source is refused with the nearest name."""
    with pytest.raises(ConfigError, match="RIFFLE-0480") as refused:
        read_settings(tmp_path)
    assert "'num_standbys'" in refused.value.remedy


@pytest.mark.parametrize("name", ["cls", "self"])
def test_cls_and_self_are_refused_as_unknown_settings(name: str) -> None:
    """``cls`` and ``self`` are refused as unknown settings, and do not collide with parameters."""
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        Settings().but(**{name: 1})


@pytest.mark.parametrize("text", ["num_standbys = 1\n[riffle]\nkey_groups = 16\n", "riffle = 3\n"])
def test_settings_outside_the_table_are_refused(tmp_path: Path, text: str) -> None:
    """Settings outside of the table ``[riffle]`` are refused if the table exists. Other programs' names are allowed."""
    with pytest.raises(ConfigError, match="RIFFLE-0251"):
        from_sources(None, {}, toml_file(tmp_path, text))
    mixed = toml_file(tmp_path, 'other = 1\n[tool]\nname = "x"\n[riffle]\nkey_groups = 16\n')
    assert from_sources(None, {}, mixed).key_groups == 16


def test_a_conf_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """A file that ``spark.riffle.conf_file`` names must exist."""
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        from_sources(None, {"spark.riffle.conf_file": str(tmp_path / "missing.toml")})


def test_a_probing_interval_below_a_minute_causes_a_warning() -> None:
    """A probing interval below a minute is accepted with a warning, because tests need it."""
    assert short_interval_warnings(settings_of(probing_rebalance_interval="1 min")) == ()
    (warning,) = short_interval_warnings(settings_of(probing_rebalance_interval="59 s"))
    assert warning.startswith("[RIFFLE-0950] probing_rebalance_interval = 59 s")


def test_higher_limits_of_disk_and_memory_are_between_the_limit_and_one() -> None:
    """The higher limits of disk and memory are between the configured limit and one."""
    settings = Settings()
    assert (settings.local_disk_high, settings.local_disk_flood, settings.local_memory_high) == (0.9, 0.95, 0.95)
    early = Settings(local_disk_limit=0.6, local_memory_limit=0.6)
    assert early.local_disk_limit < early.local_disk_high < early.local_disk_flood < 1
    assert early.local_memory_limit < early.local_memory_high < 1


def test_removed_settings_are_refused_with_their_replacements(tmp_path: Path) -> None:
    """All removed settings of a source are refused in one error with their replacements."""
    values = dict.fromkeys(REMOVED, 1)
    file = toml_file(tmp_path, "".join(f"{name} = 1\n" for name in values))
    sources: list[Callable[[], object]] = [
        lambda: settings_of(**values),
        lambda: from_sources(None, {}, file),
        lambda: from_sources(None, {f"spark.riffle.{name}": "1" for name in values}),
    ]
    for source in sources:
        with pytest.raises(ConfigError, match="RIFFLE-0247") as refused:
            source()
        for name, remedy in REMOVED.items():
            assert name in refused.value.where
            assert remedy.removeprefix("Remove it. ") in refused.value.remedy


def test_replacements_name_settings_that_exist() -> None:
    """The replacements of removed settings are existing settings, and no setting is both removed and present."""
    assert not REMOVED.keys() & SETTING_LINES.keys()
    fields_of_assignors = {field.name for field in fields(AssignSettings)}
    other_names = {"topic", "partition", "Task.weight", "withColumnRenamed", "RIFFLE_RACK", "conf/spark-env.sh"}
    for remedy in REMOVED.values():
        named = {word for word in re.findall(r"`([^`]*)`", remedy) if not word.startswith("assign(")}
        assert named <= SETTING_LINES.keys() | fields_of_assignors | other_names


def test_names_of_other_systems_are_synonyms() -> None:
    """Strategy names of KIP-925 and Kafka are accepted as synonyms."""
    for name, strategy in (("balanced_min_cost", "balance_subtopology"), ("min_traffic", "min_cost"), ("NONE", "none")):
        assert Settings(rack_aware_assignment_strategy=name).rack_aware_assignment_strategy == strategy


def test_the_signature_shows_what_the_constructor_accepts() -> None:
    """``help()`` and editors show each setting with its accepted types and its default."""
    parameters = inspect.signature(Settings).parameters
    assert list(parameters) == list(SETTING_LINES)
    assert str(parameters["retained_for"]) == "retained_for: float | str = 3600.0"
    assert str(parameters["num_standbys"]) == "num_standbys: int = 0"
    assert "retained_for: float | str = 3600.0" in str(inspect.signature(Settings.__init__))
    assert Settings(retained_for="2 h", balance_band="30 %", member_racks={"10.*": "a"}).retained_for == 7200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1 second", 1), ("10 minutes", 600), ("1 hour", 3600), ("2 days", 172_800), ("1.5 hours", 5400)],
)
def test_a_duration_may_have_the_names_of_units_that_spark_uses(text: str, seconds: float) -> None:
    """Users of ``withWatermark`` and ``trigger`` write ``10 minutes``, so settings accept that, too."""
    assert Settings(retained_for=text).retained_for == seconds
    for wrong in ("1 month", "1 s s", "2 hourss", "5 ms s", "1 mins"):
        with pytest.raises(ConfigError, match="RIFFLE-0249"):
            Settings(retained_for=wrong)
