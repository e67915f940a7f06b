"""Stores that are exported and loaded again are equal, and their query continues."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark import Stateful, aggregate, count, max_, sum_, transform_with_state
from riffle_spark.errors import ConfigError, ConflictError
from riffle_spark.offline.export import EXPORT_FILE, export_state, load_state
from riffle_spark.offline.recovery import adopt
from riffle_spark.offline.state_edits import Editor, set_value
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.process.types.stage_specs import DistinctSpec
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.record import Record
from riffle_spark.state.objects.open import open_store
from riffle_spark.testing import Harness
from riffle_spark.testing.harness import Declared
from tests.kit.process import page_windows
from tests.kit.process.counted_windows import ENDS, KEY, CountedWindows, rows_of
from tests.kit.processors.catalogue import CASES
from tests.kit.root_commands import read_json, run_command
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.state.drawn_records import PLAIN
from tests.kit.state.drawn_tables import LEAVES, nested
from tests.kit.state.everything import Everything

pytestmark = pytest.mark.usefixtures("short_cycles")

WHY = Editor("move", "ann", "laptop")
ROWS = pa.schema([("id", pa.binary()), ("n", pa.int64())])
UNTIMED = [name for name, case in CASES.items() if case.time_mode == "None" and case.initial is None]


def tail_of(root: str) -> Record:
    """Return the newest record of a root."""
    tail = Log(open_store(root), root).open()
    assert tail is not None
    return tail


def contents(query: Harness) -> list[str]:
    """Return all rows of the committed state."""
    return sorted(map(repr, query.table().to_pylist()))


def moved(query: Harness, tmp_path: Path, new: Harness, **options: Any) -> None:
    """Export the store of a query, load it into the root of another query, and adopt it."""
    (store,) = tail_of(query.root).schemas
    to = tmp_path / uuid.uuid4().hex
    exported = export_state(query.root, store, str(to))
    assert exported.rows == query.table().num_rows == sum(pq.read_table(file).num_rows for file in to.glob("*.parquet"))
    plan = load_state(new.root, str(to), WHY, key_groups=8, execute=True, **options)
    assert "riffle adopt" in plan.steps[-1]
    checkpoint = written_checkpoint(to / "checkpoint")
    adopt(new.root, str(checkpoint), execute=True)
    new.restart()


def compare(declared: Declared, rows: pa.Schema, batches: list[pa.Table], tmp_path: Path, **options: Any) -> None:
    """Move a query after half of its batches, and check that state and later output are equal."""
    half = len(batches) // 2 or 1
    with Harness(declared, rows, snapshot_chain_links=3, **options) as query, Harness(declared, rows, **options) as new:
        for batch in batches[:half]:
            query.feed(batch)
        before = tail_of(query.root)
        moved(query, tmp_path, new)
        assert contents(new) == contents(query)
        after = tail_of(new.root)
        assert after.row_counts == before.row_counts
        assert after.schemas.keys() == before.schemas.keys()
        for batch in batches[half:]:
            assert sorted(map(repr, new.feed(batch))) == sorted(map(repr, query.feed(batch)))
        assert contents(new) == contents(query)
        assert tail_of(new.root).row_counts == tail_of(query.root).row_counts


def ids(*numbers: int) -> pa.Table:
    """Return a row for each number."""
    return pa.table({"id": [bytes([n, 0, 255]) for n in numbers], "n": list(numbers)}, schema=ROWS)


def test_aggregates_are_exported_and_loaded(tmp_path: Path) -> None:
    """Aggregates with binary keys and a NULL key are exported and loaded."""
    operator = Stateful("totals", "id", aggregate(visits=count(), most=max_("n"), total=sum_("n")))
    batches = [ids(*range(0, 40 * step, step)) for step in (1, 2, 3, 1)]
    compare(
        operator, ROWS, [pa.concat_tables([b, pa.table({"id": [None], "n": [1]}, ROWS)]) for b in batches], tmp_path
    )


def test_rows_seen_before_an_export_are_duplicates_after_the_load(tmp_path: Path) -> None:
    """Rows that were seen before the export are duplicates after the load."""
    spec = DistinctSpec("seen", pa.schema([ROWS.field("id")]), ROWS, None, None)
    compare(Stateful("seen", "id", DistinctRows(spec)), ROWS, [ids(1, 2, 3), ids(3, 4), ids(1, 4, 5)], tmp_path)


@pytest.mark.parametrize("name", UNTIMED)
@pytest.mark.sample(step=4)
def test_processor_state_is_exported_and_loaded(name: str, tmp_path: Path) -> None:
    """Values, lists and maps with nested keys are exported and loaded."""
    case = CASES[name]
    operator = transform_with_state(
        case.processor("rows"), key=case.key, output=case.output, output_mode=case.output_mode, order_by="seq"
    )
    compare(operator, case.input, list(case.batches), tmp_path)


def everything_by_clock() -> Stateful:
    """Return the operator of a processor with all kinds of state, timers and TTLs in processing time."""
    return transform_with_state(
        Everything("user"),
        key="user",
        output="user string, shown string",
        output_mode="update",
        time_mode="ProcessingTime",
    )


def test_timers_fire_and_values_expire_after_the_load(tmp_path: Path) -> None:
    """After the load timers fire and values expire at their times."""
    rows = pa.schema([("user", pa.string())])
    operator = everything_by_clock()
    with Harness(operator, rows, now_ms=100_000) as query, Harness(operator, rows, now_ms=100_000) as new:
        query.feed([{"user": f"u{n}"} for n in range(20)])
        moved(query, tmp_path, new)
        assert new.timers() == query.timers()
        assert new.expires("tags") == query.expires("tags")
        for each in (query, new):
            each.advance(31)
        assert sorted(map(repr, new.feed())) == sorted(map(repr, query.feed()))
        assert len(new.delivered()) == 20


def test_a_value_set_after_a_load_has_its_whole_ttl(tmp_path: Path) -> None:
    """A value that is set after a load and before the first batch is not written in 1970, so it has its whole TTL."""
    rows = pa.schema([("user", pa.string())])
    operator = everything_by_clock()
    with Harness(operator, rows) as query, Harness(operator, rows) as new:
        query.feed([{"user": "ann"}])
        moved(query, tmp_path, new)
        loaded = tail_of(new.root)
        (store,) = loaded.schemas
        set_value(new.root, store, "ann", '{"x": 1}', WHY, variable="tags", execute=True)
        assert new.expires("tags") == {("ann",): [loaded.written_ms + 60_000]}


def test_a_window_closes_at_its_end_after_the_load(tmp_path: Path) -> None:
    """After the load a window closes at its end."""
    operator = Stateful("windows", ("end", "k"), CountedWindows("append", False))
    with Harness(operator, KEY, late=ENDS) as query, Harness(operator, KEY, late=ENDS) as new:
        query.feed(rows_of((100, "a"), (200, "b")))
        moved(query, tmp_path, new)
        assert contents(new) == contents(query)
        new.advance_watermark(150_000)
        assert [row["k"] for row in new.feed()] == ["a"]


def test_open_sessions_are_exported_and_loaded(tmp_path: Path) -> None:
    """Open sessions are exported and loaded, and several sessions of a page are one row that counts as several."""
    sessions = page_windows.spec(page_windows.SESSION, page_windows.FUNCTIONS[:3])

    def visits(*rows: tuple[int, str]) -> pa.Table:
        columns = [[start for start, _ in rows], [start + 5 for start, _ in rows], [page for _, page in rows]]
        columns += [[start for start, _ in rows], [float(start) for start, _ in rows], [1 for _ in rows]]
        return pa.table(list(map(pa.array, columns, sessions.rows.types)), schema=sessions.rows)

    batches = [visits((10, "a"), (50, "a"), (90, "b")), visits((53, "a")), visits((12, "b"), (94, "b"))]
    grouped = page_windows.operator(sessions, SessionGroups(sessions, "complete"))
    compare(grouped, sessions.rows, batches, tmp_path)


def test_a_load_changes_the_number_of_key_groups_and_encrypts(tmp_path: Path) -> None:
    """A load changes the number of key-groups and encrypts the new root; the export itself is not encrypted."""
    file = tmp_path / "keys.txt"
    file.write_text("a = " + "AAAA" * 10 + "AAA=\n")
    file.chmod(0o600)
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query, Harness(operator, ROWS, key_groups=3, encryption_keys=f"file:{file}") as new:
        query.feed(ids(*range(100)))
        export_state(query.root, "totals", str(tmp_path / "out"))
        load_state(new.root, str(tmp_path / "out"), WHY, key_groups=3, encryption_keys=f"file:{file}", execute=True)
        adopt(new.root, str(written_checkpoint(tmp_path / "checkpoint")), execute=True)
        new.restart()
        assert contents(new) == contents(query)
        new.feed(ids(1))
        assert new.state()[(b"\x01\x00\xff",)] == {"visits": 2}
        export_state(new.root, "totals", str(tmp_path / "again"), encryption_keys=f"file:{file}")


@given(st.data())
def test_values_of_every_type_are_equal_after_a_round_trip(data: st.DataObject) -> None:
    """Values of nested types, types that Parquet lacks, NULLs and NaNs are equal after a round trip."""
    kind, values = data.draw(nested(LEAVES).filter(lambda drawn: not pa.types.is_dictionary(drawn[0])))
    column = pa.array(data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=4)), kind)
    rows = pa.table([pa.array(range(len(column))), column], names=["k", "x"])
    from riffle_spark.offline import export

    file = pq.read_table(pa.BufferReader(export._parquet(rows, {"a": "b"})))
    read = export._stored_column(file, pa.field("x", kind))
    assert read.type == kind
    assert repr(read.to_pylist()) == repr(column.to_pylist())
    assert file.schema.metadata[b"a"] == b"b"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.struct([]), [{}, None]),
        (pa.month_day_nano_interval(), [(0, 0, 0), None]),
        (pa.list_(pa.struct([])), [[], None]),
    ],
    ids=str,
)
def test_empty_values_that_parquet_lacks_are_not_null(kind: pa.DataType, values: list[object]) -> None:
    """Empty values of types that Parquet lacks are stored as JSON and not as NULL."""
    from riffle_spark.offline import export

    column = pa.array(values, kind)
    file = pq.read_table(pa.BufferReader(export._parquet(pa.table({"x": column}), {})))
    assert export._stored_column(file, pa.field("x", kind)).to_pylist() == column.to_pylist()


def test_a_large_key_group_is_exported_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large key-group is exported to several files without losing a row."""
    from riffle_spark.offline import export

    monkeypatch.setattr(export, "_FILE_BYTES", 100)
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS, key_groups=2) as query, Harness(operator, ROWS) as new:
        query.feed(ids(*range(61)))
        moved(query, tmp_path, new)
        assert contents(new) == contents(query)
        (out,) = [folder for folder in tmp_path.iterdir() if (folder / EXPORT_FILE).exists()]
        assert len(list(out.glob("part-00000-*.parquet"))) > 2


def test_an_initial_state_that_was_loaded_is_not_loaded_again(tmp_path: Path) -> None:
    """An initial state that was loaded before the export is not loaded again, because the new root has its name."""
    case = next(case for case in CASES.values() if case.initial is not None)
    operator = transform_with_state(
        case.processor("rows"), key=case.key, output=case.output, output_mode=case.output_mode, order_by="seq"
    )
    with (
        Harness(operator, case.input, initial=case.initial, initial_name="history") as query,
        Harness(operator, case.input) as new,
    ):
        query.feed(case.batches[0])
        before = tail_of(query.root).initial_states
        assert list(before.values()) == [("history",)]
        moved(query, tmp_path, new)
        assert tail_of(new.root).initial_states == before
        new.restart(case.initial, "history")
        assert sorted(map(repr, new.feed(case.batches[1]))) == sorted(map(repr, query.feed(case.batches[1])))
        assert contents(new) == contents(query)


def test_text_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    """Text that is not UTF-8 keeps its bytes."""
    rows = pa.schema([("user", pa.string())])
    operator = Stateful("totals", "user", aggregate(visits=count()))
    with Harness(operator, rows) as query, Harness(operator, rows) as new:
        query.feed(pa.table([pa.array([b"\xff\x00", b"a"]).view(pa.string())], schema=rows))
        moved(query, tmp_path, new)
        texts = [text for chunk in new.table().column("user").chunks for text in chunk.view(pa.binary()).to_pylist()]
        assert sorted(texts) == [b"a", b"\xff\x00"]


def test_a_store_is_loaded_under_another_name_next_to_existing_stores(tmp_path: Path) -> None:
    """A store is loaded under another name beside existing stores, and a name with state is refused."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query:
        query.feed(ids(1, 2))
        export_state(query.root, "totals", str(tmp_path / "out"))
        with pytest.raises(ConfigError, match="has state of store 'totals'"):
            load_state(query.root, str(tmp_path / "out"), WHY, key_groups=8)
        load_state(query.root, str(tmp_path / "out"), WHY, key_groups=8, store="copy", execute=True)
        assert set(tail_of(query.root).schemas) == {"totals", "copy"}
        query.restart()
        query.feed(ids(1))
        assert query.state()[(b"\x01\x00\xff",)] == {"visits": 2}
        assert export_state(query.root, "copy", str(tmp_path / "copy")).rows == 2


def test_an_interrupted_load_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that dies before its record leaves snapshots in the new root. The same command completes it."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query, Harness(operator, ROWS) as new:
        query.feed(pa.table({"id": [b"a", b"b"], "n": [1, 2]}, schema=ROWS))
        export_state(query.root, "totals", str(tmp_path / "out"))

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Log, "append", die)
        with pytest.raises(KeyboardInterrupt):
            load_state(new.root, str(tmp_path / "out"), WHY, key_groups=8, execute=True)
        monkeypatch.undo()
        assert open_store(new.root).list("totals/")
        moved(query, tmp_path, new)
        assert contents(new) == contents(query)


def test_a_key_in_two_key_groups_of_an_export_is_refused(tmp_path: Path) -> None:
    """An export of a query that was dispatched by partition may have a key twice. It is not loaded."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query, Harness(operator, ROWS) as new:
        query.feed(pa.table({"id": [b"a"], "n": [1]}, schema=ROWS))
        out = tmp_path / "out"
        export_state(query.root, "totals", str(out))
        (file,) = out.glob("part-*.parquet")
        (out / "part-00100-0.parquet").write_bytes(file.read_bytes())
        body = json.loads((out / "_riffle.json").read_text())
        (out / "_riffle.json").write_text(json.dumps({**body, "files": [file.name, "part-00100-0.parquet"]}))
        with pytest.raises(ConflictError, match=r"RIFFLE-1792.*id = b'a'"):
            load_state(new.root, str(out), WHY, key_groups=8, execute=True)


def test_an_incomplete_or_damaged_export_is_refused(tmp_path: Path) -> None:
    """An incomplete or damaged export, and a target folder that is not empty, are refused."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query:
        query.feed(ids(1, 2, 3))
        out = tmp_path / "out"
        export_state(query.root, "totals", str(out))
        with pytest.raises(ConfigError, match="not empty"):
            export_state(query.root, "totals", str(out))
        new = f"memory://{uuid.uuid4().hex}"
        body = json.loads((out / EXPORT_FILE).read_text())
        file = out / body["files"][0]
        data = file.read_bytes()
        for damaged in (data[:-9], b"", b"PAR1"):
            file.write_bytes(damaged)
            with pytest.raises(ConfigError, match="cannot be read"):
                load_state(new, str(out), WHY, key_groups=8, execute=True)
        file.unlink()
        with pytest.raises(ConfigError, match="is missing"):
            load_state(new, str(out), WHY, key_groups=8, execute=True)
        bodies: tuple[object, ...] = (
            {**body, "format": 2},
            {**body, "schema": {"key": "x"}},
            [],
            {**body, "version": "1"},
        )
        for wrong in bodies:
            (out / EXPORT_FILE).write_text(json.dumps(wrong))
            with pytest.raises(ConfigError, match="no export that can be read"):
                load_state(new, str(out), WHY, key_groups=8)
        (out / EXPORT_FILE).unlink()
        with pytest.raises(ConfigError, match="no export that can be read"):
            load_state(new, str(out), WHY, key_groups=8)
        assert Log(open_store(new), new).open() is None


def test_an_export_is_not_loaded_into_a_root_with_another_dispatch(tmp_path: Path) -> None:
    """An export has no partitions, so a root that dispatches by partition refuses it, and the remedy is a new root."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    root = f"file://{tmp_path}/parted"
    log = Log(open_store(root), root)
    log.open()
    log.append(replace(PLAIN, dispatch="partition", shards=(("events", 0),)), log.manifest)
    with Harness(operator, ROWS) as query:
        query.feed(ids(1))
        export_state(query.root, "totals", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="RIFFLE-1604") as refused:
        load_state(root, str(tmp_path / "out"), WHY, key_groups=8)
    assert "riffle dispatch" in refused.value.remedy


def test_the_export_and_load_commands_work_on_roots_of_files(tmp_path: Path) -> None:
    """`riffle export` and `riffle state load` work on roots of files."""
    operator = Stateful("totals", "id", aggregate(visits=count()))
    with Harness(operator, ROWS) as query:
        query.feed(ids(1, 2, 3))
        done = run_command("export", query.root, "--store", "totals", "--to", tmp_path / "out")
        assert "Wrote 3 rows" in done.output, done.output
        again = read_json("export", query.root, "--store", "totals", "--to", tmp_path / "again")
        assert (again["version"], again["rows"], again["files"] > 0) == (0, 3, True)
        arguments = (f"file://{tmp_path}/new", "--from", tmp_path / "out", "--reason", "move", "--key-groups", 4)
        assert "Nothing was changed" in run_command("state", "load", *arguments).output
        assert run_command("state", "load", *arguments, "--execute").exit_code == 0
        assert tail_of(f"file://{tmp_path}/new").total == 4
        assert "move" in run_command("log", f"file://{tmp_path}/new").output
