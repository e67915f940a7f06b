"""Write docs/numbers.md from the texts of the benchmarks (`benchmarks/NAME.md`) and their stored figures.

    ./run bench page

A text names figures. `{batch_ms}` is replaced by value and unit, `{batch_ms:repetitions}` by the number of
measurements. `{batch_ms:if_measured}` may name a figure that no run has measured yet. If a benchmark has no run, this
holds for all of its figures.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.results import RESULTS, Figure, Run, read

__all__ = ["PAGE", "figure_text", "filled", "whole_page"]

TEXTS = RESULTS.parent
PAGE = TEXTS.parent / "docs" / "numbers.md"
ORDER = (
    "throughput",
    "blocks",
    "skew",
    "peers",
    "elasticity",
    "processor",
    "assignor",
    "calls",
    "cost",
    "driver",
    "demo",
)
HEAD = """# Numbers

<!-- Made by `./run bench page` from benchmarks/*.md and benchmarks/results/*.json: do not edit. -->

This page lists what the benchmarks measured, how, and how to repeat it. It is for people who compare riffle_spark with
other engines. The machine is small, virtual and noisy, so the ratios matter more than the times. Figures have three
digits; the files in `benchmarks/results` have all of them.
"""
PLACE = re.compile(r"\{([a-z][\w.]*)(:repetitions|:if_measured)?\}")
NOT_MEASURED = "not measured yet"
DIGITS = 3
SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def whole_page() -> str:
    """Return the page."""
    measured = {name: read(RESULTS / f"{name}.json") for name in ORDER}
    sections = [_section(name, runs) for name, runs in measured.items()]
    return "\n".join([HEAD, *sections, _runs_section([run for runs in measured.values() for run in runs])])


def _section(name: str, runs: Sequence[Run]) -> str:
    text = filled((TEXTS / f"{name}.md").read_text(), runs).rstrip()
    command = "./run demo" if name == "demo" else f"./run bench {name}"
    notes = [f"- {run.note}" for run in runs if run.note]
    notes_list = "\n".join(textwrap.fill(note, 120, subsequent_indent="  ", break_on_hyphens=False) for note in notes)
    repeat = (
        f"To repeat: `{command} --save`, then `./run bench page`. [The runs](#the-runs) lists date, commit and machine."
    )
    return "\n\n".join(part for part in (text, notes_list, repeat) if part) + "\n"


def filled(text: str, runs: Sequence[Run]) -> str:
    """Return a text with the figures that it names. A figure that no run has measured is an error."""
    figures = {name: figure for run in runs for name, figure in run.figures.items()}
    missing = sorted({match[1] for match in PLACE.finditer(text) if match[2] != ":if_measured"} - set(figures))
    if missing:
        raise KeyError(f"the text names figures that no run has: {', '.join(missing)}")
    return PLACE.sub(lambda match: _shown_as(figures.get(match[1]), match[2] or ""), text)


def _shown_as(figure: Figure | None, form: str) -> str:
    if figure is None:
        return NOT_MEASURED
    return str(figure.repetitions) if form == ":repetitions" else figure_text(figure)


def figure_text(figure: Figure) -> str:
    """Return a figure as text: three digits, a blank between thousands, and the unit."""
    value = figure.value
    unit = figure.unit
    if unit == "bytes":
        scale, unit = next(((scale, unit) for scale, unit in SCALES if abs(value) >= scale), (1, unit))
        value /= scale
    return f"{_number(value)} {unit}".strip()


def _number(value: float) -> str:
    decimals = DIGITS - 1 - math.floor(math.log10(abs(value))) if value else 0
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}".replace(",", " ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _runs_section(runs: Sequence[Run]) -> str:
    rows = [
        f"| `{run.command}` | {run.date} | {run.revision} | {run.cores} cores, {run.machine} | "
        f"{', '.join(f'{name} {version}' for name, version in run.versions.items())} |"
        for run in runs
    ]
    table = ["| command | date | commit | machine | versions |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join(["## The runs", "", *table, ""])


def main() -> None:
    """Write the page."""
    PAGE.write_text(whole_page())
    print(f"Written: {Path('docs') / PAGE.name}")


if __name__ == "__main__":
    main()
