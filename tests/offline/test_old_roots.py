"""Roots of earlier versions are read, continued and rolled back, with and without their local copies."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError

from riffle_spark.offline.recovery import rollback
from riffle_spark.state.copies.folder import claim_folder
from riffle_spark.state.log.log import Log
from riffle_spark.state.restore.reader import Reader
from riffle_spark.state.restore.stack_keeper import StackKeeper
from riffle_spark.state.schemas.store_schema import StoreSchema, make_recorded_text, schema_of_text
from riffle_spark.state.schemas.variable_kinds import VARIABLE
from riffle_spark.state.schemas.variables import VariableColumns
from tests.kit.folders import DATA
from tests.kit.roots import bounded_text_query
from tests.kit.roots.folder_query import unpack_root
from tests.kit.roots.latin_query import KEYS, LatinQuery
from tests.kit.roots.old_root import ARCHIVES, OldRoot


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldRoot:
    """Return a root of each earlier version."""
    return OldRoot(request.param, tmp_path)


def test_the_archives_contain_a_root_of_the_first_format() -> None:
    """The archives contain a root of the first format."""
    assert "0.1-format1" in [path.name for path in ARCHIVES]


def test_the_state_of_an_old_root_equals_what_was_written(old: OldRoot) -> None:
    """The state that is read from an old root's objects equals the state that it was written with."""
    tail = old.tail()
    assert (tail.version, tail.epoch, tail.rollbacks) == (22, 4, 1)
    assert old.committed_state() == old.oracle(22).state


@pytest.mark.parametrize("copies", ["there", "gone"])
@pytest.mark.sample("0.1-format1-gone")
def test_a_query_continues_on_an_old_root(old: OldRoot, copies: str) -> None:
    """A query continues on an old root with correct results, and restores copies because it ignores old ones."""
    if copies == "gone":
        shutil.rmtree(old.local)
    old.start()
    oracle = old.oracle(22)
    restores = [old.batch(oracle).restores for _ in range(4)]
    assert old.committed_state() == oracle.state
    assert (restores[0] > 0, sum(restores[1:])) == (True, 0)
    assert len(list(old.local.glob("*/owner"))) == 1


@pytest.mark.parametrize("copies", ["there", "gone"])
def test_a_root_with_text_that_is_not_utf8_is_continued(tmp_path: Path, copies: str) -> None:
    """A root with text that is not UTF-8 is continued, although an earlier version could not read it."""
    unpack_root(DATA / "roots" / "0.1-latin-text" / "state.tar.gz", tmp_path, copies=copies == "there")
    for count in (2, 3):
        texts = [b"\xe9%d" % version for version in range(count)]
        assert LatinQuery(tmp_path).feed_keys() == dict.fromkeys(KEYS, (count, texts))


@pytest.mark.parametrize("copies", ["there", "gone"])
def test_state_with_bounded_text_is_continued_with_string(tmp_path: Path, copies: str) -> None:
    """State with ``varchar(5)``, which is refused today, is continued with ``string``."""
    unpack_root(DATA / "roots" / "0.1-bounded-text" / "state.tar.gz", tmp_path, copies=copies == "there")
    with pytest.raises(PySparkRuntimeError, match="Declare a plain STRING"):
        bounded_text_query.feed(tmp_path, "varchar(5)")
    keys = bounded_text_query.KEYS
    state = bounded_text_query.feed(tmp_path, "string")
    assert state == {key: f"{key}0 ['{key}0'] [('{key}0', '{key}0')]" for key in keys}
    state = bounded_text_query.feed(tmp_path, "string")
    texts = {key: [f"{key}0", f"{key}1"] for key in keys}
    assert state == {key: f"{key}1 {texts[key]} {[(text, text) for text in texts[key]]}" for key in keys}


def test_first_format_copies_for_another_declaration_are_not_reused(old: OldRoot, tmp_path: Path) -> None:
    """Copies that were restored from first-format snapshots for another declaration are not reused."""
    log = Log(old.objects, old.root)
    tail = log.open()
    assert tail is not None
    of_variables = [(store, text) for store, text in tail.schemas.items() if "variables" in text]
    unpacked = 0
    for store, text in of_variables:
        full = VariableColumns.of_text(store, text)
        entries = {kg: entry for (of, kg), entry in log.manifest.entries.items() if of == store}
        unpacked += sum(entry.snapshot is not None for entry in entries.values())

        def keeper(folder: Path, schema: StoreSchema) -> StackKeeper:
            return StackKeeper(claim_folder(folder, "reader", ()), schema, Reader(old.objects), tail.epoch + 9)

        tables = keeper(tmp_path / store, full).read_tables(entries)
        for number, removed_variable in enumerate(full.variables):
            folder = tmp_path / f"{store}{number}"
            left = replace(
                full, variables=tuple(variable for variable in full.variables if variable is not removed_variable)
            )
            without = make_recorded_text(text, left, tail.epoch + 1)
            assert keeper(folder, schema_of_text(store, without)).advance(entries)[1].restores == len(entries)
            assert keeper(folder, full).read_tables(entries) == tables
            other = replace(
                removed_variable,
                value=pa.schema([(name, pa.list_(pa.int8())) for name in removed_variable.value.names]),
            )
            changed = replace(left, variables=(*left.variables, other))
            after = schema_of_text(store, make_recorded_text(without, changed, tail.epoch + 2))
            for place in (folder, tmp_path / f"{store}{number} anew"):
                tables_after = keeper(place, after).read_tables(entries).values()
                assert (
                    removed_variable.name
                    not in pa.chunked_array([table.column(VARIABLE) for table in tables_after]).to_pylist()
                )
    assert unpacked


@pytest.mark.parametrize(("to", "batches"), [(11, 0), (18, 2), (20, 0)])
@pytest.mark.sample("0.1-format1-18-2")
def test_an_old_root_is_rolled_back_and_continued(old: OldRoot, to: int, batches: int) -> None:
    """An old root is rolled back to batches before and after the upgrade, and the query continues from there."""
    old.start()
    ahead = old.oracle(22)
    for _ in range(batches):
        old.batch(ahead)
    rollback(old.root, to, old.checkpoint, execute=True)
    oracle = old.oracle(to)
    assert old.committed_state() == oracle.state
    old.start()
    for _ in range(2):
        old.batch(oracle)
    assert old.committed_state() == oracle.state
    assert old.tail().rollbacks == 2
