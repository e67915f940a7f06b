"""What to do about a module that the Python of the executors cannot import."""

from typing import Final

__all__ = [
    "ARCHIVE_VARIABLES",
    "REQUIREMENTS",
    "ZIP_COMMAND",
    "failure_remedy",
    "install_remedy",
    "missing_module_remedy",
]

ZIP_COMMAND: Final = "python -m zipfile -c riffle_spark.zip riffle_spark/"
"""Makes the file for ``--py-files``, in a checkout."""
ARCHIVE_VARIABLES: Final = "PYSPARK_DRIVER_PYTHON=python PYSPARK_PYTHON=./environment/bin/python"
"""Environment variables for ``--archives``: executors use the environment that it sends, the driver keeps its own."""
REQUIREMENTS: Final = {
    "boto3": "boto3>=1.35.0",
    "botocore": "boto3>=1.35.0",
    "numpy": "numpy>=1.26",
    "pandas": "pandas>=2.2,<3",
    "pyarrow": "pyarrow>=15",
    "xxhash": "xxhash>=3.4",
}
"""What to install for a module that riffle_spark or PySpark needs on executors. Most have compiled code, which Python
does not import from a zip file.
"""


def missing_module_remedy(module: str) -> str:
    """Return how to bring a module to the Python of the executors."""
    package = module.partition(".")[0]
    if package == "riffle_spark":
        return (
            f"make a zip file of it in a checkout, `{ZIP_COMMAND}`, and send that with the query: spark-submit "
            "--py-files riffle_spark.zip (executors do not import from a .whl file); or install riffle_spark in the "
            "Python of every executor"
        )
    if package in REQUIREMENTS:
        return install_remedy(REQUIREMENTS[package])
    return (
        f"if {package!r} is your own module, send it with the query: spark-submit --py-files FILE (.py or .zip); else "
        "install it in the Python of every executor"
    )


def install_remedy(requirement: str) -> str:
    """Return how to bring a package with compiled code to the Python of the executors."""
    return (
        f"pip install '{requirement}' in the Python of every executor, or send an environment that has it: "
        f"{ARCHIVE_VARIABLES} spark-submit --archives environment.tar.gz#environment"
    )


def failure_remedy(error: BaseException, what: str) -> str:
    """Return what to do about an error that a user's function or processor raised on an executor."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        advice = missing_module_remedy(error.name)
        return f"{advice[0].upper()}{advice[1:]}. The batch failed and nothing was committed."
    return f"Fix the {what}, or the input it cannot take. The batch failed and nothing was committed."
