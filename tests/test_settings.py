"""Settings: precedence, ranges, and errors that say what to do."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from riffle_spark.assign.model import AssignSettings
from riffle_spark.errors import ConfigError
from riffle_spark.keygroups import TOTAL_MAX
from riffle_spark.removed_settings import REMOVED
from riffle_spark.setting_values import Range, one_of, optional, seconds, text, whole
from riffle_spark.settings import LINES, LIVE, Settings, from_sources, hasty


def test_defaults_are_those_of_the_documentation() -> None:
    """Nothing said means the documented defaults."""
    found = from_sources()
    assert (found.key_groups, found.num_standbys, found.retained_versions) == (128, 0, 100)
    assert (found.probing_rebalance_interval, found.balance_band) == (600.0, 0.2)


def test_code_wins_over_conf_over_file(tmp_path: Path) -> None:
    """Each source overrides the ones before it, and only what it says."""
    file = tmp_path / "riffle.toml"
    file.write_text("[riffle]\nnum_standbys = 1\nkey_groups = 16\nretained_versions = 7\n")
    conf = {"spark.riffle.num_standbys": "2", "spark.riffle.key_groups": "32", "spark.other": "x"}
    found = from_sources(Settings(num_standbys=3), conf, file)
    assert (found.num_standbys, found.key_groups, found.retained_versions) == (3, 32, 7)


def test_code_wins_even_where_it_says_the_default() -> None:
    """A default that was written down is not the same as nothing said."""
    assert from_sources(Settings(num_standbys=0), {"spark.riffle.num_standbys": "2"}).num_standbys == 0


def test_changed_settings_say_no_more_than_was_said() -> None:
    """What is changed counts as said beside what was; everything else is left to the other sources."""
    changed = Settings(num_standbys=0, retained_versions=9).but(retained_versions=7, key_groups=16)
    found = from_sources(changed, {"spark.riffle.num_standbys": "2", "spark.riffle.batch_attempts": "3"})
    assert (found.num_standbys, found.retained_versions, found.key_groups, found.batch_attempts) == (0, 7, 16, 3)
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings().but(key_groups=0)


def test_what_may_change_while_a_query_runs_are_settings() -> None:
    """Every live setting exists; where state lies and how it is cut is not among them."""
    assert set(Settings.__dataclass_fields__) >= LIVE
    assert not LIVE & {"root", "key_groups", "dispatch", "local_dir", "standby_mode", "assignor"}


@pytest.mark.parametrize("name", LINES)
def test_the_line_of_a_setting_holds_together(name: str) -> None:
    """Its default as it is shown means the default, its example can be said, and only what takes a restart is fixed."""
    line = LINES[name]
    shown = line.allowed.written(line.default)
    assert getattr(Settings(**{name: shown}), name) == getattr(Settings(), name) == line.default  # type: ignore[arg-type]
    assert line.allowed.words
    assert line.meaning
    assert not (line.live and line.fixed)
    if line.default is None:
        assert getattr(Settings(**{name: line.example}), name) == line.example  # type: ignore[arg-type]


def test_there_can_be_as_many_key_groups_as_a_key_can_have() -> None:
    """The setting and the key-groups themselves have one bound."""
    assert LINES["key_groups"].allowed.words == f"1 to {TOTAL_MAX}"


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (whole(0), "≥ 0"),
        (whole(1, 20), "1 to 20"),
        (whole(2).of("records"), "≥ 2 records"),
        (seconds(0.1), "≥ 100 ms"),
        (seconds(90), "≥ 90 s"),
        (one_of("a", "b"), "`a`, `b`"),
        (optional(text.of("URL")), "URL"),
    ],
)
def test_a_range_says_in_a_few_words_what_it_allows(allowed: Range, words: str) -> None:
    """The words are made of the same bounds that are checked."""
    assert allowed.words == words


@pytest.mark.parametrize("said", ["file:///mnt/x", "s3://bucket/x", "~/x", "copies", "./copies"])
def test_a_folder_that_would_be_another_one_in_each_process_is_refused(said: str) -> None:
    """Below the folder where a process happens to be there would be one called ``file:`` or ``~``."""
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings(local_dir=said)
    assert Settings(local_dir="/mnt/nvme").local_dir == "/mnt/nvme"


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0 s"), (0.25, "250 ms"), (1.5, "1500 ms"), (60, "1 min"), (129_600, "36 h")]
)
def test_durations_are_shown_as_somebody_would_write_them(number: float, shown: str) -> None:
    """In the largest unit of which they are a whole number, and so that they can be read again."""
    assert seconds(0).written(number) == shown
    assert seconds(0)(shown) == number


@pytest.mark.parametrize(
    "said",
    [
        "10.0.1.*=a, host-?=b",
        ["10.0.1.*=a", "host-?=b"],
        {"10.0.1.*": "a", "host-?": "b"},
        (("10.0.1.*", "a"), ("host-?", "b")),
    ],
)  # fmt: skip
def test_racks_of_hosts_are_pairs_however_they_are_written(said: object) -> None:
    """A text, a list, a table and pairs say the same, in the same order."""
    assert Settings(member_racks=said).member_racks == (("10.0.1.*", "a"), ("host-?", "b"))  # type: ignore[arg-type]


@pytest.mark.parametrize("said", ["10.0.1.*", ["a=b=c", "d"], {"a": ""}, 7, [True], [5, "a=b"]])
def test_racks_of_hosts_that_are_no_pairs_are_refused(said: object) -> None:
    """What is not a pattern and a rack names the setting and shows how to write it."""
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings(member_racks=said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "said", ["zone=a, zone=b, disk=ssd", ["zone=a", "zone=b", "disk=ssd"], {"zone": ["a", "b"], "disk": "ssd"}]
)
def test_values_of_tags_are_said_as_pairs_or_by_tag(said: object) -> None:
    """And read again as they were told, also from JSON."""
    told = Settings(forced_awareness=said).forced_awareness  # type: ignore[arg-type]
    assert told == (("zone", ("a", "b")), ("disk", ("ssd",)))
    assert Settings(forced_awareness=json.loads(json.dumps(told))).forced_awareness == told


@pytest.mark.parametrize(
    ("name", "said"),
    [("forced_awareness", "zone"), ("forced_awareness", {"zone": []}), ("forced_awareness", [["zone", ""]]),
     ("include", "ssd"), ("assignor", 7), ("rebalance_enable", "some")],
)  # fmt: skip
def test_what_cannot_be_asked_of_placement_is_refused(name: str, said: object) -> None:
    """With the setting, and what it can be."""
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        Settings(**{name: said})  # type: ignore[arg-type]


def test_what_was_said_survives_pickling() -> None:
    """Spark Connect sends jobs as pickles; precedence must not change on the way."""
    sent = pickle.loads(pickle.dumps(Settings(num_standbys=0)))
    assert from_sources(sent, {"spark.riffle.num_standbys": "2"}).num_standbys == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("key_groups", 0, "from 1 to 32768"),
        ("key_groups", 32_769, "from 1 to 32768"),
        ("key_groups", True, "from 1 to 32768"),
        ("num_standbys", "one", "from 0 up"),
        ("balance_band", "120 %", "share"),
        ("probing_rebalance_interval", "ten minutes", "duration"),
        ("standby_mode", "hot", "replay, snapshot_pointer"),
        ("deliver_after_commit", "maybe", "true or false"),
        ("dispatch", "by_key", "key_group, partition, hashed"),
        ("retained_for", float("inf"), "at most 36500 d"),
        ("retained_for", float("nan"), "duration"),
        ("retained_for", 10**400, "at most 36500 d"),
        ("initial_rebalance_delay", "9" * 400 + " d", "at most 36500 d"),
        ("encryption_keys", "", "not empty"),
    ],
)
def test_a_wrong_value_names_setting_value_and_range(name: str, value: Any, says: str) -> None:
    """The message names the setting, what was written, what is allowed and where to correct it."""
    with pytest.raises(ConfigError) as caught:
        Settings(**{name: value})
    text = str(caught.value)
    assert name in text
    assert repr(value) in text
    assert says in text
    assert "code" in text


def test_a_wrong_value_names_its_source(tmp_path: Path) -> None:
    """A value from a file or the Spark configuration is to be corrected there."""
    file = tmp_path / "riffle.toml"
    file.write_text("retained_versions = 1\n")
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        from_sources(None, {}, file)
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        from_sources(None, {"spark.riffle.retained_versions": "1"})


@pytest.mark.parametrize("name", ["encryption_keys", "s3_kms_key", "s3_endpoint"])
def test_an_empty_variable_does_not_switch_a_key_off_or_another_store_on(tmp_path: Path, name: str) -> None:
    """Where no source says anything there is none; empty text is not taken for that, but refused."""
    file = tmp_path / "riffle.toml"
    file.write_text(f'{name} = "file:/keys"\n')
    assert getattr(Settings(**{name: None}), name) is getattr(from_sources(None, {}), name) is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        from_sources(None, {f"spark.riffle.{name}": ""}, file)
    file.write_text(f'{name} = ""\n')
    with pytest.raises(ConfigError, match="RIFFLE-0249"):
        from_sources(None, {}, file)


def test_an_unknown_setting_suggests_the_nearest() -> None:
    """A slip of the pen is an error that says what was probably meant."""
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        from_sources(None, {"spark.riffle.num_standby": "1"})


def test_an_unknown_setting_in_code_suggests_the_nearest() -> None:
    """A keyword that no setting has is the same error, not Python's."""
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        Settings(num_standby_replicas=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        Settings().but(batch_atempts=1)


@pytest.mark.parametrize("name", ["cls", "self"])
def test_names_of_pythons_own_are_no_settings(name: str) -> None:
    """They are refused as any other."""
    with pytest.raises(ConfigError, match="RIFFLE-0480"):
        Settings().but(**{name: 1})


def test_an_unknown_setting_of_a_file_suggests_the_nearest(tmp_path: Path) -> None:
    """In the table, at the top level, and a table that is itself misspelled."""
    for written, near in (
        ("[riffle]\nretained_version = 3\n", "retained_versions"),
        ("retained_version = 3\n", "retained_versions"),
        ("[rifle]\nretained_versions = 3\n", "did you mean 'riffle'"),
    ):
        (tmp_path / "riffle.toml").write_text(written)
        with pytest.raises(ConfigError, match=near):
            from_sources(None, {}, tmp_path / "riffle.toml")


@pytest.mark.parametrize("text", ["num_standbys = 1\n[riffle]\nkey_groups = 16\n", "riffle = 3\n"])
def test_settings_of_a_file_that_nobody_would_read_are_refused(tmp_path: Path, text: str) -> None:
    """Beside the table [riffle] the top level is not read; other programs' names may stand there."""
    (tmp_path / "riffle.toml").write_text(text)
    with pytest.raises(ConfigError, match="RIFFLE-0251"):
        from_sources(None, {}, tmp_path / "riffle.toml")
    (tmp_path / "riffle.toml").write_text('other = 1\n[tool]\nname = "x"\n[riffle]\nkey_groups = 16\n')
    assert from_sources(None, {}, tmp_path / "riffle.toml").key_groups == 16


def test_a_probing_interval_below_a_minute_is_warned_of() -> None:
    """It is taken, as tests want it, and the warning says what it is good for."""
    assert hasty(Settings()) == hasty(Settings(probing_rebalance_interval="1 min")) == ()  # type: ignore[arg-type]
    (warning,) = hasty(Settings(probing_rebalance_interval="59 s"))  # type: ignore[arg-type]
    assert "probing_rebalance_interval = 59 s" in warning


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 min", 600.0), ("5s", 5.0), ("1 h", 3600.0), ("250ms", 0.25), (7, 7.0)]
)
def test_durations_are_seconds_or_text(text: Any, seconds: float) -> None:
    """Durations may carry a unit."""
    assert Settings(scheduled_rebalance_max_delay=text).scheduled_rebalance_max_delay == seconds


def test_a_file_named_in_the_configuration_must_be_there(tmp_path: Path) -> None:
    """A conf file that was asked for and is missing is an error, not silence."""
    with pytest.raises(ConfigError, match="RIFFLE-0250"):
        from_sources(None, {"spark.riffle.conf_file": str(tmp_path / "missing.toml")})


def test_marks_of_disks_and_memory_rise_from_the_limit_to_all() -> None:
    """Each is a fixed part of what the limit leaves."""
    usual = Settings()
    assert (usual.local_disk_high, usual.local_disk_flood) == (0.9, 0.95)
    assert usual.local_memory_high == 0.95
    early = Settings(local_disk_limit=0.6, local_memory_limit=0.6)
    assert early.local_disk_limit < early.local_disk_high < early.local_disk_flood < 1
    assert early.local_memory_limit < early.local_memory_high < 1


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_is_refused_with_its_replacement(tmp_path: Path, name: str) -> None:
    """In code, in a file and in the Spark configuration, each named in the error."""
    file = tmp_path / "riffle.toml"
    file.write_text(f"[riffle]\n{name} = 1\n")
    with pytest.raises(ConfigError, match="RIFFLE-0247") as in_code:
        Settings(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="RIFFLE-0247"):
        from_sources(None, {}, file)
    with pytest.raises(ConfigError, match="RIFFLE-0247") as in_conf:
        from_sources(None, {f"spark.riffle.{name}": "1"})
    assert in_code.value.remedy == REMOVED[name]
    assert in_conf.value.where == f"spark.riffle.{name}"


def test_all_removed_settings_of_a_source_are_named_at_once(tmp_path: Path) -> None:
    """A job that sets several is corrected in one step, not by one failed start for each."""
    file = tmp_path / "riffle.toml"
    file.write_text("[riffle]\ngoals = 1\nec2_metadata = true\n")
    sources = [
        lambda: Settings(goals=1, ec2_metadata=True),  # type: ignore[call-arg]
        lambda: from_sources(None, {}, file),
        lambda: from_sources(None, {"spark.riffle.goals": "1", "spark.riffle.ec2_metadata": "true"}),
    ]
    for read in sources:
        with pytest.raises(ConfigError, match="RIFFLE-0248") as refused:
            read()
        for name in ("goals", "ec2_metadata"):
            assert f"{name!r}" in str(refused.value)
            assert f"{name}: {REMOVED[name]}" in refused.value.remedy


def test_replacements_name_settings_that_exist() -> None:
    """And no setting is removed and there."""
    assert not REMOVED.keys() & LINES.keys()
    fields_of_assignors = {each.name for each in fields(AssignSettings)}
    others = {"topic", "partition", "Task.weight", "withColumnRenamed", "RIFFLE_RACK", "conf/spark-env.sh"}
    for remedy in REMOVED.values():
        named = {word for word in re.findall(r"`([^`]*)`", remedy) if not word.startswith("assign(")}
        assert named <= LINES.keys() | fields_of_assignors | others


def test_every_setting_has_two_users() -> None:
    """A setting that nobody changes should be a constant."""
    for name, line in LINES.items():
        assert len(set(line.users)) == 2, name


def test_the_names_of_the_designs_mean_our_strategies() -> None:
    """KIP-925 calls its second algorithm `balanced_min_cost`, Kafka its first one `min_traffic`."""
    for name, strategy in (("balanced_min_cost", "balance_subtopology"), ("min_traffic", "min_cost"), ("NONE", "none")):
        assert Settings(rack_aware_assignment_strategy=name).rack_aware_assignment_strategy == strategy
