"""What every object store promises, on memory, on files and on a real S3 server; then what is particular to files."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.state.faulty import Fault, FaultyStore
from riffle_spark.state.memory import MemoryStore
from riffle_spark.state.objects import ObjectStore
from riffle_spark.state.root import StoreOptions, normalised, open_store, root_id
from tests.state.object_server import ObjectServer

BODY = bytes(range(256))
STRANGE_NAMES = ["a b/c+d", "a%20b", "key=ü&x/é", "<tag>/'quoted\"", "log;v/#1?x=y", "~/a\\b"]


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=pytest.mark.cluster)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """A function that opens the same, at first empty, root anew at each call."""
    if request.param == "s3":
        server = request.getfixturevalue("object_server")
        url, options = server.new_root(), server.options
    else:
        url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/root"
        options = StoreOptions()
    return lambda: open_store(url, options)


@pytest.fixture
def store(opened: Callable[[], ObjectStore]) -> ObjectStore:
    """A store on an empty root."""
    return opened()


class TestEveryStore:
    """The contract of ``ObjectStore``."""

    @pytest.mark.parametrize("size", [0, 1, 10_000_000])
    def test_an_object_is_read_as_it_was_written(self, store: ObjectStore, size: int) -> None:
        """Bytes come back whole, whether there are none or ten million."""
        data = (BODY * (size // 256 + 1))[:size]
        assert store.put_if_absent("log/1", data)
        assert store.get("log/1") == data

    def test_the_first_put_wins(self, opened: Callable[[], ObjectStore]) -> None:
        """A second put of a name says so and changes nothing, whoever sends it."""
        assert opened().put_if_absent("log/1", b"first")
        assert not opened().put_if_absent("log/1", b"second")
        assert opened().get("log/1") == b"first"

    def test_a_missing_object_is_no_error(self, store: ObjectStore) -> None:
        """On an empty root nothing is found, and nothing is raised."""
        assert store.get("log/1") is None
        assert store.get("log/1", 5, 0) is None
        assert not store.exists("log/1")
        assert store.list("") == []
        store.delete(["log/1", "log/2"])
        store.delete([])

    @pytest.mark.parametrize(
        ("start", "length"),
        [(0, 1), (0, 256), (0, 999), (3, 4), (255, 1), (250, 99), (7, None), (256, None), (300, 5), (4, 0)],
    )  # fmt: skip
    def test_a_range_is_a_slice(self, store: ObjectStore, start: int, length: int | None) -> None:
        """A ranged get returns what slicing the object would."""
        store.put_if_absent("delta/1", BODY)
        assert store.get("delta/1", start, length) == BODY[start : None if length is None else start + length]

    def test_a_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        """An object without bytes is there, and has no bytes in any range."""
        store.put_if_absent("delta/1", b"")
        assert store.exists("delta/1")
        assert [store.get("delta/1"), store.get("delta/1", 0, 9), store.get("delta/1", 9)] == [b"", b"", b""]

    def test_list_returns_the_names_with_a_prefix_in_order(self, store: ObjectStore) -> None:
        """A prefix may end anywhere; names come sorted as strings, not folder by folder."""
        names = ["a", "ab/c", "ab/c-d", "ab-c", "b/1/2/3", "b/1/20", "b/10"]
        for name in reversed(names):
            store.put_if_absent(name, b"")
        for prefix in ("", "a", "ab", "ab/", "ab/c", "b/1", "b/1/", "b/1/2", "b/1/2/", "c", "c/d"):
            assert store.list(prefix) == sorted(name for name in names if name.startswith(prefix)), prefix

    def test_names_may_hold_any_printable_character(self, store: ObjectStore) -> None:
        """Signs that mean something in URLs or XML are only signs."""
        for name in STRANGE_NAMES:
            assert store.put_if_absent(name, name.encode())
        assert store.list("") == sorted(STRANGE_NAMES)
        assert [store.get(name) for name in STRANGE_NAMES] == [name.encode() for name in STRANGE_NAMES]
        store.delete(STRANGE_NAMES)
        assert store.list("") == []

    def test_a_deleted_name_is_free(self, store: ObjectStore) -> None:
        """Delete removes what is named and nothing else, and a put may then take the name."""
        for name in ("log/1", "log/2", "log/20"):
            store.put_if_absent(name, b"old")
        store.delete(["log/2", "log/3", "log/2"])
        assert store.list("") == ["log/1", "log/20"]
        assert store.put_if_absent("log/2", b"new")
        assert store.get("log/2") == b"new"

    @pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../../b", "a/.b", "a\nb", "a\0b"])
    def test_a_name_that_could_leave_the_root_is_refused(self, store: ObjectStore, name: str) -> None:
        """Every call checks names, and a refused call sends nothing."""
        calls: list[Callable[[], object]] = [
            lambda: store.put_if_absent(name, b""),
            lambda: store.get(name),
            lambda: store.exists(name),
            lambda: store.delete(["fine", name]),
            lambda: store.list(f"{name}/"),
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()
        assert not any(store.requests.values())

    @pytest.mark.parametrize(("start", "length"), [(-1, None), (0, -1), (-1, 2)])
    def test_a_negative_range_is_refused(self, store: ObjectStore, start: int, length: int | None) -> None:
        """Ranges do not count from the end."""
        with pytest.raises(ConfigError):
            store.get("log/1", start, length)

    def test_every_call_is_one_counted_request(self, store: ObjectStore) -> None:
        """One call, found or not, is one request of its kind."""
        for _ in range(2):
            store.put_if_absent("log/1", b"abc")
        for name in ("log/1", "log/2", "log/3"):
            store.get(name, 1, 1)
        for _ in range(4):
            store.exists("log/1")
        store.list("log/")
        store.delete(["log/1", "log/2"])
        assert store.requests == {"put": 2, "get": 3, "head": 4, "list": 1, "delete": 1}

    def test_a_pickled_store_reaches_the_same_objects(self, store: ObjectStore) -> None:
        """A pickle is small, is the same place elsewhere, and counts from zero."""
        store.put_if_absent("log/1", b"abc")
        pickled = pickle.dumps(store)
        copy: ObjectStore = pickle.loads(pickled)
        assert len(pickled) < 500
        assert not any(copy.requests.values())
        assert copy.get("log/1") == b"abc"
        assert store.requests["get"] == 0

    def test_threads_share_a_store(self, store: ObjectStore) -> None:
        """Many threads at once lose no object and no count."""
        names = [f"delta/{number}" for number in range(40)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda name: store.put_if_absent(name, name.encode()), names))
            assert list(pool.map(store.get, names)) == [name.encode() for name in names]
        assert store.requests["put"] == store.requests["get"] == 40

    def test_of_many_puts_at_once_one_wins(
        self, opened: Callable[[], ObjectStore], request: pytest.FixtureRequest
    ) -> None:
        """One caller alone is told that it wrote, and its bytes are there."""
        if "s3" in request.node.callspec.id:
            pytest.skip("the test server looks and writes in two steps; S3 itself does it in one")
        stores = [opened() for _ in range(8)]
        for number in range(25):
            name = f"log/{number}"
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(lambda i, n=name: stores[i].put_if_absent(n, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert stores[0].get(name) == b"%d" % won.index(True)


@pytest.fixture
def forked(opened: Callable[[], ObjectStore], request: pytest.FixtureRequest) -> ObjectStore:
    """A store whose objects another process can see."""
    if "memory" in request.node.callspec.id:
        pytest.skip("memory is not shared between processes")
    return opened()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_store_works_on_both_sides_of_a_fork(forked: ObjectStore) -> None:
    """A child that inherits a used store can go on with it, and so can the parent at the same time."""
    forked.put_if_absent("log/0", b"before")
    child = os.fork()
    if child == 0:
        well = False
        with contextlib.suppress(BaseException):
            well = all(forked.put_if_absent(f"child/{n}", b"c") and forked.get("log/0") == b"before" for n in range(20))
        os._exit(0 if well else 1)
    assert all(forked.put_if_absent(f"parent/{n}", b"p") and forked.get("log/0") == b"before" for n in range(20))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(forked.list("")) == 41


@pytest.mark.cluster
def test_more_than_a_thousand_objects_are_listed_and_deleted_in_pages(object_server: ObjectServer) -> None:
    """S3 gives and takes a thousand names at a time; two pages are two requests."""
    store = open_store(object_server.new_root(), object_server.options)
    names = sorted(f"delta/{number}" for number in range(1001))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda name: store.put_if_absent(name, b""), names))
    assert store.list("delta/") == names
    store.delete(names)
    assert store.list("") == []
    assert store.requests == {"put": 1001, "get": 0, "head": 0, "list": 3, "delete": 2}


class TestDirectory:
    """What is particular to files."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """A root that is not there yet."""
        return tmp_path / "root"

    @pytest.fixture
    def store(self, root: Path) -> ObjectStore:
        """A store on it."""
        return open_store(f"file://{root}")

    def test_an_object_is_a_file_of_its_name(self, store: ObjectStore, root: Path) -> None:
        """State can be read without us."""
        store.put_if_absent("totals/key_group=0042/snapshot/7", b"abc")
        assert (root / "totals/key_group=0042/snapshot/7").read_bytes() == b"abc"

    def test_what_a_crash_left_is_never_listed_and_goes_after_a_day(self, store: ObjectStore, root: Path) -> None:
        """A write that was cut short is no object; a young one may still be under way and stays."""
        store.put_if_absent("log/1", b"abc")
        old, young = root / ".unfinished/old", root / ".unfinished/young"
        for leftover in (old, young):
            leftover.write_bytes(b"ab")
        os.utime(old, (0, time.time() - 25 * 3600))
        assert store.list("") == ["log/1"]
        open_store(f"file://{root}").put_if_absent("log/2", b"abc")
        assert (old.exists(), young.exists()) == (False, True)

    def test_puts_leave_nothing_behind(self, store: ObjectStore, root: Path) -> None:
        """Neither a put that won nor one that lost leaves a file of its own."""
        for _ in range(2):
            store.put_if_absent("log/1", b"abc")
        assert [str(path.relative_to(root)) for path in sorted(root.rglob("*"))] == [".unfinished", "log", "log/1"]

    def test_empty_directories_go_with_their_last_object(self, store: ObjectStore, root: Path) -> None:
        """A million versions do not leave a million directories."""
        store.put_if_absent("delta/1/a", b"")
        store.put_if_absent("delta/2/a", b"")
        store.delete(["delta/1/a"])
        assert [path.name for path in (root / "delta").iterdir()] == ["2"]
        store.delete(["delta/2/a"])
        assert root.exists()
        assert not (root / "delta").exists()

    def test_puts_and_deletes_of_one_directory_do_not_disturb_each_other(self, store: ObjectStore) -> None:
        """A put does not fail because a delete has just taken its directory away."""

        def come_and_go(thread: int) -> bool:
            names = [f"delta/1/{thread}-{number}" for number in range(60)]
            return all(store.put_if_absent(name, b"") and not store.delete([name]) for name in names)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(come_and_go, range(4)))
        assert store.list("") == []

    def test_processes_exclude_each_other(self, store: ObjectStore, root: Path) -> None:
        """Of three processes that put the same fifty names, one alone is told that it wrote each."""
        program = (
            "import sys; from riffle_spark.state.root import open_store\n"
            "store = open_store(sys.argv[1]); input()\n"
            "print(*(n for n in range(50) if store.put_if_absent(f'log/{n}', sys.argv[2].encode())))"
        )
        command = [sys.executable, "-c", program, f"file://{root}"]
        processes = [
            subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for i in range(3)
        ]
        for process in processes:
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=60)[0].split() for process in processes]
        won = {int(number): i for i, output in enumerate(outputs) for number in output}
        assert sum(map(len, outputs)) == len(won) == 50
        assert {n: int(store.get(f"log/{n}") or b"") for n in range(50)} == won

    def test_a_file_in_the_way_is_a_wrong_root(self, root: Path) -> None:
        """A root that cannot be a directory is refused with its name, not with a traceback of the file system."""
        root.write_bytes(b"")
        with pytest.raises(ConfigError, match="root") as caught:
            open_store(f"file://{root}/below").put_if_absent("log/1", b"")
        assert str(root) in caught.value.where
        assert caught.value.remedy

    def test_a_name_that_is_a_directory_is_refused(self, store: ObjectStore) -> None:
        """A put never says that an object was there where there is only a directory."""
        store.put_if_absent("log/1", b"")
        with pytest.raises(ConfigError):
            store.put_if_absent("log", b"")
        assert store.get("log") is None
        assert not store.exists("log")

    def test_a_full_disk_leaves_no_object(self, store: ObjectStore) -> None:
        """Bytes that do not fit are an error that says so, and are not listed; smaller ones still go in."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(UnavailableError) as caught:
                store.put_if_absent("log/1", b"x" * 200_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "disk" in caught.value.remedy
        assert store.list("") == []
        assert store.put_if_absent("log/1", b"x")


class TestRoots:
    """Which URLs name a root."""

    @pytest.mark.parametrize(
        "url",
        ["", "s3", "s3://", "s3:///a", "s3a://b/p", "/tmp/a", "file://a/b", "file://", "file:///", "file:/a", "memory://",
         "memory:///a", " memory://a", "memory://a ", "s3://b/../c", "file:///a/./b", "s3://b\n/c", "http://a/b", "s3://b_%/p",
         "S3://bucket/p", "gs://b/p"],
    )  # fmt: skip
    def test_any_other_url_is_refused_with_what_is_allowed(self, url: str) -> None:
        """The error names the three kinds of root there are."""
        with pytest.raises(ConfigError) as caught:
            open_store(url)
        assert all(kind in caught.value.remedy for kind in ("s3://bucket/prefix", "file:///path", "memory://name"))

    def test_a_url_with_a_password_is_not_repeated(self) -> None:
        """An error about a URL does not spread what is secret in it."""
        with pytest.raises(ConfigError) as caught:
            open_store("s3://someone:hunter2@bucket/prefix")
        assert "hunter2" not in str(caught.value)

    def test_spellings_of_one_root_have_one_id(self) -> None:
        """The id depends on the place, not on slashes, and differs between places."""
        assert normalised("s3://bucket//a///b/") == "s3://bucket/a/b"
        assert normalised("file:////tmp//a/") == "file:///tmp/a"
        assert root_id("s3://bucket/a/") == root_id("s3://bucket//a")
        assert len({root_id(url) for url in ("s3://bucket/a", "s3://bucket/a/b", "memory://bucket/a")}) == 3

    def test_an_id_is_the_same_on_every_machine(self) -> None:
        """Folders that an older version named are found again."""
        assert root_id("s3://bucket/prefix") == "9737a7d8f5fcd8b8"

    def test_a_memory_store_without_a_name_stays_where_it_is(self) -> None:
        """It is private, so it cannot be sent elsewhere."""
        MemoryStore().put_if_absent("log/1", b"")
        assert MemoryStore().list("") == []
        with pytest.raises(TypeError):
            pickle.dumps(MemoryStore())


@pytest.fixture
def faulty() -> Iterator[FaultyStore]:
    """A faulty store with one object, and nothing scripted yet."""
    store = FaultyStore(MemoryStore())
    store.inner.put_if_absent("log/0", b"abcdef")
    return store


class TestFaultyStore:
    """The scripted faults that other tests rely on."""

    @pytest.mark.parametrize(("kind", "there"), [("answer_lost", True), ("request_lost", False), ("late", False)])
    def test_an_unclear_put(self, faulty: FaultyStore, kind: str, there: bool) -> None:
        """The caller sees the same error, whether the bytes arrived, never will, or will later."""
        faulty.script(Fault(kind))  # type: ignore[arg-type]
        with pytest.raises(UnavailableError):
            faulty.put_if_absent("log/1", b"x")
        assert faulty.exists("log/1") == there
        assert faulty.land() == ([True] if kind == "late" else [])
        assert faulty.put_if_absent("log/1", b"y") == (kind == "request_lost")

    @pytest.mark.parametrize(("kind", "data"), [("truncated", b"abc"), ("flipped", b"abceef"), ("missing", None)])
    def test_a_damaged_get(self, faulty: FaultyStore, kind: str, data: bytes | None) -> None:
        """One get is damaged, the next is whole."""
        faulty.script(Fault(kind, name="log/"))  # type: ignore[arg-type]
        assert [faulty.get("log/0"), faulty.get("log/0")] == [data, b"abcdef"]

    def test_a_fault_befalls_the_calls_it_names(self, faulty: FaultyStore) -> None:
        """Method, name, how many first and how many then are all heeded."""
        faulty.script(Fault("unavailable", method="get", name="log/", skip=1, times=2))
        outcomes = []
        for name in ("log/0", "other", "log/0", "log/0", "log/0"):
            assert faulty.exists("log/0")
            try:
                outcomes.append(faulty.get(name))
            except UnavailableError:
                outcomes.append(b"failed")
        assert outcomes == [b"abcdef", None, b"failed", b"failed", b"abcdef"]
        assert faulty.calls[:2] == [("head", "log/0"), ("get", "log/0")]

    def test_a_slow_call_waits_and_works(self) -> None:
        """It waits with the given clock, not the machine's."""
        waited: list[float] = []
        store = FaultyStore(MemoryStore(), [Fault("slow", seconds=30)], sleep=waited.append)
        assert store.put_if_absent("log/1", b"")
        assert waited == [30]

    def test_heal_ends_the_script(self, faulty: FaultyStore) -> None:
        """After it everything goes through."""
        faulty.script(Fault("unavailable", times=None))
        with pytest.raises(UnavailableError):
            faulty.list("")
        faulty.heal()
        assert faulty.list("") == ["log/0"]

    def test_a_fault_that_cannot_be_is_refused(self) -> None:
        """A script that would never happen is a mistake in the test."""
        with pytest.raises(ConfigError):
            Fault("truncated", method="put")
