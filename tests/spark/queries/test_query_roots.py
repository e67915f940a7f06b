"""Queries that share a root each have their own root below it, and find it again. These tests start no Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from riffle_spark.messages.slot_orders import Home
from riffle_spark.offline.verify import verify
from riffle_spark.protocol.batch.records import Stamp, first_record
from riffle_spark.spark.queries import query_roots
from riffle_spark.spark.queries.query_roots import NewQuery, choose_root, exact_root, mark_started
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.query_roots import only_root, query_names, root_of
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.testing import home_of

COUNTS = NewQuery(None, None, "file:/checkpoints/counts", ["aggregate.page"])
USERS = NewQuery(None, None, "file:/checkpoints/users", ["aggregate.user"])


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An empty root."""
    return home_of(f"file://{tmp_path}/state", tmp_path / "local")


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The roots that this process has started. A test clears them to simulate another process."""
    started = set[str]()
    monkeypatch.setattr(query_roots, "_started", started)
    return started


def commit(root: str, query_id: str, *stores: str) -> None:
    """Write the first record of a query's log."""
    log = Log(open_store(root), root)
    log.open()
    record = first_record(query_id, 8, "key_group", Stamp("0" * 32, 0))
    columns = pa.schema([("n", pa.int64())])
    schemas = {store: PlainColumns(store, columns, columns).to_text() for store in stores}
    log.append(replace(record, schemas=schemas), log.manifest)


def start(home: Home, query: NewQuery, query_id: str) -> str:
    """Start a new query, run its first batch, and return its root."""
    root = choose_root(home, query).root
    mark_started(root)
    commit(root, query_id, *query.stores)
    return root


def test_each_query_has_its_own_root_and_finds_it_again(home: Home, process: set[str]) -> None:
    """Each query gets its own root, and gets the same one in another process, also if it is started alone."""
    counts, users = start(home, COUNTS, "c"), start(home, USERS, "u")
    assert counts != users
    assert {counts, users} == {root_of(home.root, name) for name in query_names(open_store(home.root))}
    process.clear()
    assert choose_root(home, replace(USERS, query_id="u")).root == users
    process.clear()
    opened = choose_root(home, replace(COUNTS, query_id="c"))
    assert (opened.root, opened.tail and opened.tail.query_id) == (counts, "c")


def test_a_root_has_the_name_of_its_query_or_else_of_its_checkpoint(home: Home) -> None:
    """A root is named after its query, or after the checkpoint if the query has no name. Unsafe characters are
    replaced.
    """
    assert start(home, replace(COUNTS, name="by_page"), "c") == f"{home.root}/query=by_page"
    assert start(home, replace(USERS, name="by user/äöü"), "u").startswith(f"{home.root}/query=by_user____-")
    third = replace(USERS, stores=["distinct.k"], checkpoint="file:/checkpoints/third")
    assert start(home, third, "d").startswith(f"{home.root}/query=third-")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "named_later"},
        {"checkpoint": "s3a://bucket/moved/counts"},
        {"name": "users"},
        {"stores": ["other"]},
        {"checkpoint": None},
    ],
)
def test_a_query_with_its_id_continues_whatever_else_changed(
    home: Home, process: set[str], change: dict[str, object]
) -> None:
    """A query with a known id keeps its root if its name, checkpoint or stores change, or if its name is another
    query's.
    """
    counts = start(home, COUNTS, "c")
    start(home, replace(USERS, name="users"), "u")
    process.clear()
    assert choose_root(home, replace(COUNTS, query_id="c", **change)).root == counts  # type: ignore[arg-type]


def test_a_query_keeps_the_existing_root_with_its_log(home: Home, process: set[str]) -> None:
    """A query whose log is directly below the root keeps it, as in earlier versions. A second query gets its own root
    below.
    """
    commit(home.root, "c", "aggregate.page")
    assert choose_root(home, replace(COUNTS, query_id="c", name="any")).root == home.root
    assert start(home, USERS, "u").startswith(f"{home.root}/query=users-")
    process.clear()
    assert choose_root(home, replace(COUNTS, query_id="c")).root == home.root


@pytest.mark.parametrize("name", [None, "counts"])
def test_a_new_checkpoint_does_not_lose_the_state_silently(home: Home, process: set[str], name: str | None) -> None:
    """A query with a new checkpoint gets the root of its earlier start, so that its first batch is refused with a
    remedy.
    """
    earlier = replace(COUNTS, name=name)
    counts = start(home, earlier, "c")
    start(home, USERS, "u")
    process.clear()
    deleted = choose_root(home, earlier)
    assert (deleted.root, deleted.tail and deleted.tail.query_id) == (counts, "c")
    process.clear()
    elsewhere = choose_root(home, replace(earlier, checkpoint="file:/checkpoints/other"))
    assert elsewhere.root == counts
    process.clear()
    assert choose_root(home, replace(earlier, checkpoint="file:/checkpoints/other", query_id="new")).root == counts
    assert len(query_names(open_store(home.root))) == 2


def test_a_query_with_a_new_checkpoint_gets_the_existing_root(home: Home, process: set[str]) -> None:
    """A query with a new checkpoint gets an existing root, whatever its name is. Only a separate root starts it without
    state.
    """
    commit(home.root, "c", "aggregate.page", "unused")
    for query in (COUNTS, replace(COUNTS, name="counts")):
        assert choose_root(home, query).root == home.root
        process.clear()
    assert exact_root(replace(home, root=f"{home.root}/own")).root == f"{home.root}/own"


def test_two_queries_of_one_process_may_have_the_same_operators(home: Home, process: set[str]) -> None:
    """Two queries of one process with the same operators get separate roots.

    In another process, a further query with these operators needs a name to get its own root.
    """
    other = replace(COUNTS, checkpoint="file:/checkpoints/files")
    counts, files = start(home, COUNTS, "c"), start(home, other, "f")
    assert counts != files
    process.clear()
    assert choose_root(home, replace(other, query_id="f")).root == files
    third = replace(COUNTS, checkpoint="file:/checkpoints/third")
    process.clear()
    assert choose_root(home, third).root in (counts, files)
    assert choose_root(home, replace(third, name="third")).root == f"{home.root}/query=third"


def test_a_query_that_ended_before_its_first_batch_keeps_its_root(home: Home, process: set[str]) -> None:
    """A query that ended before its first batch gets the same root at its next start."""
    start(home, USERS, "u")
    other = replace(USERS, checkpoint="file:/checkpoints/other")
    root = choose_root(home, other).root
    process.clear()
    assert choose_root(home, replace(other, query_id="o")).root == root


def test_a_temporary_checkpoint_has_a_new_root_each_time(home: Home) -> None:
    """A query with a temporary checkpoint gets a new root at each start, because it starts without state in
    Spark too.
    """
    temporary = replace(COUNTS, checkpoint=None, name="shown")
    assert start(home, temporary, "t1") != start(home, temporary, "t2")


def test_a_command_uses_the_only_query_of_a_root_or_lists_several(home: Home) -> None:
    """A command on a shared root uses its only query. If there are several, the error lists them."""
    assert only_root(home.root) == home.root
    counts = start(home, COUNTS, "c")
    assert only_root(home.root) == counts
    assert verify(home.root).is_whole
    choose_root(home, replace(USERS, name="never_ran"))
    assert only_root(home.root) == counts
    users = start(home, USERS, "u")
    with pytest.raises(ConfigError, match="RIFFLE-1121") as caught:
        only_root(home.root)
    assert counts in caught.value.remedy
    assert users in caught.value.remedy
    shown = CliRunner().invoke(main, ["verify", home.root])
    assert (shown.exit_code, users in shown.output) == (1, True), shown.output
    assert CliRunner().invoke(main, ["verify", users]).exit_code == 0


def test_verify_ignores_the_queries_below_an_existing_root(home: Home) -> None:
    """The verification of a query in an existing root ignores the queries below it."""
    commit(home.root, "c", "aggregate.page")
    start(home, USERS, "u")
    result = verify(home.root)
    assert (result.is_whole, result.findings) == (True, ())


def test_a_job_is_refused_on_a_root_of_wrapped_queries(home: Home) -> None:
    """A ``Stateful`` job is refused on a root that has queries below it, because its log would be taken for theirs."""
    start(home, COUNTS, "c")
    with pytest.raises(ConfigError, match="RIFFLE-1122"):
        Log(open_store(home.root), home.root).open()
