"""The page docs/numbers.md is generated from stored figures of benchmarks, and other pages quote only its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.kit.results import RESULTS, Figure, Run, figures_in, keep, read, save, unit_of, with_run
from benchmarks.page import PAGE, figure_text, filled, whole_page
from tests.kit.pages import CHECKOUT

PRINTED = {
    "rows_per_s": 176_432,
    "phases": {"sink": 0.25},
    "dearer": ["one", "two"],
    "unknown": float("nan"),
    "repetitions": {"rows_per_s": 10},
}


def _run(command: str, **values: float) -> Run:
    figures = {name: Figure(value, unit_of(name)) for name, value in values.items()}
    return Run(command, "2026-11-22", "abc1234", "a machine", 2, {"pyspark": "4.0.5"}, "", figures)


def test_the_numbers_page_is_up_to_date() -> None:
    """docs/numbers.md is up to date. `./run bench page` writes it."""
    assert PAGE.read_text() == whole_page()


def test_every_file_of_figures_is_on_the_page() -> None:
    """The page has a section for each stored file of figures, with the runs of the file."""
    page = PAGE.read_text()
    files = sorted(RESULTS.glob("*.json"))
    assert files
    assert [run.command for file in files for run in read(file) if f"`{run.command}` | {run.date}" not in page] == []


def test_bold_figures_of_other_pages_are_on_the_numbers_page() -> None:
    """Each bold figure in the README, in processors.md and in why-riffle-spark.md is on the numbers page."""
    numbers = PAGE.read_text()
    docs = CHECKOUT / "docs"
    for page in (CHECKOUT / "README.md", docs / "processors.md", docs / "why-riffle-spark.md"):
        quoted = [figure for figure in re.findall(r"\*\*([^*\n]+)\*\*", page.read_text()) if figure[0].isdigit()]
        assert quoted
        assert [figure for figure in quoted if not re.search(rf"(?<![\w.]){re.escape(figure)}(?!\w)", numbers)] == []


def test_printed_numbers_of_a_benchmark_become_figures() -> None:
    """Printed numbers become figures with unit and repetitions. Nested names are joined with a dot. NaN is ignored."""
    assert figures_in(PRINTED) == {
        "rows_per_s": Figure(176_432, "rows/s", 10),
        "phases.sink": Figure(0.25, "s"),
        "dearer": Figure(2),
    }


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("batch_ms_builtin", "ms"),
        ("times_ms.none.128x8", "ms"),
        ("rows_per_s_spark", "rows/s"),
        ("cold_restore_mb_per_s", "MB/s"),
        ("peak_memory_mb", "MB"),
        ("standby_kill_extra_s", "s"),
        ("expiry_batch_s_of_a_tenth", "s"),
        ("row_form_ratio", "x"),
        ("requests_per_batch", ""),
        ("requests_usd.uniform_1_128", "USD"),
        ("put_ratio_delta.uniform_001_128", "x"),
        ("sent_bytes.10x128", "bytes"),
        ("lost", ""),
    ],
)
def test_the_name_of_a_figure_determines_its_unit(name: str, unit: str) -> None:
    """The unit of a figure is read from its name."""
    assert unit_of(name) == unit


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(176_432, "rows/s"), "176 000 rows/s"),
        (Figure(0.0, "bytes"), "0 bytes"),
        (Figure(2_013_000, "bytes"), "2.01 MB"),
        (Figure(999_999, "x"), "1 000 000 x"),
        (Figure(8.0, "x"), "8 x"),
        (Figure(0.2449, "x"), "0.245 x"),
        (Figure(20), "20"),
    ],
)
def test_figures_are_shown_with_three_digits(figure: Figure, text: str) -> None:
    """A figure is shown with three digits, spaces between thousands, and its unit."""
    assert figure_text(figure) == text


def test_a_newer_run_replaces_the_figures_that_it_measured_again(tmp_path: Path) -> None:
    """A new run replaces the figures that it measured again. A run without figures is deleted. Files store all runs."""
    first = _run("a", scale_s=1, kill_s=2)
    second = _run("b", spark_s=3)
    third = _run("c", kill_s=4, spark_s=5)
    runs = with_run((first, second), third)
    assert [(run.command, set(run.figures)) for run in runs] == [("a", {"scale_s"}), ("c", {"kill_s", "spark_s"})]
    save(tmp_path / "x.json", runs)
    assert read(tmp_path / "x.json") == runs


def test_a_text_that_names_an_unknown_figure_is_refused() -> None:
    """Figures and repetitions are inserted into a text. An unknown name raises an error unless it is `if_measured`."""
    runs = [_run("a", kill_s=2)]
    assert filled("{kill_s:if_measured}; {kill_ms:if_measured}", runs) == "2 s; not measured yet"
    assert filled("{kill_s}, {kill_s:repetitions} time", runs) == "2 s, 1 time"
    with pytest.raises(KeyError, match="kill_ms"):
        filled("{kill_s} {kill_ms}", runs)


def test_the_output_of_a_benchmark_is_stored_with_its_environment(tmp_path: Path) -> None:
    """The last line of a benchmark's output is stored with its command, cores and versions. No output is an error."""
    file = keep("bench throughput", ["--rows", "10"], f"noise\n{json.dumps(PRINTED)}\n", tmp_path)
    (run,) = read(file)
    assert (file.name, run.command) == ("throughput.json", "./run bench throughput --rows 10")
    assert run.figures["rows_per_s"] == Figure(176_432, "rows/s", 10)
    assert run.cores >= 1
    assert {"Java", "Python", "pyspark"} < set(run.versions)
    with pytest.raises(SystemExit):
        keep("bench throughput", [], "", tmp_path)


def test_the_benchmark_calls_keeps_the_figures_of_every_run(tmp_path: Path) -> None:
    """A second run of a benchmark replaces its figures. The benchmark `calls` keeps the figures of every run."""
    for name in ("calls", "throughput"):
        for calls in (1, 2):
            file = keep(f"bench {name}", [], json.dumps({"slot.calls": calls}), tmp_path)
        assert [run.figures["slot.calls"].value for run in read(file)] == ([1, 2] if name == "calls" else [2])
