"""Likely mistakes of new users before Spark runs: each raises an error, and its remedy resolves it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from riffle_spark import Settings, Stateful, aggregate, arrow_function, count, sum_, together
from riffle_spark.errors import RefusedError
from riffle_spark.settings import from_sources
from riffle_spark.testing import Harness
from tests.kit.mistakes import Mistake, check_remedy

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("tags", pa.list_(pa.string()))])
STATE = pa.schema([("total", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("total", pa.int64())])
COUNTS = aggregate(visits=count())
TotalsOf = Callable[[pa.Table, pa.Table], Any]


def feed(operator: Stateful, rows: pa.Schema = INPUT, **settings: Any) -> None:
    """Run a batch with two users in a harness."""
    with Harness(operator, rows, **settings) as query:
        query.feed([{"user": "ann", "amount": 1, "tags": []}, {"user": "bob", "amount": 2, "tags": []}])


def operator(key: Any = "user", compute: Any = COUNTS, store: str = "totals", **options: Any) -> Stateful:
    """Return an operator with these arguments, also if they have the wrong type."""
    return Stateful(store, key=key, compute=compute, **options)


def totals_by(function: TotalsOf, state: Any = STATE) -> Stateful:
    """Return an operator that runs a user function."""
    return operator(compute=arrow_function(function, state=state, output=OUTPUT))


def totals(rows: pa.Table) -> pa.Table:
    """Return the sum of the amounts per user."""
    return rows.group_by("user").aggregate([("amount", "sum")]).rename_columns(OUTPUT.names)


def read_settings(folder: Path, text: str) -> Settings:
    """Write settings to a file and read them."""
    path = folder / "riffle.toml"
    path.write_text(text)
    return from_sources(toml=path)


def zero_for_all(rows: pa.Table, state: pa.Table) -> Any:
    """Return the total per user as output and as state."""
    answer = totals(rows)
    return answer, answer


def once(table: pa.Table) -> pa.Table:
    """Return one row per user."""
    return table.group_by("user").aggregate([("total", "max")]).rename_columns(OUTPUT.names)


def twice(rows: pa.Table, state: pa.Table) -> Any:
    """Return each user's total twice, as output and as state."""
    answer = pa.concat_tables([totals(rows), totals(rows)])
    return answer, answer


def foreign(rows: pa.Table, state: pa.Table) -> Any:
    """Return the total of a user who has no rows."""
    answer = pa.table({"user": ["zoe"], "total": [1]})
    return answer, answer


MISTAKES: Mapping[str, Mistake[Path]] = {
    "unknown setting": Mistake(
        "RIFFLE-0480",
        lambda folder, mended: read_settings(folder, "num_standbys = 1" if mended else "num_standby = 1"),
    ),
    "bad value": Mistake(
        "RIFFLE-0249",
        lambda _, mended: Settings(num_standbys=0 if mended else -1),
    ),
    "no result": Mistake(
        "RIFFLE-0174",
        lambda _, mended: aggregate(total=sum_("amount")) if mended else aggregate(),
    ),
    "a column's name for a function": Mistake(
        "RIFFLE-0175",
        lambda _, mended: aggregate(total=sum_("amount") if mended else "amount"),  # type: ignore[arg-type]
    ),
    "no key": Mistake(
        "RIFFLE-0378",
        lambda _, mended: operator(key=["user"] if mended else []),
    ),
    "a function for a computation": Mistake(
        "RIFFLE-0380",
        lambda _, mended: totals_by(zero_for_all) if mended else operator(compute=zero_for_all),
    ),
    "no operators": Mistake(
        "RIFFLE-0369",
        lambda _, mended: together(*[operator().into(print)] * mended),
    ),
    "a store's name with a space": Mistake(
        "RIFFLE-0410",
        lambda _, mended: operator(store="my_totals" if mended else "my totals"),
    ),
    "settings by a dictionary": Mistake(
        "RIFFLE-0381",
        lambda _, mended: operator(settings=Settings(root="file:///state") if mended else {"root": "file:///state"}),
    ),
    "state by a list of names": Mistake(
        "RIFFLE-0163",
        lambda _, mended: totals_by(zero_for_all, STATE if mended else ["total"]),
    ),
    "a function of rows alone": Mistake(
        "RIFFLE-0166",
        lambda _, mended: totals_by(zero_for_all if mended else lambda rows: rows),  # type: ignore[arg-type,misc]
    ),
    "no such key column": Mistake(
        "RIFFLE-0229",
        lambda _, mended: feed(operator(key="user" if mended else "usr")),
    ),
    "no such aggregated column": Mistake(
        "RIFFLE-0176",
        lambda _, mended: feed(operator(compute=aggregate(paid=sum_("amount" if mended else "amnt")))),
    ),
    "a sum of text": Mistake(
        "RIFFLE-0177",
        lambda _, mended: operator_on_text(pa.int64() if mended else pa.string()),
    ),
    "a key of lists": Mistake(
        "RIFFLE-0119",
        lambda _, mended: feed(operator(key="user" if mended else "tags")),
    ),
    "a pandas frame returned": Mistake(
        "RIFFLE-0199",
        lambda _, mended: feed(
            totals_by(lambda rows, _: (totals(rows) if mended else totals(rows).to_pandas(), totals(rows)))
        ),
    ),
    "one table returned": Mistake(
        "RIFFLE-0169",
        lambda _, mended: feed(totals_by(lambda rows, _: (totals(rows), totals(rows)) if mended else totals(rows))),
    ),
    "other columns returned": Mistake(
        "RIFFLE-0200",
        lambda _, mended: feed(totals_by(lambda rows, _: (totals(rows) if mended else rows, totals(rows)))),
    ),
    "a key twice": Mistake(
        "RIFFLE-0171",
        lambda _, mended: feed(
            totals_by(lambda rows, state: tuple(map(once, twice(rows, state))) if mended else twice(rows, state))
        ),
    ),
    "another key": Mistake(
        "RIFFLE-0170",
        lambda _, mended: feed(totals_by(zero_for_all if mended else foreign)),
    ),
    "a sink of one argument": Mistake(
        "RIFFLE-0288",
        lambda _, mended: operator().into(
            (lambda frame, _: frame.collect()) if mended else (lambda frame: frame.collect())
        ),
    ),
    "two operators of one store": Mistake(
        "RIFFLE-0375",
        lambda _, mended: together(
            operator().into(print), operator(store="others" if mended else "totals").into(print)
        ),
    ),
    "an operator without a sink": Mistake(
        "RIFFLE-0370",
        lambda _, mended: together(operator().into(print) if mended else operator()),  # type: ignore[arg-type]
    ),
    "settings that differ": Mistake(
        "RIFFLE-0371",
        lambda _, mended: together(
            operator(settings=Settings(num_standbys=1)).into(print),
            operator(store="others", settings=Settings(num_standbys=2)).into(print),
            settings=Settings(num_standbys=2) if mended else None,
        ),
    ),
    "a delay in words": Mistake(
        "RIFFLE-0307",
        lambda _, mended: operator(watermark=("at", "10 minutes" if mended else "ten minutes")),
    ),
}


def operator_on_text(kind: pa.DataType) -> None:
    """Run a sum over amounts of a type."""
    rows = INPUT.set(1, pa.field("amount", kind))
    amount = pc.cast(pa.array([1]), kind)
    with Harness(operator(compute=aggregate(paid=sum_("amount"))), rows) as query:
        query.feed(pa.table({"user": ["ann"], "amount": amount, "tags": pa.array([None], INPUT.field(2).type)}))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_the_remedy_of_a_mistake_resolves_its_error(mistake: Mistake[Path], tmp_path: Path) -> None:
    """The mistake raises its error, and the call that follows the remedy does not."""
    check_remedy(mistake, tmp_path, tmp_path)


def test_the_remedy_of_a_missing_key_variable_resolves_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy of a missing `env:` variable names the processes that need it. Once it is set, the query runs."""
    monkeypatch.delenv("STATE_KEYS", raising=False)
    with pytest.raises(RefusedError, match="RIFFLE-0435") as refused:
        feed(operator(), encryption_keys="env:STATE_KEYS")
    assert "environment of the driver and of every executor" in refused.value.remedy
    monkeypatch.setenv("STATE_KEYS", f"first = {base64.b64encode(bytes(range(32))).decode()}")
    feed(operator(), encryption_keys="env:STATE_KEYS")
