"""The package's metadata has the requirements of each extra, and docs and messages have valid install commands."""

from __future__ import annotations

import configparser
import html
import inspect
import re
import shlex

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pyspark.sql.pandas import utils as pyspark_demands

import riffle_spark
from riffle_spark.process.types.missing_modules import REQUIREMENTS
from riffle_spark.spark_installation import NEWEST_PYTHON, OLDEST_PYTHON
from tests.kit.folders import CHECKOUT
from tests.kit.pages import links

COMMAND = re.compile(r"""pip install ((?:'[^'\n{]+'|"[^"\n]+"|[^\s`'",;)#]+)(?: '[^'\n]+')*)""")
OF_SPARK = ("delta-spark",)
"""Packages of Spark's own connectors, in the version that fits the installed Spark."""
NEWEST_UNSUPPORTED_PANDAS = Version("3.0.0")
LOCAL_SERVER = "moto[server]"
"""The S3 server of the project's environment, which a page uses for a first try."""


def options() -> configparser.ConfigParser:
    """Read setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    return parser


def requirements(text: str) -> dict[str, Requirement]:
    """Return the requirements of a text with one per line, by name."""
    parsed = [Requirement(line) for line in text.splitlines() if line.strip()]
    return {canonicalize_name(requirement_.name): requirement_ for requirement_ in parsed}


def of_extra(extra: str) -> dict[str, Requirement]:
    """Return the requirements of an installation with an extra. The extra's override the common ones."""
    setup = options()
    return {
        **requirements(setup["options"]["install_requires"]),
        **requirements(setup["options.extras_require"][extra]),
    }


def lower_bound(requirement: Requirement) -> Version:
    """Return the lowest version that a requirement allows."""
    (least,) = (Version(specifier.version) for specifier in requirement.specifier if specifier.operator in (">=", "=="))
    return least


@pytest.mark.newer_spark
@pytest.mark.parametrize(
    "package",
    ["pandas", "pyarrow", pytest.param("numpy", marks=pytest.mark.needs_spark4("demand of a version of numpy"))],
)
def test_the_spark_extra_installs_what_pyspark_demands(package: str) -> None:
    """The extra `spark` requires the package versions that PySpark demands when a query starts."""
    source = inspect.getsource(getattr(pyspark_demands, f"require_minimum_{package}_version"))
    (minimum,) = re.findall(rf'minimum_{package}_version = "([\d.]+)"', source)
    required = of_extra("spark")
    assert package in required
    assert lower_bound(required[package]) >= Version(minimum)


def test_the_spark_extra_excludes_pandas_3() -> None:
    """The extra `spark` excludes pandas 3, which these versions of PySpark do not support."""
    assert NEWEST_UNSUPPORTED_PANDAS not in of_extra("spark")["pandas"].specifier


def installations() -> list[tuple[str, str]]:
    """Return each argument of each documented ``pip install`` with its file."""
    pages = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md"), *(CHECKOUT / "riffle_spark").rglob("*.py")]
    wrong = []
    for page in sorted(set(pages) - {CHECKOUT / "CHANGELOG.md", CHECKOUT / "CONTRIBUTING.md"}):
        for command in COMMAND.findall(html.unescape(page.read_text())):
            wrong += [(str(page.relative_to(CHECKOUT)), argument) for argument in shlex.split(command)]
    return wrong


def is_possible(argument: str) -> bool:
    """Return whether pip can install an argument: this checkout, its wheel, or a requirement of this package."""
    if argument in OF_SPARK:
        return True
    if argument == LOCAL_SERVER:
        return argument in (CHECKOUT / "requirements" / "direct.txt").read_text().splitlines()
    setup = options()
    extras = dict(setup["options.extras_require"])
    wheel = rf"dist/riffle_spark-{setup['metadata']['version']}-py3-none-any\.whl"
    checkout = re.fullmatch(rf"(?:\.|{wheel})(\[.+])?", argument)
    if checkout:
        return all(extra in extras for extra in (checkout[1] or "").strip("[]").split(",") if extra)
    requirement = Requirement(argument)
    requirements = [of_extra(extra).get(canonicalize_name(requirement.name)) for extra in extras]
    return any(
        requirement_ is not None and requirement_.specifier == requirement.specifier for requirement_ in requirements
    )


def test_documented_installations_name_existing_packages_and_extras() -> None:
    """Docs and remedies name only existing packages and extras, with the versions of setup.cfg."""
    commands = installations()
    assert len(commands) > 8
    assert [f"{place}: {argument}" for place, argument in commands if not is_possible(argument)] == []


def test_requirements_in_messages_are_those_of_the_package() -> None:
    """The packages that an error asks to install on executors are requirements in setup.cfg."""
    assert set(REQUIREMENTS) >= {"pyarrow", "numpy", "xxhash", "boto3"}
    assert [requirement for requirement in REQUIREMENTS.values() if not is_possible(requirement)] == []


@pytest.mark.parametrize("argument", ["riffle-spark", "riffle-spark[racks]", ".[rack]", "scipy>=1.2", "leftpad>=1"])
def test_an_impossible_installation_is_reported(argument: str) -> None:
    """An argument that pip would refuse, or with another version than setup.cfg, is reported."""
    assert not is_possible(argument)


def test_the_version_has_one_value() -> None:
    """The package and its metadata have the same version."""
    assert options()["metadata"]["version"] == riffle_spark.__version__


def test_the_metadata_names_each_supported_python() -> None:
    """The metadata, ``./run`` and the documentation name the same versions of Python."""
    classifiers = options()["metadata"]["classifiers"].split("\n")
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    assert pythons == [".".join(map(str, version)) for version in supported_pythons()]
    assert options()["options"]["python_requires"] == f">={pythons[0]}"
    assert "Typing :: Typed" in classifiers


def supported_pythons() -> list[tuple[int, int]]:
    """Return all versions that `riffle doctor` accepts, oldest first."""
    (major, oldest), (_, newest) = OLDEST_PYTHON, NEWEST_PYTHON
    return [(major, minor) for minor in range(oldest, newest + 1)]


def test_links_of_the_readme_are_absolute_once_an_address_is_set() -> None:
    """With a public address the links of the README are absolute. Without one, RELEASE.md describes that step."""
    relative = [link for link in links(CHECKOUT / "README.md") if "://" not in link and not link.startswith("#")]
    has_address = "project_urls" in options()["metadata"]
    assert bool(relative) != has_address
    assert "project_urls" in (CHECKOUT / "RELEASE.md").read_text()
