"""Judge the facts of `riffle doctor`. All functions are pure: they read neither the machine nor a service."""

import re
from collections.abc import Mapping, Sequence

from riffle_spark.keygroups import few_key_groups_warning
from riffle_spark.offline.doctor.facts import DiskFacts, JavaFacts, KafkaFacts, Level, PythonFacts, Result, StoreFacts
from riffle_spark.process.types.missing_modules import REQUIREMENTS, install_remedy, missing_module_remedy
from riffle_spark.spark_installation import SparkInstallation, python_problem

SPARK_LINES = ((3, 5), (4, 0), (4, 1), (4, 2), (4, 3))
_NO_PANDAS = "3"
_TESTED_JAVA = {3: (8, 11, 17), 4: (17, 21)}
_CLOCK_WARNING_SECONDS = 60.0
_CLOCK_ERROR_SECONDS = 900.0
"""S3 refuses requests whose time differs by more than 15 minutes."""
_FREE_BYTES_MIN = 1 << 30
_WORKER_BYTES = 160 << 20
"""The memory of a Python worker with pyspark, pyarrow, pandas and a slot's modules but no rows, rounded up."""
_WORKER_ADDRESSES = 1 << 30
"""The address space that a worker needs if it is limited, by docs/reliability.md."""
_WORKER_PACKAGES = ("pyarrow", "numpy", "xxhash")
_MIB = 1 << 20
_SIZE = re.compile(r"\s*(\d+)\s*([kmgtp]?)(?:i?b)?\s*\Z", re.IGNORECASE)
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?\Z")
_ONE_CORE_MASTERS = ("yarn", "k8s")
_INSTALL_JAVA = (
    "Install Java 17. Debian, Ubuntu: apt-get install openjdk-17-jre-headless. Fedora, RHEL: dnf install "
    "java-17-openjdk-headless. Elsewhere: unpack a JDK 17 and set JAVA_HOME to it."
)


def check_python(python: PythonFacts, spark: SparkInstallation | None) -> Result:
    """Check the driver's Python against riffle_spark and the line of Spark.

    ``spark`` is ``None`` if none was found: then the newest supported line counts.
    """
    fact = f"The driver's Python is {python.dotted} ({python.command})"
    line = spark.line if spark is not None else SPARK_LINES[-1]
    problem = python_problem(line, python.version, has_setuptools="setuptools" in python.packages)
    if not problem:
        return Result("python", "ok", f"{fact}.")
    remedy = (
        "Use Python 3.10 to 3.13. For Spark 4.3 use 3.11 or newer. For Spark 3.5 use 3.10 or 3.11, or 3.12 "
        "with setuptools."
    )
    return Result("python", "error", f"{fact}. {problem}.", remedy)


def check_workers(driver: PythonFacts, worker: PythonFacts) -> Result:
    """Check that the workers' Python is the driver's version and has the same packages."""
    remedy = f"Activate the driver's environment, or set PYSPARK_PYTHON={driver.command} on every executor."
    if worker.problem:
        return Result("workers", "error", f"The workers' Python {worker.command} fails: {worker.problem}.", remedy)
    fact = f"The workers' Python is {worker.dotted} ({worker.command})."
    if worker.version[:2] != driver.version[:2]:
        return Result("workers", "error", f"{fact} The driver's is {driver.dotted}.", remedy)
    missing_packages = [name for name in _WORKER_PACKAGES if name not in worker.packages]
    if missing_packages:
        fact = f"{fact} It does not have {', '.join(missing_packages)}."
        install = install_remedy(*(REQUIREMENTS[name] for name in missing_packages))
        return Result("workers", "error", fact, f"{remedy} On machines without it: {install}")
    if "riffle-spark" not in worker.packages:
        fact = f"{fact} It does not have riffle_spark."
        return Result("workers", "warning", fact, missing_module_remedy("riffle_spark"))
    different = [
        f"{name} {worker.packages[name]} instead of {driver_version}"
        for name, driver_version in driver.packages.items()
        if worker.packages.get(name, driver_version) not in (driver_version, "")
    ]
    if different:
        return Result("workers", "warning", f"{fact} It has {', '.join(different)}.", remedy)
    return Result("workers", "ok", f"{fact} Its packages are the driver's.")


def check_java(java: JavaFacts, spark: SparkInstallation | None) -> Result:
    """Check that Java starts and that Spark is tested on its version."""
    if java.major is None:
        return Result("java", "error", f"Java was not found: {java.command}: {java.problem}.", _INSTALL_JAVA)
    line = spark.line if spark is not None else SPARK_LINES[-1]
    tested_versions = _TESTED_JAVA[4 if line >= (4, 0) else 3]
    fact = f"Java is version {java.major} ({java.command})."
    if java.major in tested_versions:
        return Result("java", "ok", fact)
    level: Level = "error" if java.major < tested_versions[0] else "warning"
    return Result("java", level, f"{fact} Spark {_dotted(line)} runs on {_choice(tested_versions)}.", _INSTALL_JAVA)


def check_spark(spark: SparkInstallation | None) -> Result:
    """Check that PySpark is installed, is a supported line, and starts jars of its own version."""
    if spark is None:
        remedy = "Install riffle-spark with its extra `spark`, or use the Python of a cluster that has PySpark."
        return Result("spark", "error", "PySpark cannot be imported.", remedy)
    fact = f"Spark is {spark.version} with Scala {spark.scala} and Hadoop {spark.hadoop or 'unknown'} ({spark.home})."
    if spark.line not in SPARK_LINES:
        remedy_for_line = (
            f"Use Spark {_dotted(SPARK_LINES[0])} or {_dotted(SPARK_LINES[1])} to {_dotted(SPARK_LINES[-1])}."
        )
        return Result("spark", "error", fact, remedy_for_line)
    if not spark.jars:
        remedy = "With Spark Connect this is expected. Otherwise set SPARK_HOME to a complete Spark, or unset it."
        return Result("spark", "warning", f"{fact} It has no jars, so it cannot start a JVM.", remedy)
    if not spark.version.startswith(_release(spark.pyspark_version)):
        remedy = f"Unset SPARK_HOME, or run pip install 'pyspark=={_release(spark.version)}'."
        return Result("spark", "error", f"PySpark is {spark.pyspark_version}, but its jars are others. {fact}", remedy)
    return Result("spark", "ok", fact)


def check_packages(driver: PythonFacts, spark: SparkInstallation | None) -> list[Result]:
    """Check pandas, pyarrow and numpy against what PySpark and riffle_spark demand."""
    minimums = spark.minimums or {} if spark is not None else {}
    return [_check_package(name, driver, minimums.get(name, "0")) for name in ("pandas", "pyarrow", "numpy")]


def _check_package(name: str, driver: PythonFacts, minimum: str) -> Result:
    """Check that a package is installed in a version that PySpark and riffle_spark accept."""
    own_minimum = re.split(r"[<>=,]+", REQUIREMENTS[name])[1]
    recommended_version = max(minimum, own_minimum, key=_numbers)
    # Only functions on pandas need a newer pandas than PySpark demands.
    needed_version = minimum if name == "pandas" else recommended_version
    below = ",<3" if name == "pandas" else ""
    remedy = (
        f"Run pip install '{name}>={recommended_version}{below}' for the Python of the driver and of every executor."
    )
    installed_version = driver.packages.get(name)
    if installed_version is None:
        return Result(name, "error", f"{name} is not installed.", remedy)
    if _numbers(installed_version) < _numbers(needed_version):
        return Result(
            name, "error", f"{name} is {installed_version}. PySpark and riffle_spark need {needed_version}.", remedy
        )
    if name == "pandas" and installed_version.split(".")[0] >= _NO_PANDAS:
        return Result(name, "error", f"pandas is {installed_version}. PySpark does not support pandas 3.", remedy)
    return Result(name, "ok", f"{name} is {installed_version}.")


def check_connectors(spark: SparkInstallation, conf: Mapping[str, str], *, kafka: bool, s3a: bool) -> list[Result]:
    """Name the connectors of Kafka and ``s3a://`` that the installed Spark needs."""
    configured_jars = ",".join(conf.get(name, "") for name in ("spark.jars.packages", "spark.jars"))
    connectors = (
        ("kafka-connector", kafka, "spark-sql-kafka-0-10", spark.kafka_connector, "kafka", "to read Kafka"),
        ("s3a-connector", s3a, "hadoop-aws", spark.hadoop_aws, "s3a", "for s3a:// paths, not for the root"),
    )
    results = []
    for check, is_needed, jar, coordinate, option, use in connectors:
        if not is_needed:
            continue
        if spark.has_jar(jar) or jar in configured_jars:
            results.append(Result(check, "ok", f"{jar} is installed or configured."))
            continue
        remedy = (
            f"Call riffle_spark.configure(builder, {option}=True), or with spark-submit: --packages {coordinate}"
            if coordinate
            else "Pass the hadoop-aws of the cluster's version of Hadoop with --packages."
        )
        results.append(Result(check, "warning", f"{jar} is not among Spark's jars. Spark needs it {use}.", remedy))
    return results


def check_store(store: StoreFacts, root: str) -> Result:
    """Check that the probe object could be put conditionally, read, listed and deleted."""
    succeeded_steps = ", ".join(store.steps)
    if not store.is_reachable:
        return Result("store", "unreachable", f"{root} does not answer: {store.problem}", store.remedy)
    if store.failed:
        fact = f"The store refuses to {store.failed} below {root}: {store.problem}"
        fact = fact.replace("refuses to conditional put", "refuses a conditional put")
        cleanup = f" Delete the object {store.left_over}, too." if store.left_over else ""
        return Result("store", "error", fact, f"{store.remedy}{cleanup}")
    if store.overwrites:
        remedy = "Use a store with conditional puts (`If-None-Match: *`) and no proxy that removes this header."
        return Result("store", "error", f"The store of {root} overwrites objects: a second put succeeded.", remedy)
    return Result("store", "ok", f"These rights below {root} were tried: {succeeded_steps}.")


def check_clock(store: StoreFacts) -> Result:
    """Check the difference between the store's clock and this machine's."""
    ahead = store.clock_ahead_seconds
    if ahead is None:
        return Result("clock", "skipped", "The store's time is unknown.", "Correct the findings about the store first.")
    if abs(ahead) < _CLOCK_WARNING_SECONDS:
        return Result("clock", "ok", "This machine's clock fits the store's.")
    side = "behind" if ahead > 0 else "ahead of"
    fact = f"This machine's clock is {abs(ahead):.0f} s {side} the store's."
    level: Level = "error" if abs(ahead) >= _CLOCK_ERROR_SECONDS else "warning"
    return Result("clock", level, fact, "Synchronise the clocks, for example with chrony or systemd-timesyncd.")


def check_disk(disk: DiskFacts, limit: float) -> Result:
    """Check that the local folder is writable and its disk is not too full."""
    if disk.problem:
        return Result("disk", "error", disk.problem, disk.remedy)
    fact = f"{disk.folder} is {100 * disk.used_share:.0f} % full, with {disk.free_bytes / 1e9:.1f} GB free."
    if disk.used_share > limit or disk.free_bytes < _FREE_BYTES_MIN:
        remedy = "Free space, or set `local_dir` (spark.riffle.local_dir) to a larger disk."
        fact = f"{fact} Above {100 * limit:.0f} % a member gets no new key-groups."
        return Result("disk", "warning", fact, remedy)
    return Result("disk", "ok", fact)


def slots_of(conf: Mapping[str, str], cpus: int) -> int | None:
    """Return how many slots a configuration allows at most, or ``None`` if it sets no limit."""
    per_task = _whole(conf.get("spark.task.cpus"), 1)
    master = conf.get("spark.master", "")
    local = _LOCAL.match(master)
    if local:
        return cpus if local[1] == "*" else int(local[1] or 1)
    is_dynamic = conf.get("spark.dynamicAllocation.enabled", "").lower() == "true"
    executors = conf.get("spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances")
    default_cores = "1" if master.startswith(_ONE_CORE_MASTERS) else None
    cores = conf.get("spark.executor.cores", default_cores)
    if executors is None or cores is None:
        return None
    return _whole(executors, 1) * max(1, _whole(cores, 1) // per_task)


def check_slots(slots: int | None, key_groups: int) -> Result:
    """Check that there are at least four key-groups per slot."""
    if slots is None:
        return Result(
            "slots",
            "skipped",
            "The number of slots is unknown.",
            "Pass --conf spark.executor.instances=N --conf spark.executor.cores=N, as to spark-submit.",
        )
    warning = few_key_groups_warning(key_groups, slots)
    if warning is None:
        return Result("slots", "ok", f"{key_groups} key-groups can be balanced over {slots} slots.")
    problem, remedy = warning.split("] ", 1)[1].split(". ", 1)
    return Result("slots", "warning", f"{problem}.", remedy)


def check_memory(conf: Mapping[str, str], slots: int | None, machine_bytes: int) -> Result:
    """Check that the heap of an executor leaves enough memory for its Python workers.

    ``slots`` is used only in local mode, in which all slots are on this machine. ``machine_bytes`` are available here,
    0 if unknown.
    """
    if _LOCAL.match(conf.get("spark.master", "")):
        heap = memory_bytes(conf.get("spark.driver.memory", "1g"), _MIB) or 0
        needed_bytes = heap + (slots or 1) * _WORKER_BYTES
        fact = f"A heap of {_size(heap)} and {slots} Python workers take {_size(needed_bytes)}"
        if machine_bytes and needed_bytes > machine_bytes:
            remedy = "Set spark.driver.memory lower, or use fewer slots."
            return Result("memory", "warning", f"{fact}. This machine has {_size(machine_bytes)} left.", remedy)
        return Result("memory", "ok", f"{fact} before they have rows.")
    heap = memory_bytes(conf.get("spark.executor.memory", "1g"), _MIB) or 0
    cores = _whole(conf.get("spark.executor.cores"), 1)
    python = memory_bytes(conf.get("spark.executor.pyspark.memory", ""), _MIB)
    fact = f"An executor has a heap of {_size(heap)} and {cores} core{'s' * (cores != 1)}"
    if python is not None:
        per_worker = python // max(1, cores)
        if per_worker < _WORKER_ADDRESSES:
            remedy = f"Set spark.executor.pyspark.memory to at least {cores}g, or leave it unset."
            return Result("memory", "warning", f"{fact}, and {_size(per_worker)} for each Python worker.", remedy)
        return Result("memory", "ok", f"{fact}, and {_size(per_worker)} for each Python worker.")
    overhead = _overhead(conf, heap)
    needed_bytes = cores * _WORKER_BYTES
    fact = f"{fact}. Python has no limit of its own and shares spark.executor.memoryOverhead, {_size(overhead)}"
    if overhead < 2 * needed_bytes:
        remedy = f"Set spark.executor.memoryOverhead to at least {_size(2 * needed_bytes)}, or set "
        remedy += f"spark.executor.pyspark.memory to at least {cores}g."
        return Result(
            "memory", "warning", f"{fact}. Its workers take {_size(needed_bytes)} before they have rows.", remedy
        )
    return Result("memory", "ok", f"{fact}.")


def _overhead(conf: Mapping[str, str], heap: int) -> int:
    """Return the memory outside of the heap, computed as Spark does."""
    explicit = memory_bytes(conf.get("spark.executor.memoryOverhead", ""), _MIB)
    if explicit is not None:
        return explicit
    default_factor = "0.4" if conf.get("spark.master", "").startswith("k8s") else "0.1"
    factor = conf.get("spark.executor.memoryOverheadFactor") or conf.get(
        "spark.kubernetes.memoryOverheadFactor", default_factor
    )
    try:
        share = float(factor)
    except ValueError:
        share = float(default_factor)
    return max(384 * _MIB, int(heap * share))


def check_kafka(kafka: KafkaFacts) -> Result:
    """Check that the servers and the advertised brokers accept connections from here."""
    if not kafka.connected:
        remedy = "Correct --bootstrap-servers (host:port,host:port), start the brokers, or open the firewall."
        return Result("kafka", "unreachable", f"No connection to {', '.join(kafka.refused)}.", remedy)
    fact = f"Connected to {', '.join(kafka.connected)}"
    if kafka.refused:
        remedy = "Remove these servers from the list, or make them reachable from driver and executors."
        return Result("kafka", "warning", f"{fact}, not to {', '.join(kafka.refused)}.", remedy)
    if kafka.problem:
        remedy = "Expected with TLS or SASL: try a Kafka client that logs in. Otherwise check the broker's listeners."
        return Result("kafka", "warning", f"{fact}. The cluster did not describe itself: {kafka.problem}.", remedy)
    if kafka.unreachable_brokers:
        remedy = "Correct the brokers' advertised.listeners, or make these addresses reachable."
        unreachable = ", ".join(kafka.unreachable_brokers)
        return Result(
            "kafka", "error", f"{fact}. The cluster advertises {unreachable}, which refuses connections.", remedy
        )
    return Result("kafka", "ok", f"{fact}. All {len(kafka.brokers)} brokers accept connections.")


def memory_bytes(text: str, unit: int) -> int | None:
    """Return the bytes of a size as Spark writes it, such as ``4g``. A number alone counts in ``unit``."""
    match = _SIZE.match(text)
    if match is None:
        return None
    return int(match[1]) * (1 << _POWERS[match[2].lower()] if match[2] else unit)


def _size(number: int) -> str:
    """Return a number of bytes as Spark writes it: ``4096m``, or from 10 GiB on ``12g``. Rounded."""
    return f"{number / _MIB:.0f}m" if number < 10 << 30 else f"{number / (1 << 30):.0f}g"


def _whole(text: str | None, default: int) -> int:
    """Return a text as a whole number, or ``default`` if the text is missing or not a whole number."""
    return int(text) if text is not None and text.strip().isdigit() else default


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers in a version, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _release(version: str) -> str:
    """Return a version without a suffix, such as ``4.0.1`` for ``4.0.1.dev0``."""
    return ".".join(re.findall(r"\d+", version)[:3])


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _choice(numbers: Sequence[int]) -> str:
    """Return numbers as alternatives in a text, such as ``17 or 21``."""
    return " or ".join(map(str, numbers))
