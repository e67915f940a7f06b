"""De-duplication in a harness equals a model that processes one row after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful
from riffle_spark.messages.slot_orders import LateRule
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.types.stage_specs import DistinctSpec, TimeSpec
from riffle_spark.testing import Harness
from tests.kit.examples import costly

DELAY_MS = 3
TIME = pa.timestamp("us", "UTC")
AT = TimeSpec("at", DELAY_MS)


class Click(NamedTuple):
    """A row: its time (µs), user, page, and a number that distinguishes equal rows."""

    at: int | None
    user: str | None
    page: int | None
    number: int


@dataclass(frozen=True)
class Form:
    """A form of de-duplication: key columns, time, and the column with the time when a key expires."""

    key: tuple[str, ...]
    time: TimeSpec | None
    due: str | None

    @property
    def spec(self) -> DistinctSpec:
        """The spec as a plan would give it."""
        types = {"at": TIME, "user": pa.string(), "page": pa.int64(), "number": pa.int64()}
        schema = pa.schema(
            [(name, types[name]) for name in [*self.key, *(name for name in types if name not in self.key)]]
        )
        return DistinctSpec("clicks", pa.schema(list(schema)[: len(self.key)]), schema, self.time, self.due)


FORMS = {
    "ever": Form(("user", "page"), None, None),
    "by_all": Form(("at", "user", "page", "number"), AT, "at"),
    "by_time": Form(("user", "at"), AT, "at"),
    "late_alone": Form(("user",), AT, None),
    "within": Form(("user",), AT, "until"),
    "within_time_and_page": Form(("at", "page"), AT, "until"),
}


@dataclass
class Model:
    """The known keys with their expiry (µs), and Spark's rules of late rows and expiry."""

    form: Form
    known: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    late_ms: int = 0
    watermark_ms: int = 0

    def batch(self, clicks: Sequence[Click]) -> list[Click]:
        """Return the rows that pass."""
        passed = list[Click]()
        for click in clicks:
            key = tuple(getattr(click, name) for name in self.form.key)
            is_late = self.form.time is not None and click.at is not None and click.at <= self.late_ms * 1000
            if not is_late and key not in self.known:
                self.known[key] = self._until(click)
                passed.append(click)
        expired = [key for key, until in self.known.items() if until is not None and until <= self.watermark_ms * 1000]
        for key in expired:
            del self.known[key]
        newest = max((click.at // 1000 for click in clicks if click.at is not None), default=0)
        self.late_ms, self.watermark_ms = self.watermark_ms, max(self.watermark_ms, newest - DELAY_MS)
        return passed

    def _until(self, click: Click) -> int | None:
        if self.form.due == "until":
            return (click.at or 0) + DELAY_MS * 1000
        return click.at if self.form.due == "at" else None


def rows_of(clicks: Sequence[Click], spec: DistinctSpec) -> pa.Table:
    """Return input rows."""
    return pa.table(
        {field.name: pa.array([getattr(click, field.name) for click in clicks], field.type) for field in spec.output}
    )


def clicks_of(table: pa.Table) -> list[Click]:
    """Return output rows in the model's form."""
    columns = [table.column("at").cast(pa.int64()), *(table.column(name) for name in ("user", "page", "number"))]
    return [Click(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


_CLICK = st.builds(
    Click, st.one_of(st.none(), st.integers(0, 12).map(lambda half: 500 * half + half % 2)),
    st.sampled_from(["a", "b", None]), st.sampled_from([1, 2, None]), st.integers(0, 2),
)  # fmt: skip
_BATCH = st.tuples(
    st.lists(_CLICK, max_size=6), st.integers(0, 6), st.sampled_from(["", "", "", "restart", "crash"])
)  # fmt: skip


@costly(2)
@given(st.sampled_from(list(FORMS)), st.lists(_BATCH, max_size=8))
def test_emitted_rows_equal_those_of_a_model(name: str, batches: list[tuple[list[Click], int, str]]) -> None:
    """Property: the emitted rows are the model's, with late rows, nulls, empty batches, restarts and lost executors."""
    form, model = FORMS[name], Model(FORMS[name])
    late = LateRule("at", "rows") if form.time else None
    with Harness(Stateful("clicks", form.key, DistinctRows(form.spec)), form.spec.output, late=late) as query:
        for clicks, later, event in batches:
            moved = [click._replace(at=None if click.at is None else click.at + 1000 * later) for click in clicks]
            if late:
                query.advance_watermark(model.watermark_ms)
            passed = pa.Table.from_pylist(query.feed(rows_of(moved, form.spec)), form.spec.output)
            assert sorted(clicks_of(passed), key=repr) == sorted(model.batch(moved), key=repr)
            if event:
                query.crash(lose_copies=event == "crash")
        assert len(query.state()) == len(model.known)


def test_zero_and_minus_zero_are_one_key() -> None:
    """0.0 and -0.0 are one key, which is emitted as 0.0. NaN is another key."""
    rows = pa.schema([("z", pa.float64()), ("n", pa.int64())])
    spec = DistinctSpec("numbers", pa.schema([rows.field("z")]), rows, None, None)
    with Harness(Stateful("numbers", "z", DistinctRows(spec)), rows) as query:
        first, second = (
            query.feed([{"z": z, "n": 1} for z in batch]) for batch in ([-0.0, 0.0], [0.0, math.nan, math.nan])
        )
    assert [str(row["z"]) for row in (*first, *second)] == ["0.0", "nan"]
