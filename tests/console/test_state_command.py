"""`riffle state show`, `diff` and `history`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from riffle_spark import Stateful, aggregate, count, sum_
from riffle_spark.console.main import main
from riffle_spark.testing import Harness
from tests.kit.simulated.world import World, rows_of, two_stores
from tests.testing.test_harness_processors import baskets, took


def run(*arguments: object, code: int = 0) -> Any:
    """Run a command. Return its JSON, or its text if ``code`` is not 0."""
    result = CliRunner().invoke(main, ["state", *map(str, arguments), *([] if code else ["--json"])])
    assert result.exit_code == code, result.output
    return result.output if code else json.loads(result.output)


@pytest.fixture
def query(tmp_path: Path) -> World:
    """Return a query of three batches: one key changes, one is added and one is deleted."""
    world = World(tmp_path, operators=two_stores(), executors=["1"], retained_versions=10)
    world.batch(0, rows_of(("a", 1, 1), ("b", 2, 2)))
    world.batch(1, rows_of(("a", 3, 3), ("c", 4, 4)))
    world.batch(2, rows_of(("b", -1, 5)))
    return world


def test_a_key_is_shown_at_the_newest_and_at_an_older_batch(query: World) -> None:
    """`show` prints a key at the newest or an older batch, with the batch of its last change, as JSON or text."""
    root = query.home.root
    (row,) = run("show", root, "a", "--store", "totals")["rows"]
    assert (row["count"], row["total"], row["version"]) == (2, 4, 1)
    old = run("show", root, "a", "--store", "totals", "--version", 0)
    assert (old["version"], old["rows"][0]["count"]) == (0, 1)
    assert run("show", root, "eve", "--store", "totals")["rows"] == []
    missing = CliRunner().invoke(main, ["state", "show", root, "eve", "--store", "totals"])
    assert missing.output == "No state of this key in batch 2.\n"
    shown = CliRunner().invoke(main, ["state", "show", root, "a", "--store", "totals"]).output
    assert "count" in shown
    assert "RIFFLE-1550" in run("show", root, "a", code=1)
    assert "RIFFLE-1552" in run("show", root, "a", "--store", "totals", "--version", 7, code=1)


@pytest.mark.parametrize("time", ["1s", "1m", "15 min", "2026-11-26T14:00Z", " 2026-11-26T15:00:00+01:00 "])
def test_state_is_shown_at_a_time_or_a_duration_before_now(query: World, time: str) -> None:
    """`--time` accepts the same times as `riffle rollback --to-time` and `riffle log --since`."""
    (row,) = run("show", query.home.root, "a", "--store", "totals", "--time", time)["rows"]
    assert (row["count"], row["version"]) == (2, 1)


@pytest.mark.parametrize("time", ["2026-11-26T14:00:00", "15 x", "yesterday", ""])
def test_a_time_without_a_zone_is_a_wrong_call(query: World, time: str) -> None:
    """A time without a zone is a usage error, and the remedy names both forms of times."""
    text = run("show", query.home.root, "a", "--store", "totals", "--time", time, code=2)
    assert "ISO time with its zone" in text
    assert "such as 15m" in text


def test_changes_between_two_batches_are_shown(query: World) -> None:
    """`diff` shows the changes of all keys or one key between two batches, as text with old and new values."""
    root = query.home.root
    changes = run("diff", root, "--from", 0, "--store", "tails")["changes"]
    assert {(c["change"], (c["after"] or c["before"])["k"]) for c in changes} == {
        ("update", "a"), ("insert", "c"), ("delete", "b"),
    }  # fmt: skip
    only = run("diff", root, "--from", 0, "--to", 1, "--store", "totals", "--key", "a")
    assert [(c["before"]["total"], c["after"]["total"]) for c in only["changes"]] == [(1, 4)]
    assert run("diff", root, "--from", 0, "--store", "totals", "--limit", 1)["count"] == 3
    shown = CliRunner().invoke(main, ["state", "diff", root, "--from", "0", "--store", "totals"]).output
    assert "1 -> 4" in shown
    assert "3 rows changed from batch 0 to 2." in shown
    one_key = ["state", "diff", root, "--from", "0", "--to", "1", "--store", "totals", "--key", "a"]
    assert "1 row changed from batch 0 to 1." in CliRunner().invoke(main, one_key).output


def test_all_states_of_a_key_are_shown(query: World) -> None:
    """`history` shows all states of a key, newest first, each with the batch in which it began."""
    states = run("history", query.home.root, "b", "--store", "tails")["states"]
    assert [(s["version"], [row["last"] for row in s["rows"]]) for s in states] == [(2, []), (0, [[2]]), (-1, [])]
    shown = CliRunner().invoke(main, ["state", "history", query.home.root, "b", "--store", "tails"]).output
    states_shown = [line.partition(",")[0] for line in shown.splitlines() if not line.startswith("  ")]
    assert states_shown == ["since batch 2", "since batch 0", "before the first batch"]
    assert "no state" in shown
    assert len(run("history", query.home.root, "b", "--store", "tails", "--limit", 1)["states"]) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({"a": 1, "b": b"\0\1"}, '[1, {"base64": "AAE="}]'),
        ({"a": None, "b": b""}, '{"b": {"base64": ""}, "a": null}'),
        ({"a": 2, "b": None}, "[2, null]"),
    ],
)
def test_composite_keys_are_json_with_bytes_as_base64(key: dict[str, Any], text: str) -> None:
    """Composite keys are JSON lists or objects, with bytes as base64."""
    operator = Stateful("pairs", ("a", "b"), aggregate(n=count()))
    with Harness(operator, pa.schema([("a", pa.int32()), ("b", pa.binary())])) as harness:
        harness.feed([{"a": 1, "b": b"\0\1"}, {"a": None, "b": b""}, {"a": 2, "b": None}])
        (row,) = run("show", harness.root, text)["rows"]
        assert row["a"] == key["a"]
        for wrong in ("1", "[1]", '{"a": 1}', '[1, "AAE="]', '[1, {"base64": "?"}]', '["x", null]'):
            assert "RIFFLE-1590" in run("show", harness.root, wrong, code=1)


@pytest.mark.parametrize(("value", "text"), [("null", "null"), (None, "[null]"), ("[1]", '["[1]"]'), ("a b", "a b")])
def test_a_single_text_key_is_the_plain_text(value: str | None, text: str) -> None:
    """A key of one text column is the text itself, and only lists and objects are JSON."""
    with Harness(Stateful("t", "k", aggregate(n=sum_("v"))), "k string, v long") as harness:
        harness.feed([{"k": k, "v": n} for n, k in enumerate(["null", None, "[1]", "a b"])])
        (row,) = run("show", harness.root, text)["rows"]
        assert row["k"] == value


def test_dates_times_and_decimals_are_read_as_they_are_shown(tmp_path: Path) -> None:
    """Dates, times and decimals in keys are read in the form in which they are shown."""
    schema = pa.schema(
        [("d", pa.date32()), ("t", pa.timestamp("us", tz="UTC")), ("m", pa.decimal128(9, 2)), ("f", pa.float64())]
    )
    rows = [{"d": None, "t": None, "m": None, "f": None}]
    table = pa.table(
        [pa.array([18_000], pa.int32()).cast(pa.date32()), pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC")),
         pa.array(["7.50"]).cast(pa.decimal128(9, 2)), pa.array([0.5])], schema=schema,
    )  # fmt: skip
    with Harness(Stateful("t", ("d", "t", "m", "f"), aggregate(n=count())), schema) as harness:
        harness.feed(pa.concat_tables([table, pa.Table.from_pylist(rows, schema=schema)]))
        (row,) = run("show", harness.root, '["2019-04-14", "2023-11-14T22:13:20Z", "7.50", 0.5]')["rows"]
        assert (row["d"], row["m"], row["n"]) == ("2019-04-14", "7.50", 1)
        assert len(run("show", harness.root, json.dumps([row[name] for name in "dtmf"]))["rows"]) == 1


def test_variables_are_shown_element_by_element() -> None:
    """A variable is shown with one row per element, and without --variable the error lists the variables."""
    with baskets() as harness:
        harness.feed(took("pen", "ink"))
        assert [row["what"] for row in run("show", harness.root, "ann", "--variable", "taken")["rows"]] == [
            "pen",
            "ink",
        ]
        text = CliRunner().invoke(main, ["state", "show", harness.root, "ann", "--variable", "taken"]).output
        assert "pen" in text
        assert "kinds" in run("show", harness.root, "ann", code=1)
        harness.feed(took("pen"))
        changes = run("diff", harness.root, "--from", 0, "--variable", "kinds")["changes"]
        assert [(c["change"], c["before"]["n"], c["after"]["n"]) for c in changes] == [("update", 1, 2)]


_PROCESS = """
import sys
from riffle_spark.console.process import run
try:
    run()
finally:
    print(*sorted({"pandas", "pyarrow", "pyspark"} & set(sys.modules)), file=sys.stderr)
"""


def test_commands_on_state_do_not_import_pandas(tmp_path: Path) -> None:
    """Commands that read or delete keys, also those of a Parquet file, do not import pandas."""
    root = f"file://{tmp_path}/state"
    query = World(tmp_path / "local", executors=["1"], root=root)
    query.batch(0, rows_of(("a", 1, 1), ("b", 2, 2)))
    keys = tmp_path / "keys.parquet"
    pq.write_table(pa.table({"k": ["a"]}), keys)
    delete = ("delete", root, "--store", "totals", "--keys", str(keys), "--reason", "r", "--execute")
    for arguments in (("show", root, "a", "--store", "totals"), delete, ("show", root, "a", "--store", "totals")):
        command = [sys.executable, "-c", _PROCESS, "state", *arguments, *(["--json"] if arguments[0] == "show" else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.split() == ["pyarrow"]
    assert json.loads(done.stdout)["rows"] == []


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ((), "Give --key or --keys."),
        (("--key", "a", "--purge", "--variable", "v"), "Remove one of the two options."),
        (("--key", "a", "--delivered"), "Remove them, or add --purge."),
        (("--key", "a", "--purge", "--request"), "run the command without --request."),
    ],
)
def test_options_that_exclude_each_other_are_refused_with_a_remedy(words: tuple[str, ...], remedy: str) -> None:
    """Contradictory options are refused before the root is read, with a remedy."""
    text = run("delete", "memory://no-root", "--store", "totals", "--reason", "r", *words, code=2)
    assert f"What to do: {remedy}" in text or f"What to do: Give one key, or stop the query and {remedy}" in text
