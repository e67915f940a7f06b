"""Remedies for modules that the Python of the executors cannot import."""

from typing import Final

ZIP_COMMAND: Final = "python -m zipfile -c riffle_spark.zip riffle_spark/"
"""The command that makes the file for ``--py-files`` in a checkout."""
ARCHIVE_VARIABLES: Final = "PYSPARK_DRIVER_PYTHON=python PYSPARK_PYTHON=./environment/bin/python"
"""Variables for ``--archives``: executors use the environment of the archive, the driver its own."""
REQUIREMENTS: Final = {
    "boto3": "boto3>=1.35.69",
    "botocore": "boto3>=1.35.69",
    "numpy": "numpy>=1.26",
    "pandas": "pandas>=2.2,<3",
    "pyarrow": "pyarrow>=18",
    "xxhash": "xxhash>=3.4",
}
"""The package to install per module that executors need. Python cannot import compiled modules from a zip file."""


def missing_module_remedy(module: str) -> str:
    """Return the remedy text for a module that the executors' Python lacks."""
    package = module.partition(".")[0]
    if package == "riffle_spark":
        return (
            f"Make a zip file in a checkout with `{ZIP_COMMAND}` and send it with the query: spark-submit --py-files "
            "riffle_spark.zip (executors do not import .whl files). Or install riffle_spark in the Python of every "
            "executor."
        )
    if package in REQUIREMENTS:
        return install_remedy(REQUIREMENTS[package])
    return (
        f"If {package!r} is your own module, send it with the query: spark-submit --py-files FILE (.py or .zip). "
        "Otherwise install it in the Python of every executor."
    )


def install_remedy(*requirements: str) -> str:
    """Return the remedy text for installing packages with compiled modules on the executors.

    ``requirements`` are pip's names of them.
    """
    packages = "' '".join(requirements)
    return (
        f"Run pip install '{packages}' in the Python of every executor, or send an environment: "
        f"{ARCHIVE_VARIABLES} spark-submit --archives environment.tar.gz#environment"
    )


def failure_hint(error: BaseException) -> str:
    """Return the last sentences of the remedy for an error that user code raised on an executor.

    They explain how to make a missing module available, and that nothing was committed.
    """
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    module_hint = f"{missing_module_remedy(module)} " if module else ""
    return f"{module_hint}The batch failed, and nothing was committed."
