"""The contract of every object store: memory, files, S3, GCS and Azure."""

from __future__ import annotations

import contextlib
import os
import pickle
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.state.objects.azure import AzureStore
from riffle_spark.state.objects.http_store import HttpStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import ObjectStore, TaggedObject
from tests.kit.servers.object_server import ObjectServer

BODY = bytes(range(256))
SERVERS = {"s3": "object_server", "gcs": "gcs_server", "azure": "azure_server"}
STRANGE_NAMES = ["a b/c+d", "a%20b", "key=ü&x/é", "<tag>/'quoted\"", "log;v/#1?x=y", "~/a\\b"]


REMOTE = [pytest.param(name, marks=pytest.mark.cluster) for name in ("s3", "gcs", "azure")]


@pytest.fixture(params=["memory", "file", *REMOTE])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """Return a function that opens the same root at each call. The root is empty at first."""
    if request.param in SERVERS:
        server = request.getfixturevalue(SERVERS[request.param])
        url, options = server.new_root(), server.options
    else:
        url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/root"
        options = StoreOptions()
    return lambda: open_store(url, options)


@pytest.fixture
def store(opened: Callable[[], ObjectStore]) -> ObjectStore:
    """Return a store on an empty root."""
    return opened()


def is_kept(store: ObjectStore, name: str) -> bool:
    """Return whether a store keeps a name unchanged."""
    return "\\" not in name or not isinstance(store, AzureStore)


def _refuse(_: bytes) -> None:
    raise MemoryError


class TestEveryStore:
    """The contract of ``ObjectStore``."""

    def test_folders_are_listed_without_their_contents(self, store: ObjectStore) -> None:
        """Each folder below the root or a folder is listed once, without objects and nested folders."""
        assert list(store.list_folders()) == []
        for name in ("status.json", "log/1", "log/2", "query=a b/log/1", "query=a b/delta/7/x", "z/y/x"):
            store.put_if_absent(name, BODY)
        assert list(store.list_folders()) == ["log", "query=a b", "z"]
        assert list(store.list_folders("query=a b/")) == ["delta", "log"]
        assert list(store.list_folders("log/")) == []

    @pytest.mark.parametrize("size", [0, 1, 10_000_000])
    def test_an_object_of_any_size_is_read_unchanged(self, store: ObjectStore, size: int) -> None:
        """An object of zero, one or ten million bytes is read as it was written."""
        data = (BODY * (size // 256 + 1))[:size]
        assert store.put_if_absent("log/1", data)
        assert store.get("log/1") == data

    def test_the_first_put_wins(self, opened: Callable[[], ObjectStore]) -> None:
        """A second put of a name returns False and changes nothing, whichever store sends it."""
        assert opened().put_if_absent("log/1", b"first")
        assert not opened().put_if_absent("log/1", b"second")
        assert opened().get("log/1") == b"first"

    def test_calls_on_an_empty_root_raise_no_error(self, store: ObjectStore) -> None:
        """Calls on an empty root find nothing and raise no error."""
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
    def test_a_ranged_get_returns_a_slice_of_the_object(
        self, store: ObjectStore, start: int, length: int | None
    ) -> None:
        """A ranged get returns the slice of the object."""
        store.put_if_absent("delta/1", BODY)
        assert store.get("delta/1", start, length) == BODY[start : None if length is None else start + length]

    @pytest.mark.parametrize(("start", "length"), [(0, 700_000), (3, 300_000), (699_999, 5), (700_000, 1), (9, 0)])
    def test_a_range_is_copied_in_pieces(self, store: ObjectStore, start: int, length: int) -> None:
        """A range that is copied piece by piece equals the range of a get, and the copy returns its length."""
        data = (BODY * 2735)[:700_000]
        store.put_if_absent("snap/1", data)
        pieces: list[bytes] = []
        expected = data[start : start + length]
        assert store.copy_to("snap/1", start, length, pieces.append) == len(expected)
        assert b"".join(pieces) == expected

    def test_a_copy_of_a_missing_object_writes_nothing(self, store: ObjectStore) -> None:
        """A copy of a missing object returns None and writes nothing."""
        pieces: list[bytes] = []
        assert store.copy_to("snap/1", 0, 9, pieces.append) is None
        assert store.copy_to("snap/1", 0, 0, pieces.append) is None
        assert pieces == []

    def test_an_error_of_the_writer_ends_a_copy(self, store: ObjectStore) -> None:
        """An error of the writer ends a copy without another request."""
        store.put_if_absent("snap/1", BODY)
        with pytest.raises(MemoryError):
            store.copy_to("snap/1", 0, 256, _refuse)
        assert store.requests["get"] == 1

    def test_a_range_of_an_empty_object_is_empty(self, store: ObjectStore) -> None:
        """Every range of an empty object is empty, and the object exists."""
        store.put_if_absent("delta/1", b"")
        assert store.exists("delta/1")
        assert [store.get("delta/1"), store.get("delta/1", 0, 9), store.get("delta/1", 9)] == [b"", b"", b""]

    def test_list_returns_the_names_with_a_prefix_in_order(self, store: ObjectStore) -> None:
        """A list returns all names with any prefix, sorted as strings."""
        names = ["a", "ab/c", "ab/c-d", "ab-c", "b/1/2/3", "b/1/20", "b/10"]
        for name in reversed(names):
            store.put_if_absent(name, b"")
        for prefix in ("", "a", "ab", "ab/", "ab/c", "b/1", "b/1/", "b/1/2", "b/1/2/", "c", "c/d"):
            assert store.list(prefix) == sorted(name for name in names if name.startswith(prefix)), prefix

    def test_names_may_contain_any_printable_character(self, store: ObjectStore) -> None:
        """Names may contain characters that are special in URLs or XML. Only Azure cannot keep a backslash."""
        names = [name for name in STRANGE_NAMES if is_kept(store, name)]
        for name in names:
            assert store.put_if_absent(name, name.encode())
        assert store.list("") == sorted(names)
        assert [store.get(name) for name in names] == [name.encode() for name in names]
        store.delete(names)
        assert store.list("") == []

    def test_a_deleted_name_can_be_put_again(self, store: ObjectStore) -> None:
        """A delete removes only the given names, and a deleted name can be put again."""
        for name in ("log/1", "log/2", "log/20"):
            store.put_if_absent(name, b"old")
        store.delete(["log/2", "log/3", "log/2"])
        assert store.list("") == ["log/1", "log/20"]
        assert store.put_if_absent("log/2", b"new")
        assert store.get("log/2") == b"new"

    @pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "../a", "a/../../b", "a/.b", "a\nb", "a\0b"])
    def test_a_name_that_could_leave_the_root_is_refused(self, store: ObjectStore, name: str) -> None:
        """Every call refuses a name that could leave the root, and sends no request."""
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
        """A negative start or length is refused."""
        with pytest.raises(ConfigError):
            store.get("log/1", start, length)

    def test_every_call_is_one_counted_request(self, store: ObjectStore) -> None:
        """Every call counts one request of its kind, whether it finds an object or not."""
        for _ in range(2):
            store.put_if_absent("log/1", b"abc")
        for name in ("log/1", "log/2", "log/3"):
            store.get(name, 1, 1)
        for _ in range(4):
            store.exists("log/1")
        store.list("log/")
        store.delete(["log/1", "log/2"])
        has_bulk_delete = not isinstance(store, HttpStore)
        deletes = 1 if has_bulk_delete else 2
        assert store.requests == {"put": 2, "get": 3, "head": 4, "list": 1, "delete": deletes}

    def test_a_pickled_store_reaches_the_same_objects(self, store: ObjectStore) -> None:
        """A pickled store is small, reaches the same objects, and starts to count from zero."""
        store.put_if_absent("log/1", b"abc")
        pickled = pickle.dumps(store)
        copy: ObjectStore = pickle.loads(pickled)
        assert len(pickled) < 500
        assert not any(copy.requests.values())
        assert copy.get("log/1") == b"abc"
        assert store.requests["get"] == 0

    def test_threads_share_a_store(self, store: ObjectStore) -> None:
        """Concurrent threads lose no object and no count."""
        names = [f"delta/{number}" for number in range(40)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda name: store.put_if_absent(name, name.encode()), names))
            assert list(pool.map(store.get, names)) == [name.encode() for name in names]
        assert store.requests["put"] == store.requests["get"] == 40

    def test_one_of_many_concurrent_puts_succeeds(
        self, opened: Callable[[], ObjectStore], request: pytest.FixtureRequest
    ) -> None:
        """Exactly one of many concurrent puts returns True, and its bytes are stored."""
        if "s3" in request.node.callspec.id:
            pytest.skip("the test server checks and writes in two steps, S3 in one")
        stores = [opened() for _ in range(8)]
        for number in range(25):
            name = f"log/{number}"
            with ThreadPoolExecutor(8) as pool:
                won = list(pool.map(lambda i, n=name: stores[i].put_if_absent(n, b"%d" % i), range(8)))
            assert sum(won) == 1
            assert stores[0].get(name) == b"%d" % won.index(True)


class TestReplacedObjects:
    """The contract for the few objects that are replaced: reads with a tag, and compare-and-swap."""

    def test_a_conditional_read_returns_bytes_only_if_the_object_changed(self, store: ObjectStore) -> None:
        """A conditional read of an unchanged object returns no bytes, and of a missing object returns None."""
        assert store.get_if_changed("requests.json") is None
        assert store.get_if_changed("requests.json", "some tag") is None
        store.put_if_absent("requests.json", b"first")
        read = store.get_if_changed("requests.json")
        assert read is not None
        assert read.data == b"first"
        assert store.get_if_changed("requests.json", read.tag) == TaggedObject(None, read.tag)
        replaced = store.replace_if_unchanged("requests.json", b"second", read.tag)
        assert replaced is not None
        changed = store.get_if_changed("requests.json", read.tag)
        assert changed is not None
        assert (changed.data, changed.tag != read.tag) == (b"second", True)
        assert replaced == TaggedObject(None, changed.tag)
        assert store.replace_if_unchanged("requests.json", b"second", replaced.tag)
        assert store.get("requests.json") == b"second"

    def test_a_replacement_with_an_outdated_tag_changes_nothing(self, opened: Callable[[], ObjectStore]) -> None:
        """A replacement with an outdated tag, or of a deleted object, changes nothing."""
        opened().put_if_absent("requests.json", b"first")
        read = opened().get_if_changed("requests.json")
        assert read is not None
        assert opened().replace_if_unchanged("requests.json", b"second", read.tag)
        assert not opened().replace_if_unchanged("requests.json", b"third", read.tag)
        assert opened().get("requests.json") == b"second"
        newest = opened().get_if_changed("requests.json")
        assert newest is not None
        opened().delete(["requests.json"])
        assert not opened().replace_if_unchanged("requests.json", b"fourth", newest.tag)
        assert opened().list("") == []

    def test_every_call_is_one_counted_request(self, store: ObjectStore) -> None:
        """Conditional reads and replacements count one request each, whatever their outcome."""
        store.get_if_changed("requests.json")
        store.put_if_absent("requests.json", b"first")
        read = store.get_if_changed("requests.json")
        assert read is not None
        store.get_if_changed("requests.json", read.tag)
        assert store.replace_if_unchanged("requests.json", b"second", read.tag)
        assert not store.replace_if_unchanged("requests.json", b"third", read.tag)
        assert store.requests == {"put": 3, "get": 3, "head": 0, "list": 0, "delete": 0}

    @pytest.mark.parametrize("name", ["", "/a", "../a", "a/.b"])
    def test_a_name_that_could_leave_the_root_is_refused(self, store: ObjectStore, name: str) -> None:
        """Conditional reads and replacements refuse a name that could leave the root, and send no request."""
        calls: list[Callable[[], object]] = [
            lambda: store.get_if_changed(name),
            lambda: store.replace_if_unchanged(name, b"", "tag"),
        ]
        for call in calls:
            with pytest.raises(ConfigError):
                call()
        assert not any(store.requests.values())

    def test_one_of_many_concurrent_replacements_succeeds(
        self, opened: Callable[[], ObjectStore], request: pytest.FixtureRequest
    ) -> None:
        """Exactly one of eight concurrent replacements succeeds, and its bytes are stored."""
        if "s3" in request.node.callspec.id:
            pytest.skip("the test server checks and writes in two steps; test_cloud_servers uses one that does not")
        stores = [opened() for _ in range(8)]
        stores[0].put_if_absent("requests.json", b"start")
        for _ in range(10):
            read = stores[0].get_if_changed("requests.json")
            assert read is not None
            with ThreadPoolExecutor(8) as pool:
                won = list(
                    pool.map(
                        lambda i, tag=read.tag: bool(
                            stores[i].replace_if_unchanged("requests.json", b"%s %d" % (tag.encode(), i), tag)
                        ),
                        range(8),
                    )
                )
            assert sum(won) == 1
            assert stores[0].get("requests.json") == b"%s %d" % (read.tag.encode(), won.index(True))


@pytest.fixture
def forked(opened: Callable[[], ObjectStore], request: pytest.FixtureRequest) -> ObjectStore:
    """Return a store whose objects another process can see."""
    if "memory" in request.node.callspec.id:
        pytest.skip("memory is not shared between processes")
    return opened()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_and_its_parent_can_use_an_opened_store(forked: ObjectStore) -> None:
    """A forked child and its parent can use an opened store at the same time."""
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
    """S3 lists and deletes a thousand names per request, so 1,001 names take two requests."""
    store = open_store(object_server.new_root(), object_server.options)
    names = sorted(f"delta/{number}" for number in range(1001))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda name: store.put_if_absent(name, b""), names))
    assert store.list("delta/") == names
    store.delete(names)
    assert store.list("") == []
    assert store.requests == {"put": 1001, "get": 0, "head": 0, "list": 3, "delete": 2}
