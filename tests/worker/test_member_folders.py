"""What a process opens its store with."""

from __future__ import annotations

from dataclasses import fields

from riffle_spark.settings import LINES, Settings
from riffle_spark.state.objects.store import StoreOptions
from riffle_spark.worker.member_folders import options_of


def test_every_setting_of_the_store_is_passed_on() -> None:
    """Each option of the store is a setting, by its name without the unit, with its default and as it was set."""
    said = Settings(
        s3_endpoint="http://127.0.0.1:1", s3_region="north", s3_connect_timeout=1, s3_read_timeout=2, s3_max_attempts=3,
        s3_max_connections=4,
    )  # fmt: skip
    options = {each.name.removesuffix("_seconds"): each for each in fields(StoreOptions)}
    assert sorted(options) == sorted(said.given()) == sorted(name for name in LINES if name.startswith("s3_"))
    seen, unset = options_of(said), StoreOptions()
    assert {name: getattr(seen, each.name) for name, each in options.items()} == said.given()
    assert {name: getattr(unset, each.name) for name, each in options.items()} == {n: LINES[n].default for n in options}
    assert options_of(Settings()) == unset
