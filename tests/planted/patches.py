"""Planted bugs: patches of riffle_spark whose header lines name the tests that should find them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.kit.folders import CHECKOUT

__all__ = ["PATCHES", "Plant", "PlantError", "apply_patch", "check_patches_apply", "read_plants", "select_plants"]

PATCHES = Path(__file__).parent
KEYS = ("what", "tests", "schedules", "found before", "missed")
_HEADER = re.compile(r"^# ([a-z ]+): *(.*)$")
_CHANGED_FILE = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


class PlantError(Exception):
    """A patch or its tests are unusable, so it is unknown whether tests find the bug."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted bug. Pytest runs ``tests``. If there are none, ``./run dst`` runs ``schedules`` schedules."""

    name: str
    patch: Path
    description: str
    tests: tuple[str, ...] = ()
    schedules: int = 0
    found_before: bool | None = None
    """Whether a test that is older than the bug found it. ``None``: not recorded."""
    missed: str = ""
    """Why no test finds the bug. Empty: tests find it."""

    @property
    def files(self) -> list[str]:
        """The files that the patch changes."""
        return _CHANGED_FILE.findall(self.patch.read_text())

    @property
    def package(self) -> str:
        """The package of the first changed file, such as ``spark/sinks``."""
        return str(PurePosixPath(self.files[0]).parent.relative_to("riffle_spark"))


def read_plants(folder: Path = PATCHES) -> list[Plant]:
    """Return the plants of all patches below a folder, by package and name. Raises ``PlantError`` for a bad header."""
    plants = [_read_plant(path) for path in sorted(folder.rglob("*.patch"))]
    names = [plant.name for plant in plants]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise PlantError(f"several patches are named {', '.join(doubled)}. Rename all but one of each.")
    return sorted(plants, key=lambda plant: (plant.package, plant.name))


def select_plants(names: Sequence[str], folder: Path = PATCHES) -> list[Plant]:
    """Return the plants with these names or of these packages, or all without a name.

    Raises ``PlantError`` for an unknown name.
    """
    plants = read_plants(folder)
    known_names = {name for plant in plants for name in (plant.name, plant.package)}
    if unknown := sorted(set(names) - known_names):
        raise PlantError(f"no planted bug and no package is named {', '.join(unknown)}. See tests/planted.")
    return [plant for plant in plants if not names or {plant.name, plant.package} & set(names)]


def check_patches_apply(plants: Sequence[Plant]) -> None:
    """Raise ``PlantError`` with git's messages if patches do not apply to the checkout."""
    refusals = {plant.name: apply_patch(plant, CHECKOUT, "--check") for plant in plants}
    if any(refusals.values()):
        raise PlantError(
            "\n".join(f"{name} does not apply: {refusal}" for name, refusal in refusals.items() if refusal)
        )


def apply_patch(plant: Plant, folder: Path, *options: str) -> str:
    """Apply a patch to a folder with ``git apply``. Return git's message if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
    command = ["git", "apply", *options, str(plant.patch)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr.strip() or f"git ended with code {result.returncode}"


def _read_plant(path: Path) -> Plant:
    header: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if (match := _HEADER.match(line)) and match[1] in KEYS:
            header[match[1]] = match[2].strip()
    plant = Plant(
        path.stem,
        path,
        header.get("what", ""),
        tuple(header.get("tests", "").split()),
        int(header.get("schedules", "0")),
        {"yes": True, "no": False}.get(header.get("found before", "")),
        header.get("missed", ""),
    )
    if not plant.description:
        raise PlantError(f"{path} does not say what goes wrong. Add a line '# what: ...' in front.")
    if bool(plant.tests) == bool(plant.schedules):
        raise PlantError(f"{path} needs either '# tests: PATH ...' or '# schedules: NUMBER'. Write one of them.")
    if missing := [test for test in plant.tests if not (CHECKOUT / test.partition("::")[0]).exists()]:
        raise PlantError(f"{path} names tests that do not exist: {' '.join(missing)}. Name others that find the bug.")
    if not plant.files or not all(file.startswith("riffle_spark/") for file in plant.files):
        raise PlantError(f"{path} has to change files below riffle_spark/, and no others.")
    return plant
