"""Build what a job needs in this process: settings, the place of its state, and the driver with its ports."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.protocol.batch.driver import Driver, DriverPorts
from riffle_spark.protocol.ownership.slots import settings_without_effect
from riffle_spark.settings import CONF_PREFIX, Settings, from_sources, hasty
from riffle_spark.spark.engine import inventory, jvm
from riffle_spark.spark.engine.background import BackgroundThread, SystemClock, random_id
from riffle_spark.spark.engine.cluster import SparkCluster
from riffle_spark.spark.engine.topology import Topology
from riffle_spark.state.objects.open import open_store
from riffle_spark.unknown_names import check_known
from riffle_spark.worker.member_folders import home_with_keys, options_of

__all__ = ["JobParts", "home_of", "settings_of", "wire_job"]

_logger = logging.getLogger("riffle_spark")
_TOML = Path("conf/riffle.toml")


@dataclass(frozen=True)
class JobParts:
    """A job's driver and the ports that its batch loop uses, too."""

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

    ``is_active`` tells the cluster whether the query still runs. ``reached`` is called at each step of a batch.
    Raises ``ConfigError`` for settings that do not fit the job.
    """
    in_force = settings_of(spark, settings)
    _check_settings(in_force, stores)
    home = home_of(spark, in_force)
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
        racks_of=Topology(in_force.member_racks).racks,
    )
    return JobParts(in_force, home, clock, cluster, background, Driver(in_force, home, ports))


def _check_settings(settings: Settings, stores: Sequence[str]) -> None:
    """Warn of settings that are risky or have no effect. Raise ``ConfigError`` if one names an unknown store."""
    for warning in hasty(settings):
        _logger.warning("%s", warning)
    idle = settings_without_effect(settings)
    if idle:
        _logger.warning("[RIFFLE-0312] with dispatch = hashed these settings have no effect: %s", ", ".join(idle))
    grouped_stores = [store for store, _ in settings.store_groups]
    check_known("store", grouped_stores, stores, source="store_groups")


def settings_of(spark: SparkSession, code: Settings | None) -> Settings:
    """Return the settings in force for a session, from all sources."""
    every: Mapping[str, str] = jvm.session_conf(spark) if jvm.is_classic(spark) else dict(spark.conf.getAll)
    return from_sources(code, {k: v for k, v in every.items() if k.startswith(CONF_PREFIX)}, _TOML)


def home_of(spark: SparkSession, settings: Settings) -> Home:
    """Return where state is stored. Raises ``ConfigError`` if no root is set, or one that executors cannot reach."""
    root = settings.root
    if not root or root.startswith("memory:"):
        raise ConfigError(
            f"root = {root!r}: executors need a root they can all reach",
            remedy="set root (spark.riffle.root) to s3://bucket/prefix, or to file:///folder on one machine",
            where="root",
            id="RIFFLE-0313",
        )
    application = inventory.application_id(spark)
    return home_with_keys(Home(root, options_of(settings), settings.local_dir, application, frozenset()), settings)
