"""`riffle ls` finds roots, reports damaged ones, and sends few requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.offline import root_search
from riffle_spark.offline.root_search import RootSearch, find_roots
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.state.drawn_records import PLAIN


def _listed(prefix: str, *options: str) -> tuple[Result, dict[str, str]]:
    """Run the command. Return its result, and the health of each root by its path below the prefix."""
    done = CliRunner().invoke(main, ["ls", prefix, "--json", *options])
    queries = json.loads(done.stdout)["queries"]
    return done, {query["root"].removeprefix(f"{prefix}/"): query["health"] for query in queries}


def _make_root(url: str) -> ObjectStore:
    """Write a log with one record, and return the store of the root."""
    objects = open_store(url)
    log = Log(objects, url)
    log.open()
    log.append(replace(PLAIN, version=4), Manifest())
    return objects


def test_a_log_folder_of_another_program_is_not_a_root(tmp_path: Path) -> None:
    """A folder `log` with other files or folders is no root, and roots below and beside it are listed."""
    prefix = f"file://{tmp_path}"
    for folder, name in (("app", "driver.out"), ("table", "00000000000000000001.json"), ("old", "1/x"), ("empty", "")):
        path = tmp_path / folder / "log" / name
        path.parent.mkdir(parents=True)
        path.touch() if name else None
    _make_root(f"{prefix}/app/state")
    _make_root(f"{prefix}/counts")
    done, roots = _listed(prefix)
    assert (done.exit_code, roots) == (0, {"app/state": "unknown", "counts": "unknown"})
    assert _listed(f"{prefix}/counts")[1] == {prefix + "/counts": "unknown"}


def test_damaged_roots_are_listed_with_the_error(tmp_path: Path) -> None:
    """A root with a damaged newest record or status is listed with the error, others are listed too, and the exit code
    is 1.
    """
    prefix = f"file://{tmp_path}"
    _make_root(f"{prefix}/a")
    for folder, name in (("b", paths.record_name(1)), ("c", paths.STATUS)):
        _make_root(f"{prefix}/{folder}").put_if_absent(name, b"damaged")
    done, roots = _listed(prefix)
    assert (done.exit_code, roots) == (1, {"a": "unknown", "b": "damaged", "c": "damaged"})
    shown = CliRunner().invoke(main, ["ls", prefix])
    assert shown.exit_code == 1
    errors = [line for line in shown.stderr.splitlines() if line.startswith("file:")]
    assert [line.partition(": ")[0].removeprefix(f"{prefix}/") for line in errors] == ["b", "c"]
    assert all("RIFFLE-" in line for line in errors)


class WatchedStore(MemoryStore):
    """A memory store that records the listed folders in ``folders`` and the length of each listing in ``lists``."""

    def __init__(self) -> None:
        super().__init__()
        self.folders: list[str] = []
        self.lists: dict[str, int] = {}

    def list(self, prefix: str) -> list[str]:
        """Return the names that start with ``prefix``."""
        names = super().list(prefix)
        self.lists[prefix] = len(names)
        return names

    def list_folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders directly below ``prefix``."""
        self.folders.append(prefix)
        names = super().list_folders(prefix)
        del self.lists[prefix]  # a memory store derives folders from names
        return names


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> WatchedStore:
    """Return the store that a search reads."""
    objects = WatchedStore()
    monkeypatch.setattr(root_search, "open_store", lambda *_: objects)
    return objects


def test_a_search_sends_one_list_per_folder(store: WatchedStore) -> None:
    """A search sends one LIST per folder and one more per folder with a log, however many objects the folders have."""
    for number in range(40):
        for record in range(3):
            store.put_if_absent(f"team/q{number:02d}/{paths.record_name(record)}", b"")
        store.put_if_absent(f"team/q{number:02d}/delta/00000000000000000001/x", b"")
    for number in range(5_000):
        store.put_if_absent(f"app/log/driver-{number}.out", b"")
        store.put_if_absent(f"app/data-{number}", b"")
    search = find_roots("memory://x")
    assert (len(search.roots), search.is_complete) == (40, True)
    roots = [f"team/q{number:02d}/" for number in range(40)]
    assert sorted(store.folders) == sorted(["", "app/", "app/log/", "team/", *roots])
    assert store.lists == {"app/log/00000000": 0, **{f"{root}log/00000000": 3 for root in roots}}
    assert {kind for kind, count in store.requests.items() if count} <= {"put", "list"}


def test_a_search_stops_after_folders_max_folders(store: WatchedStore) -> None:
    """A search stops after ``folders_max`` folders and reads those near the prefix first."""
    for number in range(300):
        store.put_if_absent(f"table/date={number:03d}/hour=1/part-0", b"")
    store.put_if_absent(f"zz/{paths.record_name(0)}", b"")
    assert find_roots("memory://x", folders_max=100) == RootSearch(("memory://x/zz",), is_complete=False)
    assert (len(store.folders), len(store.lists)) == (100, 1)
    assert find_roots("memory://x", depth=1) == RootSearch(("memory://x/zz",), is_complete=True)
    assert len(store.folders) == 100 + 3


def test_an_incomplete_search_exits_with_1(tmp_path: Path) -> None:
    """An incomplete search exits with 1, so that no script mistakes its list for complete."""
    for number in range(root_search.FOLDERS_MAX + 1):
        (tmp_path / "table" / f"date={number}").mkdir(parents=True)
    _make_root(f"file://{tmp_path}/counts")
    done, roots = _listed(f"file://{tmp_path}")
    assert (done.exit_code, roots, "RIFFLE-1491" in done.stderr) == (1, {"counts": "unknown"}, True)
    assert json.loads(done.stdout)["is_complete"] is False
    assert _listed(f"file://{tmp_path}", "--depth", "1")[0].exit_code == 0
