"""Run the checks of `riffle doctor` one after the other."""

import os
from collections.abc import Mapping, Sequence

from riffle_spark.errors import RiffleError, UnavailableError
from riffle_spark.offline.doctor import checks, machine
from riffle_spark.offline.doctor.facts import Level, Result
from riffle_spark.offline.doctor.services import kafka_facts, store_facts
from riffle_spark.offline.scenario_of_root import sizes_of_root
from riffle_spark.settings import Settings
from riffle_spark.spark_installation import find_spark
from riffle_spark.state.copies.disk import default_local_dir
from riffle_spark.state.objects.open import open_store
from riffle_spark.worker.member_folders import options_of
from riffle_spark.worker.memory_use import memory_use


def read_conf(options: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's configuration on this machine: ``spark-defaults.conf``, and ``options`` over it."""
    spark = find_spark(os.environ)
    return {**machine.read_spark_defaults(os.environ, spark.home if spark else None), **options}


def diagnose(settings: Settings, servers: Sequence[str], conf: Mapping[str, str]) -> list[Result]:
    """Return the results of all checks. Writes and deletes one object below the root."""
    driver = machine.driver_python()
    spark = find_spark(os.environ)
    results = [
        checks.check_python(driver, spark),
        checks.check_workers(driver, machine.worker_python(os.environ, conf)),
        checks.check_java(machine.java_facts(os.environ), spark),
        checks.check_spark(spark),
        *checks.check_packages(driver, spark),
    ]
    root = settings.root or ""
    if spark is not None and spark.jars:
        results += checks.check_connectors(spark, conf, kafka=bool(servers), s3a=root.startswith("s3"))
    results += _root_results(settings)
    folder = settings.local_dir or default_local_dir(os.environ)
    results.append(checks.check_disk(machine.disk_facts(folder), settings.local_disk_limit))
    slots = checks.slots_of(conf, os.cpu_count() or 1)
    results.append(checks.check_slots(slots, _key_groups(settings)))
    results.append(checks.check_memory(conf, slots, memory_use()[1]))
    if servers:
        results.append(checks.check_kafka(kafka_facts(servers)))
    return results


def _root_results(settings: Settings) -> list[Result]:
    """Return the results of the checks of the store and its clock."""
    if settings.root is None:
        remedy = "Pass --root URL, or set `root` (spark.riffle.root)."
        return [Result("store", "skipped", "No root is configured.", remedy)]
    try:
        store = store_facts(open_store(settings.root, options_of(settings)))
    except RiffleError as error:
        level: Level = "unreachable" if isinstance(error, UnavailableError) else "error"
        return [Result("store", level, error.problem, error.remedy)]
    return [checks.check_store(store, settings.root), checks.check_clock(store)]


def _key_groups(settings: Settings) -> int:
    """Return the number of key-groups of the state below the root, or that of a new root."""
    if settings.root is None:
        return settings.key_groups
    try:
        return sizes_of_root(settings.root, options_of(settings)).key_groups
    except RiffleError:
        return settings.key_groups
