"""``read_state`` returns the committed state of every kind of store and every stored format."""

from __future__ import annotations

import tarfile
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riffle_spark import Stateful, aggregate, count, max_, read_state, sum_
from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError, UnavailableError
from riffle_spark.offline.recovery import adopt
from riffle_spark.offline.savepoints import Savepoints
from riffle_spark.process.stages.distinct_rows import DistinctRows
from riffle_spark.process.stages.session_groups import SessionGroups
from riffle_spark.process.types.stage_specs import DistinctSpec
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.query_roots import add_query, root_of
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variable_kinds import DUE, INDEX, TIMER, VARIABLE, Variable
from riffle_spark.state.schemas.variables import VariableColumns
from riffle_spark.state_tables import ranged_rows
from riffle_spark.state_tables import read_state as reading
from riffle_spark.state_tables.read_state import read_table
from riffle_spark.state_tables.requested_keys import requested_keys
from riffle_spark.state_tables.state_view import StateRoot, _choose_variable, open_root
from riffle_spark.state_tables.table_columns import ROLE
from riffle_spark.testing import Harness
from tests.kit.folders import DATA
from tests.kit.process.page_windows import operator
from tests.kit.roots.old_root import ARCHIVES, OldRoot
from tests.kit.roots.spark_checkpoint import written_checkpoint
from tests.kit.simulated.world import World, rows_of, two_stores
from tests.kit.state.faulty_store import Fault, FaultyStore
from tests.process.stages import test_paired_rows as joins
from tests.process.stages import test_session_groups as sessions
from tests.protocol.test_encrypted_query import EncryptedQuery
from tests.testing.test_harness_processors import baskets, took

VISITS = "user string, amount long"


def visits(**settings: Any) -> Harness:
    """Return a harness of an aggregate."""
    compute = aggregate(visits=count(), total=sum_("amount"), largest=max_("amount"))
    return Harness(Stateful("visits", "user", compute), VISITS, **settings)


def content(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows without key-group and version, sorted."""
    added = [field.name for field in table.schema if (field.metadata or {}).get(ROLE) in (b"key_group", b"version")]
    return sorted(table.drop_columns(added).to_pylist(), key=repr)


def expected_of_variable(harness: Harness, name: str, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a variable that the harness restores from the same objects."""
    table = harness.table()
    keys = table.column_names[: table.column_names.index(VARIABLE)]
    rows: list[dict[str, Any]] = []
    for row in table.to_pylist():
        if row[VARIABLE] != name:
            continue
        element = row.get(f"__state_{name}") or {}
        if kind == "map":
            element = {**element["key"], **element["value"]}
        index = {"index": row[INDEX]} if kind == "list" else {}
        rows.append({**{key: row[key] for key in keys}, **index, **element, "due_ms": row[DUE]})
    return sorted(rows, key=repr)


def test_an_aggregate_is_read_with_its_key_groups_and_versions() -> None:
    """An aggregate is read with key-groups and versions, and a key has the version of its last change."""
    with visits() as query:
        query.feed([{"user": "ann", "amount": 3}, {"user": "bob", "amount": 5}])
        query.feed([{"user": "ann", "amount": 4}])
        table = read_state(query.root).read_all()
        assert table.column_names == ["user", "visits", "total", "largest", "key_group", "version", "due_ms"]
        rows = {row["user"]: row for row in table.to_pylist()}
        assert (rows["ann"]["total"], rows["ann"]["version"], rows["bob"]["version"]) == (7, 1, 0)
        assert {row["due_ms"] for row in rows.values()} == {None}
        groups = {row["key_group"] for row in rows.values()}
        assert {number for number in range(8) if read_state(query.root, key_groups=[number]).read_all()} == groups
        own = rows["ann"]["key_group"]
        row_counts = [
            read_state(query.root, keys=["ann"], key_groups=[number]).read_all().num_rows for number in range(8)
        ]
        assert [number for number in range(8) if row_counts[number]] == [own]


def test_keys_are_selected_by_values_tuples_dictionaries_or_a_table() -> None:
    """Keys can be values, tuples, dictionaries or a table, and an absent key gives no row."""
    with visits() as query:
        query.feed([{"user": name, "amount": 1} for name in ("ann", "bob", None)])
        for keys in (["ann", None, "eve"], [("ann",), {"user": None}], pa.table({"user": ["ann", None]})):
            assert {row["user"] for row in read_state(query.root, keys=keys).read_all().to_pylist()} == {"ann", None}
        with pytest.raises(ConfigError) as caught:
            read_state(query.root, keys=[7])
        assert caught.value.id == "RIFFLE-1556"
    pairs = Stateful("pairs", ("a", "b"), aggregate(n=count()))
    with Harness(pairs, pa.schema([("a", pa.int32()), ("b", pa.binary())])) as query:
        query.feed([{"a": 1, "b": b"\0"}, {"a": 1, "b": None}, {"a": 2, "b": b"\0"}])
        rows = read_state(query.root, keys=[(1, b"\0"), {"a": 1, "b": None}]).read_all().to_pylist()
        assert {(row["a"], row["b"]) for row in rows} == {(1, b"\0"), (1, None)}
        for wrong, problem in (
            ({"a": 1, "c": 2}, "unknown column 'c'"),
            ((1,), "1 values for 2 columns"),
            (7, "one value for 2 columns"),
        ):
            with pytest.raises(ConfigError, match=f"RIFFLE-1556.*{problem}"):
                read_state(query.root, keys=[wrong])


@pytest.mark.parametrize("key", ["ann", b"ann", {"user": "ann"}])
def test_a_single_key_without_a_list_is_refused(key: Any) -> None:
    """A text is a sequence of letters, which would be read as keys. So one key needs a list, too."""
    schema = PlainColumns("s", pa.schema([("user", pa.string())]), pa.schema([("n", pa.int64())]))
    with pytest.raises(ConfigError, match="RIFFLE-1781"):
        requested_keys(key, schema)


def test_keys_of_dates_and_decimals_may_be_given_as_text() -> None:
    """Dates, times and decimals of keys may be given as text, as numbers or as Python values."""
    key = pa.schema([("day", pa.date32()), ("price", pa.decimal128(9, 2))])
    schema = PlainColumns("s", key, pa.schema([("n", pa.int64())]))
    expected = [{"day": date(2026, 1, 31), "price": Decimal("1.50")}]
    for given in (("2026-01-31", "1.5"), (date(2026, 1, 31), Decimal("1.50")), ("2026-01-31", 1.5)):
        assert requested_keys([given], schema).table.to_pylist() == expected
    mixed = requested_keys([("2026-01-31", 2), (None, "1.5"), (date(2026, 1, 31), None)], schema).table
    assert mixed.column("price").to_pylist() == [Decimal("2.00"), Decimal("1.50"), None]
    assert mixed.column("day").to_pylist() == [date(2026, 1, 31), None, date(2026, 1, 31)]
    with pytest.raises(ConfigError, match="RIFFLE-1556"):
        requested_keys([("tomorrow", 1)], schema)


def test_the_only_variable_of_a_store_needs_no_name() -> None:
    """The only variable of a store is read without its name. Of several, one must be named."""
    key, value = pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())])
    one = VariableColumns("s", key, (Variable("count", "value", value),))
    assert _choose_variable(one, None) == _choose_variable(one, "count") == "count"
    two = VariableColumns("s", key, tuple(Variable(name, "value", value) for name in ("count", "sum")))
    with pytest.raises(ConfigError, match="RIFFLE-1551"):
        _choose_variable(two, None)


def test_the_root_of_the_only_query_below_a_shared_root_is_read(tmp_path: Path) -> None:
    """A shared root with one query is read as the root of this query."""
    shared = f"file://{tmp_path}/shared"
    add_query(open_store(shared), "visits", ["totals"])
    World(tmp_path / "local", root=root_of(shared, "visits")).batch(0, rows_of(("a", 1, 1)))
    assert open_root(shared).root == root_of(shared, "visits")
    assert read_state(shared, "totals").read_all()["k"].to_pylist() == ["a"]


@pytest.mark.parametrize("damaged", ["delta/", "totals/"])
def test_a_damaged_object_is_reported_as_damage(tmp_path: Path, damaged: str) -> None:
    """An object that stays damaged is reported with its name, and not as deleted by retention."""
    world = World(tmp_path, executors=["1"], snapshot_chain_links=2)
    feed(world, 0, 5)
    store = FaultyStore(world.memory, [Fault("flipped", "get", damaged, times=None)])
    table = StateRoot(world.home.root, store, None).view().table("totals")
    with pytest.raises(CorruptStateError) as caught:
        read_table(table).read_all()
    assert damaged in str(caught.value)


def test_a_dictionary_of_options_is_refused() -> None:
    """A dictionary of options is refused with the name of the class to pass."""
    with visits() as query, pytest.raises(ConfigError, match=r"options\.StoreOptions") as caught:
        read_state(query.root, options={"endpoint": "http://127.0.0.1:9000"})  # type: ignore[arg-type]
    assert caught.value.id == "RIFFLE-1750"


def test_variables_and_timers_are_separate_tables() -> None:
    """Values, lists in order, maps with the fields of their keys, and timers are separate tables."""
    with baskets() as query:
        query.feed(took("pen", "ink", "pen") + took("cup", user="bob"))
        query.advance(3)
        query.feed(took("ink"))
        for name, kind in (("count", "value"), ("taken", "list"), ("kinds", "map"), (TIMER, "timer")):
            table = read_state(query.root, variable=name).read_all()
            assert content(table) == expected_of_variable(query, name, kind)
        lists = [row["what"] for row in read_state(query.root, variable="taken", keys=["ann"]).read_all().to_pylist()]
        assert lists == ["pen", "ink", "pen", "ink"]
        with pytest.raises(ConfigError) as caught:
            read_state(query.root)
        assert caught.value.id == "RIFFLE-1551"


def test_joins_sessions_and_distinct_rows_are_read() -> None:
    """Both sides of a join, open sessions, and the keys of a deduplication with their expiry are read."""
    with joins.harness(joins.SPECS["full"]) as query:
        query.feed(joins.table_of([joins.Row(n % 2 == 0, "ab"[n % 3 == 0], 1000 * n, n, True) for n in range(9)]))
        for side in ("left", "right"):
            rows = content(read_state(query.root, variable=side).read_all())
            assert rows == expected_of_variable(query, side, "list") != []
    by_session = operator(sessions.GIVEN, SessionGroups(sessions.GIVEN, "append"), 0)
    with Harness(by_session, sessions.GIVEN.rows) as query:
        query.feed(sessions.rows_of([sessions.Visit(n * 900, 500, "a", n, "x") for n in range(5)]))
        table = read_state(query.root).read_all()
        assert table.select(query.table().column_names).to_pylist() == query.table().to_pylist() != []
        assert None not in table["due_ms"].to_pylist()
        assert content(read_state(query.root, keys=[table["page"][0].as_py()]).read_all()) == content(table)
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    spec = DistinctSpec("clicks", pa.schema([columns.field("id")]), columns, None, None)
    with Harness(Stateful("clicks", "id", DistinctRows(spec)), columns) as query:
        query.feed([{"id": n % 3} for n in range(9)])
        assert sorted(read_state(query.root, "clicks").read_all()["id"].to_pylist()) == [0, 1, 2]


def test_added_columns_whose_name_is_taken_get_an_underscore() -> None:
    """Added columns whose name is taken get an underscore, and columns of the user keep their names."""
    named = Stateful("s", ("version",), aggregate(Key_Group=count(), due_ms=sum_("n")))
    with Harness(named, "version long, n long") as query:
        query.feed([{"version": 7, "n": 2}])
        (row,) = read_state(query.root).read_all().to_pylist()
        assert (row["version"], row["Key_Group"], row["due_ms"]) == (7, 1, 2)
        assert (row["_version"], row["_due_ms"], set(row) >= {"_key_group"}) == (0, None, True)


def test_each_retained_batch_is_read_by_number_or_time(tmp_path: Path) -> None:
    """Each retained batch is read by number or time, and other batches and times are refused."""
    world = World(tmp_path, retained_versions=50, executors=["1"])
    for version in range(6):
        world.clock.advance(60)
        world.batch(version, rows_of(("a", 1, version), (f"k{version}", 1, version)))
    read = {v: read_state(world.home.root, "totals", version=v).read_all() for v in range(6)}
    assert [len(table) for table in read.values()] == [2, 3, 4, 5, 6, 7]
    written = [record.written_ms for record in open_records(world)]
    between = datetime.fromtimestamp((written[-2] + 1) / 1000, timezone.utc)
    assert content(read_state(world.home.root, "totals", time=between).read_all()) == content(read[4])
    exactly = datetime.fromtimestamp(written[-2] / 1000, timezone.utc)
    assert content(read_state(world.home.root, "totals", time=exactly).read_all()) == content(read[4])
    problems: tuple[tuple[str, dict[str, Any]], ...] = (
        ("RIFFLE-1552", {"version": 6}),
        ("RIFFLE-1553", {"time": "1970-01-01T00:00:00Z"}),
        ("RIFFLE-1554", {"time": "2026-11-26T14:00:00"}),
        ("RIFFLE-1554", {"time": "yesterday"}),
        ("RIFFLE-1559", {"time": "2026-11-26T14:00:00Z", "version": 3}),
        ("RIFFLE-1550", {"store": "other"}),
        ("RIFFLE-1557", {"key_groups": [8]}),
        ("RIFFLE-1563", {"variable": "left"}),
        ("RIFFLE-1785", {"version": -1, "store": None}),
    )
    for problem, arguments in problems:
        with pytest.raises(ConfigError, match=problem):
            read_state(world.home.root, **{"store": "totals", **arguments})


@pytest.mark.parametrize("batches", [0, 4, 10])
def test_batches_before_an_adopt_are_read(tmp_path: Path, batches: int) -> None:
    """Batches before an adopt are read, also if the new checkpoint continues at a much later batch."""
    world = World(tmp_path / "copies", retained_versions=50, executors=["1"])
    for version in range(4):
        world.batch(version, rows_of((f"k{version}", 1, version)))
    adopt(world.home.root, str(written_checkpoint(tmp_path / "new", batches, "another")), execute=True)
    world.query_id = "another"
    world.start()
    world.batch(batches, rows_of(("new", 1, 0)))
    rows = {v: read_state(world.home.root, "totals", version=v).read_all().num_rows for v in {*range(4), batches}}
    assert rows == {0: 1, 1: 2, 2: 3, 3: 4, batches: 5}


def open_records(world: World) -> list[Any]:
    """Return the records of a simulated query, oldest first."""
    log = world.log()
    tail = log.tail
    assert tail is not None
    return [log.read(sequence) for sequence in range(log.first, tail.sequence + 1)]


def test_an_object_missing_without_retention_is_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing object that retention did not delete is reported as damage."""
    monkeypatch.setattr(reading, "_THREADS", 1)
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 1)
    world = World(tmp_path, retained_versions=50, executors=["1"])
    world.batch(0, rows_of(*((f"k{n}", 1, n) for n in range(40))))
    reader = read_state(world.home.root, "totals")
    first = reader.read_next_batch()
    assert len(first)
    delta = world.memory.list("delta/")
    world.memory.delete(delta)
    with pytest.raises(CorruptStateError):
        reader.read_all()


def test_a_reader_sees_one_version_while_the_query_commits_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader returns the version that was newest when it was made, while the query commits further batches."""
    monkeypatch.setattr(reading, "_THREADS", 1)
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 1)
    world = World(tmp_path, executors=["1"], retained_versions=50, snapshot_chain_links=2)
    feed(world, 0, 3)
    expected = content(read_state(world.home.root, "totals").read_all())
    reader = read_state(world.home.root, "totals")
    batches: list[pa.RecordBatch] = []
    for version, batch in enumerate(reader, 4):
        batches.append(batch)
        feed(world, version, version)
    assert len(batches) > 2
    assert content(pa.Table.from_batches(batches, reader.schema)) == expected


@pytest.mark.usefixtures("short_cycles")
def test_the_error_for_a_batch_deleted_during_a_read_names_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If retention deletes a batch during a read, the error says so instead of reporting damage."""
    monkeypatch.setattr(reading, "_THREADS", 1)
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    monkeypatch.setattr(reading, "_PIECE_BYTES", 1)
    world = World(tmp_path, executors=["1"], snapshot_chain_links=2)
    feed(world, 0, 3)
    reader = read_state(world.home.root, "totals")
    assert len(reader.read_next_batch())
    feed(world, 4, 40)
    with pytest.raises(UnavailableError) as caught:
        reader.read_all()
    assert caught.value.id == "RIFFLE-1555"


@pytest.mark.usefixtures("short_cycles")
def test_the_batch_of_a_savepoint_is_read_after_its_retention(tmp_path: Path) -> None:
    """The batch of a savepoint is read by the savepoint's name after its retention, and a lost object is damage."""
    world = World(tmp_path, operators=two_stores(), executors=["1"], snapshot_chain_links=2)
    root = world.home.root
    feed(world, 0, 5)
    expected = {store: content(read_state(root, store).read_all()) for store in ("totals", "tails")}
    Savepoints(root).create("release")
    world.start()
    feed(world, 6, 18)
    with pytest.raises(ConfigError, match="RIFFLE-1552"):
        read_state(root, "totals", version=5)
    for store, rows in expected.items():
        reader = read_state(root, store, version="savepoint:release")
        assert reader.schema.metadata[b"riffle.version"] == b"5"
        assert content(reader.read_all()) == rows
    (row,) = read_state(root, "totals", version="savepoint:release", keys=["k3"]).read_all().to_pylist()
    assert row["count"] == 6
    for version, problem in (("savepoint:other", "RIFFLE-1571"), ("release", "RIFFLE-1710")):
        with pytest.raises(ConfigError, match=problem):
            read_state(root, "totals", version=version)
    record = open_root(root).view("savepoint:release").record
    world.memory.delete(sorted(Manifest(record.entries).object_names()))
    with pytest.raises(CorruptStateError, match="RIFFLE-0462"):
        read_state(root, "totals", version="savepoint:release").read_all()


@pytest.mark.parametrize("kind", ["truncated", "flipped"])
@pytest.mark.parametrize("keys", [None, ["k1", "k3"]])
@pytest.mark.usefixtures("short_cycles")
def test_objects_corrupted_in_transit_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str] | None, kind: str
) -> None:
    """Records, deltas and snapshots that are corrupted in transit are fetched again, and all rows are read."""
    monkeypatch.setattr(ranged_rows, "RANGED_FROM_BYTES", 1)
    world = World(tmp_path, executors=["1"], snapshot_chain_links=2)
    feed(world, 0, 5)
    Savepoints(world.home.root).create("release")
    world.start()
    feed(world, 6, 12)

    def read(*faults: Fault, version: int | str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the rows, and the names of the fetched objects in order."""
        store = FaultyStore(world.memory, faults)
        table = StateRoot(world.home.root, store, None).view(version).table("totals")
        rows = read_table(table, None if keys is None else requested_keys(keys, table.store_schema))
        return content(rows.read_all()), [name for method, name in store.calls if method == "get"]

    for version in ("savepoint:release", 11, 12):
        expected, names = read(version=version)
        assert len(expected) == (6 if keys is None else 2)
        for name in dict.fromkeys(names):
            rows, fetched = read(Fault(kind, "get", name), version=version)  # type: ignore[arg-type]
            assert rows == expected, name
            assert len(fetched) > len(names), name
    fetched_kinds = {name.split("/")[0] for name in names}
    assert fetched_kinds >= {"log", "delta", "totals"}


def feed(world: World, first: int, last: int) -> None:
    """Run batches of six keys."""
    for version in range(first, last + 1):
        world.batch(version, rows_of(*((f"k{n}", version, version * 100 + n) for n in range(6))))


def test_an_encrypted_store_is_read_only_with_its_keys(tmp_path: Path) -> None:
    """An encrypted store is read with its keys and refused without them."""
    query = EncryptedQuery(tmp_path, "a")
    query.run(4)
    table = read_state(query.world.home.root, "totals", encryption_keys=f"file:{query.file}").read_all()
    assert {row["k"]: (row["count"], row["total"]) for row in table.to_pylist()} == query.oracle.totals
    with pytest.raises(RefusedError) as caught:
        read_state(query.world.home.root, "totals")
    assert caught.value.id == "RIFFLE-1558"
    query.give("b")
    with pytest.raises(RefusedError):
        read_state(query.world.home.root, "totals", encryption_keys=f"file:{query.file}").read_all()


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_roots_of_the_first_format_are_read(archive: Path, tmp_path: Path) -> None:
    """Roots with parts of the first format are read, for plain stores and for variables."""
    old = OldRoot(archive, tmp_path)
    expected = old.oracle(22).state

    def rows(store: str, variable: str | None = None) -> list[dict[str, Any]]:
        return read_state(old.root, store, variable=variable).read_all().to_pylist()

    assert {row["k"]: [row["rows"], row["total"]] for row in rows("totals")} == expected["totals"]
    assert {row["k"]: row["last"] for row in rows("tails")} == expected["tails"]
    key = next(iter(expected["totals"]))
    (row,) = read_state(old.root, "totals", keys=[key]).read_all().to_pylist()
    assert [row["rows"], row["total"]] == expected["totals"][key]
    assert {row["k"]: row["due_ms"] for row in rows("diary", TIMER)} == {
        key: value["timer"] for key, value in expected["diary"].items() if value["timer"] is not None
    }
    counts: dict[str, dict[str, int]] = {key: {} for key in expected["diary"]}
    for row in rows("diary", "counts"):
        counts[row["k"]][str(row["_v"] if "_v" in row else row["v"])] = row["n"]
    assert counts == {key: value["counts"] for key, value in expected["diary"].items()}
    lists: dict[str, list[int]] = {key: [] for key in expected["diary"]}
    for row in sorted(rows("diary", "values"), key=lambda row: row["index"]):
        lists[row["k"]].append(row["v"])
    assert lists == {key: value["values"] for key, value in expected["diary"].items()}


@pytest.mark.parametrize("name", ["0.1-latin-text", "0.1-bounded-text", "0.1-aggregates"])
def test_other_old_roots_are_read(name: str, tmp_path: Path) -> None:
    """Every store and variable of other old roots gives rows."""
    with tarfile.open(DATA / "roots" / name / "state.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    roots = {path.parent for path in tmp_path.rglob("log") if path.is_dir()}
    assert roots
    for root in roots:
        view = open_root(f"file://{root}").view()
        for store in view.record.schemas:
            names: list[str | None] = view.schema(store).either(
                lambda _: [None], lambda variables: [*variables.by_name]
            )
            counts = [len(read_state(f"file://{root}", store, variable=name).read_all()) for name in names]
            assert sum(counts) > 0


def test_objects_are_fetched_as_the_caller_proceeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Objects are fetched as the caller proceeds, so that the first batch of 64 key-groups takes few requests."""
    monkeypatch.setattr(reading, "_PIECE_BYTES", 1)
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    with visits(key_groups=64) as query:
        query.feed([{"user": f"user-{n}", "amount": n} for n in range(2000)])
        table = open_root(query.root).view().table(None)
        store = table.view.root.objects
        before = store.requests["get"]
        reader = reading.read_table(table)
        reader.read_next_batch()
        assert store.requests["get"] - before < 8
        del reader


def test_keys_that_share_a_hash_are_distinguished() -> None:
    """Keys that share a hash are distinguished, within one part and in several."""
    from tests.state.copies.test_run import PAIRS, TWINS

    operator_of_pairs = Stateful("s", ("a", "b"), aggregate(n=count()))
    with Harness(operator_of_pairs, PAIRS.key, snapshot_chain_links=2) as query:
        expected: dict[tuple[int, int], int] = {}
        for some in (TWINS[:3], TWINS[2:5], TWINS[:1], TWINS, TWINS[1:2]):
            query.feed([{"a": a, "b": b} for a, b in some])
            expected |= {key: expected.get(key, 0) + 1 for key in some}
            rows = read_state(query.root).read_all().to_pylist()
            assert {(row["a"], row["b"]): row["n"] for row in rows} == expected
        for key, total in expected.items():
            (row,) = read_state(query.root, keys=[key]).read_all().to_pylist()
            assert row["n"] == total


def test_one_key_takes_few_requests() -> None:
    """One key takes a LIST, two records of the log, and one GET per part, whatever the number of key-groups."""
    with visits(key_groups=64) as query:
        query.feed([{"user": f"user-{n}", "amount": n} for n in range(2000)])
        query.feed([{"user": "user-7", "amount": 1}])
        root = open_root(query.root)
        table = root.view().table(None)
        rows = reading.read_table(table, requested_keys(["user-7"], table.store_schema)).read_all()
        assert rows["total"].to_pylist() == [8]
        assert sum(root.objects.requests.values()) <= 5
