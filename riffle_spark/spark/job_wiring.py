"""Build the settings, the home and the driver of a job."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.ownership.slots import settings_without_effect
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources, short_interval_warnings
from riffle_spark.spark import compat
from riffle_spark.spark.engine import inventory, jvm
from riffle_spark.spark.engine.background import BackgroundThread, SystemClock, random_id
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.engine.topology import racks_of_members
from riffle_spark.spark.job_exporters import check_exporters
from riffle_spark.state.objects.open import open_store
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import home_with_keys, options_of
from riffle_spark.worker.requested_edits import edit_by_request

_logger = logging.getLogger("riffle_spark")
_TOML = Path("conf/riffle.toml")


@dataclass(frozen=True)
class JobParts:
    """A job's driver, and the ports that its batch loop shares with the driver."""

    settings: Settings
    home: Home
    clock: SystemClock
    cluster: SparkCluster
    background: BackgroundThread
    driver: Driver


def wire_job(
    spark: SparkSession,
    settings: Settings | None,
    stores: Sequence[str],
    is_active: Callable[[], bool],
    reached: Callable[[str], None],
) -> JobParts:
    """Build the driver of a job with these stores.

    ``is_active`` returns whether the query still runs. ``reached`` is called at each step of a batch.
    Raise ``ConfigError`` for settings that do not fit the job.
    """
    active_settings = settings_of(spark, settings)
    _check_settings(active_settings, stores)
    home = home_of(spark, active_settings)
    clock = SystemClock()
    cluster = SparkCluster(spark, is_active)
    background = BackgroundThread()
    ports = DriverPorts(
        open_store(home.root, home.options),
        cluster,
        clock,
        background,
        random_id,
        reached,
        upkeep_objects=open_store(home.root, home.options),
        racks_of=partial(racks_of_members, active_settings.member_racks),
        edit_state=edit_by_request,
    )
    return JobParts(active_settings, home, clock, cluster, background, Driver(active_settings, home, ports))


def _check_settings(settings: Settings, stores: Sequence[str]) -> None:
    """Warn about settings that are risky or have no effect. Raise ``ConfigError`` for unknown ``store_groups``, and
    if a package for an exporter is missing.
    """
    check_exporters(settings)
    for warning in short_interval_warnings(settings):
        _logger.warning("%s", warning)
    unused = settings_without_effect(settings)
    if unused:
        _logger.warning(
            "[RIFFLE-0312] With dispatch = hashed these settings have no effect: %s.\n"
            "  What to do: Remove them, or use another dispatch.",
            ", ".join(unused),
        )
    grouped_stores = [store for store, _ in settings.store_groups]
    check_known("store", grouped_stores, stores, source="store_groups")


def settings_of(spark: SparkSession, code_settings: Settings | None) -> Settings:
    """Return the settings in effect for a session: from the code, ``spark.riffle.*`` and ``conf/riffle.toml``."""
    conf: Mapping[str, str] = jvm.session_conf(spark) if jvm.is_classic(spark) else compat.conf_of(spark)
    riffle_conf = {name: value for name, value in conf.items() if name.startswith(CONF_PREFIX)}
    return from_sources(code_settings, riffle_conf, _TOML)


def home_of(spark: SparkSession, settings: Settings) -> Home:
    """Return the root, its options and the local folder. Raise ``ConfigError`` if executors cannot reach the root."""
    root = settings.root
    if not root or root.startswith("memory:"):
        # Cause: root is not set, or is in the memory of the driver.
        raise ConfigError(
            f"root = {root!r} cannot be reached by all executors.",
            remedy="Set root (spark.riffle.root) to s3://bucket/prefix, or to file:///folder on one machine.",
            where="root",
            id="RIFFLE-0313",
        )
    application = inventory.application_id(spark)
    return home_with_keys(Home(root, options_of(settings), settings.local_dir, application, frozenset()), settings)
